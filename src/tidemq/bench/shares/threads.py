"""One workload by several threads, each a `Generator` with its share; or by one."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from tidemq.bench.load.board import Board
from tidemq.bench.load.generator import Generator
from tidemq.bench.load.local_addresses import packed_sources
from tidemq.bench.peer.refusal import check_descriptors
from tidemq.bench.peer.target import Target
from tidemq.bench.result import Interval
from tidemq.bench.shares.sharing import merge_connecting, merge_interval, merge_outcomes, share_out
from tidemq.bench.workload import Connecting, Outcome, Workload, check_workload

TICK_S = 0.1
TEND_S = 0.02  # for so long at a time connections are kept while others are made
START_DELAY_NS = 2_000_000  # until all threads run
T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Drive:
    """How this machine makes a load.

    One thread unless more are asked for: a run's figures must not depend on how many cores happen to be
    there, and on the broker's machine each further thread takes a core from the broker.
    """

    threads: int = 1
    sources: tuple[str, ...] = ()  # addresses of this machine, or ranges of them; none: as the system chooses


ONE_THREAD = Drive()


class GeneratorThreads:
    """As `Generator`: `connect()`, then `run()`, then `close()`. There are no more threads than clients."""

    def __init__(self, workload: Workload, target: Target, drive: Drive) -> None:
        """UsageError for a load that cannot be made."""
        check_workload(workload)
        self._workload = workload
        self._interrupts: list[BaseException] = []
        self._board = Board(workload, share_out(workload, drive.threads))
        sources = packed_sources(drive.sources, target)
        self._generators = [
            Generator(workload, target, self._board, number, sources)
            for number in range(len(self._board.shares))
        ]

    def connect(self, timeout_s: float, report: Callable[[int], None]) -> Connecting:
        """As `Generator.connect`; `report` is told of all together."""
        check_descriptors(self._workload.connections)
        counts = [0] * len(self._generators)
        connected: list[int] = []

        def connect(number: int) -> Connecting:
            generator = self._generators[number]
            connecting = generator.connect(timeout_s, partial(counts.__setitem__, number))
            connected.append(number)
            while len(connected) < len(self._generators) and not self._board.ended:
                generator.tend(TEND_S)
            return connecting

        return merge_connecting(self._together(connect, lambda: report(sum(counts))))

    def tend(self, seconds: float) -> None:
        """As `Generator.tend`."""
        self._together(lambda number: self._generators[number].tend(seconds), lambda: None)

    def run(self, idle_limit_s: float, report: Callable[[Interval], None]) -> Outcome:
        """As `Generator.run`; `report` is told of all together."""
        intervals: list[list[Interval]] = [[] for _ in self._generators]
        shown = 0
        start_ns = time.monotonic_ns() + START_DELAY_NS

        def run(number: int) -> Outcome:
            return self._generators[number].run(idle_limit_s, intervals[number].append, start_ns)

        def tick() -> None:
            nonlocal shown
            for together in list(zip(*intervals, strict=False))[shown:]:
                report(merge_interval(together))
                shown += 1

        return merge_outcomes(self._workload, self._together(run, tick))

    def close(self) -> None:
        for generator in self._generators:
            generator.close()

    def _together(self, work: Callable[[int], T], tick: Callable[[], None]) -> list[T]:
        """What `work` returns for each generator, each in a thread; meanwhile `tick` is called in this one.

        What fails for one, and KeyboardInterrupt here, ends the run for all; the first error is raised.
        """
        errors: list[BaseException] = []

        def guarded(number: int) -> T:
            try:
                return work(number)
            except BaseException as error:
                errors.append(error)
                self._board.end("interrupted")
                raise

        with ThreadPoolExecutor(len(self._generators)) as pool:
            futures = [pool.submit(guarded, number) for number in range(len(self._generators))]
            while not all(future.done() for future in futures):
                try:
                    wait(futures, TICK_S)
                    tick()
                except KeyboardInterrupt as error:
                    self._board.end("interrupted")
                    self._interrupts.append(error)
        if errors:
            raise (self._interrupts or errors)[0]
        return [future.result() for future in futures]
