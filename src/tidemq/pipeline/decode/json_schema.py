"""JSON Schema: the columns of the objects that it describes, and whether an object is as it says."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

import jsonschema_rs
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from tidemq.errors import ConfigError
from tidemq.pipeline.decode.values import WrongFieldError

DEPTH_MAX = 32  # of schemas in one another
REASON_CHARACTERS = 200
_TYPES: Mapping[str, type[DataType]] = {
    "boolean": BooleanType,
    "integer": LongType,
    "number": DoubleType,
    "string": StringType,
}
_FORMATS: Mapping[str, type[DataType]] = {"date-time": TimestampType, "date": DateType}
_NUMBERS = {"integer", "number"}


class _NoColumnError(Exception):
    """No column holds what a schema allows."""


def json_schema_text(text: str) -> str:
    """Of a file; ConfigError where it is no schema of an object whose fields it names."""
    try:
        schema = json.loads(text)
        _validator(schema)
    except (ValueError, jsonschema_rs.ValidationError, jsonschema_rs.ReferencingError) as error:
        raise ConfigError(f"no JSON Schema: {str(error).partition(chr(10))[0]}") from error
    try:
        _fields(schema)
    except _NoColumnError as error:
        raise ConfigError(str(error)) from error
    return json.dumps(schema, separators=(",", ":"))


def json_schema_names(text: str) -> list[str]:
    """Of the object's fields."""
    return list(_fields(json.loads(text)))


def json_schema_columns(text: str) -> StructType:
    """Of each field; ConfigError where one can be no column."""
    root, found = json.loads(text), StructType()
    for name, schema in _fields(root).items():
        try:
            found.add(name, _column_type(schema, root, 0))
        except _NoColumnError as error:
            raise ConfigError(f"the field {name} can be no column: {error}") from error
    return found


@lru_cache
def schema_check(text: str) -> Callable[[Any], None]:
    """What raises WrongFieldError of an object that is not as the schema says."""
    validator = _validator(json.loads(text))

    def check(value: Any) -> None:
        if not validator.is_valid(value):
            error = next(iter(validator.iter_errors(value)))
            field = ".".join(map(str, error.instance_path)) or "the object"
            raise WrongFieldError(f"against the schema: {field}: {error.message[:REASON_CHARACTERS]}")

    return check


def _validator(schema: Any) -> Any:
    """By the rules of its draft; nothing is fetched."""
    return jsonschema_rs.validator_for(schema, offline=True)


def _fields(root: Any) -> Mapping[str, Any]:
    schema = _resolved(root, root)
    found = schema.get("properties") if isinstance(schema, Mapping) else None
    if not found or schema.get("type", "object") != "object":
        raise _NoColumnError(
            "it does not say which fields an object has; accepted: type object, and properties"
        )
    fields: Mapping[str, Any] = found
    return fields


def _resolved(schema: Any, root: Any) -> Any:
    """Where a schema refers to another of the file, that one."""
    for _ in range(DEPTH_MAX):
        if not isinstance(schema, Mapping) or "$ref" not in schema:
            return schema
        place, found = str(schema["$ref"]), root
        if not place.startswith("#"):
            raise _NoColumnError(f"it refers to {place}, outside of the file")
        for step in place[1:].split("/")[1:]:
            found = (
                found.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(found, Mapping) else None
            )
        schema = found
    raise _NoColumnError("it refers to itself")


def _column_type(schema: Any, root: Any, depth: int) -> DataType:
    """_NoColumnError where no column can hold what a schema allows."""
    if depth == DEPTH_MAX:
        raise _NoColumnError("it holds itself")
    schema = _resolved(schema, root)
    if not isinstance(schema, Mapping):
        raise _NoColumnError("it may be anything")
    for key in ("anyOf", "oneOf", "allOf"):
        if key in schema and "type" not in schema:
            return _column_type(_only_one(schema[key], key), root, depth + 1)
    kind = _type_name(schema)
    if kind == "object":
        return _object_type(schema, root, depth)
    if kind == "array":
        if not isinstance(schema.get("items"), Mapping) or "prefixItems" in schema:
            raise _NoColumnError("a list whose elements are not of one schema")
        return ArrayType(_column_type(schema["items"], root, depth + 1))
    if kind == "string" and schema.get("contentEncoding") == "base64":
        return BinaryType()
    if kind == "string" and schema.get("format") in _FORMATS:
        return _FORMATS[schema["format"]]()
    return _TYPES[kind]()


def _object_type(schema: Mapping[str, Any], root: Any, depth: int) -> DataType:
    if properties := schema.get("properties"):
        found = StructType()
        for name, each in properties.items():
            found.add(name, _column_type(each, root, depth + 1))
        return found
    if isinstance(schema.get("additionalProperties"), Mapping):
        return MapType(StringType(), _column_type(schema["additionalProperties"], root, depth + 1))
    raise _NoColumnError("an object whose fields it does not name")


def _only_one(schemas: Any, key: str) -> Any:
    """But for null."""
    others = [each for each in schemas if each != {"type": "null"}]
    if len(others) != 1:
        raise _NoColumnError(f"{key} of several schemas")
    return others[0]


def _type_name(schema: Mapping[str, Any]) -> str:
    """Of the one type, beside null, that a schema allows."""
    given = schema.get("type")
    if given is None:
        values = schema.get("enum", [schema["const"]] if "const" in schema else [])
        found = {_name_of(each) for each in values}
    else:
        found = set(given) if isinstance(given, list) else {given}
    found.discard("null")
    if found == _NUMBERS:
        return "number"
    if len(found) != 1:
        raise _NoColumnError(
            f"it may be of several types: {', '.join(sorted(found))}" if found else "it may be anything"
        )
    return str(found.pop())


def _name_of(value: Any) -> str:
    names = {bool: "boolean", int: "integer", float: "number", str: "string", list: "array", dict: "object"}
    return names.get(type(value), "null")
