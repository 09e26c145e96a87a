"""Several nodes of a cluster, each with a stream of its own of the same name: asked at once, and none waits
for another. Who does not answer is away, and is asked again the next time.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, wait
from functools import partial
from urllib.parse import urlsplit

from tidemq.client.errors import ConnectError
from tidemq.client.streams import StreamError, StreamState
from tidemq.pipeline.sources.stream_options import RETRY_S, SourceOptions

PATIENCE_S = 2.0  # with a node that was there; what it says later counts the next time
PAUSE_S = 0.2  # before nodes are asked again that have to be there

_log = logging.getLogger(__name__)

States = Mapping[str, StreamState]  # of the nodes that are there, by URL


class Nodes:
    """What the driver knows of them."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._asked: dict[str, Future[StreamState]] = {}  # not answered yet
        self._away: dict[str, str] = {}  # why
        self.last: States = {}

    def look(self, *, all_of_them: bool = False, retry_s: float | None = None) -> States:
        """The streams of all nodes that are there. ConnectError where none is for 30 s, or not all, if all
        are wanted. StreamError where one has no such stream, or two are the same.
        """
        until = time.monotonic() + (RETRY_S if retry_s is None else retry_s)
        while True:
            found = self._look_once()
            enough = len(found) == len(self._options.urls) if all_of_them else bool(found)
            if enough:
                self.last = found
                return found
            if time.monotonic() >= until:
                raise ConnectError("; ".join(self._away.values()))
            time.sleep(PAUSE_S)

    def wait(self, known: States, wait_s: float) -> States:
        """The same nodes' streams once one has a message more than `known`, or after so many seconds."""
        asked = {
            url: _begun(partial(self._options.open(url, 0.0).wait, state.next_offset, wait_s))
            for url, state in known.items()
        }
        wait(asked.values(), wait_s + PATIENCE_S, FIRST_COMPLETED)
        found = dict(known)
        for url, answer in asked.items():
            if answer.done() and answer.exception() is None:
                found[url] = answer.result()
        self.last = found
        return found

    def _look_once(self) -> States:
        late = set(self._asked)
        for url in self._options.urls:
            if url not in self._asked:
                self._asked[url] = _begun(self._options.open(url, 0.0).describe)
        wait([answer for url, answer in self._asked.items() if url not in late], PATIENCE_S)
        found: dict[str, StreamState] = {}
        for url in self._options.urls:
            answer = self._asked[url]
            if answer.done():
                del self._asked[url]
            if (state := self._state(url, answer)) is not None:
                found[url] = state
        _refuse_same(found)
        return found

    def _state(self, url: str, answer: Future[StreamState]) -> StreamState | None:
        """None: the node is away. Anything else that is wrong is raised."""
        why = f"{url}: no answer within {PATIENCE_S:g} s"
        if answer.done():
            try:
                state = answer.result()
            except ConnectError as error:
                why = str(error)
            else:
                if self._away.pop(url, ""):
                    _log.warning("%s is back", url)
                return state
        if url not in self._away:
            _log.warning("its messages come when it is back: %s", why)
        self._away[url] = why
        return None


def name_of(url: str, state: StreamState) -> str:
    """The node's name; of a broker without a cluster, where it is."""
    return state.node or urlsplit(url).netloc.rpartition("@")[2]


def shares(backlogs: Mapping[str, int], most: int) -> dict[str, int]:
    """How much of each is taken, of so much of all: who has less than a share leaves the rest to the others.
    One at least of each; all of all where `most` is 0.
    """
    if not most:
        return dict(backlogs)
    found: dict[str, int] = {}
    for url in sorted(backlogs, key=lambda url: backlogs[url]):
        share = max(most // (len(backlogs) - len(found)), 1)
        found[url] = min(backlogs[url], share)
        most -= found[url]
    return found


def _refuse_same(states: States) -> None:
    whose: dict[int, str] = {}
    for url, state in states.items():
        if (other := whose.setdefault(state.epoch, url)) != url:
            raise StreamError(
                f"{other} and {url} are one broker, or one has a copy of the other's data: both have the "
                f"stream {state.name} with the epoch {state.epoch}"
            )


def _begun(ask: Callable[[], StreamState]) -> Future[StreamState]:
    """On a thread of its own, which no end of the process waits for: a machine that is gone may be silent for
    long.
    """
    answer: Future[StreamState] = Future()

    def run() -> None:
        try:
            answer.set_result(ask())
        except BaseException as error:  # noqa: BLE001 - who looks at the answer raises it
            answer.set_exception(error)

    threading.Thread(target=run, name="tidemq-node", daemon=True).start()
    return answer
