"""The commands of README, tutorial and how-tos do what the pages say, in an empty folder and environment.

Short: with what is installed where the tests run. Long: in an environment that the page's commands make.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documents.conftest import Read
from documents.terminals import BLOCK

ROOT = Path(__file__).parents[2]
PAGES = ["docs/tutorial.md", "docs/how-to/backup.md"]
LONG_S = 1500.0
BUILT = ("Makefile", "setup.py", "README.md", "LICENSE", "src", "build")

pytestmark = pytest.mark.timeout(600)


def installed_at(folder: Path) -> None:
    """The environment of the tests, where a page would have made one."""
    (folder / "venv").symlink_to(sys.prefix)


def readme_page() -> str:
    """The README's first screen, with its terminals and what it says the subscriber prints."""
    text = (ROOT / "README.md").read_text()
    blocks = [block for kind, _title, block in BLOCK.findall(text) if not kind]
    serve, subscribe, publish, *others = blocks
    assert [each.split()[:2] for each in others] == [["make", "demo"]]  # which test_lake runs
    (printed,) = re.findall(r"The subscriber prints `([^`]+)`", text)
    steps = [("broker", serve), ("subscriber", subscribe), ("", publish)]
    typed = "".join(f'```console title="{name}"\n$ {block}```\n' for name, block in steps)
    typed = typed.replace(' title=""', "")
    seen = f'```console title="subscriber"\n{printed}\n^C\n```\n```console title="broker"\n^C\n```\n'
    return typed + seen


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page(page: str, tmp_path: Path, read: Read) -> None:
    installed_at(tmp_path)
    read(ROOT / page, tmp_path)


def test_the_commands_of_the_readme(tmp_path: Path, read: Read) -> None:
    """In a folder that has what the repository has; nothing is to be compiled or installed any more."""
    for name in BUILT:
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    os.utime(tmp_path / "pyproject.toml", (0, 0))  # the environment is not made again, whoever made it
    page = tmp_path / "page.md"
    page.write_text(readme_page())
    read(page, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(2 * LONG_S)
def test_the_commands_of_the_tutorial_from_the_beginning(tmp_path: Path, read: Read) -> None:
    """Into an environment that the page makes; what is compiled already is not compiled again."""
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "tidemq").symlink_to(ROOT)
    page = ROOT / "docs/tutorial.md"
    read(page, tmp_path, part="install", wait_s=LONG_S)
    assert not (tmp_path / "venv/bin/pytest").exists()
    read(page, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(2 * LONG_S)
def test_the_commands_of_the_readme_from_the_beginning(tmp_path: Path, read: Read) -> None:
    """In a clone; with what was compiled, because that takes a quarter of an hour. `make serve` would set up
    what it needs, but in a network of its own it could not.
    """
    tracked = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True)
    for name in [each for each in tracked.stdout.split("\0") if each]:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(ROOT / name, tmp_path / name)
    for compiled in ("cython", "objects", "lib"):
        shutil.copytree(ROOT / "build" / compiled, tmp_path / "build" / compiled)
    page = tmp_path / "page.md"
    page.write_text('```console title="install"\n$ make setup\n```\n' + readme_page())
    read(page, tmp_path, part="install", wait_s=LONG_S)
    read(page, tmp_path)
