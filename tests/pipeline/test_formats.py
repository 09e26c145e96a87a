"""CBOR, Sparkplug B, and JSON whose columns nobody has named."""

from __future__ import annotations

import shutil
from datetime import UTC, datetime
from pathlib import Path

import cbor2
import pytest
from pipeline.lake import ingest, rows
from pipeline.streaming import Streaming
from pyspark.sql import SparkSession

from tidemq.errors import ConfigError
from tidemq.pipeline.decode.payload_rules import Rule

pytestmark = pytest.mark.timeout(300)

CBOR = """
[[rules]]
name = "climate"
filter = "{stream}/+/climate"
format = "cbor"
columns = "celsius double, count int, at timestamp, tags array<string>, inner struct<x: bigint>"
"""
SPARKPLUG_B = """
[[rules]]
name = "plant"
filter = "spBv1.0/#"
format = "sparkplug"
"""
AT = datetime(2026, 1, 31, 11, 0, 0, tzinfo=UTC)
SPARKPLUG = {  # as the classes encode them that protoc makes of Eclipse Tahu's sparkplug_b.proto
    "NBIRTH": "0880dfd69dc133120b0a05626453657120045800120f0a0454656d7010012009650000a44112110a054c65766"
    "56c1002200350fbffffff0f12140a05546f74616c200858ffffffffffffffffff011800",
    "DBIRTH": "0880dfd69dc13312110a0553706565641003200250feffffff0f12110a0553746174651004200c7a0469646c65"
    "120a0a024f6e1005200b700112150a055461626c65100620108a0107080112016118031801",
    "NDATA": "08e8e6d69dc133120e100118f4e2d69dc133650000ac411802",
    "DDATA": "08d0eed69dc1331206100350f9ff031208106350ffffffff0f120410043801120d1005188082fb9bc13328017000"
    "121c0a0553706565644205420372706d4a0a0a01711205080318c001500c1803",
    "DDEATH": "08b8f6d69dc133",
}


def sparkplug(*types: str) -> list[tuple[str, bytes]]:
    """Messages of the edge node `edge` and its device `pump`."""
    device = {"D": "/pump", "N": ""}
    return [(f"spBv1.0/plant/{each}/edge{device[each[0]]}", bytes.fromhex(SPARKPLUG[each])) for each in types]


def test_cbor_becomes_columns_and_what_has_another_type_dead_letters(
    spark: SparkSession, streaming: Streaming, tmp_path: Path
) -> None:
    streaming.declare("binary")
    whole = {"celsius": 20, "count": 3, "at": AT, "tags": ["a", None], "inner": {"x": 5, "y": 6}, "more": 1}
    wrong = {
        "celsius is '20'; double is wanted": {"celsius": "20"},
        "celsius is True; double is wanted": {"celsius": True},
        "count is 2147483648; int is wanted": {"count": 1 << 31},
        "count is 1.5; int is wanted": {"count": 1.5},
        "inner.x is 'a'; bigint is wanted": {"inner": {"x": "a"}},
        "tags is 1; string is wanted": {"tags": ["a", 1]},
        "at is '2026-01-31T12:00:00'; timestamp is wanted": {"at": "2026-01-31T12:00:00"},
        "a CBOR list, not a map": [1],
    }
    payloads = [
        cbor2.dumps(whole),
        cbor2.dumps({"at": "2026-01-31T12:00:00+01:00", "celsius": None, 1: 2}),
        *map(cbor2.dumps, wrong.values()),
        cbor2.dumps({}) + b"\x00",
        b"\xa1\x61",
        b"\x81" * 100_000,
        b"",
    ]
    streaming.publish([("binary/1/climate", payload) for payload in payloads])
    job = ingest(spark, streaming, tmp_path, "binary", CBOR)
    found = rows(job.silver(job.rules[0]), "offset", "celsius", "count", "at", "tags", "inner")
    assert found == [
        (0, 20.0, 3, AT, ["a", None], {"x": 5}),
        (1, None, None, AT, None, None),
    ]
    dead = rows(job.dead_letters, "offset", "payload", "reason")
    assert [row[:2] for row in dead] == list(enumerate(payloads))[2:]
    reasons = [reason for *_, reason in dead]
    assert reasons[: len(wrong)] == list(wrong)
    assert reasons[len(wrong)] == "not CBOR: something follows the first value"
    assert all(reason.startswith("not CBOR: ") for reason in reasons[len(wrong) :])


