"""JSON payloads become rows exactly, or dead letters that say which field is wrong. Without Spark."""

from __future__ import annotations

import json
import math
import re
from datetime import UTC, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql.pandas.types import to_arrow_type
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
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
    VariantType,
)

from tidemq.errors import ConfigError
from tidemq.pipeline.decode.json_payloads import JSON, decode_json, json_fields, json_numbers

EVERY: dict[str, DataType] = {
    "a": DoubleType(),
    "b": IntegerType(),
    "c": StringType(),
    "d": TimestampType(),
    "e": DateType(),
    "f": FloatType(),
    "g": ArrayType(LongType()),
    "h": MapType(StringType(), BinaryType()),
    "i": DecimalType(6, 2),
    "j": StructType([StructField("a", BooleanType())]),
    "k": ByteType(),
    "l": TimestampNTZType(),
}


def columns_of(**kinds: DataType) -> StructType:
    return StructType([StructField(name, kind) for name, kind in kinds.items()])


def decoded(payload: bytes, columns: StructType, *, many: str = "", infers: bool = False) -> Any:
    kind = StructType([StructField("decoded", columns), StructField("reason", StringType())])
    if many:
        kind.add("place", IntegerType())
    whole = ArrayType(kind) if many else kind
    arrow = to_arrow_type(whole, timezone="UTC")
    [found] = decode_json(pa.array([payload]), columns, arrow, many=many, infers=infers).to_pylist()
    return found


def value(kind: DataType, text: str) -> Any:
    """Of a column of this type, from the JSON text of its value; or why there is none."""
    found = decoded(f'{{"x": {text}}}'.encode(), columns_of(x=kind))
    assert (found["decoded"] is None) != (found["reason"] is None)
    return found["reason"] or found["decoded"]["x"]


NUMBER = columns_of(c=DoubleType())


@pytest.mark.parametrize(
    ("payload", "reason"),
    [
        (b'{"c":1}\n{"c":2}\n{"c":3}', "not JSON: .*trailing"),
        (b'{"c":1} garbage', "not JSON: .*trailing"),
        (b'{"c":1}{"c":2}', "not JSON: .*trailing"),
        (b'{"c":NaN}', "not JSON"),
        (b'{"c":-Infinity}', "not JSON"),
        (b'{"c":"Infinity"}', "c is 'Infinity'; double is wanted"),
        (b'{"c":"1"}', "c is '1'; double is wanted"),
        (b'{"c":1e400}', "not JSON: Number out of range"),
        (b'{"c":' + b"9" * 400 + b"}", "c is 999+; double is wanted"),
        (b"{'c':1}", "not JSON"),
        (b"{c:1}", "not JSON"),
        (b'{"c":01}', "not JSON"),
        (b'{"c":+1}', "not JSON"),
        (b'{"c":0x1}', "not JSON"),
        (b'{"c":1,}', "not JSON"),
        (b'/**/{"c":1}', "not JSON"),
        (b'{"c":true}', "c is True; double is wanted"),
        (b'{"c":[1]}', r"c is \[1\]; double is wanted"),
        (b'{"d":"\xff"}', "not UTF-8"),
        (b"[" * 100_000, "not JSON"),
        (b"[1]", "a list, not a JSON object"),
        (b"1", "a number, not a JSON object"),
        (b'"c"', "text, not a JSON object"),
        (b"null", "null, not a JSON object"),
        (b"", "not JSON"),
    ],
)
def test_what_is_not_one_object_of_these_types_is_a_dead_letter(payload: bytes, reason: str) -> None:
    found = decoded(payload, NUMBER)
    assert found["decoded"] is None

    assert re.match(reason, found["reason"]), found["reason"]


