"""A record: what one batch of a node's store did, as other nodes get it.

Layout, big-endian: CRC-32C of the rest (4), format (2), incarnation (8), number (8), digest of the record
before it (16), hybrid time (8), how many pairs (2) of the vector, each incarnation (8) and number (8), how
many operations (4), and these. An operation is its kind (1) and the fields of its class, in the order and by
the forms (`forms.py`) of the format's `Layout`. What stands together of sessions' queues is held as one
`Run`, unparsed.

The chain of digests tells a record that was replaced from one that was lost: a checksum alone cannot.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from typing import Any

from tidemq.cluster.formats import Formats
from tidemq.cluster.forms import DIGEST_BYTES, Reader, write
from tidemq.cluster.message_runs import run_end
from tidemq.cluster.operations import (
    Add,
    Clear,
    EndSession,
    Forget,
    Operation,
    Payload,
    PutSession,
    Receive,
    Release,
    Remove,
    Retain,
    Return,
    Run,
    Send,
    Serve,
    Stamp,
    Strike,
    Subscribe,
    Unsubscribe,
)
from tidemq.cluster.vectors import Dot, Vector
from tidemq.errors import ClusterError
from tidemq.store.checksums import crc32c

NO_DIGEST = bytes(DIGEST_BYTES)  # before the first record

_CRC = struct.Struct(">I")
_HEAD = struct.Struct(">HQQ16sQ")
_PAIR = struct.Struct(">QQ")
_COUNT = struct.Struct(">I")


class Layout:
    """The operations of one format: the kind of each class, and the form of each of its fields. Fields
    without a form are of later formats: they are not written, and have their defaults when it is read.
    """

    def __init__(self, forms: Mapping[type[Any], tuple[int, str]]) -> None:
        self.forms = forms
        self.written = {
            each: (kind, [*zip((one.name for one in fields(each)), form.split(), strict=False)])
            for each, (kind, form) in forms.items()
        }
        self.read = {kind: (each, form.split()) for each, (kind, form) in forms.items()}


_FIRST: dict[type[Any], tuple[int, str]] = {
    Payload: (1, "stamp bytes"),
    Add: (2, "owner stamp B B I q ? I*"),
    Remove: (3, "owner stamp"),
    Send: (4, "owner stamp stamp Q"),
    Release: (5, "owner stamp stamp"),
    Return: (6, "owner stamp stamp"),
    PutSession: (7, "text stamp Q ? Q I q q I q bytes Q* flights stamp ? ?"),
    EndSession: (8, "text stamp"),
    Receive: (9, "text stamp Q"),
    Forget: (10, "text stamp H"),
    Subscribe: (11, "text text stamp B I"),
    Unsubscribe: (12, "text text stamp"),
    Retain: (13, "text stamp bytes"),
    Clear: (14, "text stamp"),
    Strike: (15, "Q text"),
    Serve: (16, "text text stamp"),
}
# the formats that this version reads, all that are between the lowest and the highest
LAYOUTS = {1: Layout(_FIRST)}


def formats_read() -> Formats:
    """The lowest and the highest of `LAYOUTS`."""
    return Formats(min(LAYOUTS), max(LAYOUTS))


@dataclass(frozen=True)
class Record:
    """One batch of one node, with what that node had applied before it."""

    dot: Dot
    previous: bytes  # digest of the record before
    clock: int  # hybrid time, nanoseconds
    vector: Vector
    operations: tuple[Operation, ...]
    format: int = field(default_factory=lambda: formats_read().highest)

    @cached_property
    def encoded(self) -> bytes:
        """ClusterError where its format has no such operation."""
        text = bytearray(_HEAD.pack(self.format, *self.dot, self.previous, self.clock))
        text += struct.pack(">H", len(self.vector))
        for pair in sorted(self.vector.items()):
            text += _PAIR.pack(*pair)
        layout = LAYOUTS[self.format]
        text += _COUNT.pack(sum(each.count if isinstance(each, Run) else 1 for each in self.operations))
        for operation in self.operations:
            if isinstance(operation, Run):
                text += operation.text
                continue
            if type(operation) not in layout.written:
                raise ClusterError(f"format {self.format} of records has no {type(operation).__name__}")
            kind, forms = layout.written[type(operation)]
            text.append(kind)
            for name, form in forms:
                write(text, form, getattr(operation, name))
        return _CRC.pack(crc32c(bytes(text))) + bytes(text)

    @cached_property
    def digest(self) -> bytes:
        return hashlib.blake2b(self.encoded, digest_size=DIGEST_BYTES).digest()

    @property
    def seen(self) -> dict[int, int]:
        """What its node had applied when it was done, itself included."""
        return {**self.vector, self.dot.incarnation: self.dot.number}


def parse_record(text: bytes) -> Record:
    """The record; ClusterError says what is wrong with the bytes."""
    if len(text) < _CRC.size + _HEAD.size + 6:
        raise ClusterError(f"a record has at least {_CRC.size + _HEAD.size + 6} bytes, this one {len(text)}")
    if _CRC.unpack_from(text)[0] != crc32c(text[_CRC.size :]):
        raise ClusterError("a record's checksum is wrong")
    version, incarnation, number, previous, clock = _HEAD.unpack_from(text, _CRC.size)
    layout = LAYOUTS.get(version)
    if layout is None:
        raise ClusterError(f"a record has format {version}; this version reads {formats_read()}")
    reader = Reader(text, _CRC.size + _HEAD.size, "a record")
    pairs = reader.read("H")
    vector = dict(_PAIR.unpack(reader.take(_PAIR.size)) for _ in range(pairs))
    operations = tuple(_read_operations(reader, text, reader.count(), layout))
    check_payloads(operations)
    reader.end()
    record = Record(Dot(incarnation, number), previous, clock, vector, operations, version)
    vars(record)["encoded"] = text  # as it came: it is passed on, and its digest is of this
    return record


def clock_of(text: bytes) -> int:
    """The hybrid time of a record that was parsed, or made here; nanoseconds."""
    clock: int = _HEAD.unpack_from(text, _CRC.size)[4]
    return clock


def dot_of(text: bytes) -> Dot:
    """Which record a text says that it is; ClusterError where it is too short for one."""
    if len(text) < _CRC.size + _HEAD.size:
        raise ClusterError(f"a record has at least {_CRC.size + _HEAD.size} bytes, this one {len(text)}")
    return Dot(*_HEAD.unpack_from(text, _CRC.size)[1:3])


def _read_operations(reader: Reader, text: bytes, count: int, layout: Layout) -> Iterator[Operation]:
    while count > 0:
        end, together = run_end(text, reader.at, count)
        if together:
            yield Run(reader.take(end - reader.at), together)
        else:
            yield _read_operation(reader, layout)
        count -= together or 1


def run_of(operations: Sequence[Operation]) -> Run:
    """Operations on queues of sessions, to be done together."""
    text = bytearray()
    for operation in operations:
        kind, forms = LAYOUTS[formats_read().lowest].written[type(operation)]
        text.append(kind)
        for name, form in forms:
            write(text, form, getattr(operation, name))
    return Run(bytes(text), len(operations))


def read_run(text: bytes) -> list[Operation]:
    """The operations of a run, or of a group of one. Runs are the same in all formats: `message_runs.py` has
    but one way to read them.
    """
    layout = LAYOUTS[formats_read().lowest]
    reader = Reader(text, 0, "a record")
    operations = []
    while reader.at < len(text):
        operations.append(_read_operation(reader, layout))
    return operations


def _read_operation(reader: Reader, layout: Layout) -> Operation:
    kind = reader.take(1)[0]
    if kind not in layout.read:
        raise ClusterError(f"a record has an operation of kind {kind}; 1 to {len(layout.read)} are known")
    made, forms = layout.read[kind]
    operation: Operation = made(*(reader.read(form) for form in forms))
    return operation


def check_payloads(operations: Iterable[Operation]) -> None:
    """ClusterError unless each message comes before it is added to a queue: a record is applied whole."""
    brought: set[Stamp] = set()
    runs: list[Run] = []  # each has what it needs; others may need what it brings
    for operation in operations:
        if isinstance(operation, Run):
            runs.append(operation)
            continue
        if isinstance(operation, Add) and operation.id not in brought:
            brought.update(
                each.id for run in runs for each in read_run(run.text) if isinstance(each, Payload)
            )
            runs.clear()
        if isinstance(operation, Payload):
            brought.add(operation.id)
        elif isinstance(operation, Add) and operation.id not in brought:
            raise ClusterError(f"a record adds {operation.id} without its payload")
