"""The site of the documents builds without a warning or a network, and fetches nothing when it is read."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from documents.conftest import OWN_NETWORK

ROOT = Path(__file__).parents[2]
FETCHED = re.compile(
    r"<(?:script|img|iframe|source|link)\b[^>]*?\b(?:src|href)=[\"']?((?:https?:)?//[^\"' >]+)"
)
IN_STYLES = re.compile(r"(?:@import|url\()\s*[\"']?((?:https?:)?//[^\"') ]+)")


def build(config: Path, into: Path, *before: str) -> subprocess.CompletedProcess[str]:
    command = [*before, sys.executable, "-m", "mkdocs", "build", "--strict"]
    command += ["--config-file", str(config), "--site-dir", str(into)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # of the theme, about its successor
    return subprocess.run(command, cwd=into.parent, env=environment, capture_output=True, text=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built") / "site"
    cut_off = shutil.which("unshare") and not subprocess.run([*OWN_NETWORK, "true"]).returncode
    done = build(ROOT / "mkdocs.yml", folder, *(OWN_NETWORK if cut_off else []))
    assert done.returncode == 0, done.stderr
    return folder


def test_each_document_is_a_page(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs").with_suffix(".html")).is_file()
    assert "compiled code moves the messages" in (site / "index.html").read_text()


def test_links_to_files_of_the_repository_lead_to_pages_that_show_them(site: Path) -> None:
    architecture = (site / "project/ARCHITECTURE.html").read_text()
    assert 'href="../source/src/tidemq/engine/turn/reactor.py.html"' in architecture
    assert "run_reactor" in (site / "source/src/tidemq/engine/turn/reactor.py.html").read_text()
    assert 'href="tidemq.service.html"' in (site / "source/examples/systemd/index.html").read_text()


def test_the_reference_is_made_of_the_code(site: Path) -> None:
    configuration = (site / "reference/configuration.html").read_text()
    assert "<code>queued_messages_max</code>" in configuration
    assert "tidemq store restore" in (site / "reference/command-line.html").read_text()
    assert 'id="tidemq.client.Client.publish"' in (site / "reference/python-client.html").read_text()


def test_nothing_is_fetched_from_elsewhere(site: Path) -> None:
    pages, styles = list(site.rglob("*.html")), list(site.rglob("*.css"))
    assert len(pages) > 50
    assert styles
    for page in pages:
        text = page.read_text()
        assert not FETCHED.findall(text), page
        assert 'class="mermaid"' not in text, page  # for which the theme fetches a program
    for style in styles:
        assert not IN_STYLES.findall(style.read_text()), style


def test_a_dead_link_or_anchor_is_found(tmp_path: Path) -> None:
    """By the settings that the site has."""
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_text("# A\n\n[gone](gone.md), [nowhere](#nowhere), [here](#a)\n")
    config = tmp_path / "mkdocs.yml"
    config.write_text(f"INHERIT: {ROOT}/mkdocs.yml\ndocs_dir: docs\nhooks: []\nplugins: []\n")
    done = build(config, tmp_path / "site")
    assert done.returncode == 1
    assert "gone.md" in done.stderr
    assert "'#nowhere'" in done.stderr
    assert "'#a'" not in done.stderr
