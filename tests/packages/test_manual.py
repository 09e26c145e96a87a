"""The manual page has every command and option, and is roff; shells complete by the command itself."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from tidemq.cli import make_app

ROOT = Path(__file__).parents[2]
WIDTH = 300  # columns: no line of a heading is broken


@pytest.fixture(scope="module")
def manual(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("manual")
    subprocess.run([sys.executable, ROOT / "tools/manual.py", folder], check=True)
    return folder


def options(command: Any, path: str = "tidemq") -> Iterator[tuple[str, set[str]]]:
    """Each command by its whole name, with the names of its options."""
    names = {name for each in command.params if not each.hidden for name in each.opts + each.secondary_opts}
    yield path, {name for name in names if name.startswith("-")} | {"--help"}
    for name, inner in getattr(command, "commands", {}).items():
        yield from options(inner, f"{path} {name}")


def test_the_page_has_every_command_with_its_options(
    manual: Path, install: Callable[[str, str], None]
) -> None:
    install("groff", "groff-base")
    done = subprocess.run(
        ["groff", "-ww", "-man", "-Tutf8", "-P-cbou", f"-rLL={WIDTH}n", manual / "tidemq.1"],
        capture_output=True,
        text=True,
    )
    assert (done.returncode, done.stderr) == (0, "")
    text = done.stdout.replace("\N{HYPHEN}", "-").replace("\N{MINUS SIGN}", "-")
    wanted = dict(options(typer.main.get_command(make_app())))
    assert len(wanted) > 50
    del wanted["tidemq"]
    for path, names in wanted.items():
        found = re.search(rf"^   {path} \[OPTIONS\].*\n(?:(?:       .*)?\n)*", text, re.MULTILINE)
        assert found, path
        missing = {name for name in names if not re.search(rf"(?<![\w-]){name}(?![\w-])", found[0])}
        assert not missing, path
    assert "TideMQ" in text
    assert "\\" not in text.replace("\\n", "")  # nothing was left of an escape


def complete(script: Path, line: str, environment: dict[str, str]) -> list[str]:
    """What bash offers at the end of a line, by the function that the script gives it."""
    words = " ".join(f"'{word}'" for word in line.split(" "))
    program = (
        f"source {script}; COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1)); "
        'function=$(complete -p tidemq | sed "s/.*-F \\([^ ]*\\).*/\\1/"); '
        '"$function" tidemq; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(["bash", "-c", program], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, ""), done
    return done.stdout.split()


@pytest.fixture
def environment() -> dict[str, str]:
    """In which `tidemq` is this one's."""
    return os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def test_bash_completes_commands_and_options(manual: Path, environment: dict[str, str]) -> None:
    script = manual / "tidemq.bash"
    assert complete(script, "tidemq st", environment) == ["store", "stream"]
    assert complete(script, "tidemq store mi", environment) == ["migrate"]
    assert complete(script, "tidemq serve --store", environment) == ["--store", "--store-strict"]
    assert complete(script, "tidemq pub --will-q", environment) == ["--will-qos"]


@pytest.mark.parametrize(
    ("shell", "line", "more", "answer"),
    [
        ("zsh", "tidemq store mi", {}, r"_arguments .*\"migrate\""),
        ("fish", "tidemq store mi", {"_TYPER_COMPLETE_FISH_ACTION": "get-args"}, r"migrate\t.*"),
    ],
)
def test_other_shells_are_answered(
    shell: str, line: str, more: dict[str, str], answer: str, environment: dict[str, str]
) -> None:
    asked = {"_TIDEMQ_COMPLETE": f"complete_{shell}", "_TYPER_COMPLETE_ARGS": line} | more
    done = subprocess.run(["tidemq"], capture_output=True, text=True, env=environment | asked)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.match(answer, done.stdout), done.stdout


def test_the_files_are_what_the_command_shows(manual: Path, environment: dict[str, str]) -> None:
    """A shell asks; its name is found by the process that the command is a child of."""
    line = "tidemq --show-completion; exit $?"  # two commands: else bash would become the first
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, env=environment)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.strip() == (manual / "tidemq.bash").read_text().strip()


@pytest.mark.long
@pytest.mark.parametrize("shell", ["zsh", "fish"])
def test_the_other_shells_take_their_files(
    shell: str, manual: Path, environment: dict[str, str], install: Callable[[str, str], None]
) -> None:
    install(shell, shell)
    script = manual / {"zsh": "_tidemq", "fish": "tidemq.fish"}[shell]
    subprocess.run([shell, "-n", script], check=True)
    if shell == "fish":  # zsh completes on a terminal only
        line = f"source {script}; complete --do-complete 'tidemq store mi'"
        done = subprocess.run(["fish", "-c", line], capture_output=True, text=True, env=environment)
        assert done.stdout.split("\t")[0] == "migrate", done
