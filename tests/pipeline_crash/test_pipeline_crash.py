"""Each message is in the tables once, whatever is killed: one seed on a cluster of two workers, and proof
that what is lost or doubled is found.

`make test` kills all jobs once, `make test-long` an executor and the broker before that; `make
crash-pipeline` plays more seeds, and longer; `TIDEMQ_TEST_CRASH_SEED` moves the one of these tests.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from pipeline_crash.alarms import Alert
from pipeline_crash.publishing import Sent
from pipeline_crash.run import MESSAGES_MIN, STREAM, Choice, Outcome, play
from pipeline_crash.verdict import DECODED, Found, Place, Row, judge, read_tables, total, window_of

pytestmark = pytest.mark.timeout(1200)

SEED = int(os.environ.get("TIDEMQ_TEST_CRASH_SEED", "1"))
KILLS = int(os.environ.get("TIDEMQ_TEST_CRASH_KILLS", "1"))  # 3: an executor, the broker, all jobs
FORMAT = os.environ.get("TIDEMQ_TEST_CRASH_FORMAT", "delta")
of_delta = pytest.mark.skipif(FORMAT != "delta", reason="the table is changed by deltalake")
SECOND = timedelta(seconds=1)
BEGUN = datetime(2026, 1, 31, 12, tzinfo=UTC)


@pytest.fixture(scope="module")
def outcome(install: Callable[[str, str], None]) -> Iterator[Outcome]:
    """Of one run, with its files."""
    install("java", "default-jre-headless")
    outcome = play(Choice(seed=SEED, kills=KILLS, format=FORMAT), keep=True)
    yield outcome
    if not outcome.failures:
        shutil.rmtree(outcome.folder)


def test_each_message_is_in_the_tables_once_whatever_is_killed(outcome: Outcome) -> None:
    assert not outcome.failures, outcome.report
    assert outcome.kills == KILLS
    assert sum(each.acknowledged for each in outcome.sent.values()) >= MESSAGES_MIN
    assert all(len(rows) > 100 for rows in outcome.found.decoded.values())


@of_delta
@pytest.mark.parametrize("name", ["bronze", "silver/json", "silver/number", "dead_letters"])
def test_a_file_that_a_table_has_twice_or_no_more_is_found_out(
    outcome: Outcome, tmp_path: Path, name: str
) -> None:
    folder = tmp_path / STREAM
    shutil.copytree(outcome.folder / "lake" / STREAM, folder)
    table = DeltaTable(folder / name)
    [action, *_] = pa.table(table.get_add_actions()).to_pylist()
    copy = f"{action['path']}.copy.parquet"
    shutil.copyfile(folder / name / action["path"], folder / name / copy)
    day = {"date": action["partition"]["date"].isoformat()}
    again = AddAction(copy, action["size_bytes"], day, 0, True, "{}")
    table.create_write_transaction([again], "append", table.schema(), ["date"])
    doubled = with_tables(outcome, folder)
    line, *others = judge(outcome.sent.values(), doubled)
    kind = name.removeprefix("silver/")
    assert bool(others) == (kind != name)
    assert all(other.startswith(f"gold/{kind} has ") for other in others)
    assert line.startswith(f"{action['num_records']} messages")
    assert "in bronze, not so in the stream" in line if name == "bronze" else "more than once" in line
    DeltaTable(folder / name).delete(
        f'"offset" >= {action["min"]["offset"]} and "offset" <= {action["max"]["offset"]}'
    )
    removed = with_tables(outcome, folder)
    assert any(f"in the stream, not in {name}" in line for line in judge(outcome.sent.values(), removed))


def with_tables(outcome: Outcome, folder: Path) -> Found:
    """What was found, with other tables."""
    there = read_tables(folder)
    return replace(outcome.found, bronze=there.bronze, decoded=there.decoded, totals=there.totals)


@of_delta
def test_any_reader_of_delta_lake_can_read_the_tables(outcome: Outcome) -> None:
    logs = (outcome.folder / "lake").rglob("_delta_log")
    found = {log.parent.relative_to(outcome.folder / "lake" / STREAM): DeltaTable(log.parent) for log in logs}
    assert len(found) >= 6
    for table in found.values():
        protocol = table.protocol()
        assert (protocol.min_reader_version, protocol.min_writer_version) == (1, 2)
        assert not protocol.reader_features
        assert not protocol.writer_features


def rows(*numbers: int) -> list[Row]:
    """Of a stream, from offset 0 on, with these payloads."""
    same = {"epoch": 7, "topic": "plant/device/number", "client_id": "device", "received": BEGUN}
    return [
        {**same, "offset": offset, "payload": b"%d" % number, "user_properties": []}
        for offset, number in enumerate(numbers)
    ]


@pytest.mark.parametrize(
    ("stream", "silver", "said"),
    [
        ((1, 2, 2), {1: 0, 2: 1}, []),
        ((2, 2), {2: 0}, ["1 messages acknowledged and not in the stream: 1"]),
        ((1, 1, 2), {1: 0, 2: 2}, ["1 messages more than once in the stream, at QoS 2: 1"]),
        ((1, 2, 2), {1: 0}, ["1 messages in the stream, not in silver/number: 2"]),
        ((1, 2, 2), {1: 0, 2: 2}, ["1 messages in silver/number not as it came first: 2"]),
        ((1, 2), {1: 0, 2: 1, 3: 5}, ["1 messages in silver/number, not in the stream: 3"]),
        ((1, 2, 9), {1: 0, 2: 1}, ["1 messages in the stream, but nobody sent it: 9"]),
    ],
)
def test_what_is_wrong_is_said(stream: tuple[int, ...], silver: dict[int, int], said: list[str]) -> None:
    """Message 1 was sent at QoS 2 and message 2 at QoS 1, both were acknowledged; 3 was not."""
    sent = [Sent(1, "number", 2, True), Sent(2, "number", 1, True), Sent(3, "number", 1)]
    decoded = {
        "json": [],
        "number": [(number, (7, offset)) for number, offset in silver.items()],
        "wrong": [],
    }
    assert judge(sent, Found(rows(*stream), rows(*stream), decoded)) == said


NOTHING: dict[str, list[tuple[int, Place]]] = {kind: [] for kind in DECODED}


def level(offset: int, at_s: float, value: int | None) -> Row:
    """Of a stream, at a time; None: nobody can read it."""
    payload = b"7 is no level" if value is None else b'{"level": %d}' % value
    named = {"topic": "plant/device/json", "client_id": "device", "payload": payload}
    return {"epoch": 7, "offset": offset, "received": BEGUN + at_s * SECOND, "user_properties": [], **named}


# two of the last three above 60: raised by 2; two of three not above 40 any more: cleared by 6. Silent from
# 6.1 to 9, and again at the end
LEVELS = [20, 61, 70, None, 41, 40, 30, 0, 90]
TIMES = [0, 1, 2, 3, 4, 5, 6.1, 9, 9.5]
WATCHED = [level(offset, *each) for offset, each in enumerate(zip(TIMES, LEVELS, strict=True))]


def alert(rule: str, state: str, offset: int, at_s: float, value: float) -> Alert:
    time = (BEGUN + at_s * SECOND).isoformat(timespec="microseconds")
    limit = 60.0 if rule == "hot" else 2.0
    named = {"id": f"{rule}/{state}/7/{offset}", "rule": rule, "state": state, "topic": "plant/device/json"}
    return {**named, "client": "device", "value": value, "limit": limit, "offset": offset, "time": time}


RIGHT = [
    alert("hot", "raised", 2, 2, 70.0),
    alert("hot", "cleared", 6, 6.1, 30.0),
    alert("silent", "raised", 6, 8.1, 2.0),
    alert("silent", "cleared", 7, 9, 2.9),
]
LATER = alert("silent", "raised", 8, 11.5, 2.0)  # behind the newest message: it may have come or not


@pytest.mark.parametrize(
    ("alerts", "said"),
    [
        (RIGHT, []),
        ([*RIGHT, LATER, RIGHT[0]], []),
        (RIGHT[1:], ["1 alerts are missing from those that came: hot/raised/7/2"]),
        (
            [*RIGHT, alert("hot", "raised", 8, 9.5, 90.0)],
            ["1 alerts that came are against the rules: hot/raised/7/8"],
        ),
        (
            [*RIGHT, RIGHT[0] | {"value": 71.0}],
            ["1 alerts that came say something else than the rules: hot/raised/7/2"],
        ),
        ([*RIGHT, *RIGHT[:1] * 2], ["1 alerts came again, and nobody was killed so often: hot/raised/7/2"]),
    ],
)
def test_alerts_that_the_rules_do_not_say_are_found_out(alerts: list[Alert], said: list[str]) -> None:
    """Once somebody was killed who publishes alerts: so an alert may come twice."""
    found = Found(WATCHED, WATCHED, NOTHING, alerts=alerts, repeats_max=1)
    assert [line for line in judge([], found) if " alerts " in line] == said


@pytest.mark.parametrize(
    ("backtest", "said"),
    [
        (RIGHT, []),
        (RIGHT[:-1], ["1 alerts are missing from those of the backtest: silent/cleared/7/7"]),
        ([*RIGHT, LATER], ["1 alerts of the backtest are against the rules: silent/raised/7/8"]),
    ],
)
def test_a_backtest_that_says_something_else_is_found_out(backtest: list[Alert], said: list[str]) -> None:
    found = Found(WATCHED, WATCHED, NOTHING, alerts=RIGHT, backtest=backtest)
    assert [line for line in judge([], found) if " alerts " in line] == said


def test_a_message_belongs_to_the_window_that_it_came_in() -> None:
    found = total([("a", window_of("json", BEGUN + each * SECOND), 1, 2.0) for each in (0, 9.9, 10)])
    assert found == {"a in 2026-01-31 12:00:00": (2, 4.0), "a in 2026-01-31 12:00:10": (1, 2.0)}


def test_gold_that_counts_otherwise_is_found_out() -> None:
    totals = {"number": ({"a": (2, 5.0), "b": (1, 1.0)}, {"a": (2, 5.0), "b": (1, 2.0), "c": (1, 1.0)})}
    assert judge([], Found(decoded=NOTHING, totals=totals)) == [
        "gold/number has (1, 2.0) of b, silver (1, 1.0)",
        "gold/number has (1, 1.0) of c, silver (0, 0.0)",
    ]
