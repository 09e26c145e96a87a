"""How payloads are written, where a rule names a schema: what its file has said, by format. The libraries for
that are an extra's (`tidemq[schemas]`), and are imported by who needs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa
from pyspark.sql.types import StructType

from tidemq.errors import ConfigError
from tidemq.pipeline.decode.cbor import CBOR
from tidemq.pipeline.decode.json_payloads import JSON
from tidemq.pipeline.decode.schema_registry import Registry
from tidemq.pipeline.decode.values import Converters

LEAVE_OUT = "the rule may leave it out, by naming its columns"
WITH_SCHEMA = ("avro", "protobuf")  # payloads do not say what they hold; of JSON a schema may say more


@dataclass(frozen=True, slots=True)
class Schema:
    """Of a file, what makes a difference to rows: it goes to executors with the rule."""

    text: str  # of Avro the JSON of an .avsc file, of Protobuf descriptors in base64, of JSON a JSON Schema
    message: str = ""  # of Protobuf, the type's full name


def load_schema(format: str, path: Path, message: str = "") -> Schema:
    """Of a rule of this format; ConfigError names the file."""
    try:
        with _extra():
            if format == "protobuf":
                from tidemq.pipeline.decode.protobuf import message_name, protobuf_text

                text = protobuf_text(path)
                return Schema(text, message_name(text, message))
            if format == "json":
                from tidemq.pipeline.decode.json_schema import json_schema_text

                return Schema(json_schema_text(path.read_text(encoding="utf-8")))
            from tidemq.pipeline.decode.avro import avro_text

            return Schema(avro_text(path.read_text(encoding="utf-8")))
    except (OSError, UnicodeDecodeError, ConfigError) as error:
        raise ConfigError(f"the schema {path}: {error}") from error


@cache
def schema_columns(format: str, schema: Schema) -> StructType:
    """All of a schema; ConfigError where one of its fields can be no column."""
    try:
        with _extra():
            if format == "protobuf":
                from tidemq.pipeline.decode.protobuf import protobuf_columns

                return protobuf_columns(schema.text, schema.message)
            if format == "json":
                from tidemq.pipeline.decode.json_schema import json_schema_columns

                return json_schema_columns(schema.text)
            from tidemq.pipeline.decode.avro import avro_columns

            return avro_columns(schema.text)
    except ConfigError as error:
        raise ConfigError(f"{error}; {LEAVE_OUT}") from error


def schema_names(format: str, schema: Schema) -> list[str]:
    """Of its fields, whether or not they can be columns."""
    with _extra():
        if format == "protobuf":
            from tidemq.pipeline.decode.protobuf import message_type

            return [each.name for each in message_type(schema.text, schema.message).fields]
        if format == "json":
            from tidemq.pipeline.decode.json_schema import json_schema_names

            return json_schema_names(schema.text)
        from tidemq.pipeline.decode.avro import avro_names

        return avro_names(schema.text)


def converters_of(format: str) -> Converters | None:
    """What makes values of columns; None of a format whose columns no rule names."""
    with _extra():
        if format == "protobuf":
            from tidemq.pipeline.decode.protobuf import PROTOBUF

            return PROTOBUF
        if format == "avro":
            from tidemq.pipeline.decode.avro import AVRO

            return AVRO
    return {"cbor": CBOR, "json": JSON}.get(format)


def decoder_of(
    format: str,
    schema: Schema | None,
    message: str,
    registry: Registry | None,
    columns: StructType,
    arrow: pa.StructType,
) -> Callable[[pa.Array], pa.Array]:
    """What executors do of a format with schemas: see `decode_avro`, `decode_protobuf`."""
    text = schema.text if schema else ""
    with _extra():
        if format == "protobuf":
            from tidemq.pipeline.decode.protobuf import decode_protobuf

            name = schema.message if schema else message
            return lambda payloads: decode_protobuf(payloads, text, name, registry, columns, arrow)
        from tidemq.pipeline.decode.avro import decode_avro

        return lambda payloads: decode_avro(payloads, text, registry, columns, arrow)


def check_of(schema: Schema) -> Callable[[object], None]:
    """Of a JSON Schema: see `schema_check`."""
    with _extra():
        from tidemq.pipeline.decode.json_schema import schema_check

        return schema_check(schema.text)


@contextmanager
def _extra() -> Iterator[None]:
    try:
        yield
    except ImportError as error:
        raise ConfigError(f"{error}; pip install 'tidemq[schemas]'") from error
