"""JSON Schema gives a rule of JSON its columns, and says which objects are dead letters. Without Spark."""

from __future__ import annotations

import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pipeline.lake import rules_of
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, IntegerType, StringType, StructType

from tidemq.errors import ConfigError
from tidemq.pipeline.decode.column_types import parse_columns
from tidemq.pipeline.decode.json_payloads import decode_json
from tidemq.pipeline.decode.json_schema import json_schema_columns, json_schema_text, schema_check

FIELDS: list[tuple[str, Any, str, Any, Any]] = [  # name, schema, column, value in JSON, in the table
    ("celsius", {"type": "number", "minimum": -40, "maximum": 85}, "double", 20.5, 20.5),
    ("count", {"type": ["integer", "null"]}, "bigint", 3, 3),
    ("both", {"type": ["integer", "number"]}, "double", 3, 3.0),
    ("on", {"type": "boolean"}, "boolean", True, True),
    ("unit", {"enum": ["C", "F", None]}, "string", "C", "C"),
    ("v", {"const": 2}, "bigint", 2, 2),
    (
        "at",
        {"type": "string", "format": "date-time"},
        "timestamp",
        "2026-01-31T12:00:00Z",
        datetime(2026, 1, 31, 12, tzinfo=UTC),
    ),
    ("day", {"type": "string", "format": "date"}, "date", "2026-01-31", date(2026, 1, 31)),
    ("host", {"type": "string", "format": "hostname"}, "string", "a", "a"),
    ("raw", {"type": "string", "contentEncoding": "base64"}, "binary", "AP8=", b"\x00\xff"),
    ("tags", {"type": "array", "items": {"type": "string"}}, "array<string>", ["a"], ["a"]),
    (
        "by",
        {"type": "object", "additionalProperties": {"type": "number"}},
        "map<string,double>",
        {"a": 1},
        [("a", 1.0)],
    ),
    ("room", {"$ref": "#/$defs/a~1room"}, "struct<floor: bigint>", {"floor": 2}, {"floor": 2}),
    ("or", {"anyOf": [{"type": "null"}, {"$ref": "#/$defs/a~1room"}]}, "struct<floor: bigint>", None, None),
]
EVERY = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["celsius"],
    "properties": {name: schema for name, schema, *_ in FIELDS},
    "$defs": {"a/room": {"type": "object", "properties": {"floor": {"type": "integer"}}}},
}
OBJECT = {name: value for name, _, _, value, _ in FIELDS}
ROW = {name: value for name, *_, value in FIELDS}


def decoded(payloads: list[bytes], schema: Any, columns: str = "", many: str = "") -> list[Any]:
    """Of each reading a dict of columns, or the reason."""
    text = json_schema_text(json.dumps(schema))
    struct = parse_columns(columns) if columns else json_schema_columns(text)
    kind = StructType().add("decoded", struct).add("reason", StringType())
    if many:
        kind.add("place", IntegerType()).add("payload", "binary")
    arrow = to_arrow_type(ArrayType(kind) if many else kind, timezone="UTC")
    found = decode_json(
        pa.array(payloads, pa.binary()), struct, arrow, many=many, check=schema_check(text)
    ).to_pylist()
    rows = [each for of_payload in found for each in of_payload] if many else found
    return [row["decoded"] if row["reason"] is None else row["reason"] for row in rows]


def test_every_type_becomes_its_column() -> None:
    assert json_schema_columns(json_schema_text(json.dumps(EVERY))) == parse_columns(
        ", ".join(f"{name} {column}" for name, _, column, *_ in FIELDS)
    )
    payloads = [json.dumps(OBJECT).encode(), b'{"celsius": 1, "more": [1]}']
    assert decoded(payloads, EVERY) == [ROW, dict.fromkeys(ROW) | {"celsius": 1.0}]


WRONG = {
    b"{}": 'against the schema: the object: "celsius" is a required property',
    b'{"celsius": -41}': "against the schema: celsius: -41 is less than the minimum of -40",
    b'{"celsius": "warm"}': 'against the schema: celsius: "warm" is not of type "number"',
    b'{"celsius": 1, "unit": "K"}': 'against the schema: unit: "K" is not one of "C", "F" or null',
    b'{"celsius": 1, "room": {"floor": ""}}': 'against the schema: room.floor: "" is not of type "integer"',
    b'{"celsius": 1, "tags": ["a", 1]}': 'against the schema: tags.1: 1 is not of type "string"',
    b'{"celsius": 1, "at": "now"}': "at is 'now'; timestamp is wanted",
    b'{"celsius": 1, "count": 9223372036854775808}': "count is 9223372036854775808; bigint is wanted",
    b"[1]": "a list, not a JSON object",
    b'{"celsius": 1} {}': "not JSON: JSON is malformed: trailing characters (byte 16)",
}


