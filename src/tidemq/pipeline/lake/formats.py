"""In which format tables are, as users say it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidemq.errors import ConfigError, UsageError
from tidemq.pipeline.lake.delta_log import DELTA
from tidemq.pipeline.lake.table_log import TableFormat
from tidemq.pipeline.toml_files import read_section

FORMATS = ("delta", "iceberg")


def load_format(name: str, catalog: Path | None) -> TableFormat:
    """Of the options of a command: `catalog` is a file with a section `catalog`.

    UsageError for another format, or a catalogue where none is needed; ConfigError for what the file says,
    OSError where it cannot be read.
    """
    if name not in FORMATS:
        raise UsageError(f"--format is {name!r}; accepted: {', '.join(FORMATS)}")
    if catalog and name != "iceberg":
        raise UsageError("--catalog is for tables of Iceberg alone; accepted: with it --format iceberg")
    return parse_format(name, read_section(catalog, "catalog") if catalog else {}, str(catalog))


def parse_format(name: str, catalog: Mapping[str, Any], origin: str) -> TableFormat:
    """ConfigError for a property of the catalogue that is no text, or a catalogue where none is needed; for
    Iceberg ImportError, where `tidemq[iceberg]` is not installed.
    """
    for key, value in catalog.items():
        if not isinstance(value, str):
            raise ConfigError(f"{origin}: catalog.{key} is not text; accepted: text in quotes")
    if name == "delta":
        if catalog:
            raise ConfigError(f'{origin}: catalog is for format = "iceberg" alone')
        return DELTA
    try:
        from tidemq.pipeline.lake.iceberg_log import Iceberg
    except ImportError as error:
        raise ImportError(f"tables of Iceberg need pip install 'tidemq[iceberg]': {error}") from error

    properties = dict(catalog)
    return Iceberg(properties.pop("name", "tidemq"), properties, own=not catalog)
