"""Protobuf payloads become columns exactly, or dead letters that say what is wrong. Without Spark."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from google.protobuf.descriptor_pb2 import FileDescriptorSet
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st
from pipeline.lake import rules_of
from pipeline.registry import RegistryDouble, registry_double
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StringType, StructType

from tidemq.errors import ConfigError
from tidemq.pipeline.decode.column_types import parse_columns
from tidemq.pipeline.decode.protobuf import (
    decode_protobuf,
    message_name,
    message_type,
    protobuf_columns,
    protobuf_text,
)
from tidemq.pipeline.decode.schema_registry import Registry

SMALL = """
syntax = "proto3";
package plant;
message Climate {
  double celsius = 1;
  optional string unit = 2;
  message Inner { int32 x = 1; }
  Inner inner = 3;
}
message Other { string name = 1; }
"""
EVERY = """
syntax = "proto3";
package plant;
import "google/protobuf/timestamp.proto";
import "parts.proto";
message Reading {
  double a = 1; float b = 2; int32 c = 3; sint64 d = 4; uint32 e = 5; fixed64 f = 6; bool g = 7; string h = 8;
  bytes i = 9; Kind j = 10; optional double k = 11; google.protobuf.Timestamp l = 12; repeated int32 m = 13;
  map<string, double> n = 14; Part o = 15; repeated Part p = 16; map<int32, Part> q = 17;
  oneof either { string r = 18; int64 s = 19; }
  enum Kind { NONE = 0; SOME = 1; }
}
"""
PARTS = 'syntax = "proto3"; package plant; message Part { int64 x = 1; repeated bool y = 2; }'
COLUMNS = (
    "a double, b float, c int, d bigint, e bigint, f decimal(20,0), g boolean, h string, i binary, j string, "
    "k double, l timestamp, m array<int>, n map<string,double>, o struct<x: bigint, y: array<boolean>>, "
    "p array<struct<x: bigint, y: array<boolean>>>, q map<int, struct<x: bigint, y: array<boolean>>>, "
    "r string, s bigint"
)
AT = datetime(2026, 1, 31, 12, 0, 0, 250_000, UTC)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("schemas")
    (folder / "small.proto").write_text(SMALL)
    (folder / "every.proto").write_text(EVERY)
    (folder / "parts.proto").write_text(PARTS)
    return folder


@pytest.fixture(scope="module")
def small(folder: Path) -> str:
    return protobuf_text(folder / "small.proto")


@pytest.fixture(scope="module")
def every(folder: Path) -> str:
    return protobuf_text(folder / "every.proto")


@pytest.fixture
def double() -> Iterator[RegistryDouble]:
    with registry_double() as made:
        yield made


def made(text: str, name: str, /, **fields: Any) -> bytes:
    found = GetMessageClass(message_type(text, name))(**fields).SerializeToString()
    assert isinstance(found, bytes)
    return found


def decoded(
    payloads: list[bytes], text: str, message: str, columns: str = "", registry: Registry | None = None
) -> list[Any]:
    """Of each payload a dict of columns, or the reason."""
    struct = parse_columns(columns) if columns else protobuf_columns(text, message)
    kind = StructType().add("decoded", struct).add("reason", StringType())
    arrow = to_arrow_type(kind, timezone="UTC")
    found = decode_protobuf(pa.array(payloads, pa.binary()), text, message, registry, struct, arrow)
    rows = found.to_pylist()
    assert all((row["decoded"] is None) != (row["reason"] is None) for row in rows)
    return [row["decoded"] if row["reason"] is None else row["reason"] for row in rows]


def test_every_type_becomes_its_column(every: str) -> None:
    assert protobuf_columns(every, "plant.Reading") == parse_columns(COLUMNS)
    values: dict[str, Any] = {
        "a": 20.5,
        "b": 0.5,
        "c": -3,
        "d": -(1 << 40),
        "e": (1 << 32) - 1,
        "f": (1 << 64) - 1,
        "g": True,
        "h": "°C",
        "i": b"\x00\xff",
        "j": 1,
        "k": 0.0,
        "m": [1, -2],
        "n": {"a": 1.5},
        "s": 0,
        "o": {"x": 1, "y": [True]},
        "p": [{"x": 2}, {}],
        "q": {7: {"x": 3}},
    }
    payload = made(every, "plant.Reading", **values, l=AT)
    none = {"x": 0, "y": []}
    assert decoded([payload, b""], every, "plant.Reading") == [
        {
            **values,
            "f": Decimal((1 << 64) - 1),
            "j": "SOME",
            "l": AT,
            "n": [("a", 1.5)],
            "p": [{"x": 2, "y": []}, none],
            "q": [(7, {"x": 3, "y": []})],
            "r": None,
        },
        {
            "a": 0.0,
            "b": 0.0,
            "c": 0,
            "d": 0,
            "e": 0,
            "f": Decimal(0),
            "g": False,
            "h": "",
            "i": b"",
            "j": "NONE",
            "k": None,
            "l": None,
            "m": [],
            "n": [],
            "o": None,
            "p": [],
            "q": [],
            "r": None,
            "s": None,
        },
    ]


def test_columns_may_be_chosen_and_of_another_type_that_holds_the_value(every: str) -> None:
    payload = made(every, "plant.Reading", c=5, d=1 << 40, j=9, o={"x": 3})
    columns = "c double, j string, o struct<x: int>"
    assert decoded([payload], every, "plant.Reading", columns) == [{"c": 5.0, "j": "9", "o": {"x": 3}}]
    assert decoded([payload], every, "plant.Reading", "d int") == ["d is 1099511627776; int is wanted"]
    assert decoded([payload], every, "plant.Reading", "c timestamp, l timestamp") == [
        {"c": datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC), "l": None}  # seconds
    ]
    late = made(every, "plant.Reading", l={"seconds": 1 << 40}, d=1 << 60)
    assert (
        decoded([late] * 2, every, "plant.Reading", "l timestamp, a timestamp")
        == ["l is 1099511627776 s since 1970; timestamp is wanted"] * 2
    )
    assert decoded([late], every, "plant.Reading", "d timestamp") == [
        "d is 1152921504606846976; timestamp is wanted"
    ]
    (reason,) = decoded([late], every, "plant.Reading", "l bigint")
    assert reason == "l is seconds: 1099511627776\n; bigint is wanted"
    (reason,) = decoded([payload], every, "plant.Reading", "o string")
    assert reason == "o is x: 3\n; string is wanted"


def test_what_is_not_one_message_is_a_dead_letter_that_names_the_field(small: str) -> None:
    good = made(small, "plant.Climate", celsius=20.5, unit="C", inner={"x": 1})
    assert decoded(
        [
            good,
            good[:-1],
            good + b"\0",
            made(small, "plant.Climate", celsius=math.nan),
            b"\x08\x05",  # celsius as a varint
            b"\x1a\x03\x0a\x01x",  # inner.x as text
            b"\x12\x01\xff",
            made(small, "plant.Other", name="x"),
            good + b"\x98\x06\x01",  # a field of a later schema
        ],
        small,
        "plant.Climate",
    ) == [
        {"celsius": 20.5, "unit": "C", "inner": {"x": 1}},
        *2 * ["not Protobuf: Error parsing message with type 'plant.Climate': Wire format was corrupt"],
        "celsius is nan; double is wanted",
        "celsius is of another type; double is wanted",
        "inner.x is of another type; int32 is wanted",
        "not Protobuf: Error parsing message with type 'plant.Climate': String field had bad UTF-8",
        "celsius is of another type; double is wanted",
        {"celsius": 20.5, "unit": "C", "inner": {"x": 1}},
    ]


def test_fields_that_must_be_there_are_named(tmp_path: Path) -> None:
    (tmp_path / "a.proto").write_text(
        'syntax = "proto2"; message A { required int32 x = 1; optional B b = 2; optional string s = 3; '
        "enum E { ONE = 1; } optional E e = 4; message B { required int32 y = 1; } }"
    )
    text = protobuf_text(tmp_path / "a.proto")
    payloads = [b"\x08\x01", b"", b"\x08\x01\x12\x00", b"\x08\x01\x1a\x01\xff", b"\x08\x01\x20\x07"]
    assert decoded(payloads, text, "A") == [
        {"x": 1, "b": None, "s": None, "e": None},
        "a required field is missing: x",
        "a required field is missing: b.y",
        r"s is b'\xff'; string is wanted",
        "e is of another type; enum is wanted",
    ]


def test_descriptors_of_protoc_are_as_good_as_its_source(folder: Path, tmp_path: Path, every: str) -> None:
    (tmp_path / "every.pb").write_bytes(base64.b64decode(every))
    assert protobuf_text(tmp_path / "every.pb") == every
    alone = FileDescriptorSet.FromString(base64.b64decode(every))
    assert [each.name for each in alone.file][1:] == ["parts.proto", "every.proto"]
    del alone.file[0]  # which the library has as well
    (tmp_path / "alone.pb").write_bytes(alone.SerializeToString())
    assert protobuf_columns(protobuf_text(tmp_path / "alone.pb"), "plant.Reading") == parse_columns(COLUMNS)
    del alone.file[0]
    (tmp_path / "alone.pb").write_bytes(alone.SerializeToString())
    with pytest.raises(
        ConfigError, match=r"imports parts\.proto, which is not there; protoc --include_imports"
    ):
        protobuf_text(tmp_path / "alone.pb")


def test_the_message_is_named_unless_there_is_one(small: str, every: str) -> None:
    assert message_name(every, "") == "plant.Reading"
    assert message_name(small, "plant.Climate.Inner") == "plant.Climate.Inner"
    with pytest.raises(
        ConfigError, match=r"no message ''; accepted: plant.Climate, plant.Climate.Inner, plant.O"
    ):
        message_name(small, "")


@given(st.binary(), st.lists(st.tuples(st.integers(0, 200), st.binary(min_size=1, max_size=3)), max_size=4))
def test_any_payload_is_decoded_or_refused(small: str, other: bytes, edits: list[tuple[int, bytes]]) -> None:
    sample = made(small, "plant.Climate", celsius=20.5, unit="C", inner={"x": 1})
    damaged = sample
    for place, new in edits:
        at = place % len(sample)
        damaged = damaged[:at] + new + damaged[at + len(new) :]
    found = decoded([sample, damaged, other, sample], small, "plant.Climate")
    assert found[0] == found[-1] == {"celsius": 20.5, "unit": "C", "inner": {"x": 1}}


# --- registries --------------------------------------------------------------------------------


def register(double: RegistryDouble, subject: str, file: str, text: str, references: Any = ()) -> int:
    """The last file of a set, as a registry gives it: without a name, and without those that it imports."""
    described = FileDescriptorSet.FromString(base64.b64decode(text)).file[-1]
    described.name = "default"
    double.serialized[file] = described.SerializeToString()
    return double.add(subject, file, "PROTOBUF", references)


def framed(number: int, indexes: bytes, data: bytes) -> bytes:
    return b"\0" + number.to_bytes(4) + indexes + data


def test_a_payload_is_read_as_the_message_that_it_names(double: RegistryDouble, small: str) -> None:
    number = register(double, "plant-value", SMALL, small)
    climate = made(small, "plant.Climate", celsius=20.5, unit="C")
    payloads = [
        framed(number, b"\0", climate),
        framed(number, b"\x02\0", climate),  # one index, which is 0
        framed(number, b"\x02\x02", made(small, "plant.Other", name="x")),  # one, which is 1
        framed(number, b"\x04\0\0", made(small, "plant.Climate.Inner", x=5)),  # two: 0, 0
        framed(number, b"\x02\x08", climate),
        framed(number, b"\x02\x01", climate),  # -1
        framed(number, b"", b""),
        framed(number, b"\xff\xff\xff\xff\xff\xff", climate),
        framed(number, b"\xfe\xff\x03" + bytes(100), b""),
        framed(99, b"\0", climate),
        b"\x01" + climate,
        framed(number, b"\0", climate[:-1]),
    ]
    columns, registry = "celsius double, name string, x int", Registry(double.url)
    none = {"celsius": None, "name": None, "x": None}
    strange = "no such message type: schema 1, indexes"
    assert decoded(payloads, "", "", columns, registry) == [
        *2 * [{**none, "celsius": 20.5}],
        {**none, "name": "x"},
        {**none, "x": 5},
        f"{strange} [4]",
        f"{strange} [-1]",
        *3 * ["no indexes of a message type behind the schema's id"],
        "not in the schema registry: schema 99",
        "no schema's id: a byte 0 and four bytes",
        "not Protobuf: Error parsing message with type 'plant.Climate': Wire format was corrupt",
    ]
    assert sorted(double.asked) == [f"/schemas/ids/{each}?format=serialized" for each in (1, 99)]
    assert decoded(payloads[1:3], "", "plant.Other", columns, registry) == [
        "a message of another type: plant.Climate, not plant.Other",
        {**none, "name": "x"},
    ]


def test_schemas_that_import_others_are_put_together(
    double: RegistryDouble, folder: Path, every: str
) -> None:
    parts = protobuf_text(folder / "parts.proto")
    register(double, "parts", PARTS, parts)
    references = [{"name": "parts.proto", "subject": "parts", "version": 1}]
    number = register(double, "every", EVERY, every, references)
    payload = framed(number, b"\0", made(every, "plant.Reading", a=1.5, o={"x": 3}, l=AT))
    columns = "a double, l timestamp, o struct<x: bigint>"
    assert decoded([payload], "", "", columns, Registry(double.url)) == [{"a": 1.5, "l": AT, "o": {"x": 3}}]
    lonely = register(double, "lonely", f"{EVERY} ", every)
    assert decoded([framed(lonely, b"\0", b"")], "", "", columns, Registry(double.url)) == [
        f"a schema that cannot be used: {lonely}: it imports parts.proto, which is not there"
    ]


def test_a_schema_that_cannot_decode_is_said(double: RegistryDouble) -> None:
    double.add("avro", '"string"')
    double.add("bad", "bad", "PROTOBUF")
    double.serialized["bad"] = b"\xff"
    payloads = [framed(1, b"\0", b""), framed(2, b"\0", b"")]
    assert decoded(payloads, "", "", "a int", Registry(double.url)) == [
        "a schema that cannot be used: 1: it is of AVRO, not of PROTOBUF",
        "a schema that cannot be used: 2: the registry gives no descriptor of it (format=serialized)",
    ]


# --- rules -------------------------------------------------------------------------------------

RULE = '[[rules]]\nname = "a"\nfilter = "a"\nformat = "protobuf"\n'


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "rules.schema is missing; accepted: text"),
        ('schema = "none.proto"', r"rules.schema: the schema .*/none.proto: .* No such file"),
        ('schema = "bad.proto"', r"/bad.proto: .*bad.proto:1:1: Expected top-level statement"),
        ('schema = "bad.pb"', "/bad.pb: neither a .proto file nor descriptors of protoc's"),
        ('schema = "empty.pb"', "/empty.pb: it describes no message"),
        ('schema = "small.proto"', "it has no message ''; accepted: plant.Climate,"),
        (
            'schema = "small.proto"\nmessage = "Climate"',
            "it has no message 'Climate'; accepted: plant.Climate,",
        ),
        (
            'schema = "loop.proto"',
            "the field next can be no column: Loop holds itself; the rule may leave it out",
        ),
        ('schema = "loop.proto"\ncolumns = "y int"', "the rule a has a column y, which its schema has not"),
        ('schema = "small.proto"\nmessage = 5', "rules.message is 5; accepted: text"),
    ],
)
def test_a_wrong_rule_is_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "small.proto").write_text(SMALL)
    (tmp_path / "loop.proto").write_text('syntax = "proto3"; message Loop { Loop next = 1; int32 x = 2; }')
    (tmp_path / "bad.proto").write_text("bad")
    (tmp_path / "bad.pb").write_bytes(b"\xff")
    (tmp_path / "empty.pb").write_bytes(b"")
    with pytest.raises(ConfigError, match=f"(?s)rules.toml: .*{said}"):
        rules_of(tmp_path, RULE + text)


def test_a_rule_may_leave_out_what_can_be_no_column(tmp_path: Path) -> None:
    (tmp_path / "loop.proto").write_text('syntax = "proto3"; message Loop { Loop next = 1; int32 x = 2; }')
    (rule,) = rules_of(tmp_path, f'{RULE}schema = "loop.proto"\ncolumns = "x int"')
    assert rule.schema is not None
    payload = made(rule.schema.text, "Loop", next={"next": {"x": 1}}, x=5)
    assert decoded([payload], rule.schema.text, rule.schema.message, "x int") == [{"x": 5}]