def test_sparkplug_metrics_become_rows_with_the_names_of_their_births(
    spark: SparkSession, streaming: Streaming, tmp_path: Path
) -> None:
    streaming.declare("metrics", filters=["spBv1.0/#"])
    streaming.publish(sparkplug("NDATA", "NBIRTH", "DBIRTH", "NDATA"))
    streaming.publish(sparkplug("DDATA", "DDEATH"))  # in another batch than the births
    streaming.publish([("spBv1.0/STATE/host", b"{}"), ("spBv1.0/plant/NDATA/edge", b"\x0a\xff")])
    job = ingest(spark, streaming, tmp_path, "metrics", SPARKPLUG_B, rows_max=4)
    silver = job.silver(job.rules[0])
    columns = ("metric", "alias", "datatype", "value_double", "value_long", "value_text", "value_bool")
    found = rows(silver, "offset", *columns)
    assert found[0] == (0, None, 1, None, 21.5, None, None, None)  # before it was born
    assert found[1:5] == [
        (1, "bdSeq", None, "Int64", 0.0, 0, None, None),
        (1, "Temp", 1, "Float", 20.5, None, None, None),
        (1, "Level", 2, "Int32", -5.0, -5, None, None),
        (1, "Total", None, "UInt64", float(2**64 - 1), None, str(2**64 - 1), None),
    ]
    assert found[5:9] == [
        (2, "Speed", 3, "Int16", -2.0, -2, None, None),
        (2, "State", 4, "String", None, None, "idle", None),
        (2, "On", 5, "Boolean", None, None, None, True),
        (2, "Table", 6, "DataSet", None, None, None, None),
    ]
    assert found[9] == (3, "Temp", 1, "Float", 21.5, None, None, None)
    assert found[10:] == [
        (4, "Speed", 3, "Int16", -7.0, -7, None, None),
        (4, None, 99, None, float(2**32 - 1), 2**32 - 1, None, None),  # of no birth
        (4, "State", 4, "String", None, None, None, None),
        (4, "On", 5, "Boolean", None, None, None, False),
        (4, "Speed", None, "Int16", 12.0, 12, None, None),
        (5, None, None, None, None, None, None, None),
    ]
    about = rows(silver, "group_id", "message_type", "edge_node_id", "device_id", "seq", "is_historical")
    assert about[9] == ("plant", "NDATA", "edge", None, 2, False)
    assert about[13] == ("plant", "DDATA", "edge", "pump", 3, True)
    assert about[15] == ("plant", "DDEATH", "edge", "pump", None, None)
    seconds = [(at - AT).total_seconds() for (at,) in rows(silver, "timestamp")]
    assert (seconds[9], seconds[10], seconds[13], seconds[15]) == (0.5, 2, -3600, 3)
    assert rows(silver, "value_bytes")[8] == (bytes.fromhex("08011201611803"),)
    reasons = rows(job.dead_letters, "offset", "reason")
    assert [offset for offset, _ in reasons] == [6, 7]
    assert reasons[0][1].startswith("not a topic of Sparkplug B's metrics")
    assert reasons[1][1].startswith("not a Sparkplug B payload")


def test_a_type_that_cbor_has_not_is_named() -> None:
    with pytest.raises(ConfigError, match="the rule a: the column x is timestamp_ntz, which CBOR has not"):
        Rule("a", "a", "cbor", "x timestamp_ntz").check()


INFERRED = """
[[rules]]
name = "any"
filter = "{stream}/#"
format = "json"
"""


def test_json_without_columns_gets_those_that_the_first_messages_have(
    spark: SparkSession, streaming: Streaming, tmp_path: Path
) -> None:
    streaming.declare("any")
    first = [
        b'{"celsius": 20, "note": null, "list": [1, {"a": 2}]}',
        b'{"celsius": 20.5, "on": true, "date": "now", "a.b": 1e3}',
        b'{"celsius": "warm"}',
        b"[1]",
    ]
    later = [
        b'{"celsius": 21, "note": "new", "Celsius": 3}',
        b'{"on": "yes", "list": "none"}',
        b"{}",
        b'{"list": "none", "note": 17}',
    ]
    streaming.publish([("any/1", payload) for payload in first + later])
    job = ingest(spark, streaming, tmp_path, "any", INFERRED, rows_max=len(first))
    (table,) = (job.silver(rule) for rule in job.rules)
    assert rows(table, "offset", "celsius", "note", "list", "on", "others") == [
        (0, 20.0, None, '[1,{"a":2}]', None, None),
        (1, 20.5, None, None, True, '{"date":"now","a.b":1000.0}'),
        (4, 21.0, "new", None, None, '{"Celsius":3}'),
        (6, None, None, None, None, None),
        (7, None, "17", "none", None, None),
    ]
    assert rows(job.dead_letters, "offset", "payload", "reason") == [
        (2, first[2], "celsius is 'warm'; double is wanted"),
        (3, first[3], "a list, not a JSON object"),
        (5, later[1], "on is 'yes'; boolean is wanted"),
    ]
    # from the beginning again, by who knows nothing but the tables: nothing changes
    shutil.rmtree(tmp_path / "lake/any/checkpoint")
    before = [rows(each, "offset") for each in job.all_tables]
    ingest(spark, streaming, tmp_path, "any", INFERRED)
    assert [rows(each, "offset") for each in job.all_tables] == before
    # the same after tables were removed
    for gone in ("checkpoint", "silver", "dead_letters"):
        shutil.rmtree(tmp_path / "lake/any" / gone)
    ingest(spark, streaming, tmp_path, "any", INFERRED)
    assert [rows(each, "offset") for each in job.all_tables] == before
