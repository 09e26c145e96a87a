"""Those who look at a broker while it serves, as operators do: a scraper, a page that is open, a list that is
walked, a trace, a collector of spans; and a client that says how long a message takes.
"""

from __future__ import annotations

import json
import secrets
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.error import HTTPError
from urllib.request import urlopen

from collector import Collector
from waiting import wait_until

from tidemq.client import Properties
from tidemq.client.sync import Client

LOOK_S = 1.0  # between two looks
PROBE_S = 0.02  # between two messages
PATHS = ("/metrics", "/alarms", "/api/v1/drops")
PROBED = "soak/probe"
PROBE = "soak-probe"
SPANS_KEPT = 100
DRIFT_MAX = 2.0  # times; and as much as a machine that is shared may add:
DRIFT_SPARE_S = 0.02
DRIFT_ROUNDS_MIN = 9  # a median of three in each third


@dataclass
class Onlookers:
    """Of one broker, each on a thread of its own. `problems` gets what they were refused."""

    mqtt: int
    admin: int
    collector: Collector
    looks: int = 0
    events: int = 0  # of a page that is open
    rows: int = 0  # of the list of clients
    lines: int = 0  # of a trace of the probe
    waits_s: list[float] = field(default_factory=list)  # of the probe's messages, since they were last taken
    problems: list[str] = field(default_factory=list)

    @contextmanager
    def looking(self) -> Iterator[None]:
        """They look for as long as the block runs, and have begun to when it begins."""
        ended = threading.Event()
        tasks = (self._scrape, self._walk, self._follow, self._trace, self._probe)
        threads = [threading.Thread(target=self._tried, args=(each, ended)) for each in tasks]
        for thread in threads:
            thread.start()
        try:
            wait_until(self._have_begun, "all of them look")
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()

    def _have_begun(self) -> bool:
        spans = {each.name for each in self.collector.spans}
        seen = self.rows and self.events and self.lines and self.waits_s
        return bool(seen) and spans == {"receive", "commit", "deliver"}

    def take_p99_s(self) -> float:
        """Of the probe's messages since the last time; AssertionError when there were none."""
        assert len(self.waits_s) > 1, "the probe has sent nothing"
        waits_s, self.waits_s = self.waits_s, []
        return statistics.quantiles(waits_s, n=100)[-1]

    def _tried(self, task: Callable[[threading.Event], None], ended: threading.Event) -> None:
        try:
            task(ended)
        except Exception as error:  # noqa: BLE001 - whatever it is, the soak has failed
            if not ended.is_set():
                said = error.read().decode() if isinstance(error, HTTPError) else ""
                self.problems.append(f"{task.__name__}: {error!r} {said}")

    def _ask(self, path: str) -> bytes:
        with urlopen(f"http://127.0.0.1:{self.admin}{path}", timeout=30) as answer:
            text: bytes = answer.read()
        self.looks += 1
        return text

    def _scrape(self, ended: threading.Event) -> None:
        while not ended.wait(LOOK_S):
            for path in PATHS:
                self._ask(path)

    def _walk(self, ended: threading.Event) -> None:
        cursor = ""
        while not ended.wait(0.0 if cursor else LOOK_S):
            page = json.loads(self._ask(f"/api/v1/clients?limit=1000&cursor={cursor}"))
            self.rows += len(page["clients"])
            cursor = page["cursor"] or ""

    def _follow(self, ended: threading.Event) -> None:
        with urlopen(f"http://127.0.0.1:{self.admin}/api/v1/events", timeout=30) as answer:
            while not ended.is_set():
                line = answer.readline()
                if not line:
                    raise ConnectionError("the events have ended")
                self.events += line.startswith(b"data: ")

    def _trace(self, ended: threading.Event) -> None:
        while not ended.is_set():
            url = f"http://127.0.0.1:{self.admin}/api/v1/trace?client_id={PROBE}&seconds=10&lines_max=100"
            with urlopen(url, timeout=30) as answer:
                for line in answer:
                    self.lines += line.startswith(b"data: ")

    def _probe(self, ended: threading.Event) -> None:
        url = f"mqtt://127.0.0.1:{self.mqtt}"
        with Client(url, client_id=PROBE, clean_start=False, session_expiry_s=5) as client:
            messages = client.subscribe(PROBED, qos=1).messages
            while not ended.wait(PROBE_S):
                began_s = time.monotonic()
                client.publish(PROBED, b"probe", qos=1, properties=in_a_trace())
                del self.collector.spans[:-SPANS_KEPT]
                messages.get(timeout_s=30)
                self.waits_s.append(time.monotonic() - began_s)


def in_a_trace() -> Properties:
    trace, span = secrets.token_hex(16), secrets.token_hex(8)
    return Properties(user_properties=(("traceparent", f"00-{trace}-{span}-01"),))


def drifting(p99_s: Sequence[float]) -> list[str]:
    """A line when messages take longer in the last third of the rounds than in the first. Of fewer than
    DRIFT_ROUNDS_MIN nothing is said: the p99 of one round is its slowest few messages, and these are as
    slow as whatever else the machine had to do.
    """
    if len(p99_s) < DRIFT_ROUNDS_MIN:
        return []
    third = len(p99_s) // 3
    first, last = statistics.median(p99_s[:third]), statistics.median(p99_s[-third:])
    if last <= first * DRIFT_MAX + DRIFT_SPARE_S:
        return []
    return [f"p99 drifts: {first * 1e3:.1f} ms at first, {last * 1e3:.1f} ms at last"]
