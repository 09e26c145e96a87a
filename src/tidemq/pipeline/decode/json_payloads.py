"""JSON payloads (RFC 8259) into columns, on executors: strictly, so that nothing is lost in silence.

msgspec decodes: one value and nothing behind it, no NaN, no single quotes, no number beyond a double. Of two
fields of one name the last counts.
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from functools import partial
from typing import Annotated, Any

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    MapType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidemq.pipeline.decode.typed_rows import decoded_struct
from tidemq.pipeline.decode.values import INTEGER_BITS, Convert, Converters, WrongFieldError, finite, only

OTHERS = "others"  # the column for what has no column of its own, as JSON; of columns that are inferred
Check = Callable[[Any], None]
Decoded = dict[str, Any]  # `decoded` or `reason`, and of several readings `place`
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)


def decode_json(
    payloads: pa.Array,
    columns: StructType,
    arrow: pa.DataType,
    *,
    many: str = "",
    infers: bool = False,
    check: Check | None = None,
) -> pa.Array:
    """Of each payload a struct of `decoded`, with these columns, and `reason`, why it cannot be decoded; one
    of them is null. `arrow` is the type of what is given.

    Of payloads with several readings (`many`) a list of these, with their `place` in the payload, from 0; the
    first that cannot be decoded has the `payload`, and no other, for it may be large and hold thousands.
    Where it `infers`, a column is a double, a truth value, or text of anything; the last is of all that has
    no column. `check` raises WrongFieldError of an object that is not as a schema says.
    """
    found = [payload or b"" for payload in payloads.to_pylist()]
    if not many and not infers:
        return _by_columns(found, columns, arrow, check)
    decode = _decoder(columns)
    convert = _inferred(columns) if infers else _checked(JSON.of(columns), check)
    if many:
        read = READINGS[many]
        return pa.array([_readings(payload, read(payload, decode, convert)) for payload in found], arrow)
    return pa.array([_one(payload, decode, convert) for payload in found], arrow)


def json_numbers(payloads: pa.Array, path: list[str]) -> pa.Array:
    """Of each payload the number at this path of an object: null where the object has none, NaN where there
    is no object or something else at that place.
    """
    decode = msgspec.json.Decoder().decode
    found = [_number_at(payload or b"", path, decode) for payload in payloads.to_pylist()]
    return pa.array(found, pa.float64())


def json_fields(payloads: pa.Array, arrow: pa.DataType, *, many: str = "") -> pa.Array:
    """Of each payload the fields of its objects that are not null, by `name`, with the `type` of their
    column: double, boolean or string.
    """
    decode = msgspec.json.Decoder().decode
    return pa.array([_fields(payload or b"", decode, many) for payload in payloads.to_pylist()], arrow)


def _one(payload: bytes, decode: Callable[[bytes], Any], convert: Convert) -> Decoded:
    try:
        return {"decoded": _converted(decode(payload), convert), "reason": None}
    except _UNREADABLE as error:
        return {"decoded": None, "reason": _reason(error)}


def _lines(payload: bytes, decode: Callable[[bytes], Any], convert: Convert) -> Iterator[Decoded]:
    """A reading in each line that is not empty."""
    lines = [line for line in payload.split(b"\n") if line.strip()]
    if not lines:
        yield {"decoded": None, "reason": "no line has a JSON object", "place": 0}
    for place, line in enumerate(lines):
        yield _placed(_one(line, decode, convert), place)


def _array(payload: bytes, decode: Callable[[bytes], Any], convert: Convert) -> Iterator[Decoded]:
    """A reading in each element."""
    try:
        found = decode(payload)
    except _UNREADABLE as error:
        yield {"decoded": None, "reason": _reason(error), "place": 0}
        return
    if not isinstance(found, list) or not found:
        what = "an empty list" if found == [] else _kind(found)
        yield {"decoded": None, "reason": f"{what}, not a list of JSON objects", "place": 0}
        return
    for place, value in enumerate(found):
        try:
            yield {"decoded": _converted(value, convert), "reason": None, "place": place}
        except _UNREADABLE as error:
            yield _placed({"decoded": None, "reason": _reason(error)}, place)


READINGS = {"lines": _lines, "array": _array}


def _readings(payload: bytes, found: Iterable[Decoded]) -> list[Decoded]:
    readings = list(found)
    for bad in (each for each in readings if each["reason"]):
        bad["payload"] = payload
        break
    return readings


def _placed(found: Decoded, place: int) -> Decoded:
    """A dead letter is a whole payload: its reason says which reading it is about."""
    reason = found["reason"] and f"reading {place}: {found['reason']}"
    return {**found, "reason": reason, "place": place}


def _converted(value: Any, convert: Convert) -> Any:
    if not isinstance(value, dict):
        raise WrongFieldError(f"{_kind(value)}, not a JSON object")
    return convert(value)


def _checked(convert: Convert, check: Check | None) -> Convert:
    if check is None:
        return convert

    def checked(value: Any) -> Any:
        check(value)
        return convert(value)

    return checked


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "not UTF-8"
    if isinstance(error, RecursionError):
        return "not JSON: lists or objects in one another, too deep"
    return str(error) if isinstance(error, WrongFieldError) else f"not JSON: {error}"


_UNREADABLE = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, WrongFieldError)


def _kind(value: Any) -> str:
    names = {list: "a list", dict: "a JSON object", str: "text", bool: "a truth value", type(None): "null"}
    return names.get(type(value), "a number")


def _number_at(payload: bytes, path: list[str], decode: Callable[[bytes], Any]) -> float | None:
    try:
        value = decode(payload)
        if not isinstance(value, dict):
            return math.nan
        for name in path:
            value = None if value is None else only(value, dict).get(name)
        return None if value is None else finite(value)
    except (*_UNREADABLE, TypeError, ValueError, ArithmeticError):
        return math.nan


# --- one reading a payload: by msgspec's own types and a column at a time, which is faster ---------


def _by_columns(
    payloads: list[bytes], columns: StructType, arrow: pa.StructType, check: Check | None
) -> pa.Array:
    """What `_one` gives for each."""
    one = partial(_one, decode=_decoder(columns), convert=_checked(JSON.of(columns), check))
    read, plain = _row_reader(columns), msgspec.json.Decoder().decode
    missing = (None,) * len(columns.fields)
    rows: list[Sequence[Any]] = []
    reasons: list[str | None] = []
    for payload in payloads:
        try:
            if check:
                check(plain(payload))
            rows.append(read(payload))
            reasons.append(None)
        except _UNREADABLE:  # the other way says why, or takes it all the same
            found = one(payload)
            rows.append(missing if found["decoded"] is None else list(found["decoded"].values()))
            reasons.append(found["reason"])
    kinds = arrow.field("decoded").type
    values = [pa.array([row[at] for row in rows], kind.type) for at, kind in enumerate(kinds)]
    return decoded_struct(values, reasons, arrow)


def _row_reader(columns: StructType) -> Callable[[bytes], Sequence[Any]]:
    """What reads the values of the columns out of a payload, or raises one of _UNREADABLE."""
    names = {f"column_{at}": each.name for at, each in enumerate(columns.fields)}
    kinds = [_TYPES.get(type(each.dataType)) for each in columns.fields]
    wanted = [Any if kind is None else kind | None for kind in kinds]
    fields = [(name, kind, None) for name, kind in zip(names, wanted, strict=True)]
    row = msgspec.defstruct("Row", fields, rename=names)
    decode = _decoder(columns, row)
    others = [
        (at, JSON.of(each.dataType, each.name)) for at, each in enumerate(columns.fields) if kinds[at] is None
    ]

    def read(payload: bytes) -> Sequence[Any]:
        values = msgspec.structs.astuple(decode(payload))
        if not others:
            return values
        changed = list(values)
        for at, convert in others:
            changed[at] = convert(changed[at])
        return changed

    return read


# what msgspec checks by itself; of anything else a converter makes the value
_TYPES: Mapping[type[DataType], Any] = {
    DoubleType: float,
    BooleanType: bool,
    StringType: str,
    **{
        kind: Annotated[int, msgspec.Meta(ge=-(1 << bits - 1), le=(1 << bits - 1) - 1)]
        for kind, bits in INTEGER_BITS.items()
    },
}


# --- values ------------------------------------------------------------------------------------


def _decoder(columns: StructType, kind: Any = Any) -> Callable[[bytes], Any]:
    """Digits beyond a double's are kept where a column may want them."""
    exact = any(_has_decimals(each.dataType) for each in columns.fields)
    decoder = msgspec.json.Decoder(kind, float_hook=Decimal if exact else None)

    def decode(payload: bytes) -> Any:
        payload.decode()  # msgspec does not look at text that no column wants
        return decoder.decode(payload)

    return decode