@pytest.mark.parametrize(
    ("kind", "text", "expected"),
    [
        (DoubleType(), "1", 1.0),
        (DoubleType(), "-1.5e3", -1500.0),
        (DoubleType(), "null", None),
        (FloatType(), "0.5", 0.5),
        (FloatType(), "1e39", "x is 1e+39; float is wanted"),
        (LongType(), str(2**63 - 1), 2**63 - 1),
        (LongType(), str(2**63), f"x is {2**63}; bigint is wanted"),
        (LongType(), "1.0", "x is 1.0; bigint is wanted"),
        (ByteType(), "-128", -128),
        (ByteType(), "128", "x is 128; tinyint is wanted"),
        (BooleanType(), "false", False),
        (BooleanType(), "0", "x is 0; boolean is wanted"),
        (StringType(), '"\\u00e9\\n"', "é\n"),
        (StringType(), "17", "x is 17; string is wanted"),
        (TimestampType(), '"2026-11-23T10:00:00+02:00"', datetime(2026, 11, 23, 8, tzinfo=UTC)),
        (TimestampType(), '"2026-11-23T10:00:00"', datetime(2026, 11, 23, 10, tzinfo=UTC)),
        (TimestampType(), "1.5", datetime(1970, 1, 1, 0, 0, 1, 500_000, tzinfo=UTC)),
        (TimestampType(), '"soon"', "x is 'soon'; timestamp is wanted"),
        (TimestampType(), "1e300", "x is 1e+300; timestamp is wanted"),
        (TimestampNTZType(), '"2026-11-23T10:00:00"', datetime(2026, 11, 23, 10)),
        (TimestampNTZType(), '"2026-11-23T10:00:00Z"', "x is '2026-.*; timestamp_ntz is wanted"),
        (DateType(), '"2026-11-23"', datetime(2026, 11, 23, tzinfo=UTC).date()),
        (DateType(), '"2026-11-31"', "x is '2026-11-31'; date is wanted"),
        (DecimalType(6, 2), "0.10", Decimal("0.10")),
        (
            DecimalType(38, 30),
            "0.123456789012345678901234567890",
            Decimal("0.123456789012345678901234567890"),
        ),
        (DecimalType(6, 2), "10000", "x is 10000; decimal.* is wanted"),
        (BinaryType(), '"aGk="', b"hi"),
        (BinaryType(), '"a"', "x is 'a'; binary is wanted"),
        (ArrayType(LongType()), "[1, null]", [1, None]),
        (ArrayType(LongType()), "[1, true]", "x is True; bigint is wanted"),
        (MapType(StringType(), DoubleType()), '{"a": 1}', [("a", 1.0)]),
        (columns_of(y=columns_of(z=DoubleType())), '{"y": {"z": "1"}}', "x.y.z is '1'; double is wanted"),
    ],
)
def test_values_of_columns(kind: DataType, text: str, expected: Any) -> None:
    found = value(kind, text)
    if isinstance(expected, str):
        assert re.fullmatch(re.escape(expected).replace(r"\.\*", ".*"), found), found
    else:
        assert found == expected


def test_other_fields_are_left_out_and_missing_ones_null() -> None:
    assert decoded(b'{"other": [1]}', NUMBER)["decoded"] == {"c": None}


def test_a_type_that_json_has_not_is_named() -> None:
    with pytest.raises(ConfigError, match="the column x is variant, which JSON has not"):
        JSON.of(columns_of(x=VariantType()))


@pytest.mark.parametrize(
    ("many", "payload", "expected"),
    [
        ("lines", b'{"c":1}\n{"c":2}\r\n\n{"c":3}\n', [(0, 1.0), (1, 2.0), (2, 3.0)]),
        ("array", b'[{"c":1}, {"c":2}]', [(0, 1.0), (1, 2.0)]),
        (
            "lines",
            b'{"c":1}\n{"c":"x"}\n[1]',
            [
                (0, 1.0),
                (1, "reading 1: c is 'x'; double is wanted"),
                (2, "reading 2: a list, not a JSON object"),
            ],
        ),
        ("array", b'[{"c":1},{"c":"x"}]', [(0, 1.0), (1, "reading 1: c is 'x'; double is wanted")]),
        ("array", b"[]", [(0, "an empty list, not a list of JSON objects")]),
        ("array", b'{"c":1}', [(0, "a JSON object, not a list of JSON objects")]),
        ("array", b'[{"c":1}', [(0, "not JSON: Input data was truncated")]),
        ("lines", b" \n", [(0, "no line has a JSON object")]),
    ],
)
def test_several_readings_in_a_payload(many: str, payload: bytes, expected: list[tuple[int, Any]]) -> None:
    found = decoded(payload, NUMBER, many=many)
    assert [(each["place"], each["reason"] or each["decoded"]["c"]) for each in found] == expected


