"""Pages of the site that do not stand in `docs/`: a hook of MkDocs (`mkdocs.yml`).

A link leads where it leads in the repository. What it leads to outside `docs/` becomes a page of the site: a
document as it is, any other file as code, a folder as the list of its files. README.md is the first page, and
`site_reference.py` makes the reference.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

import site_reference
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
LINK = re.compile(r"\]\(([^)\s#]+)(#[^)\s]*)?\)")
PICTURE = ".png"
LANGUAGES = {".py": "python", ".yml": "yaml", ".service": "ini", ".socket": "ini"}  # others by their suffix
NOT_SEARCHED = "---\nsearch:\n  exclude: true\n---\n"

_origins: dict[str, Path] = {}  # of pages: the file or folder of the repository


def place_of(path: Path) -> str:
    """The page, or the file, of the site that shows a file or folder of the repository."""
    if path == ROOT / "README.md":
        return "index.md"
    if path.is_relative_to(DOCS):
        inside = path.relative_to(DOCS).as_posix()
        return f"{inside}/index.md" if path.is_dir() else inside
    inside = path.relative_to(ROOT).as_posix()
    if path.is_dir():
        return f"source/{inside}/index.md"
    if path.suffix == ".md":
        return f"project/{inside}"
    return f"source/{inside}" if path.suffix == PICTURE else f"source/{inside}.md"


def resolved(link: str, page: Path) -> Path | None:
    """What a link of a page leads to in the repository; None: nothing there."""
    if ":" in link:
        return None
    found = ((page if page.is_dir() else page.parent) / link).resolve()
    return found if found.exists() and found.is_relative_to(ROOT) else None


def text_of(path: Path) -> str:
    """The page of a file or folder, in Markdown, with links as in the repository."""
    if path.suffix == ".md":
        return path.read_text()
    name = f"# `{path.relative_to(ROOT)}`\n\n"
    if path.is_dir():
        inside = sorted(each.name for each in path.iterdir() if not each.name.startswith((".", "__py")))
        return name + "".join(f"- [`{each}`]({each})\n" for each in inside)
    language = LANGUAGES.get(path.suffix, path.suffix[1:])
    return f"{NOT_SEARCHED}\n{name}``````{language}\n{path.read_text()}``````\n"


def linked_pages(first: list[Path]) -> Iterator[Path]:
    """These, and whatever links lead to from them that is to become a page."""
    seen, waiting = set(first), list(first)
    while waiting:
        page = waiting.pop()
        yield page
        if page.suffix != ".md" and not page.is_dir():
            continue
        for link, _anchor in LINK.findall(text_of(page)):
            found = resolved(link, page)
            if found is not None and found not in seen:
                seen.add(found)
                waiting.append(found)


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Adds what links lead to, and the reference."""
    _origins.clear()
    for path in linked_pages([ROOT / "README.md", *DOCS.rglob("*.md")]):
        place = place_of(path)
        _origins[place] = path
        if files.get_file_from_path(place) is not None:
            continue
        shown = InclusionLevel.NOT_IN_NAV if place.startswith("source/") else InclusionLevel.INCLUDED
        made = {"abs_src_path": str(path)} if path.suffix == PICTURE else {"content": text_of(path)}
        files.append(File.generated(config, place, inclusion=shown, **made))
    for place, make in site_reference.PAGES.items():
        files.append(File.generated(config, place, content=make()))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Gives the links of a page their places in the site."""
    place = page.file.src_uri
    if (origin := _origins.get(place)) is None:
        return markdown

    def lead(link: re.Match[str]) -> str:
        found = resolved(link[1], origin)
        if found is None:
            return link[0]
        return f"]({posixpath.relpath(place_of(found), posixpath.dirname(place) or '.')}{link[2] or ''})"

    return LINK.sub(lead, markdown)
