"""The rows of all nodes compared, for who asks one of them: who takes part, and what they tell each other."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from tidemq.broker.clustering import ComparedNode, VerifyFigures
from tidemq.cluster.comparison import Comparison, Outcome
from tidemq.cluster.digests import ANSWER, BUSY, END, QUESTION, Question
from tidemq.cluster.exchange import Exchange
from tidemq.cluster.forms import decode
from tidemq.cluster.links import Links
from tidemq.cluster.node import Node
from tidemq.cluster.records import Record
from tidemq.cluster.witness import Witness
from tidemq.errors import ClusterError, StoreError
from tidemq.store import Store

AGAIN_S = 5.0  # without an answer, after which is asked again
SILENT_S = 30.0
BUSY_S, BUSY_AGAIN_S = 3.0, 0.1

_log = logging.getLogger("tidemq.cluster")

OnKeeper = Callable[[Callable[[], Any]], "Future[Any]"]


class Verifying:
    """Of one node. `ask`: has something done on the keeper's thread."""

    def __init__(self, store: Store, links: Links, ask: OnKeeper) -> None:
        self._links = links
        self._ask = ask
        self._witness = Witness(store, self._send)
        self._asked: _Asked | None = None  # while rows are compared for this node
        self._comparison: Comparison | None = None
        self._figures: VerifyFigures | None = None
        self._lock = threading.Lock()  # over these

    def attach(self, node: Node, exchange: Exchange) -> None:
        """On the keeper's thread: what comes is this node's."""
        self._node = node
        exchange.acts |= {QUESTION: self._hear_question, ANSWER: self._hear_answer}

    def begin(self, wait_s: float) -> Future[VerifyFigures]:
        """From any thread: all members that are there are compared from now on. ClusterError where they are
        already, or nobody else is there.
        """
        return self._ask(partial(self._begin, wait_s))

    def figures(self) -> VerifyFigures | None:
        """From any thread; None: nothing was compared."""
        with self._lock:
            figures, comparison = self._figures, self._comparison
        if figures is None or comparison is None or figures.outcome != "running":
            return figures
        return replace(figures, rows=comparison.rows, text=comparison.doing)

    # --- on the keeper's thread --------------------------------------------------------------------

    def _begin(self, wait_s: float) -> VerifyFigures:
        if self._asked is not None:
            raise ClusterError("the nodes are being compared already")
        node, now = self._node, time.monotonic()
        names = {each: name for each, _, name in node.rows.members.all()}
        names[node.incarnation] = node.own.name
        shown = {each: f"{names.get(each, '')} ({each:016x})" for each in node.members.incarnations}
        live = node.members.live(now)
        if len(live) < 2:
            raise ClusterError("no other node is alive, so there is none to compare with")
        left_out = [text for each, text in shown.items() if each not in live]
        nodes = [ComparedNode(names.get(each, ""), f"{each:016x}", "") for each in live]
        self._asked = _Asked({each: shown[each] for each in live}, self._put)
        self._comparison = Comparison(live, self._asked, wait_s=wait_s)
        self._figures = VerifyFigures("running", self._comparison.doing, nodes, left_out)
        work = partial(self._compare, self._comparison, self._asked)
        threading.Thread(target=work, name="tidemq-verify", daemon=True).start()
        return self._figures

    def _hear_question(self, source: int, body: bytes) -> list[Record]:
        self._witness.hear(source, body)
        return []

    def _hear_answer(self, source: int, body: bytes) -> list[Record]:
        if self._asked is not None:
            self._asked.hear(source, body)
        return []

    # --- on any thread -----------------------------------------------------------------------------

    def _put(self, node: int, body: bytes) -> None:
        """A question to a node, or to this one."""
        if node != self._node.incarnation:
            self._links.send(node, QUESTION, body)
        else:
            self._ask(partial(self._witness.hear, node, body))

    def _send(self, to: int, kind: str, body: bytes) -> None:
        if to != self._node.incarnation:
            self._links.send(to, kind, body)
        elif self._asked is not None:
            self._asked.hear(to, body)

    # --- on a thread of its own --------------------------------------------------------------------

    def _compare(self, comparison: Comparison, asked: _Asked) -> None:
        assert self._figures is not None
        figures = self._figures
        try:
            figures = _told(comparison.run(), figures)
        except (ClusterError, StoreError) as error:
            figures = replace(figures, outcome="unknown", text=str(error))
        except Exception as error:  # noqa: BLE001 - it is told to who asks
            _log.exception("nodes cannot be compared")
            figures = replace(figures, outcome="unknown", text=f"{type(error).__name__}: {error}")
        finally:
            asked.end()
            with self._lock:
                self._figures = replace(figures, rows=comparison.rows)
                self._asked = None
        if figures.outcome == "different":
            has = "; ".join(f"{each.name} ({each.incarnation}) has {each.has}" for each in figures.nodes)
            _log.error("nodes differ: %s of %s: %s", figures.kind, figures.what, has)


