"""Rules whose payloads are written by schemas, from files and from a registry, in a job."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
from pipeline.lake import ingest, rows
from pipeline.registry import registry_double
from pipeline.streaming import Streaming
from pipeline.test_avro import AT, SMALL, framed, written
from pipeline.test_protobuf import SMALL as CLIMATE
from pyspark.sql import SparkSession

from tidemq.errors import ConfigError
from tidemq.pipeline.spark.jobs import JobError

pytestmark = pytest.mark.timeout(300)

READING = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "celsius", "type": ["null", "double"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {
            "name": "inner",
            "type": {"type": "record", "name": "In", "fields": [{"name": "x", "type": "long"}]},
        },
    ],
}
CORRUPT = "not Protobuf: Error parsing message with type 'plant.Climate': Wire format was corrupt"
RULES = """
[[rules]]
name = "by_file"
filter = "{stream}/+/file"
format = "avro"
schema = "reading.avsc"
time = "at"
watermark = "100000 days"
[rules.gold]
window = "1 day"
values = ["celsius"]

[[rules]]
name = "by_registry"
filter = "{stream}/+/registry"
format = "avro"
columns = "celsius double, unit string"
registry = { url = "URL" }

[[rules]]
name = "protobuf"
filter = "{stream}/+/protobuf"
format = "protobuf"
schema = "climate.proto"
message = "plant.Climate"

[[rules]]
name = "room"
filter = "{stream}/+/room"
format = "json"
schema = "room.json"
"""
ROOM = {"required": ["floor"], "properties": {"floor": {"type": "integer"}, "name": {"type": "string"}}}


def test_payloads_become_rows_by_files_and_by_a_registry_that_may_be_away(
    spark: SparkSession, streaming: Streaming, tmp_path: Path
) -> None:
    streaming.declare("avro")
    (tmp_path / "reading.avsc").write_text(json.dumps(READING))
    (tmp_path / "climate.proto").write_text(CLIMATE)
    (tmp_path / "room.json").write_text(json.dumps(ROOM))
    whole = written(READING, {"celsius": 20.5, "at": AT, "inner": {"x": 7}})
    empty = written(READING, {"celsius": None, "at": AT, "inner": {"x": -1}})
    small = written(SMALL, {"celsius": 3.5, "unit": "C"})
    with registry_double() as double:
        number = double.add("a", json.dumps(SMALL))
        of_registry = [framed(number, small), framed(99, small), small[:-1]]
        streaming.publish([("avro/1/file", each) for each in (whole, empty, whole[:-1])])
        streaming.publish([("avro/1/registry", each) for each in of_registry])
        climate = b"\x09" + struct.pack("<d", 20.5) + b"\x12\x01C"
        streaming.publish([("avro/1/protobuf", each) for each in (climate, climate[:-1])])
        streaming.publish([("avro/1/room", each) for each in (b'{"floor": 1}', b'{"name": "x"}')])
        rules = RULES.replace("URL", double.url)
        double.status = 503
        with pytest.raises(JobError, match=r"the rule by_registry is held back: .* cannot be asked: 503"):
            ingest(spark, streaming, tmp_path, "avro", rules)
        double.status = 0
        job = ingest(spark, streaming, tmp_path, "avro", rules)
        double.status = 401
        with pytest.raises(ConfigError, match="the schema registry answers 401"):
            job.check()
    by_file, by_registry, protobuf, room = job.rules
    assert rows(job.silver(by_file), "offset", "celsius", "at", "inner", "event_time") == [
        (0, 20.5, AT, {"x": 7}, AT),
        (1, None, AT, {"x": -1}, AT),
    ]
    assert rows(job.gold(by_file), "celsius_count", "celsius_mean", order="window") == [(1, 20.5)]
    assert rows(job.silver(by_registry), "offset", "celsius", "unit") == [(3, 3.5, "C")]
    assert rows(job.silver(protobuf), "offset", "celsius", "unit", "inner") == [(6, 20.5, "C", None)]
    assert rows(job.silver(room), "offset", "floor", "name") == [(8, 1, None)]
    assert rows(job.dead_letters, "offset", "rule", "payload", "reason") == [
        (2, "by_file", whole[:-1], "inner is cut off, or of another type; struct<x:bigint> is wanted"),
        (4, "by_registry", of_registry[1], "not in the schema registry: schema 99"),
        (5, "by_registry", of_registry[2], "not in the schema registry: schema 0"),
        (7, "protobuf", climate[:-1], CORRUPT),
        (9, "room", b'{"name": "x"}', 'against the schema: the object: "floor" is a required property'),
    ]
