"""What a rule's decoding costs executors, by format: rows per second of CPU, of batches as Spark gives them,
by the same functions, in this process; the formats take turns."""

from __future__ import annotations

import argparse
import io
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import cbor2
import fastavro
import pyarrow as pa
from google.protobuf.message_factory import GetMessageClass
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import StringType, StructType

from tidemq.pipeline.decode.avro import avro_text, decode_avro
from tidemq.pipeline.decode.cbor import decode_cbor
from tidemq.pipeline.decode.column_types import parse_columns
from tidemq.pipeline.decode.json_payloads import decode_json
from tidemq.pipeline.decode.json_schema import json_schema_text, schema_check
from tidemq.pipeline.decode.protobuf import decode_protobuf, message_type, protobuf_text

BATCH_ROWS = 10_000  # as Spark's spark.sql.execution.arrow.maxRecordsPerBatch
COLUMNS = parse_columns("celsius double, humidity double, unit string, at timestamp")
ARROW = to_arrow_type(StructType().add("decoded", COLUMNS).add("reason", StringType()), timezone="UTC")
STARTED = datetime(2026, 1, 31, 12, tzinfo=UTC)
AVRO = {
    "type": "record",
    "name": "Reading",
    "fields": [
        {"name": "celsius", "type": "double"},
        {"name": "humidity", "type": ["null", "double"]},
        {"name": "unit", "type": "string"},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
    ],
}
PROTOBUF = """
syntax = "proto3";
import "google/protobuf/timestamp.proto";
message Reading {
  double celsius = 1; optional double humidity = 2; string unit = 3; google.protobuf.Timestamp at = 4;
}
"""
JSON_SCHEMA = {
    "type": "object",
    "required": ["celsius"],
    "properties": {
        "celsius": {"type": "number", "minimum": -40},
        "humidity": {"type": "number"},
        "unit": {"type": "string"},
        "at": {"type": "string", "format": "date-time"},
    },
}
Decode = Callable[[pa.Array], pa.Array]


def readings(count: int) -> list[dict[str, Any]]:
    return [
        {
            "celsius": number % 4000 / 100,
            "humidity": number % 1000 / 10,
            "unit": "C",
            "at": STARTED + timedelta(milliseconds=number),
        }
        for number in range(count)
    ]


def contenders() -> dict[str, tuple[list[bytes], Decode]]:
    """Of each format the payloads of a batch, and what decodes them."""
    found = readings(BATCH_ROWS)
    texts = [json.dumps(each | {"at": each["at"].isoformat()}).encode() for each in found]
    avro, json_schema = avro_text(json.dumps(AVRO)), json_schema_text(json.dumps(JSON_SCHEMA))
    with TemporaryDirectory() as folder:
        (Path(folder) / "reading.proto").write_text(PROTOBUF)
        protobuf = protobuf_text(Path(folder) / "reading.proto")
    message = GetMessageClass(message_type(protobuf, "Reading"))
    check = schema_check(json_schema)
    return {
        "json": (texts, lambda given: decode_json(given, COLUMNS, ARROW)),
        "json with schema": (texts, lambda given: decode_json(given, COLUMNS, ARROW, check=check)),
        "cbor": ([cbor2.dumps(each) for each in found], lambda given: decode_cbor(given, COLUMNS, ARROW)),
        "avro": (
            [written(each) for each in found],
            lambda given: decode_avro(given, avro, None, COLUMNS, ARROW),
        ),
        "protobuf": (
            [message(**each).SerializeToString() for each in found],
            lambda given: decode_protobuf(given, protobuf, "Reading", None, COLUMNS, ARROW),
        ),
    }


def written(reading: dict[str, Any]) -> bytes:
    file = io.BytesIO()
    fastavro.schemaless_writer(file, AVRO, reading)
    return file.getvalue()


def main(arguments: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    options = parser.parse_args(arguments)
    given = {name: (pa.array(payloads, pa.binary()), run) for name, (payloads, run) in contenders().items()}
    rates: dict[str, list[float]] = {name: [] for name in given}
    expected = None
    for _ in range(options.rounds):
        for name, (payloads, decode) in given.items():
            began = time.process_time()
            decoded = decode(payloads)
            rates[name].append(len(payloads) / (time.process_time() - began))
            expected = expected or decoded
            assert decoded.equals(expected), f"{name} gives other rows"
    medians = {name: statistics.median(each) for name, each in rates.items()}
    sizes = {name: statistics.mean(map(len, payloads.to_pylist())) for name, (payloads, _) in given.items()}
    print("| format | bytes a payload | rows per second of CPU | beside json |\n|---|---|---|---|")
    for name, rate in medians.items():
        print(f"| {name} | {sizes[name]:.0f} | {rate:,.0f} | {rate / medians['json']:.2f} |")


if __name__ == "__main__":
    main(sys.argv[1:])
