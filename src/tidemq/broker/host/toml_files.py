"""Files in TOML beside the configuration: read whole, bounded, and checked by a model."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TypeVar

from pydantic import BaseModel, ValidationError

from tidemq.broker.host.watched_files import read_small_file
from tidemq.config import refused

M = TypeVar("M", bound=BaseModel)


def read_toml(path: Path, model: type[M], accepted: str, bytes_max: int) -> M:
    """What the file says. ConfigError names the file and its key, or where it is no TOML the line, and says
    what would be `accepted`.
    """
    data = read_small_file(path, bytes_max)
    try:
        return model.model_validate(tomllib.loads(data.decode()))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"]) or "the file"
        unknown = first["type"] == "extra_forbidden"
        problem = "it is unknown" if unknown else first["msg"].removeprefix("Value error, ")
        raise refused(str(path), key, problem, [accepted]) from None
    except ValueError as error:  # no UTF-8, no TOML
        raise refused(str(path), "the file", str(error), [accepted]) from None
