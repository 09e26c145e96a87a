"""Payloads are decoded by rule, or become dead letters; what came again is left out, and only that."""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest
from conformance import kit
from conformance.packets import PUBACK, publish
from pipeline.lake import ingest, rows, rules_of
from pipeline.streaming import TIDEMQ, Streaming
from pyspark.sql import SparkSession
from pyspark.sql import functions as F  # noqa: N812

from tidemq.errors import ConfigError
from tidemq.pipeline.decode.payload_rules import Rule, filter_pattern
from tidemq.pipeline.lake.ingest import run_ingest

pytestmark = pytest.mark.timeout(300)

PAGE = Path(__file__).parents[2] / "docs/pipeline.md"
RULES = """
[[rules]]
name = "climate"
filter = "{stream}/+/climate"
format = "json"
columns = "celsius double, unit string"

[[rules]]
name = "level"
filter = "{stream}/+/level"
format = "number"
"""


ONE = '[[rules]]\nname = "a"\nfilter = "a"\nformat = "number"\n'
GOLD = f'{ONE}[rules.gold]\nwindow = "1 minute"\n'


def send_as_device(streaming: Streaming, topic: str, messages: list[tuple[bytes, int, bool]]) -> None:
    """QoS 1 messages with these payloads, packet identifiers and DUP flags, by the client `device`."""
    device = kit.Client(streaming.broker.port, 4)
    device.connect("device")
    for payload, packet_id, dup in messages:
        device.send(publish(topic, payload, 1, packet_id, 4, dup=dup))
        device.expect(PUBACK, packet_id=packet_id)
    device.disconnect()


def test_payloads_become_columns_and_others_dead_letters(
    spark: SparkSession, streaming: Streaming, tmp_path: Path
) -> None:
    streaming.declare("decoded")
    climate = [
        b'{"celsius": 20.5, "unit": "C", "more": [1]}',
        b'{"unit": "C"}',
        b'{"celsius": "warm"}',
        b"20.5",
        b'{"celsius": 2',
        b"\xff\xfe",
        b"",
    ]
    level = [
        *(b"17", b" -1.5e3 "),
        *(b"high", b"", b"1f", b"3d", b"0x1p3", b"NaN", b"Infinity", b"1e400", b"1 2", b"1\n2", b"\xff"),
    ]
    streaming.publish([("decoded/1/climate", payload) for payload in climate])
    streaming.publish([("decoded/1/level", payload) for payload in level])
    streaming.publish([("decoded/else", b"17")])
    job = ingest(spark, streaming, tmp_path, "decoded", RULES)
    found, numbers = (job.silver(rule) for rule in job.rules)
    assert rows(found, "offset", "topic", "celsius", "unit") == [
        (0, "decoded/1/climate", 20.5, "C"),
        (1, "decoded/1/climate", None, "C"),
    ]
    assert rows(numbers, "offset", "value") == [(7, 17.0), (8, -1500.0)]
    assert rows(job.dead_letters, "offset", "rule", "reason", "payload") == [
        (2, "climate", "celsius is 'warm'; double is wanted", climate[2]),
        (3, "climate", "a number, not a JSON object", climate[3]),
        (4, "climate", "not JSON: Input data was truncated", climate[4]),
        (5, "climate", "not UTF-8", b"\xff\xfe"),
        (6, "climate", "not JSON: Input data was truncated", b""),
        *((7 + at, "level", "not a number", level[at]) for at in range(2, len(level))),
    ]
    assert len(rows(job.bronze, "offset")) == len(climate) + len(level) + 1
    # a driver that was killed between two tables: the batch comes again
    (tmp_path / "lake/decoded/checkpoint/commits/0").unlink()
    for path in (tmp_path / "lake/decoded/checkpoint/commits").glob(".0*"):
        path.unlink()
    before = [rows(table, "offset") for table in job.all_tables]
    run_ingest(spark, job, once=True)
    assert [rows(table, "offset") for table in job.all_tables] == before


GATEWAYS = """
[[rules]]
name = "lines"
filter = "{stream}/lines"
format = "json"
columns = "celsius double"
many = "lines"

[[rules]]
name = "array"
filter = "{stream}/array"
format = "json"
many = "array"
"""


