"""The driver of the fuzz targets that take bytes.

It replays a corpus, then makes inputs from it, always the same for a seed. An input that shows something new
joins the pool that others are made from. The target runs in a child process; its parent keeps the input that
it died of.
"""

from __future__ import annotations

import argparse
import hashlib
import mmap
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

INPUT_BYTES_MAX = 8192
INTERESTING = b"\0\1\2\3\4\5\x0b\x0f\x10\x20\x23\x26\x2b\x2f\x30\x3f\x40\x7f\x80\x81\x8f\xc0\xed\xf0\xf4\xff"


@dataclass(frozen=True, kw_only=True)
class Subject:
    """What is fuzzed."""

    name: str  # of its corpus too
    target: Callable[[bytes], object]  # takes an input; what it returns was seen
    finish: Callable[[random.Random, bytearray], object] = lambda rng, data: None  # mends a changed input
    tokens: tuple[bytes, ...] = ()  # what is put in, besides bytes

    def corpus(self) -> list[bytes]:
        return [path.read_bytes() for path in sorted(self.corpus_folder.iterdir())]

    @property
    def corpus_folder(self) -> Path:
        return Path(__file__).parent / "corpus" / self.name


def mutate(subject: Subject, rng: random.Random, pool: list[bytes]) -> bytes:
    """An input of the pool, changed at one to four places."""
    data = bytearray(rng.choice(pool))
    for _ in range(rng.randint(1, 4)):
        change(subject, rng, data, pool)
    subject.finish(rng, data)
    return bytes(data[: INPUT_BYTES_MAX + 1])


def change(subject: Subject, rng: random.Random, data: bytearray, pool: list[bytes]) -> None:
    at = rng.randrange(len(data) + 1)
    end = min(len(data), at + rng.randint(1, 8))
    choice = rng.randrange(8)
    if choice == 0 and at < len(data):
        data[at] ^= 1 << rng.randrange(8)
    elif choice == 1 and at < len(data):
        data[at] = rng.choice(INTERESTING)
    elif choice == 2:
        data[at:at] = bytes(rng.choice(INTERESTING) for _ in range(rng.randint(1, 4)))
    elif choice == 3 and len(data) > 1:
        del data[at:end]
    elif choice == 4:
        data[at:at] = data[at:end]
    elif choice == 5:
        other = rng.choice(pool)
        start = rng.randrange(len(other))
        data[at:end] = other[start : start + rng.randint(1, 40)]
    elif choice == 6 and subject.tokens:
        data[at:at] = rng.choice(subject.tokens)
    else:
        data += rng.choice(pool)[1:]
    if not data:
        data.append(5)


def fuzz(subject: Subject, seed: int, seconds: float, runs_max: int, note: Callable[[bytes], None]) -> str:
    """Replay, then mutate until time or runs are over. `note` is told of each input before it runs."""
    rng = random.Random(seed)
    pool = subject.corpus()
    seen: set[object] = set()
    digest = hashlib.sha256()
    deadline = time.monotonic() + seconds
    for data in pool:
        note(data)
        seen.add(subject.target(data))
    replayed = runs = len(pool)
    while runs < runs_max and time.monotonic() < deadline:
        data = mutate(subject, rng, pool)
        note(data)
        digest.update(data)
        outcome = subject.target(data)
        runs += 1
        if outcome not in seen:
            seen.add(outcome)
            pool.append(data)
    return (
        f"replayed {replayed}, ran {runs - replayed} more, {len(seen)} outcomes, "
        f"inputs {digest.hexdigest()[:16]}, seed {seed}"
    )


def guarded(subject: Subject, seed: int, seconds: float, runs_max: int, crash_dir: Path) -> int:
    """Fuzz in a child process; keep the input it died of. Returns 0, or 1 after a finding."""
    shared = mmap.mmap(-1, 8 + INPUT_BYTES_MAX + 1)

    def note(data: bytes) -> None:
        shared[:8] = len(data).to_bytes(8, "little")
        shared[8 : 8 + len(data)] = data

    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            print(fuzz(subject, seed, seconds, runs_max, note), flush=True)
            status = 0
        except BaseException as error:  # noqa: BLE001 (the process ends with it)
            print(f"seed {seed}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)
        finally:
            os._exit(status)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code == 0:
        return 0
    data = shared[8 : 8 + int.from_bytes(shared[:8], "little")]
    path = crash_dir / f"crash-{subject.name}-{hashlib.sha1(data).hexdigest()[:12]}"
    path.write_bytes(data)
    how = signal.Signals(-code).name if code < 0 else "a check failed"
    print(f"seed {seed}: {how} with {data.hex(' ')}; kept as {path}", file=sys.stderr)
    return 1


def parser(about: str) -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(description=about)
    options.add_argument("--seconds", type=int, default=60)
    options.add_argument(
        "--runs", type=int, default=sys.maxsize, help="inputs in all, replayed ones included"
    )
    options.add_argument("--seed", type=int, default=1)
    options.add_argument("--crash-dir", type=Path, default=Path())
    return options