def test_a_payload_with_many_bad_readings_is_kept_once() -> None:
    """Ten thousand lines, none of them good: not ten thousand copies of the payload."""
    payload = b"x\n" * 10_000
    kind = StructType([StructField("decoded", NUMBER), StructField("reason", StringType())])
    whole = ArrayType(kind.add("place", IntegerType()).add("payload", BinaryType()))
    found = decode_json(pa.array([payload]), NUMBER, to_arrow_type(whole, timezone="UTC"), many="lines")
    readings = found[0].as_py()
    assert [each["place"] for each in readings if each["reason"]] == list(range(10_000))
    assert [each["payload"] for each in readings if each["payload"] is not None] == [payload]
    assert found.nbytes < 100 * len(payload)


@pytest.mark.parametrize(
    ("payload", "expected"),
    [
        (b'{"a": {"b": 1}}', 1.0),
        (b'{"a": {}}', None),
        (b'{"a": null}', None),
        (b"{}", None),
        (b'{"a": 1}', math.nan),
        (b'{"a": {"b": "1"}}', math.nan),
        (b'{"a": {"b": 1}} garbage', math.nan),
        (b"[1]", math.nan),
        (b"\xff", math.nan),
    ],
)
def test_numbers_at_a_path(payload: bytes, expected: float | None) -> None:
    [found] = json_numbers(pa.array([payload]), ["a", "b"]).to_pylist()
    assert found == expected or (expected is not None and math.isnan(expected) and math.isnan(found))


def test_fields_and_their_types() -> None:
    arrow = pa.list_(pa.struct([("name", pa.string()), ("type", pa.string())]))
    payload = b'{"n": 1, "f": 0.5, "b": true, "t": "x", "l": [1], "z": null}'
    [found] = json_fields(pa.array([payload]), arrow).to_pylist()
    types = {each["name"]: each["type"] for each in found}
    assert types == {"n": "double", "f": "double", "b": "boolean", "t": "string", "l": "string"}
    [found] = json_fields(pa.array([b'{"n": 1}\n{"n": "x", "m": true}\nx']), arrow, many="lines").to_pylist()
    assert {each["name"]: each["type"] for each in found} == {"n": "double", "m": "boolean"}


values = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.floats()
    | st.text()
    | st.just("2026-11-23"),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcdefghijkl"), inner),
    max_leaves=8,
)


@given(
    st.binary()
    | st.dictionaries(st.sampled_from("abcdefghijkl"), values).map(lambda v: json.dumps(v).encode())
)
def test_any_payload_is_decoded_or_refused_the_same_in_all_ways(payload: bytes) -> None:
    """A reading alone goes another way, by msgspec's own types, than one in a line of several."""
    columns = columns_of(**EVERY)
    alone = decoded(payload, columns)
    assert (alone["decoded"] is None) != (alone["reason"] is None)
    if payload.strip() and b"\n" not in payload:
        [line] = decoded(payload, columns, many="lines")
        assert line["decoded"] == alone["decoded"]
        assert line["reason"] == (alone["reason"] and f"reading 0: {alone['reason']}")
    anything = decoded(payload, columns_of(a=DoubleType(), others=StringType()), infers=True)
    assert (anything["decoded"] is None) != (anything["reason"] is None)
