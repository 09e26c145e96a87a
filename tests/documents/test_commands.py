"""The commands of README, tutorial and how-tos do what the pages say, in an empty folder and environment.

With what is installed where the tests run; in a long test the tutorial with what its commands install.
The README's begin with `make`, which has set up where the tests run.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import sysconfig
from pathlib import Path

import pytest
from documents.conftest import Read
from documents.terminals import BLOCK

ROOT = Path(__file__).parents[2]
PAGES = ["docs/tutorial.md", "docs/how-to/backup.md"]
INSTALL_S = 1500.0
BUILT = ("Makefile", "setup.py", "README.md", "LICENSE", "build")

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
    """In a folder that has what the repository has; nothing is to be compiled or installed any more. What
    `make serve` would put among the sources goes to a copy: other tests run meanwhile.
    """
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    for name in BUILT:
        (tmp_path / name).symlink_to(ROOT / name)
    (tmp_path / ".venv").symlink_to(sys.prefix)
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    os.utime(tmp_path / "pyproject.toml", (0, 0))  # the environment is not made again, whoever made it
    page = tmp_path / "page.md"
    page.write_text(readme_page())
    read(page, tmp_path)


@pytest.mark.long
@pytest.mark.timeout(2 * INSTALL_S)
def test_the_commands_of_the_tutorial_from_the_beginning(
    tmp_path: Path, read: Read, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Into an environment that the page makes; what is compiled already is not compiled again, because it is
    built by the same Cython.
    """
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "tidemq").symlink_to(ROOT)
    (tmp_path / "builders").mkdir()
    for pattern in ("Cython*", "cython*", "setuptools*"):
        for package in Path(sysconfig.get_path("purelib")).glob(pattern):
            (tmp_path / "builders" / package.name).symlink_to(package)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "builders"))
    monkeypatch.setenv("PIP_NO_BUILD_ISOLATION", "0")  # which says that there is none
    page = ROOT / "docs/tutorial.md"
    read(page, tmp_path, part="install", wait_s=INSTALL_S)
    assert not (tmp_path / "venv/bin/pytest").exists()
    read(page, tmp_path)
