"""Where each value of a configuration came from: a flag, the environment, a line of the file, the default."""

from __future__ import annotations

import dataclasses
import json
import os
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from tidemq.config import ENVIRONMENT_PREFIX, Config, read_layers

DEFAULT = "default"
HIDDEN = "(hidden)"
_LINES_MAX = 500  # of one statement; behind a longer one no lines are looked for

Key = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Value:
    """One value in force. `text`: as JSON, or HIDDEN where it may be a secret."""

    key: str  # with dots; of a list the place, as in listeners.0.port
    text: str
    origin: str


def list_values(config: Config, path: Path | None, flags: Mapping[str, Any] | None = None) -> list[Value]:
    """Every value of `config`, which was loaded from this file and these flags, with its origin."""
    given, environment, file = read_layers(path, flags)
    lines = find_lines(path.read_text(encoding="utf-8")) if path is not None else {}
    values = []
    for key, value in _leaves(config):
        if _has(given, key):
            origin = f"flag --{str(key[0]).replace('_', '-')}"
        elif _has(environment, key):
            origin = f"environment {_variable(key)}"
        elif not _replaces(environment, key) and _has(file, key):
            origin = f"{path}:{line}" if (line := _line_of(lines, key)) else str(path)
        else:
            origin = DEFAULT
        values.append(Value(".".join(map(str, key)), _shown(key, value), origin))
    return values


def _leaves(value: object, key: Key = ()) -> Iterator[tuple[Key, object]]:
    """All values that are no tables or lists of tables, with their keys. An empty one is a value."""
    inside: list[tuple[str | int, object]] = []
    if isinstance(value, BaseModel):
        inside = [(name, getattr(value, name)) for name in type(value).model_fields]
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        inside = [(each.name, getattr(value, each.name)) for each in dataclasses.fields(value)]
    elif isinstance(value, Mapping):
        inside = list(value.items())
    elif isinstance(value, list | tuple) and any(isinstance(each, BaseModel | Mapping) for each in value):
        inside = list(enumerate(value))
    if not inside:
        yield key, value
    for name, each in inside:
        yield from _leaves(each, (*key, name))


def _has(layer: object, key: Key) -> bool:
    """Whether a layer says something of this key; of a table or a list: of something in it."""
    for part in key:
        if isinstance(layer, Mapping):
            if part not in layer:
                return False
            layer = layer[part]
        elif isinstance(layer, list | tuple) and isinstance(part, int) and part < len(layer):
            layer = layer[part]
        else:
            return False
    return True


def _replaces(layer: Mapping[str, Any], key: Key) -> bool:
    """Whether the layer has a list where the key is in one: lists are taken whole, not item by item."""
    lists = [key[:index] for index, part in enumerate(key) if isinstance(part, int)]
    return any(_has(layer, each) for each in lists)


def _variable(key: Key) -> str:
    whole = ENVIRONMENT_PREFIX + "__".join(map(str, key)).upper()
    return whole if whole in os.environ else ENVIRONMENT_PREFIX + str(key[0]).upper()


def _shown(key: Key, value: object) -> str:
    """Of a provider's options only what cannot be a secret: flags, names of files, which authenticator."""
    options = next((i for i, part in enumerate(key) if str(part).endswith("options")), None)
    if options is not None and len(key) > options + 1:
        names = key[options + 1 :]
        if names[0] == "of" and len(names) == 3:  # a member of a chain
            names = names[2:]
        plain = (len(names) == 1 and str(names[0]).endswith("file")) or names == ("authenticator",)
        if not plain and not isinstance(value, bool):
            return HIDDEN
    if value is None:
        return "none"
    return json.dumps(value, default=str, ensure_ascii=False)


def _line_of(lines: Mapping[Key, int], key: Key) -> int | None:
    """That of the key, or of the table or the list that has it on one line."""
    while key:
        if key in lines:
            return lines[key]
        key = key[:-1]
    return None


def find_lines(text: str) -> dict[Key, int]:
    """By key, the line of a TOML file on which its value begins; the file is right. Tables have theirs, too.

    A statement is what tomllib takes by itself: a header, or a key with its value, over however many lines.
    """
    lines = text.split("\n")
    found: dict[Key, int] = {}
    table: Key = ()
    counts: dict[Key, int] = {}  # of the tables in a list, by its key
    waiting: list[str] = []
    for number, line in enumerate(lines, 1):
        if not waiting and (not line.strip() or line.lstrip().startswith("#")):
            continue
        waiting.append(line)
        try:
            statement = tomllib.loads("\n".join(waiting))
        except tomllib.TOMLDecodeError:
            if len(waiting) == _LINES_MAX:
                break
            continue
        begin, waiting = number - len(waiting) + 1, []
        if line.lstrip().startswith("[") and begin == number:
            table = _enter(statement, counts, adds=line.lstrip().startswith("[["))
            found[table] = begin
            continue
        for key, _ in _leaves(statement):
            for end in range(1, len(key) + 1):
                found.setdefault((*table, *key[:end]), begin)
    return found


def _enter(header: Mapping[str, Any], counts: dict[Key, int], *, adds: bool) -> Key:
    """The key of the table that a header opens; of a list of tables the place of the last one."""
    key: Key = ()
    names = []
    inner: Any = header
    while inner:
        if isinstance(inner, list):
            inner = inner[0]
            continue
        name, inner = next(iter(inner.items()))
        names.append(name)
    for index, name in enumerate(names):
        key = (*key, name)
        if adds and index == len(names) - 1:
            counts[key] = counts.get(key, 0) + 1
        if key in counts:
            key = (*key, counts[key] - 1)
    return key
