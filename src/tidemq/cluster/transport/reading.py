"""Copies read back from a stream: from messages of several records, and from pieces of one."""

from __future__ import annotations

from dataclasses import dataclass, field

from nats.aio.client import Client

from tidemq.cluster.transport.frames import Copies, unpack_copies
from tidemq.cluster.transport.jetstream import (
    BATCH_MAX,
    DamagedError,
    Stream,
    find_stream,
    read_from,
    read_last,
    stream_name,
)
from tidemq.errors import ClusterError


@dataclass(slots=True)
class _Found:
    """Records between two numbers, as they come."""

    first: int
    last: int
    bytes_max: int
    records: list[bytes] = field(default_factory=list)
    size: int = 0
    is_full: bool = False
    _pieces: list[bytes] = field(default_factory=list)
    _number: int = 0  # of the record that these are of

    def add(self, copies: Copies) -> None:
        if copies.pieces == 1:
            self._pieces = []
            for number, record in enumerate(copies.records, copies.first):
                self._take(number, record)
            return
        if copies.piece == 0:
            self._pieces, self._number = [], copies.first
        if copies.first != self._number or copies.piece != len(self._pieces):
            self._pieces = []  # of one that was not sent to its end
            return
        self._pieces.append(copies.records[0])
        if copies.piece + 1 == copies.pieces:
            self._take(copies.first, b"".join(self._pieces))
            self._pieces = []

    def _take(self, number: int, record: bytes) -> None:
        if self.is_full or number < self.first:
            return
        if number > self.last or (self.records and self.size + len(record) > self.bytes_max):
            self.is_full = True
            return
        self.records.append(record)
        self.size += len(record)
        self.is_full = number == self.last


class Reader:
    """Reads of one server, one after the other. Remembers where it ended, for who reads on from there."""

    def __init__(self, client: Client, answer_s: float, bytes_max: int) -> None:
        self._client, self._answer_s, self._bytes_max = client, answer_s, bytes_max
        self._ends: dict[int, tuple[str, int, int]] = {}  # by incarnation: subject, number, sequence
        self.damaged = 0  # messages that could not be read

    async def numbers(self, incarnation: int) -> tuple[int, int]:
        """The first and the last record that are there; what is between may have gaps. GoneError: none."""
        stream = await find_stream(self._client, stream_name(incarnation), self._answer_s)
        if not stream.messages:
            return 0, 0
        last = (await read_last(self._client, stream, self._answer_s)).last_whole
        found = await self._next(stream, stream.first)
        if found is None:
            raise DamagedError(f"the first message of {stream.name} cannot be read")
        return (found[1].first, last) if last >= found[1].first else (0, 0)

    async def read(self, incarnation: int, first: int, last: int) -> list[bytes]:
        """The records of these numbers that are there, in order, up to a size. GoneError: no stream."""
        stream = await find_stream(self._client, stream_name(incarnation), self._answer_s)
        subject, number, sequence = self._ends.get(incarnation, ("", 0, 0))
        if (subject, number) != (stream.subject, first):
            sequence = await self._locate(stream, first)
        found, begins = _Found(first, last, self._bytes_max), sequence
        while not found.is_full and sequence <= stream.last:
            messages = await read_from(
                self._client, stream, sequence, BATCH_MAX, self._bytes_max, self._answer_s
            )
            if not messages:
                break
            for at, frame in messages:
                copies = self._unpack(frame)
                if copies is not None:
                    begins = at if copies.piece == 0 else begins
                    found.add(copies)
                if found.is_full:
                    sequence = begins  # a record in pieces may be the one that did not fit
                    break
                sequence = at + 1
        self._ends[incarnation] = (stream.subject, first + len(found.records), sequence)
        return found.records

    def _unpack(self, frame: bytes) -> Copies | None:
        try:
            return unpack_copies(frame)
        except ClusterError:
            self.damaged += 1
            return None

    async def _next(self, stream: Stream, sequence: int) -> tuple[int, Copies] | None:
        """The first readable message from this sequence on, with its own."""
        while sequence <= stream.last:
            found = await read_from(self._client, stream, sequence, 1, 0, self._answer_s)
            if not found:
                return None
            at, frame = found[0]
            copies = self._unpack(frame)
            if copies is not None:
                return at, copies
            sequence = at + 1
        return None

    async def _locate(self, stream: Stream, number: int) -> int:
        """The last sequence whose message begins at or before this record: numbers rise with sequences."""
        low, high = stream.first, stream.last
        while low < high:
            middle = (low + high + 1) // 2
            found = await self._next(stream, middle)
            begins = found is not None and (found[1].first, found[1].piece > 0) <= (number, False)
            if found is not None and begins:
                low = max(middle, min(found[0], high))
            else:
                high = middle - 1
        return low
