"""TOML of plain values: texts, numbers, booleans, lists of these, tables and lists of tables.

The standard library reads TOML and does not write it; these are all forms that a configuration needs, which
is less than a dependency of the core would bring. A test reads back whatever it writes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

_BARE = re.compile(r"[A-Za-z0-9_-]+")


def write_toml(table: Mapping[str, Any]) -> str:
    """The text of a table; values that are None are left out."""
    return "\n".join(_table(table, ())).strip("\n") + "\n"


def _table(table: Mapping[str, Any], name: tuple[str, ...]) -> Iterator[str]:
    below: list[tuple[str, Any]] = []
    for key, value in table.items():
        if isinstance(value, Mapping) or _is_tables(value):
            below.append((key, value))
        elif value is not None:
            yield f"{_key(key)} = {_value(value)}"
    for key, value in below:
        path = (*name, key)
        header = ".".join(map(_key, path))
        if isinstance(value, Mapping):
            inside = [*_table(value, path)]
            yield from inside if inside[:1] == [""] else ("", f"[{header}]", *inside)
        else:
            for each in value:
                yield from ("", f"[[{header}]]", *_table(each, path))


def _is_tables(value: object) -> bool:
    return isinstance(value, list) and bool(value) and all(isinstance(each, Mapping) for each in value)


def _key(key: str) -> str:
    return key if _BARE.fullmatch(key) else _text(key)


def _value(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return _text(str(value))


def _text(text: str) -> str:
    """As JSON, whose escapes TOML has as well; but it wants one more, for DEL."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")
