"""Whatever a payload holds, executors decode it or say why not; they never fail. Without Spark."""

from __future__ import annotations

from datetime import UTC
from typing import Any

import cbor2
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pipeline.test_formats import SPARKPLUG
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import ArrayType, BinaryType, DecimalType, LongType, MapType, StringType, StructType

from tidemq.pipeline.decode.cbor import decode_cbor
from tidemq.pipeline.decode.sparkplug import BIRTH_COLUMNS, Births, Node, decode_sparkplug
from tidemq.pipeline.decode.sparkplug import COLUMNS as SPARKPLUG_COLUMNS

SIMPLE = {"a": "double", "b": "integer", "c": "string", "d": "timestamp", "e": "date", "f": "float"}
CBOR = StructType()
for name, kind in SIMPLE.items():
    CBOR.add(name, kind)
CBOR.add("g", ArrayType(LongType())).add("h", MapType(StringType(), BinaryType())).add("i", DecimalType(6, 2))
CBOR.add("j", StructType().add("a", "boolean"))
METRICS = StructType()
for column in SPARKPLUG_COLUMNS.split(", "):
    name, kind = column.replace("bigint", "long").split()
    METRICS.add(name, kind)
SAMPLES = [bytes.fromhex(each) for each in SPARKPLUG.values()]

values = st.recursive(
    st.one_of(
        *(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(), st.binary()),
        *(st.dates(), st.decimals(), st.datetimes(timezones=st.just(UTC))),
    ),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcdefghij"), inner),
    max_leaves=8,
)


def arrow(decoded: pa.DataType) -> pa.DataType:
    return pa.struct([pa.field("decoded", decoded), pa.field("reason", pa.string())])


def check(found: pa.Array, count: int) -> None:
    rows = found.to_pylist()
    assert len(rows) == count
    assert all((row["decoded"] is None) != (row["reason"] is None) for row in rows)


def damaged(sample: bytes, edits: list[tuple[int, bytes]]) -> bytes:
    for place, new in edits:
        at = place % len(sample)
        sample = sample[:at] + new + sample[at + len(new) :]
    return sample


edits = st.lists(st.tuples(st.integers(0, 200), st.binary(min_size=1, max_size=3)), max_size=4)


@given(st.binary() | st.dictionaries(st.sampled_from("abcdefghij"), values).map(cbor2.dumps), edits)
def test_any_cbor_is_decoded_or_refused(payload: bytes, edits: list[tuple[int, bytes]]) -> None:
    payloads = [payload, damaged(payload, edits) if payload else b""]
    kind = arrow(to_arrow_type(CBOR, timezone="UTC"))
    check(decode_cbor(pa.array(payloads, pa.binary()), CBOR, kind), 2)


@given(st.sampled_from(SAMPLES), edits, st.binary())
def test_any_sparkplug_message_is_decoded_or_refused(
    sample: bytes, edits: list[tuple[int, bytes]], other: bytes
) -> None:
    payloads = [damaged(sample, edits), other, None]
    topics = ["spBv1.0/g/NDATA/n", "spBv1.0/g/DDATA/n/d", "spBv1.0/g/NBIRTH/n"]
    kind = arrow(to_arrow_type(ArrayType(METRICS), timezone="UTC"))
    given = pa.array(topics), pa.array([5, 6, 7]), pa.array(payloads, pa.binary())
    check(decode_sparkplug(*given, Births(), kind), 3)


@pytest.mark.parametrize("topic", ["", "spBv1.0", "spBv1.0/g/NDATA", "spBv1.0/g/DDATA/n", "x/g/NDATA/n"])
def test_other_topics_are_refused(topic: str) -> None:
    kind = arrow(to_arrow_type(ArrayType(METRICS), timezone="UTC"))
    found = decode_sparkplug(pa.array([topic]), pa.array([0]), pa.array([b""]), Births(), kind)
    assert found[0]["reason"].as_py().startswith("not a topic of Sparkplug B's metrics")


def test_a_birth_counts_from_its_message_until_its_node_is_born_again() -> None:
    def row(
        offset: int, message_type: str, device: str | None, metric: str, alias: int | None, datatype: str
    ) -> dict[str, Any]:
        values = ("g", message_type, "n", device, metric, alias, datatype)
        return {"offset": offset} | dict(zip(BIRTH_COLUMNS, values, strict=True))

    births = Births(
        [
            row(30, "NBIRTH", None, "new", 1, "Int64"),
            row(10, "NBIRTH", None, "old", 1, "Int32"),
            row(20, "DBIRTH", "d", "speed", 2, "Double"),
            row(40, "DBIRTH", "e", "speed", 3, "Float"),
        ]
    )
    node = Node("g", "n")

    def known(
        offset: int,
        alias: int | None = None,
        name: str | None = None,
        device: str | None = None,
        of: Node = node,
    ) -> tuple[str | None, str | None]:
        return births.known(of, device, offset, name, alias)

    assert [known(offset, 1) for offset in (10, 11, 30, 31)] == [
        (None, None),
        ("old", "Int32"),
        ("old", "Int32"),
        ("new", "Int64"),
    ]
    assert [known(offset, 2) for offset in (20, 21, 31)] == [(None, None), ("speed", "Double"), (None, None)]
    assert known(50, name="speed", device="e") == ("speed", "Float")
    assert known(50, name="speed", device="d") == ("speed", None)
    assert known(50, 1, of=Node("g", "other")) == (None, None)