def _told(outcome: Outcome, figures: VerifyFigures) -> VerifyFigures:
    found, looks = outcome.difference, outcome.looks
    if outcome.undecided:
        return replace(figures, outcome="unknown", text=outcome.undecided, looks=looks)
    if found is None:
        return replace(figures, outcome="equal", text="all nodes have the same", looks=looks)
    nodes = [replace(each, has=found.has[int(each.incarnation, 16)]) for each in figures.nodes]
    text = f"{found.kind} of {found.what} differs"
    differs = replace(figures, outcome="different", text=text, looks=looks, nodes=nodes)
    return replace(differs, kind=found.kind, what=found.what)


class _Asked:
    """Questions of one comparison, and the answers that have come. As `Asking`; `hear` is for any thread."""

    def __init__(self, names: Mapping[int, str], put: Callable[[int, bytes], object]) -> None:
        self._names = names
        self._put = put
        self._nonce = secrets.randbits(63)
        self._turn = 0
        self._answers: SimpleQueue[tuple[int, bytes]] = SimpleQueue()

    def hear(self, source: int, body: bytes) -> None:
        """What a node says."""
        self._answers.put((source, body))

    def end(self) -> None:
        """Nobody is asked any more."""
        for node in self._names:
            self._put(node, Question(self._nonce, 0, END).encode())

    def __call__(self, questions: Mapping[int, Question]) -> dict[int, bytes]:
        """As in `Asking`."""
        self._turn += 1
        texts = {
            node: each._replace(nonce=self._nonce, turn=self._turn).encode()
            for node, each in questions.items()
        }
        answers: dict[int, bytes] = {}
        begun = time.monotonic()
        ask_at = dict.fromkeys(texts, begun)
        while len(answers) < len(texts):
            now = time.monotonic()
            silent = [node for node in texts if node not in answers]
            if now - begun > SILENT_S:
                raise ClusterError(
                    f"{self._names[silent[0]]} does not answer: its version may not know this command"
                )
            for node in silent:
                if now >= ask_at[node]:
                    ask_at[node] = now + AGAIN_S
                    self._put(node, texts[node])
            source, problem, text = self._next_answer(min(ask_at[node] for node in silent) - now)
            if source not in silent:
                continue
            if problem.startswith(BUSY) and now - begun < BUSY_S:
                ask_at[source] = now + BUSY_AGAIN_S  # its last word to the other may be on its way
            elif problem:
                raise ClusterError(f"{self._names[source]} cannot be compared: {problem}")
            else:
                answers[source] = text
        return {node: answers[node] for node in questions}

    def _next_answer(self, within_s: float) -> tuple[int, str, bytes]:
        """Whose, why there is none, and what it is. 0: none of this turn has come."""
        try:
            source, body = self._answers.get(timeout=max(within_s, 0.001))
        except Empty:
            return 0, "", b""
        nonce, turn, problem, text = decode("Q Q text bytes", body)
        return (source, problem, text) if (nonce, turn) == (self._nonce, self._turn) else (0, "", b"")
