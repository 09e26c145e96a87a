"""How the shares of a workload in several processes know of each other: each tells a `Coordinator` some
hundred times a second what it has sent and received, and is answered with the word of all.

A frame is two lengths (4 bytes each), a head in JSON, and counts of 8 bytes by publisher, as the machine has
them: all machines are of one kind.

Times are those of the coordinator's clock. A share on its machine has the same one (CLOCK_MONOTONIC); for
others each question and answer compares the clocks, to half the time that they take at best.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, BinaryIO, cast

from tidemq.bench.load.board import Board

PERIOD_S = 0.01  # between two questions
COMPARISON_S = 0.002  # the same before the start: the more comparisons of clocks, the better the best one
PERIOD_S_EACH = 1e-6  # and so much for each publisher
LENGTHS = struct.Struct("=II")
FRAME_BYTES_MAX = 64 << 20
GIVE_UP_S = 10.0  # for one answer
TEND_S = 0.02  # at a time: far less than what is left until the start when all are told of it


@dataclass(frozen=True, slots=True, kw_only=True)
class Status:
    """What a share says."""

    asked_ns: int = 0  # its own clock
    ready: bool = False  # all is connected
    published: bool = False  # it sends no more
    end: str = ""  # of its run, an `End`
    fault: str = ""  # why it cannot run
    sent: int = 0
    arrived: int = 0
    by_publisher: bytes = b""  # sent, of its own publishers; empty where nobody far hears them
    confirmed: bytes = (
        b""  # of all publishers, what all its subscribers have; empty where nobody waits for it
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Word:
    """What the coordinator answers: the state of all, itself included."""

    received_ns: int  # the question
    answered_ns: int
    start_ns: int  # 0: not yet
    end: str  # all are to end so, now; empty: the run goes on
    fault: str  # nobody runs
    publishing: list[int]  # shares that may still send
    sent: int
    arrived: int
    by_publisher: bytes
    confirmed: bytes


NOTHING = Word(
    received_ns=0,
    answered_ns=0,
    start_ns=0,
    end="",
    fault="",
    publishing=[],
    sent=0,
    arrived=0,
    by_publisher=b"",
    confirmed=b"",
)


def machine_id() -> str:
    """The same for two processes that have one CLOCK_MONOTONIC."""
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    try:
        return f"{boot} {os.readlink('/proc/self/ns/time')}"
    except OSError:  # a kernel without namespaces of time
        return boot


def write_frame(stream: BinaryIO, head: dict[str, Any], *counts: bytes) -> None:
    text = json.dumps(head | {"counts": [len(each) for each in counts]}).encode()
    body = b"".join(counts)
    stream.write(LENGTHS.pack(len(text), len(body)) + text + body)
    stream.flush()


def read_frame(stream: BinaryIO) -> tuple[dict[str, Any], list[bytes]]:
    """Head and counts of a frame; ConnectionError where the peer is gone, or sends something else."""
    lengths = stream.read(LENGTHS.size)
    if len(lengths) < LENGTHS.size:
        raise ConnectionError("the other end of the exchange is gone")
    head_bytes, body_bytes = LENGTHS.unpack(lengths)
    if head_bytes + body_bytes > FRAME_BYTES_MAX:
        raise ConnectionError("this is no frame of an exchange")
    text, body = stream.read(head_bytes), stream.read(body_bytes)
    if len(text) + len(body) < head_bytes + body_bytes:
        raise ConnectionError("the other end of the exchange is gone")
    counts, at = [], 0
    try:
        head: dict[str, Any] = dict(json.loads(text))
        for length in head.pop("counts"):
            counts.append(body[at : at + length])
            at += length
    except (KeyError, TypeError, ValueError) as error:
        raise ConnectionError("this is no frame of an exchange") from error
    return head, counts


def write_status(stream: BinaryIO, status: Status) -> None:
    head = asdict(status)
    write_frame(stream, head, head.pop("by_publisher"), head.pop("confirmed"))


def read_status(stream: BinaryIO) -> Status:
    head, (by_publisher, confirmed) = read_frame(stream)
    return Status(**head, by_publisher=by_publisher, confirmed=confirmed)


def write_word(stream: BinaryIO, word: Word) -> None:
    head = asdict(word)
    write_frame(stream, head, head.pop("by_publisher"), head.pop("confirmed"))


def read_word(stream: BinaryIO) -> Word:
    head, (by_publisher, confirmed) = read_frame(stream)
    return Word(**head, by_publisher=by_publisher, confirmed=confirmed)


@dataclass(frozen=True, slots=True)
class Comparison:
    """Of two clocks: add `offset_ns` to the one to have the other, to `error_ns` at most."""

    offset_ns: int
    error_ns: int


def compare(asked_ns: int, word: Word, answered_ns: int) -> Comparison:
    """By one question and its answer: the way there and the way back took no less than nothing."""
    offset_ns = (word.received_ns - asked_ns + word.answered_ns - answered_ns) // 2
    on_the_way_ns = (answered_ns - asked_ns) - (word.answered_ns - word.received_ns)
    return Comparison(offset_ns, max(on_the_way_ns, 0) // 2)


class Clock:
    """How this machine's clock and the coordinator's differ: the best comparison before the start counts, and
    the best one after it shows how far they have gone apart since.
    """

    def __init__(self, same: bool) -> None:
        self._same = same
        self._before: Comparison | None = None
        self._after: Comparison | None = None

    def take(self, found: Comparison, started: bool) -> None:
        known = self._after if started else self._before
        if known is None or found.error_ns < known.error_ns:
            if started:
                self._after = found
            else:
                self._before = found

    @property
    def offset_ns(self) -> int:
        return 0 if self._same or self._before is None else self._before.offset_ns

    @property
    def error_s(self) -> float:
        """What the offset may be wrong by."""
        if self._same or self._before is None:
            return 0.0
        error_ns = self._before.error_ns
        if self._after is not None:
            apart_ns = abs(self._after.offset_ns - self._before.offset_ns)
            error_ns = max(error_ns, self._after.error_ns + apart_ns)
        return error_ns / 1e9


class Exchange:
    """A share's end: a thread of its own asks, and takes the word to the share's board.

    Where the coordinator is gone, or says that another share is, the board ends the run.
    """

    def __init__(self, address: tuple[str, int], token: str, number: int, board: Board) -> None:
        """Raises OSError where the coordinator cannot be reached, or wants nothing of this share."""
        workload = board.workload
        (self._share,) = board.shares
        self._number, self._board = number, board
        self._coupled = not workload.single  # shares hear each other
        self._waits = bool(self._coupled and workload.outstanding_max and not workload.rate_per_s)
        self._period_s = PERIOD_S + PERIOD_S_EACH * workload.publishers
        self._socket = socket.create_connection(address, GIVE_UP_S)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._stream = cast(BinaryIO, self._socket.makefile("rwb"))
        write_frame(self._stream, {"token": token, "number": number})
        hello, _ = read_frame(self._stream)
        self.clock = Clock(hello["machine"] == machine_id())
        self._fault = self._end = ""
        self._ready = False
        self._moved = (0, 0)
        self._answers, self._first_ns, self._last_ns = 0, 0, 0  # since it is known when to start
        self._word: Word | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._ask_on, name="exchange", daemon=True)
        self._thread.start()

    @property
    def word_s(self) -> float:
        """How old what is known of others is on average, at most: what they said last, and when it came."""
        return 2e-9 * (self._last_ns - self._first_ns) / max(self._answers - 1, 1)

    def agree(self, fault: str = "", tend: Callable[[float], None] = time.sleep) -> int:
        """Say that all is connected here, or why not; once all others are, when to start, by this machine's
        CLOCK_MONOTONIC. ConnectionError where nobody runs.

        Meanwhile `tend` is called again and again, for so many seconds, and may keep the connections.
        """
        self._fault, self._ready = fault, not fault
        while self._word is None or not (self._word.start_ns or self._word.fault):
            tend(TEND_S)
        if self._word.fault:
            raise ConnectionError(self._word.fault)
        return self._word.start_ns - self.clock.offset_ns

    def close(self, end: str) -> None:
        """Say how the run ended, and that this was all."""
        self._end = end
        self._closed.set()
        self._thread.join()
        self._stream.close()
        self._socket.close()

    def _ask_on(self) -> None:
        try:
            while not self._closed.is_set():
                self._ask()
                started = self._word is not None and self._word.start_ns
                self._closed.wait(self._period_s if started else COMPARISON_S)
            self._ask()
        except (OSError, ValueError) as error:
            self._board.end("share lost")
            self._word = replace(NOTHING, fault=f"the coordinator is gone: {error}")

    def _ask(self) -> None:
        status = self._status()
        write_status(self._stream, status)
        word = read_word(self._stream)
        now_ns = time.monotonic_ns()
        if word.start_ns:
            self._answers, self._first_ns, self._last_ns = self._answers + 1, self._first_ns or now_ns, now_ns
        self.clock.take(compare(status.asked_ns, word, now_ns), bool(word.start_ns))
        self._take(word, now_ns)
        self._word = word

    def _status(self) -> Status:
        confirms = self._waits and len(self._share.subscribers) > 0
        published, arrived, by_publisher, confirmed = self._board.state(self._share.publishers, confirms)
        return Status(
            asked_ns=time.monotonic_ns(),
            ready=self._ready,
            published=published,
            end=self._end,
            fault=self._fault,
            sent=sum(memoryview(by_publisher).cast("Q")),
            arrived=arrived,
            by_publisher=by_publisher if self._coupled else b"",
            confirmed=confirmed,
        )

    def _take(self, word: Word, now_ns: int) -> None:
        """To the board."""
        own, of_all = self._share.publishers, self._board.workload.publishers
        if word.by_publisher:
            for far in (range(own.start), range(own.stop, of_all)):
                self._board.take_sent(far, word.by_publisher[8 * far.start : 8 * far.stop])
        if word.confirmed and any(len(share.subscribers) for share in self._board.far):
            self._board.take_confirmed(word.confirmed)
        if (word.sent, word.arrived) != self._moved or not word.start_ns:
            self._moved = (word.sent, word.arrived)
            self._board.take_progress(now_ns)
        self._board.take_publishing(sum(number != self._number for number in word.publishing))
        if word.end or word.fault:
            self._board.end(word.end or "interrupted")
