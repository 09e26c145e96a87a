"""Avro payloads into columns, on executors: the binary encoding of one value, with a schema from a file, or
with that which the payload names and a registry has.
"""

from __future__ import annotations

import io
import json
from bisect import bisect_left
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import Any, cast

import fastavro
import pyarrow as pa
from fastavro import parse_schema
from fastavro.read import SchemaResolutionError
from fastavro.schema import SchemaParseException, UnknownType, expand_schema
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidemq.errors import ConfigError
from tidemq.pipeline.decode.schema_registry import (
    IDS_MAX,
    Registry,
    Source,
    UnknownSchemaError,
    UnusableSchemaError,
    framed,
    known_schema,
)
from tidemq.pipeline.decode.typed_rows import Decoded, struct_of
from tidemq.pipeline.decode.values import Converters, only

STARTS_MAX = 32  # beginnings of a schema that are kept, by which the wrong field is found
_TYPES: Mapping[str, type[DataType]] = {
    "boolean": BooleanType,
    "int": IntegerType,
    "long": LongType,
    "float": FloatType,
    "double": DoubleType,
    "bytes": BinaryType,
    "fixed": BinaryType,
    "string": StringType,
    "enum": StringType,
}
_PRIMITIVES = {"null", *_TYPES} - {"fixed", "enum"}
_LOGICAL: Mapping[tuple[str, str], type[DataType]] = {
    ("int", "date"): DateType,
    ("long", "timestamp-millis"): TimestampType,
    ("long", "timestamp-micros"): TimestampType,
    ("long", "local-timestamp-millis"): TimestampNTZType,
    ("long", "local-timestamp-micros"): TimestampNTZType,
}
_KEPT = {*(logical for _, logical in _LOGICAL), "decimal"}  # other logical types are what they are made of
_DIGITS_MAX = 38
_MALFORMED = (ValueError, KeyError, TypeError, AttributeError, RecursionError)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


class AvroReader:
    """What reads payloads of one schema, of a record. `named` are types that it refers to, by their names."""

    def __init__(self, schema: dict[str, Any], named: Mapping[str, Any]) -> None:
        """UnusableSchemaError where it is none, or one that a payload could end a process by."""
        self._source, self._named = schema, named
        self._starts: dict[int, Any] = {}
        self.fields: dict[str, DataType] = {}  # of its columns; those that can be none are left out
        with _parsing():
            expanded = cast(dict[str, Any], parse_schema(schema, dict(named), expand=True))
            _refuse_endless(expanded)
            for each in expanded["fields"]:
                with suppress(UnusableSchemaError):
                    self.fields[each["name"]] = _column_type(each["type"])
            self.schema = parse_schema(schema, dict(named))

    def wrong_field(self, data: bytes) -> tuple[str, Exception] | None:
        """The name of the first field that cannot be read, and what is wrong with it."""
        count = bisect_left(
            range(len(self._source["fields"]) + 1), True, key=lambda count: bool(self._try(data, count))
        )
        error = self._try(data, count) if count <= len(self._source["fields"]) else None
        return (self._source["fields"][count - 1]["name"], error) if error else None

    def _try(self, data: bytes, count: int) -> Exception | None:
        """What is wrong with the first fields, as if there were no others."""
        if count not in self._starts:
            if len(self._starts) == STARTS_MAX:
                self._starts.clear()
            start = {**self._source, "fields": self._source["fields"][:count]}
            self._starts[count] = parse_schema(start, dict(self._named))
        try:
            fastavro.schemaless_reader(io.BytesIO(data), self._starts[count], None)
        except Exception as error:  # noqa: BLE001 - a payload must not end the job
            return error
        return None


def avro_text(text: str) -> str:
    """Of an .avsc file what makes a difference to rows; ConfigError where it is none."""
    try:
        schema = _cleaned(json.loads(text))
        _reader(schema, {})
    except (UnusableSchemaError, ValueError) as error:
        raise ConfigError(f"no Avro schema of a record: {error}") from error
    return json.dumps(schema, separators=(",", ":"))


