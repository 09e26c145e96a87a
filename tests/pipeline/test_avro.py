"""Avro payloads become columns exactly, or dead letters that say what is wrong. Without Spark."""

from __future__ import annotations

import io
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any
from uuid import uuid4

import fastavro
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline.lake import rules_of
from pipeline.registry import RegistryDouble, registry_double
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StringType, StructType

from tidemq.errors import ConfigError
from tidemq.pipeline.decode.avro import avro_columns, avro_text, decode_avro
from tidemq.pipeline.decode.column_types import parse_columns
from tidemq.pipeline.decode.schema_registry import Registry, RegistryError

AT = datetime(2026, 1, 31, 12, 0, 0, 250_000, UTC)
FIELDS: list[tuple[str, Any, str, Any]] = [  # name, type, column, value
    ("celsius", "double", "double", 20.5),
    ("count", "int", "int", -3),
    ("total", "long", "bigint", 1 << 40),
    ("ratio", "float", "float", 0.5),
    ("on", "boolean", "boolean", True),
    ("unit", "string", "string", "°C"),
    ("raw", "bytes", "binary", b"\x00\xff"),
    ("kind", {"type": "enum", "name": "Kind", "symbols": ["A", "B"]}, "string", "B"),
    ("id", {"type": "fixed", "name": "Id", "size": 2}, "binary", b"ab"),
    ("maybe", ["null", "double"], "double", None),
    ("or", ["string", "null"], "string", "x"),
    ("tags", {"type": "array", "items": "string"}, "array<string>", ["a", "b"]),
    ("by_name", {"type": "map", "values": "double"}, "map<string, double>", [("a", 1.5)]),
    (
        "inner",
        {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": "int"}]},
        "struct<x: int>",
        {"x": 1},
    ),
    ("again", ["null", "Inner"], "struct<x: int>", {"x": 2}),
    ("at", {"type": "long", "logicalType": "timestamp-millis"}, "timestamp", AT),
    ("at_us", {"type": "long", "logicalType": "timestamp-micros"}, "timestamp", AT),
    (
        "here",
        {"type": "long", "logicalType": "local-timestamp-micros"},
        "timestamp_ntz",
        AT.replace(tzinfo=None),
    ),
    ("day", {"type": "int", "logicalType": "date"}, "date", date(2026, 1, 31)),
    (
        "price",
        {"type": "bytes", "logicalType": "decimal", "precision": 6, "scale": 2},
        "decimal(6,2)",
        Decimal("12.30"),
    ),
    ("uuid", {"type": "string", "logicalType": "uuid"}, "string", "5f7cf9c0-5b0c-4a5e-9d0e-000000000000"),
    ("clock", {"type": "int", "logicalType": "time-millis"}, "int", 7),
]
EVERY = {
    "type": "record",
    "name": "plant.Reading",
    "doc": "What a device says.",
    "fields": [{"name": name, "type": kind, "doc": "One of them."} for name, kind, _, _ in FIELDS],
}
VALUES = {name: value for name, _, _, value in FIELDS}
SMALL = {
    "type": "record",
    "name": "Small",
    "fields": [{"name": "celsius", "type": "double"}, {"name": "unit", "type": "string"}],
}


def written(schema: Any, value: Any) -> bytes:
    """By the library, to which logical types are said or not."""
    file = io.BytesIO()
    fastavro.schemaless_writer(file, fastavro.parse_schema(json.loads(json.dumps(schema))), value)
    return file.getvalue()


def plain(schema: Any) -> Any:
    """As `EVERY`, its times of the day and UUIDs as what they are made of."""
    text = json.dumps(schema).replace('"logicalType": "uuid"', '"was": "uuid"')
    return json.loads(text.replace('"logicalType": "time-millis"', '"was": "time"'))


def arrow_of(columns: StructType) -> pa.DataType:
    kind = StructType().add("decoded", columns).add("reason", StringType())
    return to_arrow_type(kind, timezone="UTC")


def decoded(
    payloads: list[bytes], schema: Any = None, columns: str = "", registry: Registry | None = None
) -> list[Any]:
    """Of each payload a dict of columns, or the reason."""
    text = avro_text(json.dumps(schema)) if schema else ""
    struct = parse_columns(columns) if columns else avro_columns(text)
    found = decode_avro(pa.array(payloads, pa.binary()), text, registry, struct, arrow_of(struct))
    rows = found.to_pylist()
    assert all((row["decoded"] is None) != (row["reason"] is None) for row in rows)
    return [row["decoded"] if row["reason"] is None else row["reason"] for row in rows]


@pytest.fixture
def double() -> Any:
    with registry_double() as made:
        yield made


def framed(number: int, data: bytes) -> bytes:
    return b"\0" + number.to_bytes(4) + data


def test_every_type_becomes_its_column() -> None:
    columns = avro_columns(avro_text(json.dumps(EVERY)))
    assert columns == parse_columns(", ".join(f"`{name}` {column}" for name, _, column, _ in FIELDS))
    payload = written(plain(EVERY), VALUES | {"by_name": {"a": 1.5}})
    assert decoded([payload], EVERY) == [VALUES]


def test_columns_may_be_chosen_and_of_another_type_that_holds_the_value() -> None:
    payload = written(plain(EVERY), VALUES | {"by_name": {"a": 1.5}})
    assert decoded([payload], EVERY, "count bigint, ratio double, kind string, total int") == [
        "total is 1099511627776; int is wanted"
    ]
    assert decoded([payload], EVERY, "count bigint, ratio double") == [{"count": -3, "ratio": 0.5}]


def test_what_is_not_exactly_one_value_is_a_dead_letter_that_names_the_field() -> None:
    good = written(SMALL, {"celsius": 20.5, "unit": "C"})
    assert decoded(
        [
            good,
            b"",
            good[:5],
            good[:-1],
            good + b"\0",
            good[:8] + b"\x02\xff",
            written(SMALL, {"celsius": float("nan"), "unit": "C"}),
            written(SMALL, {"celsius": float("inf"), "unit": "C"}),
            good,
        ],
        SMALL,
    ) == [
        {"celsius": 20.5, "unit": "C"},
        "celsius is cut off, or of another type; double is wanted",
        "celsius is cut off, or of another type; double is wanted",
        "unit is cut off, or of another type; string is wanted",
        "not Avro: bytes behind the value: 1",
        "unit is not UTF-8; string is wanted",
        "celsius is nan; double is wanted",
        "celsius is inf; double is wanted",
        {"celsius": 20.5, "unit": "C"},
    ]


def record(*fields: tuple[str, Any]) -> dict[str, Any]:
    return {"type": "record", "name": "R", "fields": [{"name": name, "type": kind} for name, kind in fields]}


def test_numbers_beyond_their_types_are_dead_letters() -> None:
    number, money = record(("i", "int")), record(("d", FIELDS[19][1]))
    long = record(("i", "long"))
    assert decoded([written(long, {"i": 1 << 31}), written(long, {"i": -5})], number) == [
        "i is 2147483648; int is wanted",
        {"i": -5},
    ]
    (reason,) = decoded([b"\x10" + b"\x7f" * 8], money)
    assert reason == "d is Decimal('9.18720E+16'); decimal(6,2) is wanted"
    (reason,) = decoded([b"\xff\xff\xff\xff\x0f"], record(("d", {"type": "int", "logicalType": "date"})))
    assert reason == "d is cut off, or of another type; date is wanted"


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ("{", "no Avro schema of a record: "),
        ('"string"', "it is not of a record"),
        ('{"type": "record", "name": "R"}', "no Avro schema of a record: its record has no fields"),
        (json.dumps(record(("a", "strin"))), "no Avro schema of a record: UnknownType: strin"),
        (json.dumps(record(("a", ["null", "R"]))), "R holds itself"),
        (json.dumps(record(("a", {"type": "array", "items": "null"}))), "elements without a byte"),
        (
            json.dumps(
                record(("a", {"type": "array", "items": {"type": "record", "name": "E", "fields": []}}))
            ),
            "without",
        ),
    ],
)
def test_what_is_no_schema_is_refused(schema: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        avro_text(schema)


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        (["null", "int", "string"], "the field a can be no column: a union of several types"),
        ("null", "the field a can be no column: it is null"),
        ({"type": "record", "name": "E", "fields": []}, "a record without fields"),
        ({"type": "bytes", "logicalType": "decimal", "precision": 40}, "a decimal of more than 38 digits"),
    ],
)
def test_a_field_that_can_be_no_column_is_named(kind: Any, said: str) -> None:
    text = avro_text(json.dumps(record(("x", "int"), ("a", kind))))
    with pytest.raises(ConfigError, match=said):
        avro_columns(text)


