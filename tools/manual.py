"""Writes the manual page of `tidemq` and its completion for shells, made of the command itself.

    manual.py DIR

DIR/tidemq.1 is the page; DIR/tidemq.bash, DIR/_tidemq (zsh) and DIR/tidemq.fish are what `tidemq
--show-completion` prints.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer._completion_shared import get_completion_script

import tidemq
from tidemq.cli import make_app

COMPLETIONS = {"bash": "tidemq.bash", "zsh": "_tidemq", "fish": "tidemq.fish"}

FILES = {
    "/etc/tidemq/tidemq.toml": "The configuration of the Debian package's service.",
    "/var/lib/tidemq": "The data of that service.",
    "tidemq-data": "The data directory where none is named.",
}
EXIT_STATUS = {
    "0": "What was asked for is done; of serve: a signal ended it.",
    "1": "It failed. Of pub and sub also: the command line is wrong.",
    "2": "The command line or the configuration is wrong; of store: it cannot be opened, read or written.",
    "27": "Of sub: the time of -W is over.",
}


def escape(text: str) -> str:
    """Text as roff takes it: nothing in it is a request or an escape."""
    text = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("^", "\\(ha")
    text = text.replace("~", "\\(ti").replace("`", "\\(ga")
    return "\n".join(f"\\&{line}" if line.startswith(".") else line for line in text.splitlines())


def paragraphs(text: str) -> Iterator[str]:
    """Help as it stands in the code, in paragraphs."""
    for number, each in enumerate(inspect.cleandoc(text).split("\n\n")):
        if number:
            yield ".PP"
        yield escape(" ".join(each.split()))


def commands(command: Any, context: Any) -> Iterator[tuple[Any, Any]]:
    """Each command that does something, with its context, in the order of the help."""
    inner = getattr(command, "commands", None)
    if inner is None:
        yield command, context
        return
    for name, each in inner.items():
        if not each.hidden:
            yield from commands(each, typer.Context(each, info_name=name, parent=context))


def options(command: Any, context: Any) -> Iterator[str]:
    """A tagged paragraph for each option and argument."""
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is None:  # an argument without help
            record = (parameter.make_metavar(context), "")
        yield ".TP"
        yield f"\\fB{escape(record[0])}\\fR"
        yield escape(record[1]) or "\\&"


def section(command: Any, context: Any) -> Iterator[str]:
    """A command: how it is called, what it does, its options."""
    usage = command.collect_usage_pieces(context)
    yield f".SS {escape(' '.join([context.command_path, *usage]))}"
    yield from paragraphs(command.help or "")
    yield from options(command, context)


def page() -> str:
    """The manual page; man(7) says what the requests are."""
    root: Any = typer.main.get_command(make_app())
    context = typer.Context(root, info_name="tidemq")
    lines = [f'.TH TIDEMQ 1 "" "TideMQ {tidemq.__version__}" "User Commands"', ".SH NAME"]
    lines += ["tidemq \\- MQTT broker, its tools, a publisher and a subscriber", ".SH SYNOPSIS"]
    lines += ["\\fBtidemq\\fR \\fICOMMAND\\fR [\\fIOPTIONS\\fR] [\\fIARGUMENTS\\fR]", ".SH DESCRIPTION"]
    lines += [*paragraphs(root.help or ""), ".SH OPTIONS", *options(root, context), ".SH COMMANDS"]
    groups_seen = set()
    for command, inner in commands(root, context):
        group = inner.parent
        if group is not context and group.info_name not in groups_seen:
            groups_seen.add(group.info_name)
            lines += section(group.command, group)
        lines += section(command, inner)
    lines += [
        ".SH ENVIRONMENT",
        "TIDEMQ_CONFIG names the file of serve, TIDEMQ_\\fIKEY\\fR sets a key of it.",
    ]
    for title, table in (("FILES", FILES), ("EXIT STATUS", EXIT_STATUS)):
        lines.append(f".SH {title}")
        for name, text in table.items():
            lines += [".TP", f"\\fB{escape(name)}\\fR", escape(text)]
    lines += [".SH SEE ALSO", "mosquitto_pub(1), mosquitto_sub(1), whose options pub and sub take"]
    return "\n".join(lines) + "\n"


def completion(shell: str) -> str:
    """What `tidemq --show-completion` prints in that shell."""
    return get_completion_script(prog_name="tidemq", complete_var="_TIDEMQ_COMPLETE", shell=shell) + "\n"


def main() -> None:
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tidemq.1").write_text(page())
    for shell, name in COMPLETIONS.items():
        (folder / name).write_text(completion(shell))


if __name__ == "__main__":
    main()
