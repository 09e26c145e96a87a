"""A node's side of a comparison: it freezes its store and answers questions about that.

The keeper only freezes, which takes microseconds. The rows are read on a thread of their own, which lets go
of the interpreter after a part of a millisecond: the keeper needs it several times for each of its batches.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from queue import Empty, SimpleQueue

from tidemq.cluster.comparable_rows import KINDS, QUEUES, ComparableRows, describe
from tidemq.cluster.digests import (
    ANSWER,
    BUSY,
    CUT,
    END,
    FIND_OWNERS,
    FREEZE,
    LOOK,
    Part,
    Question,
    cut,
    parse_question,
)
from tidemq.cluster.forms import encode
from tidemq.cluster.piece_cuts import digest_of
from tidemq.cluster.snapshots import UNFINISHED
from tidemq.cluster.stored_tables import FAMILY
from tidemq.errors import ClusterError, StoreError
from tidemq.store import FreezableStore, Frozen, Store

ANSWER_S = 0.5  # that rows are read for one answer; the rest is asked for
SLICE_S = 0.0003  # of work between two pauses
PAUSE_S = 0.0002
IDLE_S = 60.0  # after which what is frozen goes, if nobody asks
LOOK_S = 1.0

_log = logging.getLogger("tidemq.cluster")

Send = Callable[[int, str, bytes], object]


class Witness:
    """Of one node; answers one comparison at a time. `send` is for any thread."""

    def __init__(self, store: Store, send: Send) -> None:
        self._store = store
        self._send = send
        self._moment: Moment | None = None

    def hear(self, source: int, body: bytes) -> None:
        """A question, on the keeper's thread. ClusterError where it is none."""
        question = parse_question(body)
        moment = self._moment
        if question.act == FREEZE:
            self._freeze(source, question)
        elif moment is not None and moment.nonce == question.nonce and moment.is_alive():
            moment.ask(question)
            if question.act == END:
                self._moment = None
        elif question.act != END:
            self._refuse(
                source, question, "what it had frozen is gone: its store was closed, or nobody asked for it"
            )

    def _freeze(self, source: int, question: Question) -> None:
        moment = self._moment
        if moment is not None and moment.is_alive():
            if (moment.nonce, moment.turn) == (question.nonce, question.turn):
                moment.ask(question)  # its answer may be on its way: what is said of rows is of that moment
                return
            if source != moment.source:
                self._refuse(source, question, f"{BUSY} {moment.source:016x} now")
                return
            moment.close()
        try:
            if not isinstance(self._store, FreezableStore):
                raise StoreError("its store cannot be frozen")
            if self._store.get(FAMILY, UNFINISHED) is not None:
                raise StoreError("it takes over what the others have")
            self._moment = Moment(source, question, self._store.freeze(), self._send)
        except StoreError as error:
            self._refuse(source, question, str(error))
            return
        self._moment.start()

    def _refuse(self, source: int, question: Question, problem: str) -> None:
        self._send(source, ANSWER, answer(question, problem))


class Moment(threading.Thread):
    """What a node has at one moment, read for one comparison."""

    def __init__(self, source: int, question: Question, frozen: Frozen, send: Send) -> None:
        super().__init__(name="tidemq-verify-rows", daemon=True)
        self.source = source
        self.nonce, self.turn = question.nonce, question.turn
        self._frozen = frozen
        self._rows = ComparableRows(frozen)
        self._send = send
        self._questions: SimpleQueue[Question] = SimpleQueue()
        self._answered = (0, b"")  # the last turn, and what was said: it is said again
        self._paused_at = self._ends_at = 0.0
        self.ask(question)

    def ask(self, question: Question) -> None:
        """From any thread."""
        self._questions.put(question)

    def close(self) -> None:
        """From any thread; what is asked is not answered any more."""
        self._frozen.close()

    def run(self) -> None:
        """Answers until it is told to end, nobody asks any more, or the store was closed."""
        asked_at = time.monotonic()
        while self._frozen.is_open and time.monotonic() - asked_at < IDLE_S:
            try:
                question = self._questions.get(timeout=LOOK_S)
            except Empty:
                continue
            asked_at = time.monotonic()
            if question.act == END:
                break
            if question.turn != self._answered[0]:
                self._answered = question.turn, self._answer(question)
            self._send(self.source, ANSWER, self._answered[1])
        self._frozen.close()

    def _answer(self, question: Question) -> bytes:
        try:
            return answer(question, "", self.read(question))
        except (StoreError, ClusterError) as error:
            return answer(question, str(error))
        except Exception as error:  # noqa: BLE001 - a damaged row may be anything
            _log.exception("a question about rows cannot be answered")
            return answer(question, f"{type(error).__name__}: {error}")

    def read(self, question: Question) -> bytes:
        """What is asked. StoreError or ClusterError where it cannot be read."""
        self._ends_at = time.monotonic() + ANSWER_S
        kind, rows = KINDS[question.kind], self._rows
        if question.act == FREEZE:
            return encode("vector", rows.vector)
        if question.act == CUT:
            scan = rows.scan(kind, question.after)
            return cut(scan, question.until, question.bits, self._is_late).encode()
        if question.act == LOOK:
            pairs = []
            for key in question.keys:
                text = rows.find(kind, key)
                pairs.append((key, b"" if text is None else digest_of(text)))
                self._is_late()  # it pauses; there are few keys
            return Part(b"", True, len(pairs), pairs).encode()
        if question.act == FIND_OWNERS:
            return self._find_owners(question).encode()
        (key,) = question.keys
        return encode("text", describe(kind, rows.find(kind, key)))

    def _find_owners(self, question: Question) -> Part:
        """Entries of queues that have one of these messages."""
        wanted = frozenset(question.keys)
        pairs: list[tuple[bytes, bytes]] = []
        count = 0
        for key, text in self._rows.scan(QUEUES, question.after):
            count += 1
            if text and key[-16:] in wanted:  # empty: the queue itself
                pairs.append((key[-16:], key))
            if self._is_late():
                return Part(key, False, count, pairs)
        return Part(b"", True, count, pairs)

    def _is_late(self) -> bool:
        """Asked for each row: pauses now and then."""
        now = time.monotonic()
        if now - self._paused_at < SLICE_S:
            return False
        time.sleep(PAUSE_S)
        self._paused_at = time.monotonic()
        return now > self._ends_at


def answer(question: Question, problem: str, body: bytes = b"") -> bytes:
    """As it goes to who has asked; `problem`: why there is no answer."""
    return encode("Q Q text bytes", question.nonce, question.turn, problem, body)
