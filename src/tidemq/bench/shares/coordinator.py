"""Where the shares of a workload in several processes meet: who is there, when to start, what all have sent
and received, whether the run is to end early. The other end of `exchange`.

A share whose connection ends, or that is silent, before it has said that its run is over is lost; that ends
the run of all.
"""

from __future__ import annotations

import secrets
import socketserver
import threading
import time
from array import array
from collections.abc import Sequence
from dataclasses import replace
from typing import BinaryIO, cast

from tidemq.bench.load.share import Share
from tidemq.bench.shares.exchange import (
    Status,
    Word,
    machine_id,
    read_frame,
    read_status,
    write_frame,
    write_word,
)
from tidemq.bench.workload import Workload

SILENCE_S = 10.0  # of a share that is to ask some hundred times a second: it is lost
START_DELAY_S = 0.25  # from when all are connected: longer than the word of it takes
WORD_S = 0.005  # so long the word of all is not put together anew


class Coordinator:
    """Of the `shares` of a workload. A thread for each that comes; `with` ends them."""

    def __init__(self, workload: Workload, shares: Sequence[Share], host: str, wait_s: float = 60.0) -> None:
        """Listen on a free port of `host`. All shares must come within `wait_s` after the first."""
        self._publishers, self._shares, self._wait_s = workload.publishers, shares, wait_s
        self.token = secrets.token_hex(16)
        self.fault = ""  # why nothing was run; empty where something was
        self.lost: set[int] = set()
        self._lock = threading.Lock()
        self._statuses: dict[int, Status] = {}  # of those that have come, what they said last
        self._first_s = 0.0
        self._start_ns, self._end = 0, ""
        self._closed = False
        self._word, self._word_s = self._of_all(), 0.0
        self._server = Server((host, 0), Meeting)
        self._server.coordinator = self
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> Coordinator:
        return self

    def __exit__(self, *_exception: object) -> None:
        """Whoever asks again is not answered, and ends its run."""
        self._closed = True
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def last_word(self, number: int) -> Status:
        """What a share said last."""
        return self._statuses.get(number, Status())

    def enter(self, number: int) -> bool:
        """A share has come. False for one that was here before: it is a second attempt, and too late."""
        with self._lock:
            self._first_s = self._first_s or time.monotonic()
            known = number in self._statuses
            self._statuses.setdefault(number, Status())
            return not known and not self.fault

    def take(self, number: int, status: Status) -> Word:
        """What a share says; the answer."""
        received_ns = time.monotonic_ns()
        if self._closed:
            raise ConnectionError("the run is over")
        with self._lock:
            self._statuses[number] = status
            if not self._start_ns:
                self._try_to_start()
            elif status.end not in ("", "complete"):
                self._end = self._end or status.end
            if time.monotonic() - self._word_s > WORD_S or status.end:
                self._word, self._word_s = self._of_all(), time.monotonic()
            return replace(
                self._word,
                received_ns=received_ns,
                start_ns=self._start_ns,
                end=self._end,
                fault=self.fault,
                answered_ns=time.monotonic_ns(),
            )

    def leave(self, number: int) -> None:
        """A share's connection has ended."""
        with self._lock:
            if self._statuses[number].end or self.fault:
                return
            self.lost.add(number)
            if self._start_ns:
                self._end = self._end or "share lost"
            else:
                self.fault = f"share {number + 1} of {len(self._shares)} was lost before the start"

    def _try_to_start(self) -> None:
        faults = [each.fault for each in self._statuses.values() if each.fault]
        count = len(self._shares)
        if faults:
            self.fault = self.fault or faults[0]
        elif len(self._statuses) == count and all(each.ready for each in self._statuses.values()):
            self._start_ns = time.monotonic_ns() + int(START_DELAY_S * 1e9)
        elif len(self._statuses) < count and time.monotonic() - self._first_s > self._wait_s:
            self.fault = self.fault or (
                f"only {len(self._statuses)} of {count} shares came within {self._wait_s:g} s: "
                "each needs a free core of an executor"
            )

    def _of_all(self) -> Word:
        """What all have said, put together."""
        statuses = self._statuses
        by_publisher = bytearray(8 * self._publishers)
        for number, status in statuses.items():
            if status.by_publisher:
                own = self._shares[number].publishers
                by_publisher[8 * own.start : 8 * own.stop] = status.by_publisher
        waited_for = [number for number, share in enumerate(self._shares) if len(share.subscribers)]
        confirmed = [
            memoryview(statuses[number].confirmed).cast("Q")
            for number in waited_for
            if number in statuses and statuses[number].confirmed
        ]
        whole = len(confirmed) == len(waited_for) > 0
        return Word(
            received_ns=0,
            answered_ns=0,
            start_ns=0,
            end="",
            fault="",
            publishing=[
                number
                for number in range(len(self._shares))
                if number not in statuses or not statuses[number].published
            ],
            sent=sum(status.sent for status in statuses.values()),
            arrived=sum(status.arrived for status in statuses.values()),
            by_publisher=bytes(by_publisher) if any(each.by_publisher for each in statuses.values()) else b"",
            confirmed=least(confirmed) if whole else b"",
        )


def least(each: Sequence[memoryview]) -> bytes:
    """By publisher, the least of several counts."""
    if len(each) == 1:
        return bytes(each[0])
    return array("Q", map(min, *each)).tobytes()


class Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    request_queue_size = 128
    coordinator: Coordinator


class Meeting(socketserver.StreamRequestHandler):
    """One share's connection."""

    timeout = SILENCE_S
    disable_nagle_algorithm = True

    def handle(self) -> None:
        coordinator = cast(Server, self.server).coordinator
        stream = cast(BinaryIO, self.request.makefile("rwb"))
        try:
            head, _ = read_frame(stream)
            number = int(head["number"])
            if not secrets.compare_digest(str(head["token"]).encode(), coordinator.token.encode()):
                return
        except (OSError, ValueError, KeyError):
            return  # none of ours
        if not coordinator.enter(number):
            return
        try:
            write_frame(stream, {"machine": machine_id()})
            while True:
                write_word(stream, coordinator.take(number, read_status(stream)))
        except (OSError, ValueError):
            coordinator.leave(number)