def test_a_union_goes_into_a_column_that_takes_its_value() -> None:
    schema = record(("a", ["null", "long", "string"]), ("b", "int"))
    payloads = [written(schema, {"a": each, "b": 1}) for each in (None, 5, "x")]
    assert decoded(payloads, schema, "a bigint") == [{"a": None}, {"a": 5}, "a is 'x'; bigint is wanted"]


edits = st.lists(st.tuples(st.integers(0, 200), st.binary(min_size=1, max_size=3)), max_size=4)


@given(edits, st.binary(), st.integers(0, 80))
def test_any_payload_is_decoded_or_refused(edits: list[tuple[int, bytes]], other: bytes, cut: int) -> None:
    sample = written(plain(EVERY), VALUES | {"by_name": {"a": 1.5}})
    damaged = sample
    for place, new in edits:
        at = place % len(sample)
        damaged = damaged[:at] + new + damaged[at + len(new) :]
    found = decoded([sample, damaged, other, sample[: -1 - cut], sample], EVERY)
    assert found[0] == found[-1] == VALUES
    assert isinstance(found[3], str)


# --- registries --------------------------------------------------------------------------------


def test_a_payload_is_read_by_the_schema_that_it_names(double: RegistryDouble) -> None:
    later = {**SMALL, "fields": [*SMALL["fields"], {"name": "more", "type": "int"}]}
    old, new = (double.add("plant-value", json.dumps(each)) for each in (SMALL, later))
    small = written(SMALL, {"celsius": 20.5, "unit": "C"})
    payloads = [
        framed(old, small),
        framed(new, written(later, {"celsius": 21, "unit": "F", "more": 7})),
        framed(99, small),
        framed(99, small),
        b"\x01" + small,
        b"",
        framed(old, small + b"\0"),
        framed(old, small[:3]),
    ]
    found = decoded(payloads, columns="celsius double, more bigint", registry=Registry(double.url))
    assert found == [
        {"celsius": 20.5, "more": None},
        {"celsius": 21.0, "more": 7},
        *2 * ["not in the schema registry: schema 99"],
        *2 * ["no schema's id: a byte 0 and four bytes"],
        "not Avro: bytes behind the value: 1",
        "celsius is cut off, or of another type; double is wanted",
    ]
    assert sorted(double.asked) == [f"/schemas/ids/{each}" for each in (old, new, 99)]  # each once


