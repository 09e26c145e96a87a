"""How far a table has got, as it stands in its own log: numbers that a commit says together with its
files, or not at all.

Bronze has one number for each epoch of a stream. The tables of a rule have one for each *working*: what a
rule makes of the messages from the first on. Who works them again begins a working with a higher generation,
and what an earlier one has left is removed. A rule's decoded table decides which working it is: the others
(late rows, dead letters, births, gold) follow it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidemq.pipeline.lake.table_log import Numbers, Snapshot


@dataclass(frozen=True, slots=True)
class Span:
    """Messages from offset `start` up to `end`."""

    start: int
    end: int
    whole: bool = False  # a table has got to its end even without a row, and before that to its start


@dataclass(frozen=True, slots=True)
class Working:
    """What a rule makes of the messages, once."""

    rule: str
    generation: int  # microseconds since 1970 when it began
    digest: int  # of what the rule says

    @property
    def generation_key(self) -> str:
        return f"tidemq/rule/{self.rule}"

    @property
    def digest_key(self) -> str:
        return f"tidemq/rule/{self.rule}/digest"


@dataclass(frozen=True, slots=True)
class Progress:
    """Whose progress is meant: that of ingest itself, or of a working, in an epoch of a stream."""

    stream: str
    epoch: int
    working: Working | None = None

    @property
    def writer(self) -> str:
        """The number's name."""
        of_rule = f"/{self.working.rule}/{self.working.generation}" if self.working else ""
        return f"tidemq/{self.stream}/{self.epoch}{of_rule}"

    def reached(self, table: Snapshot) -> int:
        """The offset after the last message that the table has."""
        return table.number(self.writer) or 0

    def said(self, end: int) -> Numbers:
        """What a commit says of the messages up to an offset."""
        return said_of({self: end})

    def generation_of(self, table: Snapshot) -> int:
        """Of the working of this rule that the table has begun; 0: of none."""
        assert self.working is not None
        return table.number(self.working.generation_key) or 0

    def digest_of(self, table: Snapshot) -> int | None:
        """Of the rule that the table's rows were made by; None: of none."""
        assert self.working is not None
        return table.number(self.working.digest_key)


def said_of(ends: Mapping[Progress, int]) -> Numbers:
    """What a commit says that brings several up to an offset each."""
    numbers: dict[str, int] = {}
    for progress, end in ends.items():
        numbers[progress.writer] = end
        if working := progress.working:
            numbers |= {working.generation_key: working.generation, working.digest_key: working.digest}
    return numbers


def reached_by_rule(table: Snapshot, stream: str, epoch: int, rule: str) -> int | None:
    """The offset after the last message that a table of a rule has got to, in the working that it has begun;
    None where it has begun none.
    """
    generation = Progress(stream, epoch, Working(rule, 0, 0)).generation_of(table)
    return Progress(stream, epoch, Working(rule, generation, 0)).reached(table) if generation else None


def expired_of(bronze: Snapshot, progress: Progress) -> int:
    """Up to which offset of an epoch messages have expired in bronze; 0: none has."""
    return bronze.number(f"{progress.writer}/expired") or 0


def anything_expired(bronze: Snapshot, stream: str) -> bool:
    """Whether messages of any epoch have."""
    return bool(bronze.number(f"tidemq/{stream}/expired"))


def said_to_have_expired(stream: str, ends: Mapping[Progress, int]) -> Numbers:
    """What a commit says that removes messages of bronze up to these offsets."""
    return {f"{progress.writer}/expired": end for progress, end in ends.items()} | {
        f"tidemq/{stream}/expired": 1
    }
