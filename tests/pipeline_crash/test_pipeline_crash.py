"""Each message is in the tables once, whatever is killed: one seed on a cluster of two workers, and proof
that what is lost or doubled is found.

`make test` kills the driver once, `make test-long` an executor and the broker as well; `make crash-pipeline`
plays more seeds, and longer; `TIDEMQ_TEST_CRASH_SEED` moves the one of these tests.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from deltalake.transaction import AddAction
from pipeline_crash.publishing import Sent
from pipeline_crash.run import MESSAGES_MIN, STREAM, Choice, Outcome, play
from pipeline_crash.verdict import DECODED, Found, Place, Row, judge, read_tables

pytestmark = pytest.mark.timeout(600)

SEED = int(os.environ.get("TIDEMQ_TEST_CRASH_SEED", "1"))
KILLS = int(os.environ.get("TIDEMQ_TEST_CRASH_KILLS", "1"))  # 3: an executor, the broker and the driver


@pytest.fixture(scope="module")
def outcome(install: Callable[[str, str], None]) -> Iterator[Outcome]:
    """Of one run, with its files."""
    install("java", "default-jre-headless")
    outcome = play(Choice(seed=SEED, kills=KILLS), keep=True)
    yield outcome
    if not outcome.failures:
        shutil.rmtree(outcome.folder)


def test_each_message_is_in_the_tables_once_whatever_is_killed(outcome: Outcome) -> None:
    assert not outcome.failures, outcome.report
    assert outcome.kills == KILLS
    assert sum(each.acknowledged for each in outcome.sent.values()) >= MESSAGES_MIN
    assert all(len(rows) > 100 for rows in outcome.found.decoded.values())


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
    doubled = replace(read_tables(folder), stream=outcome.found.stream)
    line, *others = judge(outcome.sent.values(), doubled)
    kind = name.removeprefix("silver/")
    assert bool(others) == (kind != name)
    assert all(other.startswith(f"gold/{kind} has ") for other in others)
    assert line.startswith(f"{action['num_records']} messages")
    assert "in bronze, not so in the stream" in line if name == "bronze" else "more than once" in line
    DeltaTable(folder / name).delete(
        f'"offset" >= {action["min"]["offset"]} and "offset" <= {action["max"]["offset"]}'
    )
    removed = replace(read_tables(folder), stream=outcome.found.stream)
    assert any(f"in the stream, not in {name}" in line for line in judge(outcome.sent.values(), removed))


def rows(*numbers: int) -> list[Row]:
    """Of a stream, from offset 0 on, with these payloads."""
    return [
        {"epoch": 7, "offset": offset, "payload": b"%d" % number, "user_properties": []}
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


def test_gold_that_counts_otherwise_is_found_out() -> None:
    totals = {"number": ({"a": (2, 5.0), "b": (1, 1.0)}, {"a": (2, 5.0), "b": (1, 2.0), "c": (1, 1.0)})}
    nothing: dict[str, list[tuple[int, Place]]] = {kind: [] for kind in DECODED}
    assert judge([], Found(decoded=nothing, totals=totals)) == [
        "gold/number has (1, 2.0) of b, silver (1, 1.0)",
        "gold/number has (1, 1.0) of c, silver (0, 0.0)",
    ]