def test_a_file_beside_a_registry_is_what_payloads_are_read_as(double: RegistryDouble) -> None:
    wanted = record(("celsius", "double"), ("room", "string"))
    wanted |= {"name": "Small"}
    wanted["fields"][1]["default"] = "hall"
    registry = Registry(double.url)
    whole = {**SMALL, "fields": [{"name": "celsius", "type": "int"}]}
    number = double.add("a", json.dumps(whole))
    assert decoded([framed(number, written(whole, {"celsius": 3}))], wanted, registry=registry) == [
        {"celsius": 3.0, "room": "hall"}
    ]
    del wanted["fields"][1]["default"]
    (reason,) = decoded([framed(number, written(whole, {"celsius": 3}))], wanted, registry=registry)
    assert reason == "not of the schema: No default value for field room in Small"


def test_schemas_that_refer_to_others_are_put_together(double: RegistryDouble) -> None:
    part = {"type": "record", "name": "plant.Part", "fields": [{"name": "x", "type": "int"}]}
    whole = record(("a", "plant.Part"), ("b", {"type": "array", "items": "plant.Part"}))
    double.add("part", json.dumps(part))
    references = [{"name": "plant.Part", "subject": "part", "version": 1}]
    number = double.add("whole", json.dumps(whole), references=references)
    both = json.loads(json.dumps(whole))
    both["fields"][0]["type"] = part
    payload = framed(number, written(both, {"a": {"x": 1}, "b": [{"x": 2}]}))
    columns = "a struct<x: int>, b array<struct<x: int>>"
    assert decoded([payload], columns=columns, registry=Registry(double.url)) == [
        {"a": {"x": 1}, "b": [{"x": 2}]}
    ]


@pytest.mark.parametrize(
    ("kind", "schema", "said"),
    [
        ("AVRO", '"string"', "a schema that cannot be used: 1: it is not of a record"),
        ("AVRO", json.dumps(record(("a", ["null", "R"]))), "a schema that cannot be used: 1: R holds itself"),
        ("JSON", "{}", "a schema that cannot be used: 1: it is of JSON, not of AVRO"),
    ],
)
def test_a_schema_that_cannot_decode_is_said(
    double: RegistryDouble, kind: str, schema: str, said: str
) -> None:
    double.add("a", schema, kind)
    found = decoded([framed(1, b"\x02" * 1000)] * 2, columns="a string", registry=Registry(double.url))
    assert found == [said] * 2
    assert len(double.asked) == 1


