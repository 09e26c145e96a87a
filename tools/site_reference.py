"""The reference pages of the site, made from the code: configuration, command line, Python."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import io
import json
import textwrap
import tokenize
from collections.abc import Callable, Iterator
from typing import Annotated, Any, get_args

import typer
from pydantic import BaseModel, TypeAdapter

from tidemq.cli import make_app
from tidemq.config import ENVIRONMENT_PREFIX, LIMIT_RANGES, Config
from tidemq.limits import CHANGEABLE, Limits

HELP_COLUMNS = 100
PYTHON = {
    "tidemq": ["tidemq"],
    "client": ["tidemq.client", "tidemq.client.sync", "tidemq.client.exactly_once"],
    "streams": ["tidemq.client.streams", "tidemq.client.stream_admin"],
    "testing": ["tidemq.testing"],
}


def remarks(kind: type) -> dict[str, str]:
    """What the source says behind each field of a class."""
    source = textwrap.dedent(inspect.getsource(kind))
    said = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    (body,) = ast.parse(source).body
    assert isinstance(body, ast.ClassDef)
    found = {}
    for node in body.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            lines = range(node.lineno, (node.end_lineno or node.lineno) + 1)
            found[node.target.id] = " ".join(said[line] for line in lines if line in said)
    return found


def models_in(kind: Any) -> Iterator[type[BaseModel]]:
    """The tables that a value of this type has in it."""
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        yield kind
        for field in kind.model_fields.values():
            yield from models_in(field.annotation)
    for part in get_args(kind):
        yield from models_in(part)


def accepted(schema: dict[str, Any]) -> str:
    """A type and its bounds, in words."""
    if "anyOf" in schema:
        return " or ".join(accepted(each) for each in schema["anyOf"])
    if "$ref" in schema:
        return f"a table, `{schema['$ref'].rpartition('/')[2]}`"
    if "enum" in schema:
        return ", ".join(f"`{each}`" for each in schema["enum"])
    match schema.get("type"):
        case "integer" | "number" as kind:
            low = schema.get("minimum", f"above {schema.get('exclusiveMinimum')}")
            return f"{kind}, {low} to {schema['maximum']}" if "maximum" in schema else kind
        case "boolean":
            return "true or false"
        case "array":
            return f"list of: {accepted(schema.get('items', {}))}"
        case "object":
            return "table"
        case "string":
            pattern = schema.get("pattern", "").replace("|", r"\|")
            return f"text, `{pattern}`" if pattern else schema.get("format", "text")
        case "null":
            return "nothing"
    return "anything"


def row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |\n"


def table_of(model: type[BaseModel], *, with_variables: bool = False) -> str:
    """A row for each key."""
    heads = ["key", "default", "accepted", *(["environment"] if with_variables else []), "remark"]
    said = remarks(model)
    rows = [row(*heads), row(*(["---"] * len(heads)))]
    for name, field in model.model_fields.items():
        if name == "limits":
            continue
        kind: Any = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        default = "required" if field.is_required() else f"`{json.dumps(field.default, default=str)}`"
        variable = [f"`{ENVIRONMENT_PREFIX}{name.upper()}`"] if with_variables else []
        cells = [f"`{name}`", default, accepted(TypeAdapter(kind).json_schema()), *variable]
        rows.append(row(*cells, said.get(name, "").replace("|", r"\|")))
    return "".join(rows)


def configuration() -> str:
    """Every key of the file, by the models that read it."""
    parts = [
        "# Configuration keys\n\nMade from the code. What each is for, with examples, is in "
        "[configuration](../configuration.md).\n\n",
        f"## The file\n\n{table_of(Config, with_variables=True)}",
    ]
    models = dict.fromkeys(model for model in models_in(Config) if model is not Config)
    parts += [f"\n## {each.__name__}\n\n{inspect.getdoc(each)}\n\n{table_of(each)}" for each in models]
    said = remarks(Limits)
    parts.append("\n## limits\n\n" + row("key", "default", "accepted", "changes while it runs", "remark"))
    parts.append(row(*(["---"] * 5)))
    for field in dataclasses.fields(Limits):
        low, high = LIMIT_RANGES[field.name]
        changes = "yes" if field.name in CHANGEABLE else ""
        parts.append(
            row(f"`{field.name}`", f"`{field.default}`", f"{low} to {high}", changes, said[field.name])
        )
    return "".join(parts)


def commands_of(command: Any, name: str, above: Any = None) -> Iterator[tuple[str, str]]:
    """Each command by its whole name, with the text of its --help."""
    context = command.context_class(command, info_name=name, parent=above, terminal_width=HELP_COLUMNS)
    yield context.command_path, command.get_help(context)
    for each, below in getattr(command, "commands", {}).items():
        if not below.hidden:
            yield from commands_of(below, each, context)


def command_line() -> str:
    """The help of every command."""
    found = commands_of(typer.main.get_command(make_app()), "tidemq")
    parts = [f"## {name}\n\n```text\n{text.strip()}\n```\n" for name, text in found]
    return "# Command line\n\nMade from the code: what `--help` says.\n\n" + "\n".join(parts)


def python(modules: list[str]) -> Callable[[], str]:
    """A page on the public names of modules, which mkdocstrings fills."""
    return lambda: f"# {modules[0]}\n\n" + "\n".join(f"::: {each}\n" for each in modules)


PAGES: dict[str, Callable[[], str]] = {
    "reference/configuration.md": configuration,
    "reference/command-line.md": command_line,
    **{f"reference/python-{name}.md": python(modules) for name, modules in PYTHON.items()},
}
