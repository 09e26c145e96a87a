"""Users' files in TOML."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

from tidemq.errors import ConfigError


def read_toml(path: Path) -> dict[str, Any]:
    """ConfigError where it is no TOML, OSError where it cannot be read."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: it is no TOML: {error}") from error


def read_section(path: Path, name: str) -> dict[str, Any]:
    """One section; ConfigError, too, where there is none."""
    if not isinstance(found := read_toml(path).get(name), dict):
        raise ConfigError(f"{path} has no section {name}; accepted: one with names and texts")
    return found
