from collections.abc import Callable, Sequence

from tidemq.bench.load.board import Board
from tidemq.bench.peer.target import Target
from tidemq.bench.result import Interval
from tidemq.bench.workload import Connecting, Outcome, Workload

class Generator:
    @property
    def workload(self) -> Workload: ...
    @property
    def target(self) -> Target: ...
    @property
    def board(self) -> Board: ...
    def __init__(
        self,
        workload: Workload,
        target: Target,
        board: Board | None = None,
        number: int = 0,
        sources: Sequence[bytes] = (),
    ) -> None: ...
    def connect(self, timeout_s: float = 30.0, report: Callable[[int], None] | None = None) -> Connecting: ...
    def tend(self, seconds: float) -> None: ...
    def run(
        self,
        idle_limit_s: float = 5.0,
        report: Callable[[Interval], None] | None = None,
        start_ns: int = 0,
        offset_ns: int = 0,
    ) -> Outcome: ...
    def close(self) -> None: ...
