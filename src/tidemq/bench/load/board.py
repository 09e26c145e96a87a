"""What the generators of one workload must know of each other: what each publisher has sent, what has arrived
everywhere, who is done.

The generators of a process, a thread each, write and read it as they go. What is far, in other processes,
comes and goes by an `Exchange`, some milliseconds late.
"""

from collections.abc import Sequence

import cython
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.string import memcpy
from cython.cimports.tidemq.bench.load.board import (
    Table,
    load_int,
    load_u64,
    store_int,
)

from tidemq.bench.load.share import Share
from tidemq.bench.result import ENDS
from tidemq.bench.workload import Workload, check_workload

if not cython.compiled:
    raise ImportError("tidemq.bench.load.board is compiled code: run `make build`")

ALL = cython.declare(uint64_t, 0xFFFFFFFFFFFFFFFF)


@cython.cclass
class Board:
    """Of a workload that `shares` in this process and `far` ones in others drive together."""

    def __init__(self, workload: Workload, shares: Sequence[Share], far: Sequence[Share] = ()) -> None:
        """UsageError for a workload that the generators cannot send or check."""
        number: cython.size_t
        heard: cython.size_t = 1 if workload.single else workload.publishers
        check_workload(workload)
        self.workload, self.shares, self.far = workload, tuple(shares), tuple(far)
        self.sent.resize(max(workload.publishers, 1))
        self.confirmed_far.resize(max(workload.publishers, 1))
        self.tables.resize(len(self.shares))
        self.expected.resize(len(self.shares))
        for number in range(self.tables.size()):
            self.expected[number].resize(max(len(self.shares[number].subscribers) * heard, 1))
            self.tables[number].expected = self.expected[number].data()
            self.tables[number].subscribers = len(self.shares[number].subscribers)
        self.common.sent, self.common.confirmed_far = self.sent.data(), self.confirmed_far.data()
        self.common.publishers = workload.publishers
        self.common.tables, self.common.table_count = self.tables.data(), self.tables.size()
        self.common.publishing_far = len(self.far)
        self.common.ended = -1
        if not any(len(share.subscribers) for share in self.far):
            for number in range(self.confirmed_far.size()):
                self.confirmed_far[number] = ALL

    @property
    def ended(self) -> str:
        """How the run is to end, of all, now; empty while it goes on."""
        kind: cython.int = load_int(cython.address(self.common.ended))
        return "" if kind < 0 else ENDS[kind]

    def end(self, kind: str) -> None:
        """Let every generator of this process end its run, as that kind of `End`; the first one counts."""
        if load_int(cython.address(self.common.ended)) < 0:
            store_int(cython.address(self.common.ended), ENDS.index(kind))

    def state(self, publishers: range, confirms: bool) -> tuple[bool, int, bytes, bytes]:
        """Nobody here sends any more; messages arrived here; how many each of `publishers` has sent; how many
        of each publisher of the workload have arrived at all subscribers here, where `confirms`.
        """
        number: cython.size_t
        arrived: uint64_t = 0
        published: cython.bint = near_published(cython.address(self.common))  # before what was sent is read
        confirmed: bytearray = bytearray(8 * self.common.publishers if confirms else 0)
        out: cython.pointer[uint64_t] = cython.cast(
            cython.pointer[uint64_t], cython.cast(cython.p_char, confirmed)
        )
        sent: bytes = cython.cast(cython.p_char, self.common.sent)[8 * publishers.start : 8 * publishers.stop]
        for number in range(self.tables.size()):
            arrived += load_u64(cython.address(self.tables[number].arrived))
        if confirms:
            with cython.nogil:
                for number in range(self.common.publishers):
                    out[number] = confirmed_near(cython.address(self.common), number)
        return published, arrived, sent, bytes(confirmed)

    def take_sent(self, publishers: range, counts: bytes) -> None:
        """What far publishers have sent, 8 bytes each as this machine has them."""
        if len(counts) != 8 * len(publishers) or publishers.stop > self.common.publishers:
            raise ValueError("these are not the counts of these publishers")
        memcpy(
            cython.address(self.common.sent[cython.cast(cython.size_t, publishers.start)]),
            cython.cast(cython.p_const_char, counts),
            len(counts),
        )

    def take_confirmed(self, counts: bytes) -> None:
        """How many of each publisher's messages all far subscribers have."""
        if len(counts) != 8 * self.common.publishers:
            raise ValueError("these are not the counts of all publishers")
        memcpy(self.common.confirmed_far, cython.cast(cython.p_const_char, counts), len(counts))

    def take_progress(self, now_ns: int) -> None:
        """Something moved far away."""
        self.common.progress_ns = max(self.common.progress_ns, now_ns)

    def take_publishing(self, count: int) -> None:
        """So many far shares may still send; what the others have sent must have been taken before."""
        store_int(cython.address(self.common.publishing_far), count)


def confirmed_by_all(common, publisher):
    """How many of a publisher's messages every subscriber has, or has skipped; all hear all here."""
    return min(confirmed_near(common, publisher), load_u64(common.confirmed_far + publisher))


def confirmed_near(common, publisher):
    """The same of the subscribers of this process."""
    slowest: uint64_t = ALL
    table: cython.pointer[cython.const[Table]]
    number: uint32_t
    subscriber: cython.size_t
    for number in range(common.table_count):
        table = cython.address(common.tables[number])
        for subscriber in range(table.subscribers):
            slowest = min(slowest, load_u64(table.expected + subscriber * common.publishers + publisher))
    return slowest


def sent_by_all(common):
    """Messages of all publishers, as far as it is known here."""
    sent: uint64_t = 0
    number: uint32_t
    for number in range(common.publishers):
        sent += load_u64(common.sent + number)
    return sent


def near_published(common):
    number: uint32_t
    for number in range(common.table_count):
        if not load_int(cython.address(common.tables[number].published)):
            return False
    return True


def all_published(common):
    """Nobody sends any more, and what each has sent is known here."""
    return load_int(cython.address(common.publishing_far)) == 0 and near_published(common)