def _has_decimals(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_decimals(each.dataType) for each in kind.fields)
    if isinstance(kind, ArrayType):
        return _has_decimals(kind.elementType)
    if isinstance(kind, MapType):
        return _has_decimals(kind.valueType)
    return isinstance(kind, DecimalType)


def _time_us(value: Any) -> int:
    """Microseconds since 1970, of text in ISO 8601, in UTC without a zone, or of seconds since then."""
    if isinstance(value, str):
        found = datetime.fromisoformat(value)
        return ((found if found.tzinfo else found.replace(tzinfo=UTC)) - _EPOCH) // _MICROSECOND
    return (datetime.fromtimestamp(finite(value), UTC) - _EPOCH) // _MICROSECOND


def _local_time_us(value: Any) -> int:
    """The same of text that names no zone."""
    found = datetime.fromisoformat(only(value, str))
    if found.tzinfo is not None:
        raise ValueError
    return _time_us(value)


def _bytes(value: Any) -> bytes:
    return base64.b64decode(only(value, str), validate=True)


JSON = Converters("JSON", {BinaryType: _bytes, TimestampType: _time_us, TimestampNTZType: _local_time_us})


# --- columns that messages have ----------------------------------------------------------------


def _inferred(columns: StructType) -> Convert:
    """Of columns that `json_fields` has found types of; the last is OTHERS."""
    named = {
        each.name: _text if isinstance(each.dataType, StringType) else JSON.of(each.dataType, each.name)
        for each in columns.fields
        if each.name != OTHERS
    }

    def convert(value: Mapping[str, Any]) -> dict[str, Any]:
        found = {name: to(value.get(name)) for name, to in named.items()}
        rest = {name: each for name, each in value.items() if name not in named and each is not None}
        return {**found, OTHERS: _text(rest) if rest else None}

    return convert


def _text(value: Any) -> str | None:
    """Text as it is, anything else as JSON."""
    return value if value is None or isinstance(value, str) else msgspec.json.encode(value).decode()


def _fields(payload: bytes, decode: Callable[[bytes], Any], many: str) -> list[dict[str, str]]:
    def keep(value: Any) -> Any:
        return value

    found = READINGS[many](payload, decode, keep) if many else [_one(payload, decode, keep)]
    types: dict[str, str] = {}
    for reading in found:
        for name, value in (reading["decoded"] or {}).items():
            if value is not None:
                types.setdefault(name, _column_type(value))
    return [{"name": name, "type": type} for name, type in types.items()]


def _column_type(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    return "double" if isinstance(value, int | float) else "string"