def test_a_payload_of_several_readings_becomes_several_rows(
    spark: SparkSession, streaming: Streaming, tmp_path: Path
) -> None:
    streaming.declare("gateways")
    lines = b'{"celsius": 1}\n{"celsius": "warm"}\n{"celsius": 3}\n'
    array = b'[{"a": 1}, {"a": 2, "b": true}, 3]'
    sent = [("lines", lines), ("lines", b'{"celsius": 4} '), ("array", array), ("array", b"{}")]
    streaming.publish([(f"gateways/{kind}", payload) for kind, payload in sent])
    job = ingest(spark, streaming, tmp_path, "gateways", GATEWAYS)
    found, inferred = (job.silver(rule) for rule in job.rules)
    assert rows(found, "offset", "place", "celsius") == [(0, 0, 1.0), (0, 2, 3.0), (1, 0, 4.0)]
    assert rows(inferred, "offset", "place", "a", "b") == [(2, 0, 1.0, None), (2, 1, 2.0, True)]
    assert rows(job.dead_letters, "offset", "rule", "reason", "payload") == [
        (0, "lines", "reading 1: celsius is 'warm'; double is wanted", lines),
        (2, "array", "reading 2: a number, not a JSON object", array),
        (3, "array", "a JSON object, not a list of JSON objects", b"{}"),
    ]
    # from the beginning again, by who knows nothing but the tables
    shutil.rmtree(tmp_path / "lake/gateways/checkpoint")
    before = [rows(each, "offset") for each in job.all_tables]
    ingest(spark, streaming, tmp_path, "gateways", GATEWAYS)
    assert [rows(each, "offset") for each in job.all_tables] == before


def test_what_came_again_is_left_out_unless_it_is_the_first_to_come(
    spark: SparkSession, streaming: Streaming, tmp_path: Path
) -> None:
    streaming.declare("again")
    sent = [
        (b"1", 1, False),
        (b"1", 1, True),  # came again
        (b"2", 2, True),  # its first delivery never came
        (b"2", 2, True),
        (b"3", 1, True),  # another message
        (b"3", 1, False),  # a new one that looks the same
    ]
    send_as_device(streaming, "again/1/level", sent)
    job = ingest(spark, streaming, tmp_path, "again", RULES)
    assert rows(job.silver(job.rules[1]), "offset", "value") == [(0, 1.0), (2, 2.0), (4, 3.0), (5, 3.0)]
    assert len(rows(job.bronze, "offset")) == 6
    send_as_device(streaming, "again/1/level", [(b"2", 2, True)])  # the first is in an earlier batch
    run_ingest(spark, job, once=True)
    assert [offset for (offset,) in rows(job.silver(job.rules[1]), "offset")] == [0, 2, 4, 5]
    assert len(rows(job.bronze, "offset")) == 7
    streaming.delete("again")
    streaming.declare("again")  # in place of another node's: the first came to another stream
    send_as_device(streaming, "again/1/level", [(b"2", 2, True), (b"4", 2, True)])
    run_ingest(spark, replace(job, fail_on_data_loss=False), once=True)
    assert [value for (value,) in rows(job.silver(job.rules[1]), "value", order="value")] == [1, 2, 3, 3, 4]
    assert len(rows(job.bronze, "offset")) == 9


