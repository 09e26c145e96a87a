"""Old messages leave bronze when all rules have worked them, and nobody loses rows by it in silence."""

from __future__ import annotations

import subprocess
from datetime import UTC, date, datetime, timedelta
from pathlib import Path

import pytest
from pipeline.lake import ingest, rows
from pipeline.streaming import TIDEMQ, Streaming
from pipeline.test_compaction import append, offsets
from pyspark.sql import SparkSession

from tidemq.pipeline.lake.compaction import compact
from tidemq.pipeline.lake.expiry import Expired, expire
from tidemq.pipeline.lake.plan import Lake
from tidemq.pipeline.lake.progress import Progress, Working, expired_of, said_of
from tidemq.pipeline.lake.rework import rework
from tidemq.pipeline.lake.table import Table
from tidemq.pipeline.lake.table_log import TableError

pytestmark = pytest.mark.timeout(400)

LEVEL = '[[rules]]\nname = "{name}"\nfilter = "{stream}/#"\nformat = "number"\n'


def level(name: str) -> str:
    return LEVEL.replace("{name}", name)


def numbers(stream: str, *of: int) -> list[tuple[str, bytes]]:
    return [(f"{stream}/a", b"%d" % number) for number in range(*of)]


def later(days: int) -> datetime:
    return datetime.now(UTC) + timedelta(days=days)


def test_rows_of_messages_that_have_expired_stay(
    spark: SparkSession, streaming: Streaming, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And are removed only by who says that they may be lost."""
    streaming.declare("past")
    streaming.publish(numbers("past", 10))
    job = ingest(spark, streaming, tmp_path, "past", level("old"))
    (rule,) = job.rules
    assert expire(job, 3, later(3), ["old"]) == Expired()
    assert expire(job, 1, later(3), ["old"]) == Expired(1, 10)
    assert rows(job.bronze, "offset") == []
    assert expire(job, 1, later(3), ["old"]) == Expired()
    with pytest.raises(TableError, match=r"no table .* with messages"):
        rework(spark, job, "old")
    streaming.publish(numbers("past", 10, 15))
    job = ingest(spark, streaming, tmp_path, "past", level("old") + level("new"), rows_max=3)
    assert rows(job.bronze, "offset") == [(number,) for number in range(10, 15)]
    assert "the rule new has got to offset 0, but messages up to offset 10 have expired" in caplog.text
    assert "the rule old has got to" not in caplog.text
    whole = [(number, float(number)) for number in range(15)]
    assert rows(job.silver(rule), "offset", "value") == whole
    assert rows(job.silver(job.rules[1]), "offset", "value") == whole[10:]
    said = "messages up to offset 10 have expired in .*: the rule old would lose the rows .*--allow-data-loss"
    for start in ("earliest", "9"):
        with pytest.raises(TableError, match=said):
            rework(spark, job, "old", start)
    for start in ("10", "2020-01-01T00:00:00Z"):
        rework(spark, job, "old", start)
        assert rows(job.silver(rule), "offset", "value") == whole
    rework(spark, job, "old", allow_data_loss=True)
    assert rows(job.silver(rule), "offset", "value") == whole[10:]


def test_a_day_stays_that_a_rule_has_not_worked(tmp_path: Path) -> None:
    """And those after it; of two epochs in one file, each counts for itself."""
    lake = Lake(stream="plant", tables=str(tmp_path / "lake"))
    bronze = lake.bronze
    for number, epoch in enumerate((1, 1, 2)):
        append(bronze, number, date(2026, 1, 1 + number // 2), epoch=[epoch] * 10)
    append(bronze, 0, date(2026, 1, 2), epoch=[2] * 10)
    append(bronze, 2, date(2026, 1, 2), epoch=[1] * 10)
    assert compact(bronze, later(1)).into == 2
    now = datetime(2026, 1, 10, tzinfo=UTC)
    silver = Table(f"{lake.folder}/silver/level")
    kept = expire(lake, 1, now, ["level"])
    assert kept == Expired(0, 0, "2026-01-01 is kept: the rule level has got to offset 0 and not to 20")
    append(silver, 0, date(2026, 1, 1))
    _reach(silver, {1: 25, 2: 30})
    kept = expire(lake, 1, now, ["level"])
    assert kept == Expired(1, 20, "2026-01-02 is kept: the rule level has got to offset 25 and not to 30")
    assert offsets(bronze) == sorted([*range(10), *range(20, 30), *range(20, 30)])
    _reach(silver, {1: 30, 2: 30})
    assert expire(lake, 8, now, ["level"]) == Expired()
    assert expire(lake, 7, now, ["level"]) == Expired(1, 30)
    table = bronze.now()
    assert table is not None
    assert [expired_of(table, Progress("plant", epoch)) for epoch in (1, 2)] == [30, 30]


def test_the_command(tmp_path: Path) -> None:
    lake = Lake(stream="plant", tables=str(tmp_path / "lake"))
    append(lake.bronze, 0, date(2026, 1, 1))
    append(lake.bronze, 1, datetime.now(UTC).date())
    append(Table(f"{lake.folder}/silver/level"), 0, date(2026, 1, 1))
    command = [*TIDEMQ, "pipeline", "maintain", "plant", str(tmp_path / "lake"), "--bronze-days", "1"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "2026-01-01 is kept: the rule level has got to offset 0 and not to 10" in done.stdout
    (tmp_path / "rules.toml").write_text(level("other").replace("{stream}", "plant"))
    done = subprocess.run([*command, "--rules", str(tmp_path / "rules.toml")], capture_output=True, text=True)
    assert "2026-01-01 is kept: the rule other has got to offset 0 and not to 10" in done.stdout
    assert offsets(lake.bronze) == list(range(20))


def _reach(table: Table, ends: dict[int, int]) -> None:
    """Says in the log how far a rule has got in each epoch."""
    log = table.now()
    assert log is not None
    working = Working("level", 1, 1)
    table.remove(log, [], said_of({Progress("plant", epoch, working): end for epoch, end in ends.items()}))
