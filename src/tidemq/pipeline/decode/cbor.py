"""CBOR payloads (RFC 8949) into columns, on executors."""

from __future__ import annotations

import io
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any

import cbor2
import pyarrow as pa
from pyspark.sql.types import BinaryType, StructType, TimestampType

from tidemq.pipeline.decode.publish_time import parse_time_us
from tidemq.pipeline.decode.values import Convert, Converters, WrongFieldError, finite, only

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def decode_cbor(payloads: pa.Array, columns: StructType, arrow: pa.DataType) -> pa.Array:
    """Of each payload a struct of `decoded`, with these columns, and `reason`, why it cannot be decoded; one
    of them is null. `arrow` is the struct's type.
    """
    convert = CBOR.of(columns)
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
    except WrongFieldError as error:
        return {"decoded": None, "reason": str(error)}


def _time(value: Any) -> datetime:
    """Of a time (tags 0 and 1), of text in ISO 8601 with its zone, and of seconds since 1970."""
    if isinstance(value, str):
        time_us = parse_time_us(value)
        if time_us is None:
            raise ValueError
        return _EPOCH + timedelta(microseconds=time_us)
    if isinstance(value, datetime):
        if value.tzinfo is None:
            raise ValueError
        return value.astimezone(UTC)
    return datetime.fromtimestamp(finite(value), UTC)


CBOR = Converters(
    "CBOR", {BinaryType: lambda value: only(value, bytes), TimestampType: _time}, cbor2.undefined
)
