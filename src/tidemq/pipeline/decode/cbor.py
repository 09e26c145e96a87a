"""CBOR payloads (RFC 8949) into columns, on executors."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import cbor2
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructType,
    TimestampType,
)

from tidemq.errors import ConfigError
from tidemq.pipeline.decode.publish_time import parse_time_us

Convert = Callable[[Any], Any]
"""A decoded value as one of a column's; TypeError or ValueError where it is none."""

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_INTEGER_BITS: Mapping[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}


def decode_cbor(payloads: pa.Array, columns: StructType, arrow: pa.DataType) -> pa.Array:
    """Of each payload a struct of `decoded`, with these columns, and `reason`, why it cannot be decoded; one
    of them is null. `arrow` is the struct's type.
    """
    convert = converter(columns, "")
    return pa.array([_decoded(payload, convert) for payload in payloads.to_pylist()], arrow)


def _decoded(payload: bytes | None, convert: Convert) -> dict[str, Any]:
    file = io.BytesIO(payload or b"")
    try:
        value = cbor2.CBORDecoder(file, read_size=1).decode()  # which reads no further than the value
    except Exception as error:  # noqa: BLE001 - a payload must not end the job
        return {"decoded": None, "reason": f"not CBOR: {error}"}
    if file.read(1):
        return {"decoded": None, "reason": "not CBOR: something follows the first value"}
    if not isinstance(value, Mapping):
        return {"decoded": None, "reason": f"a CBOR {type(value).__name__}, not a map"}
    try:
        return {"decoded": convert(value), "reason": None}
    except (TypeError, ValueError, ArithmeticError) as error:
        return {"decoded": None, "reason": str(error)}


def converter(kind: DataType, name: str) -> Convert:
    """What makes values of a type out of decoded ones; null stays null. ConfigError where CBOR has none such;
    `name` says where.
    """
    convert = _converter(kind, name)

    def checked(value: Any) -> Any:
        if value is None or value is cbor2.undefined:
            return None
        try:
            return convert(value)
        except _WrongFieldError:
            raise
        except (TypeError, ValueError, ArithmeticError) as error:
            shown = f"{value!r:.60}"
            raise _WrongFieldError(f"{name} is {shown}; {kind.simpleString()} is wanted") from error

    return checked


class _WrongFieldError(ValueError):
    """It says which."""


def _converter(kind: DataType, name: str) -> Convert:
    if isinstance(kind, StructType):
        fields = [(each.name, converter(each.dataType, each.name)) for each in kind.fields]
        return lambda value: {key: to(_of(value, Mapping).get(key)) for key, to in fields}
    if isinstance(kind, ArrayType):
        element = converter(kind.elementType, name)
        return lambda value: [element(each) for each in _of(value, list, tuple)]
    if isinstance(kind, MapType):
        of_key, of_value = converter(kind.keyType, name), converter(kind.valueType, name)
        return lambda value: [(of_key(key), of_value(each)) for key, each in _of(value, Mapping).items()]
    if isinstance(kind, DecimalType):
        return lambda value: _decimal(_of(value, int, float, Decimal), kind)
    if bits := _INTEGER_BITS.get(type(kind)):
        return lambda value: _integer(_of(value, int), bits)
    simple: Mapping[type[DataType], Convert] = {
        BooleanType: lambda value: _of(value, bool),
        FloatType: lambda value: float(_of(value, int, float)),
        DoubleType: lambda value: float(_of(value, int, float)),
        StringType: lambda value: _of(value, str),
        BinaryType: lambda value: _of(value, bytes),
        TimestampType: _time,
        DateType: _date,
    }
    if type(kind) not in simple:
        raise ConfigError(f"the rule {name} has a column of {kind.simpleString()}, which CBOR has not")
    return simple[type(kind)]


def _of(value: Any, *types: type) -> Any:
    """The value, if it is one of these; a truth value is no number."""
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise TypeError
    return value


def _integer(value: int, bits: int) -> int:
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError
    return value


def _decimal(value: float | Decimal, kind: DecimalType) -> Decimal:
    rounded = Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale))
    if len(rounded.as_tuple().digits) > kind.precision:
        raise ValueError
    return rounded


def _time(value: Any) -> datetime:
    """Of a time (tags 0 and 1), of text in ISO 8601 with its zone, and of seconds since 1970, as in JSON."""
    if isinstance(value, str):
        time_us = parse_time_us(value)
        if time_us is None:
            raise ValueError
        return _EPOCH + timedelta(microseconds=time_us)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError
        return value.astimezone(UTC)
    return datetime.fromtimestamp(_of(value, int, float), UTC)


def _date(value: Any) -> date:
    found = date.fromisoformat(value) if isinstance(value, str) else _of(value, date)
    if isinstance(found, datetime):
        raise TypeError
    return found
