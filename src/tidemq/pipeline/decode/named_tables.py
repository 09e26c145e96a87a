"""A user's file of rules: TOML, one table for each, with names that differ."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

from tidemq.errors import ConfigError
from tidemq.pipeline.toml_files import read_toml


class Named(Protocol):
    """What a table becomes."""

    @property
    def name(self) -> str: ...


T = TypeVar("T", bound=Named)


def load_named(path: Path, key: str, parse: Callable[[str, Any], T], *, least: int = 0) -> tuple[T, ...]:
    """What `parse` makes of each table `key`, given the file's name and the table; at least so many.

    ConfigError, or OSError where the file cannot be read.
    """
    given = read_toml(path)
    tables = given.get(key)
    if set(given) != {key} or not isinstance(tables, list) or len(tables) < least:
        raise ConfigError(f"{path}: accepted: tables [[{key}]], and nothing else")
    return distinct(str(path), key, [parse(str(path), table) for table in tables])


def distinct(file: str, key: str, found: Sequence[T]) -> tuple[T, ...]:
    """ConfigError where two have one name."""
    names = [each.name for each in found]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{file}: two {key} have the name {doubled[0]}; accepted: a name for each")
    return tuple(found)