def test_filters_match_as_the_broker_matches(spark: SparkSession) -> None:
    cases = {
        "a/b": ("a/b",),
        "+/b": ("a/b", "/b"),
        "a/+": ("a/b", "a/"),
        "a/#": ("a", "a/", "a/b", "a/b/c"),
        "#": ("a", "a/", "a/b", "a/b/c", "/b", "a.b", "x\ny"),
        "a.b": ("a.b",),
        "$SYS/#": ("$SYS/a",),
        "+": ("a", "a.b", "x\ny"),
    }
    topics = ("a", "a/", "a/b", "a/b/c", "/b", "a.b", "x\ny", "$SYS/a")
    frame = spark.createDataFrame([(topic,) for topic in topics], "topic string")
    matches = [F.col("topic").rlike(filter_pattern(each)).alias(str(n)) for n, each in enumerate(cases)]
    found = frame.select("topic", *matches).collect()
    for number, (each, expected) in enumerate(cases.items()):
        assert {row.topic for row in found if row[str(number)]} == set(expected), each


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("x = 1", "nothing else"),
        ("[[rules", "no TOML"),
        ("rules = [1]", "rules has 1"),
        ('[[rules]]\nfilter = "a"\nformat = "number"', "rules.name is missing"),
        ('[[rules]]\nname = "a/b"\nfilter = "a"\nformat = "number"', "rules.name is 'a/b'"),
        ('[[rules]]\nname = "a"\nfilter = "a#"\nformat = "number"', "rules.filter is 'a#'"),
        ('[[rules]]\nname = "a"\nfilter = "a"\nformat = "xml"', "accepted: json, number, cbor, avro"),
        (f'{ONE.replace("number", "json")}many = "all"', "rules.many is 'all'; accepted: lines or array"),
        (f'{ONE}many = "lines"', "rules.many is unknown; accepted: name, filter, format"),
        ('[[rules]]\nname = "a"\nfilter = "a"\nformat = "cbor"', "rules.columns is missing"),
        ('[[rules]]\nname = "a"\nfilter = "a"\nformat = "number"\nb = 1', "rules.b is unknown"),
        (f"{ONE}time = 5", "rules.time is 5; accepted: text"),
        (f'{ONE}time = "at"\ntime_property = "sent"', "rules.time_property is 'sent'; accepted: either"),
        (f'{ONE}watermark = "1 minute"', "rules.watermark is '1 minute'; accepted: only beside time"),
        (
            f'{ONE}time = "at"\nwatermark = "soon"',
            "rules.watermark is 'soon'; accepted: a number with its unit",
        ),
        (f"{ONE}gold = 1", r"rules.gold is 1; accepted: a table \[rules.gold\]"),
        (f"{ONE}[rules.gold]", "rules.gold.window is missing; accepted: a number with its unit"),
        (f'{ONE}[rules.gold]\nwindow = "0 days"', "rules.gold.window is '0 days'"),
        (f'{GOLD}values = "value"', "rules.gold.values is 'value'; accepted: a list of texts"),
        (f"{GOLD}limits = {{ value = [0, 1] }}", "rules.gold.limits .* accepted: of some of the values"),
        (f'{GOLD}values = ["value"]\nlimits = {{ value = [1, 0] }}', "rules.gold.limits"),
        (f"{GOLD}percentiles = [101]", r"rules.gold.percentiles is \[101\]; accepted: a list of numbers"),
        (f"{GOLD}gap = 5", "rules.gold.gap is 5"),
        (f'{GOLD}by = ["count"]', "rules.gold.by .* with other names than gold's own"),
        (f"{GOLD}every = 5", "rules.gold.every is unknown; accepted: window, values"),
        (2 * '[[rules]]\nname = "a"\nfilter = "a"\nformat = "number"\n', "two rules have the name a"),
    ],
)
def test_a_wrong_rule_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        rules_of(tmp_path, text)


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ("celsius doubble", "the columns of the rule a: 'doubble' where there should be a type: boolean,"),
        ("Topic string", "the rule a has a column Topic, which every table has"),
        ("int", "the columns of the rule a: the end where"),
    ],
)
def test_wrong_columns_are_named(tmp_path: Path, columns: str, said: str) -> None:
    with pytest.raises(ConfigError, match=f"^{said}"):
        Rule("a", "a", "json", columns).check()
    text = f'{ONE.replace("number", "json")}columns = "{columns}"'
    with pytest.raises(ConfigError, match=f"rules.toml: {said}"):
        rules_of(tmp_path, text)


@pytest.mark.skipif(not PAGE.exists(), reason="the source tree is hidden")
def test_the_rules_of_the_documentation_are_accepted(tmp_path: Path) -> None:
    shown = PAGE.read_text().split("```\n[[rules]]", 1)[1].split("```", 1)[0]
    rules = rules_of(tmp_path, f"[[rules]]{shown}")
    assert [rule.name for rule in rules] == ["climate", "level"]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "rules.toml"),
        (f'{ONE.replace("number", "json")}columns = "a doubble"', "'doubble' where there should be a type"),
    ],
)
def test_the_command_says_what_is_wrong_in_a_line_before_spark_starts(
    tmp_path: Path, text: str, said: str
) -> None:
    """There is no Java that it could start."""
    rules = tmp_path / "rules.toml"
    if text:
        rules.write_text(text)
    environment = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    command = [*TIDEMQ, "pipeline", "ingest", "any", str(tmp_path), "--url", "http://127.0.0.1:1"]
    done = subprocess.run(
        [*command, "--rules", str(rules)],
        capture_output=True,
        text=True,
        env={**environment, "PATH": str(tmp_path)},
    )
    assert done.returncode == 1
    assert said in done.stderr
    assert "Traceback" not in done.stderr