def avro_names(text: str) -> list[str]:
    """Of the record's fields."""
    return [each["name"] for each in json.loads(text)["fields"]]


def avro_columns(text: str) -> StructType:
    """Of each field of the record; ConfigError where one can be no column."""
    found = StructType()
    for each in cast(dict[str, Any], expand_schema(json.loads(text)))["fields"]:
        try:
            found.add(each["name"], _column_type(each["type"]))
        except UnusableSchemaError as error:
            raise ConfigError(f"the field {each['name']} can be no column: {error}") from error
    return found


def decode_avro(
    payloads: pa.Array, schema: str, registry: Registry | None, columns: StructType, arrow: pa.StructType
) -> pa.Array:
    """Of each payload a struct of `decoded`, with these columns, and `reason`, why it cannot be decoded; one
    of them is null. `arrow` is the struct's type.

    With a registry, a payload names the schema that it was written by; `schema`, if there is one, is then
    that by which it is read, with the defaults and promotions of Avro's schema resolution. RegistryError.
    """
    wanted = _of_file(schema) if schema else None
    parts = [_written(payload or b"", registry, wanted) for payload in payloads.to_pylist()]
    found = [part if isinstance(part, str) else _decoded(*part, wanted) for part in parts]
    readers = {part[0] for part in parts if not isinstance(part, str)} if wanted is None else {wanted}
    return struct_of(found, columns, _agreed(readers), AVRO, arrow)


def _agreed(readers: Collection[AvroReader]) -> dict[str, DataType]:
    """The fields of which all say the same."""
    first, *others = (reader.fields for reader in readers) if readers else ({},)
    return {name: kind for name, kind in first.items() if all(each.get(name) == kind for each in others)}


def _written(
    payload: bytes, registry: Registry | None, wanted: AvroReader | None
) -> tuple[AvroReader, bytes] | str:
    """What reads a payload, and what of it; or why there is none."""
    if registry is None:
        assert wanted is not None
        return wanted, payload
    named = framed(payload)
    if isinstance(named, str):
        return named
    try:
        reader = known_schema(registry, named[0], _of_registry)
    except UnknownSchemaError as error:
        return str(error)
    return reader if isinstance(reader, str) else (reader, named[1])


def _decoded(written: AvroReader, data: bytes, wanted: AvroReader | None) -> Decoded:
    file = io.BytesIO(data)
    resolved = None if wanted is None or wanted is written else wanted.schema
    try:
        value = fastavro.schemaless_reader(file, written.schema, resolved)
    except Exception as error:  # noqa: BLE001 - a payload must not end the job
        return _reason(data, written, error)
    if left := len(data) - file.tell():
        return f"not Avro: bytes behind the value: {left}"
    return cast(Mapping[str, Any], value)


def _reason(data: bytes, written: AvroReader, error: Exception) -> str:
    """Which field it is that cannot be read, or what else."""
    if isinstance(error, SchemaResolutionError):
        return f"not of the schema: {error}"
    if found := written.wrong_field(data):
        field, of_field = found
        kind = written.fields.get(field)
        what = "not UTF-8" if isinstance(of_field, UnicodeDecodeError) else "cut off, or of another type"
        return f"{field} is {what}; {kind.simpleString() if kind else 'its type'} is wanted"
    return f"not Avro: {error}"


# --- schemas -----------------------------------------------------------------------------------


@lru_cache(IDS_MAX)
def _of_file(text: str) -> AvroReader:
    return _reader(json.loads(text), {})


def _of_registry(source: Source) -> AvroReader:
    """UnusableSchemaError."""
    if source.kind != "AVRO":
        raise UnusableSchemaError(f"it is of {source.kind}, not of AVRO")
    named: dict[str, Any] = {}
    _parse_references(source, named)
    try:
        return _reader(_cleaned(json.loads(source.text)), named)
    except ValueError as error:
        raise UnusableSchemaError(str(error)) from error


def _parse_references(source: Source, named: dict[str, Any]) -> None:
    """Puts the named types of the schemas that one refers to into `named`."""
    for _, each in source.references:
        _parse_references(each, named)
        with _parsing():
            parse_schema(_cleaned(json.loads(each.text)), named)


