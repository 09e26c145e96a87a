"""SQLite's write-ahead log, read to find out what of it cannot be: SQLite says nothing where it breaks off.

The log is a header of 32 bytes (mark, version, size of a page, counter, two salts, two sums) and frames, each
a header of 24 (page, size of the file after a commit or 0, the salts, two sums) and a page. The sums run on
from frame to frame. When all frames are in the file, the next write begins the log anew: the first salt is
one higher, and frames with other salts are what is left of before. `-shm` says, in the machine's byte order,
how many frames there are, and how many of them are in the file. Source: SQLite, `src/wal.c`.
"""

from __future__ import annotations

import os
import struct
from dataclasses import dataclass
from pathlib import Path

from tidemq.store.checksums import sum_words
from tidemq.store.sync_note import Synced

_HEADER = struct.Struct(">IIII8s8s")
_FRAME = struct.Struct(">II8s8s")
_SUMS = struct.Struct(">II")
_MARK = 0x377F0682  # and one more where sums are of big-endian words
_INDEX = struct.Struct("=16xI12x8s56xI")  # frames, salts, frames that are in the file


@dataclass
class Frames:
    """How far a log goes: `salts` are the number that names it."""

    salts: int = 0
    count: int = 0  # committed, and readable one after the other
    copied: int = 0  # of them in the file, durably
    behind: int = 0  # of whole commits behind the first one that cannot be read
    last: int = 0  # number of the last one that ends a commit, though it may not be readable


def read_index(descriptor: int) -> Frames:
    """What a `-shm` file says; all 0 while it says nothing."""
    text = os.pread(descriptor, _INDEX.size, 0)
    if len(text) < _INDEX.size:
        return Frames()
    count, salts, copied = _INDEX.unpack(text)
    return Frames(int.from_bytes(salts), count, copied)


def read_log(path: Path) -> Frames:
    """What can be read of a log; all 0 where there is none, or nothing of it."""
    try:
        text = memoryview(path.read_bytes())
    except FileNotFoundError:
        return Frames()
    if len(text) < _HEADER.size:
        return Frames()
    mark, _, page_bytes, _, salts, said = _HEADER.unpack_from(text)
    big = mark == _MARK + 1
    sums = sum_words(text[:24], big, 0, 0)
    if mark not in (_MARK, _MARK + 1) or _SUMS.pack(*sums) != said or page_bytes < 512:
        return Frames()
    found = Frames(int.from_bytes(salts))
    whole, last_commit = True, 0
    size = _FRAME.size + page_bytes
    for number in range(1, (len(text) - _HEADER.size) // size + 1):
        frame = text[_HEADER.size + (number - 1) * size :][:size]
        _, commits, its_salts, said = _FRAME.unpack_from(frame)
        if whole and its_salts == salts:
            sums = sum_words(frame[_FRAME.size :], big, *sum_words(frame[:8], big, *sums))
        whole = whole and its_salts == salts and _SUMS.pack(*sums) == said
        if commits and its_salts == salts:
            found.last = number
        if whole and commits:
            found.count = number
        elif not whole and commits and its_salts == salts:
            # the first one ends what cannot be read, and which may be a write that was cut off
            found.behind += number - last_commit if last_commit else 0
            last_commit = number
    return found


def _begun_after(salts: int, others: int) -> bool:
    """Whether the log with these salts was begun after the other, whose pages are then all in the file."""
    return 0 < (salts >> 32) - (others >> 32) & 0xFFFFFFFF < 1 << 31


def _all_in_file(log: Path, salts: int, frames: int) -> bool:
    """Whether the file has each page as the log wrote it last, where it is the one with these salts and at
    least so many frames, or a later one.
    """
    pages: dict[int, bytes] = {}
    try:
        with log.open("rb") as written, log.with_name(log.name.removesuffix("-wal")).open("rb") as file:
            page_bytes = _HEADER.unpack(written.read(_HEADER.size).ljust(_HEADER.size, b"\0"))[2]
            head = written.read(_FRAME.size)
            count, its_salts = 0, head[8:16]
            while len(head) == _FRAME.size and head[8:16] == its_salts and page_bytes >= 512:
                pages[int.from_bytes(head[:4])] = written.read(page_bytes)
                count += 1
                head = written.read(_FRAME.size)
            found = int.from_bytes(its_salts)
            if not _begun_after(found, salts) and (found != salts or count < frames):
                return False
            return bool(pages) and all(
                number and os.pread(file.fileno(), page_bytes, (number - 1) * page_bytes) == page
                for number, page in pages.items()
            )
    except FileNotFoundError:
        return False


@dataclass
class LogVerdict:
    """What is wrong with a log at a start."""

    line: str = ""  # empty: nothing
    lost: int = 0  # pages that were on the disk, or have others behind them, and cannot be read
    drop: bool = False  # it must not be read: it would put old pages in the place of newer ones


def judge_log(path: Path, synced: Synced) -> LogVerdict:
    """Reads a log and holds it against what is known to be synced: frames by salts, and as the position how
    many of them were in the file already.
    """
    found = read_log(path)
    salts, frames = next(iter(synced.lengths.items()), (0, 0))
    if not found.salts and _all_in_file(path, salts, frames):
        return LogVerdict()  # a power failure tore the header of a log that was being begun anew
    if found.salts and _begun_after(found.salts, salts):
        frames = 0  # it was begun anew since, so all of the old one is in the file
    same = found.salts == salts
    readable, copied = found.count if same else 0, synced.position
    kept = max(readable, copied)
    # SQLite would read what is left of the log, and take it for newer than what the file has
    drop = same and readable < copied
    damaged = f"the write-ahead log {path.name} is damaged"
    if frames > kept:
        text = f"{damaged}: of {frames} pages that were on the disk only {kept} can be read"
        return LogVerdict(text, frames - kept, drop)
    if drop and found.last <= copied:
        return LogVerdict(f"{damaged}; all of it that was on the disk is in the file already", 0, drop)
    where, behind = f"breaks off after {found.count} pages", found.behind
    if drop:
        where, behind = f"{where}, where {copied} are in the file already", found.last - copied
    if not behind:
        return LogVerdict()
    doubt = "whether what is lost was ever acknowledged is not known"
    return LogVerdict(f"{damaged}: it {where}, with {behind} of whole writes behind; {doubt}", behind, drop)
