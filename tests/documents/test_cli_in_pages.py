"""Each `tidemq` command that a page shows exists, with the options that it has there."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tidemq.cli import make_app

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", *ROOT.glob("docs/**/*.md")])
COMMAND = re.compile(r"(?<!install )(?:^|(?<=[|;&(`\s/]))(tidemq [a-z-][^`\n]*)")
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SHELLS = ("", "console", "bash", "sh")


def shown(page: Path) -> Iterator[str]:
    """Commands in blocks without a language or of a shell's, and those between backquotes."""
    text = page.read_text()
    blocks = [block for kind, block in BLOCK.findall(text) if kind.partition(" ")[0] in SHELLS]
    lines = [line.removeprefix("$ ") for block in blocks for line in block.splitlines()]
    rest = BLOCK.sub("", text)
    for code in [*lines, *re.findall(r"(?<!`)`(tidemq [^`]+)`", rest)]:
        yield from COMMAND.findall(code)


def words_of(command: str) -> list[str]:
    """Up to where the shell goes on with something else."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    words = list(lexer)
    ends = [index for index, word in enumerate(words) if set(word) <= set("|&;<>()")]
    return words[: ends[0]] if ends else words


def options_of(command: Any) -> set[str]:
    return {"--help"} | {each for one in command.params for each in (*one.opts, *one.secondary_opts)}


def wrong_in(words: list[str], command: Any) -> str:
    """The first word that is no command or option; empty: there is none."""
    for word in words:
        if word.startswith("-") and len(word) > 1:
            option = word.partition("=")[0]
            if option not in options_of(command) and not re.fullmatch(r"-\d+", option):
                return word
        elif word in (below := getattr(command, "commands", {})):
            command = below[word]
        elif below:
            return "" if word.isupper() else word  # COMMAND: any of them
    return ""


@pytest.fixture(scope="module")
def app() -> Any:
    return typer.main.get_command(make_app())


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_commands_exist(page: Path, app: Any) -> None:
    wrong = {command: word for command in shown(page) if (word := wrong_in(words_of(command)[1:], app))}
    assert not wrong


def test_commands_are_found_and_wrong_ones_too(tmp_path: Path, app: Any) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ echo x | tidemq pub -t a --qso 1 # y\n```\n`tidemq admin clientz`\n")
    assert [wrong_in(words_of(each)[1:], app) for each in shown(page)] == ["--qso", "clientz"]