def _reader(schema: Any, named: Mapping[str, Any]) -> AvroReader:
    """UnusableSchemaError."""
    if not isinstance(schema, dict) or schema.get("type") != "record":
        raise UnusableSchemaError("it is not of a record")
    if not schema.get("fields"):
        raise UnusableSchemaError("its record has no fields")
    return AvroReader(schema, named)


@contextmanager
def _parsing() -> Iterator[None]:
    try:
        yield
    except (SchemaParseException, UnknownType, *_MALFORMED) as error:
        raise UnusableSchemaError(f"{type(error).__name__}: {error}") from error


def _cleaned(schema: Any) -> Any:
    """Without what makes no difference to a value, nor to its column: documentation, logical types that are
    what they are made of.
    """
    if isinstance(schema, list):
        return [_cleaned(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    left_out = {"doc"} | ({"logicalType"} if schema.get("logicalType") not in _KEPT else set())
    return {
        key: each if key == "default" else _cleaned(each)
        for key, each in schema.items()
        if key not in left_out or "type" not in schema
    }


def _refuse_endless(schema: Any) -> int:
    """How many bytes a value has at least, 0 or 1. UnusableSchemaError where a schema holds itself, which
    fastavro follows until the process ends, or lists have elements without bytes, of which a few bytes say
    billions.
    """
    if isinstance(schema, list):
        for each in schema:
            _refuse_endless(each)
        return 1
    if not isinstance(schema, dict):
        if schema not in _PRIMITIVES:
            raise UnusableSchemaError(f"{schema} holds itself")
        return int(schema != "null")
    kind = schema["type"]
    if kind == "record":
        return max([_refuse_endless(each["type"]) for each in schema["fields"]], default=0)
    if kind == "array":
        if not _refuse_endless(schema["items"]):
            raise UnusableSchemaError("a list has elements without a byte")
        return 1
    if kind == "map":
        _refuse_endless(schema["values"])
        return 1
    if kind == "fixed":
        return int(schema["size"] > 0)
    return 1 if kind == "enum" else _refuse_endless(kind)


def _column_type(schema: Any) -> DataType:
    """Of an expanded schema; UnusableSchemaError where no column can hold it."""
    if isinstance(schema, list):
        others = [each for each in schema if each != "null"]
        if len(others) != 1:
            raise UnusableSchemaError("a union of several types")
        return _column_type(others[0])
    if not isinstance(schema, dict):
        return _simple_type(schema)
    kind, logical = schema["type"], schema.get("logicalType", "")
    if kind == "record":
        found = StructType()
        for each in schema["fields"]:
            found.add(each["name"], _column_type(each["type"]))
        if not found.fields:
            raise UnusableSchemaError("a record without fields")
        return found
    if kind == "array":
        return ArrayType(_column_type(schema["items"]))
    if kind == "map":
        return MapType(StringType(), _column_type(schema["values"]))
    if logical == "decimal":
        if schema["precision"] > _DIGITS_MAX:
            raise UnusableSchemaError(f"a decimal of more than {_DIGITS_MAX} digits")
        return DecimalType(schema["precision"], schema.get("scale", 0))
    if found_type := _LOGICAL.get((kind, logical)) if isinstance(kind, str) else None:
        return found_type()
    return _column_type(kind) if not isinstance(kind, str) else _simple_type(kind)


def _simple_type(name: str) -> DataType:
    if name not in _TYPES:
        raise UnusableSchemaError(f"it is {name}")
    return _TYPES[name]()


# --- values ------------------------------------------------------------------------------------


def _time_us(value: Any) -> int:
    return int((only(value, datetime).astimezone(UTC) - _EPOCH) // _MICROSECOND)


def _local_time_us(value: Any) -> int:
    return int((only(value, datetime).replace(tzinfo=UTC) - _EPOCH) // _MICROSECOND)


AVRO = Converters(
    "Avro",
    {
        BinaryType: lambda value: only(value, bytes),
        TimestampType: _time_us,
        TimestampNTZType: _local_time_us,
        DateType: lambda value: only(value, date),
    },
)