def test_a_registry_that_cannot_be_asked_is_no_dead_letter(
    double: RegistryDouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemq.pipeline.decode.schema_registry.PAUSE_S", 0.01)
    double.add("a", json.dumps(SMALL))
    payload = framed(1, written(SMALL, {"celsius": 20.5, "unit": "C"}))
    registry = Registry(double.url)
    for status in (500, 401, 302):
        double.status = status
        with pytest.raises(RegistryError, match=rf"^{double.url}: .* {status}"):
            decoded([payload], columns="unit string", registry=registry)
    double.status = 0
    assert decoded([payload], columns="unit string", registry=registry) == [{"unit": "C"}]
    double.status = 500  # it is known by now
    assert decoded([payload], columns="unit string", registry=registry) == [{"unit": "C"}]


def test_a_registry_is_told_who_asks_and_by_which_authority(tmp_path: Path) -> None:
    with registry_double(tmp_path) as double:
        double.login = "plant:sécret:"
        double.add("a", json.dumps(SMALL))
        (tmp_path / "password").write_text("sécret:\n")
        rule = f"""
            [[rules]]
            name = "a"
            filter = "a"
            format = "avro"
            columns = "unit string"
            [rules.registry]
            url = "{double.url}"
            user = "plant"
            password_file = "password"
            cafile = "authority.pem"
        """
        (found,) = rules_of(tmp_path, rule)
        assert found.registry is not None
        found.registry.check()
        payload = framed(1, written(SMALL, {"celsius": 20.5, "unit": "C"}))
        assert decoded([payload], columns="unit string", registry=found.registry) == [{"unit": "C"}]
        assert "sécret" not in repr(found)
        with pytest.raises(ConfigError, match="answers 401: Unauthorized"):
            Registry(double.url, "plant", "other", found.registry.authority).check()
        with pytest.raises(RegistryError, match="certificate"):
            Registry(double.url, "plant", "sécret:").check()


# --- rules -------------------------------------------------------------------------------------


AVRO = '[[rules]]\nname = "a"\nfilter = "a"\nformat = "avro"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "rules.schema is missing; accepted: text"),
        ('columns = "a int"', "rules.schema is missing"),
        ('schema = "none.avsc"', r"rules.schema: the schema .*/none.avsc: .* No such file"),
        ('schema = "bad.avsc"', "rules.schema: the schema .*/bad.avsc: no Avro schema of a record"),
        ('schema = "small.avsc"\nmany = "lines"', "rules.many is unknown"),
        ('schema = "small.avsc"\ntime = "at"', "the rule a has no column at, which time names"),
        (
            'schema = "topic.avsc"',
            "the rule a has a column topic, which every table has; the rule may leave it out",
        ),
        ('schema = "union.avsc"', "the rule a: the field u can be no column: a union of several types"),
        (
            'schema = "small.avsc"\ncolumns = "kelvin double"',
            "the rule a has a column kelvin, which its schema has not",
        ),
        ('registry = "http://a"', r"rules.registry is 'http://a'; accepted: a table \[rules.registry\]"),
        ('registry = { url = "http://a" }', "rules.columns is missing"),
        ('columns = "a int"\nregistry = {}', "rules.registry.url is missing"),
        (
            'columns = "a int"\nregistry = { url = "ftp://a" }',
            "rules.registry: 'ftp://a' is no registry's address",
        ),
        (
            'columns = "a int"\nregistry = { url = "http://a", user = "b" }',
            "rules.registry.password_file is missing",
        ),
        (
            'columns = "a int"\nregistry = { url = "http://a", user = "b", password_file = "none" }',
            "rules.registry.password_file: .*No such file",
        ),
        (
            'columns = "a int"\nregistry = { url = "http://a", cafile = "bad.avsc" }',
            "rules.registry: no certificates",
        ),
        (
            'columns = "a int"\nregistry = { url = "http://a", token = "b" }',
            "rules.registry.token is unknown",
        ),
    ],
)
def test_a_wrong_rule_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "small.avsc").write_text(json.dumps(SMALL))
    (tmp_path / "topic.avsc").write_text(json.dumps(record(("topic", "string"))))
    (tmp_path / "union.avsc").write_text(json.dumps(record(("u", ["int", "string"]))))
    (tmp_path / "bad.avsc").write_text("bad")
    with pytest.raises(ConfigError, match=f"rules.toml: .*{said}"):
        rules_of(tmp_path, AVRO + text)


def test_a_rule_is_another_when_its_schema_is(tmp_path: Path) -> None:
    """Not by what makes no difference to rows, nor by where the registry is."""

    def digest(schema: Any, more: str = "") -> int:
        (tmp_path / "s.avsc").write_text(json.dumps(schema, indent=1))
        return rules_of(tmp_path, f'{AVRO}schema = "s.avsc"\n{more}')[0].digest

    assert digest(SMALL) == digest({**SMALL, "doc": str(uuid4())})
    assert digest(SMALL) != digest({**SMALL, "fields": SMALL["fields"][:1]})
    one, other = (digest(SMALL, f'registry = {{ url = "http://{host}" }}') for host in "ab")
    assert one == other != digest(SMALL)