def test_an_object_that_is_not_as_the_schema_says_is_a_dead_letter_that_names_the_field() -> None:
    good = b'{"celsius": 20}'
    row = dict.fromkeys(ROW) | {"celsius": 20.0}
    assert decoded([good, *WRONG, good], EVERY) == [row, *WRONG.values(), row]
    readings = b"[%s, {}]" % good
    assert decoded([readings], EVERY, many="array") == [row, f"reading 1: {WRONG[b'{}']}"]
    assert decoded([good + b"\n{}"], EVERY, many="lines") == [row, f"reading 1: {WRONG[b'{}']}"]


def test_columns_may_be_chosen() -> None:
    wrong, good = b'{"celsius": 86.5}', b'{"celsius": 20.25}'
    assert decoded([good, wrong], EVERY, "celsius decimal(5, 2), room string") == [
        {"celsius": Decimal("20.25"), "room": None},
        "against the schema: celsius: 86.5 is greater than the maximum of 85",
    ]


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "objec"}, 'no JSON Schema: "objec" is not valid'),
        ({"$ref": "http://127.0.0.1:1/x"}, "no JSON Schema: "),
        ({"type": "array"}, "does not say which fields an object has"),
        (True, "does not say which fields an object has"),
        ({"type": "object"}, "does not say which fields an object has"),
    ],
)
def test_what_is_no_schema_of_objects_is_refused(schema: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        json_schema_text(json.dumps(schema))


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({}, "it may be anything"),
        (True, "it may be anything"),
        ({"type": ["string", "number"]}, "it may be of several types: number, string"),
        ({"enum": [1, "a"]}, "it may be of several types: integer, string"),
        ({"type": "object"}, "an object whose fields it does not name"),
        ({"type": "array"}, "a list whose elements are not of one schema"),
        (
            {"type": "array", "prefixItems": [{"type": "number"}]},
            "a list whose elements are not of one schema",
        ),
        ({"oneOf": [{"type": "number"}, {"type": "string"}]}, "oneOf of several schemas"),
        ({"$ref": "#"}, "it holds itself"),
    ],
)
def test_a_field_that_can_be_no_column_is_named(schema: Any, said: str) -> None:
    text = json_schema_text(
        json.dumps({"type": "object", "properties": {"x": {"type": "number"}, "a": schema}})
    )
    with pytest.raises(ConfigError, match=f"the field a can be no column: {said}"):
        json_schema_columns(text)


RULE = '[[rules]]\nname = "a"\nfilter = "a"\nformat = "json"\nschema = "a.json"\n'


def test_a_rule_takes_its_columns_from_a_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"rules.toml: rules.schema: the schema .*a.json: .* No such file"):
        rules_of(tmp_path, RULE)
    (tmp_path / "a.json").write_text("{")
    with pytest.raises(ConfigError, match=r"rules.toml: rules.schema: the schema .*a.json: no JSON Schema"):
        rules_of(tmp_path, RULE)
    (tmp_path / "a.json").write_text(json.dumps({"properties": {"x": {"type": "number"}, "topic": {}}}))
    for columns, said in (
        ("", "the field topic can be no column: it may be anything; the rule may leave it out"),
        ('columns = "y int"', "has a column y, which its schema has not"),
    ):
        with pytest.raises(ConfigError, match=f"rules.toml: the .*rule a.*{said}"):
            rules_of(tmp_path, RULE + columns)
    (rule,) = rules_of(tmp_path, f'{RULE}columns = "x double"\nmany = "lines"')
    assert rule.struct() == parse_columns("x double")
    (tmp_path / "a.json").write_text(json.dumps({"properties": {"x": {"type": "number"}}}))
    (whole,) = rules_of(tmp_path, f'{RULE}time = "x"')
    assert (whole.struct(), whole.infers) == (rule.struct(), False)
