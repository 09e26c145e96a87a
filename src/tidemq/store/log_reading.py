"""RocksDB's write-ahead log, read to find out what of it cannot be: RocksDB says nothing of zeros, nor of an
end that is missing.

Blocks and records are those of the MANIFEST (`manifest.py`). Each record is a batch: the number of its first
row (8 bytes, little-endian), how many rows it has (4), and the rows; the next batch goes on counting.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path

from tidemq.errors import StoreError
from tidemq.store.manifest import Part, find_manifest, parse_manifest, read_parts
from tidemq.store.sync_note import Synced

_BATCH = struct.Struct("<QI")
_DOUBT = "whether what is lost was ever acknowledged is not known"


@dataclass
class LogReading:
    """What can be read of a log."""

    size: int  # of the file
    end: int = 0  # of the last batch before the first break
    last: int = 0  # number of the last row that can be read, wherever
    rows: int = 0  # that can be read, wherever
    broken: bool = False  # at the break there is more than the beginning of a record, or zeros
    behind: int = 0  # rows that can be read behind the first break
    missing: int = 0  # rows whose numbers are passed over, before those
    before: int = 0  # rows of the log before it that are missing at that one's end


def read_log(path: Path, known: int = 0, *, follows: bool = False) -> LogReading:
    """Reads a log as RocksDB does when it passes over what is damaged. `known`: number of a row before it;
    where it follows a log, of the last one that could be read.
    """
    reading = LogReading(path.stat().st_size)
    if not reading.size:
        return reading
    with path.open("rb") as file:
        view = memoryview(mmap(file.fileno(), 0, access=ACCESS_READ))
    expected = 0
    whole = True  # up to here
    for batch, end, broken in _batches(view):
        if broken:
            whole, reading.broken = False, reading.broken or broken == "damage"
        if batch is None:
            continue
        first, count = batch
        if not expected and whole and follows:
            reading.before = max(0, first - known - 1)
        elif not expected and not whole:
            reading.missing += max(0, first - known - 1)
        elif expected and first > expected:
            whole, reading.missing = False, reading.missing + first - expected
        expected = first + count
        reading.last = expected - 1
        reading.rows += count
        if whole:
            reading.end = end
        else:
            reading.behind += count
    return reading


def _batches(view: memoryview) -> Iterator[tuple[tuple[int, int] | None, int, str]]:
    """Number and count of each batch with its end, and what broke off before it: "damage", "end", or "" for
    nothing. None for the batch where there is only a break.
    """
    head = bytearray()  # of the batch that is being read, as much as is of interest
    inside = False
    for part, data, end in read_parts(view):
        if part in (Part.DAMAGED, Part.CUT_OFF, Part.ZEROS):
            yield None, end, "damage" if part is Part.DAMAGED else "end"
            inside = False
            continue
        if part in (Part.WHOLE, Part.FIRST):
            if inside:
                yield None, end, "damage"
            head.clear()
            inside = True
        elif not inside:
            yield None, end, "damage"  # the beginning of it lies before the break
            continue
        head += data[: _BATCH.size - len(head)]
        if part in (Part.WHOLE, Part.LAST):
            inside = False
            if len(head) < _BATCH.size:
                yield None, end, "damage"
            else:
                yield _BATCH.unpack(head), end, ""


@dataclass
class LogVerdict:
    """What is wrong with the logs that RocksDB would read at a start."""

    lines: list[str]  # one for each damage
    lost: int = 0  # rows that were on the disk, or have others behind them, and cannot be read
    cut_off: bool = False  # the last one ends in the middle of a write, and nothing is missing


def judge_logs(files: Path, synced: Synced) -> LogVerdict:
    """Reads all logs whose rows are in no table yet and holds them against what is known to be synced."""
    found = {int(path.stem): path for path in files.glob("*.log") if re.fullmatch(r"\d+", path.stem)}
    first, in_tables, wanted = _ask_manifest(files)
    verdict = LogVerdict([])
    last = 0  # number of the last row that a log has
    before, line = "", None  # the log before, and what is wrong with it
    for number in sorted(found.keys() | (synced.lengths.keys() if wanted else set())):
        if number < first:
            continue
        if number not in found:
            before = f"{number:06}.log"
            line = f"the write-ahead log {before} is missing"
            verdict.lines.append(line)
            continue
        # tables may have later rows than a log before this one, of other families: so its own last row counts
        reading = read_log(found[number], last or in_tables, follows=bool(before))
        if before and not line and (reading.before or (reading.rows and not last)):
            verdict.lines.append(_describe_gap(before, reading.before if last else 0))
        verdict.lost += reading.before + reading.missing
        last = max(last, reading.last)
        before = found[number].name
        line = _judge(before, reading, synced.lengths.get(number, 0))
        verdict.lines += [line] if line else []
        verdict.cut_off = reading.broken and not line
    if verdict.lines:
        verdict.lost += max(0, synced.position - max(last, in_tables))
    return verdict


def _ask_manifest(files: Path) -> tuple[int, int, bool]:
    """The first log that is needed, the number of the last row that tables may have, and whether a log can
    be missing: where the MANIFEST is damaged, those that are not needed any more are not known.
    """
    try:
        text = find_manifest(files).read_bytes()
        manifest = parse_manifest(text)
    except StoreError:
        return 0, 0, False
    return manifest.first_log, manifest.last_row, len(manifest.text) == len(text)


def _judge(name: str, reading: LogReading, synced: int) -> str | None:
    """What is wrong with one log; None: nothing, or its end was cut off before it was ever synced."""
    behind = f"; {reading.behind} rows behind that can be" if reading.behind else ""
    if reading.end < synced:
        size = f"of {synced} bytes that were on the disk"
        return f"the write-ahead log {name} is damaged: {size} only {reading.end} can be read{behind}"
    if reading.behind:
        return f"the write-ahead log {name} is damaged: it breaks off at byte {reading.end}{behind}; {_DOUBT}"
    return None


def _describe_gap(name: str, rows: int) -> str:
    """The line for a log of which only the next one says that its end is missing, or all of it (`rows` is 0):
    RocksDB begins no log behind an empty one.
    """
    missing = f"its last {rows} rows are missing" if rows else "nothing of it can be read"
    return f"the write-ahead log {name} is damaged: {missing}, and the next log goes on behind that; {_DOUBT}"
