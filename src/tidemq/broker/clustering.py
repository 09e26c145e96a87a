"""What makes a broker a node of a cluster, as the broker sees it: `tidemq.cluster` has it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol

if TYPE_CHECKING:
    from tidemq.broker.durability.keeper import Keeper
    from tidemq.broker.plugins.forks import OnForks
    from tidemq.engine import Engine, StoreAccess
    from tidemq.engine.door.events import SessionRequest
    from tidemq.store import Store

MemberState = Literal["alive", "joining", "suspected", "dead"]
Progress = Literal["complete", "unknown", "catching_up", "staying_behind", "stalled"]


@dataclass(frozen=True, slots=True)
class Copies:
    """Records of this node's log at the server of another: `state` of the connection to it, the last record
    that is there, bytes that wait to be sent, and why the connection failed last; empty: it did not.
    """

    state: str
    last: int | None
    waiting_bytes: int
    last_error: str


@dataclass(frozen=True, slots=True)
class MemberFigures:
    """A node, as this one sees it. `state`: `joining`: it takes over what is there; `suspected`: nothing is
    heard of it, and its sessions are being taken over; `dead`: none is left at it. `since`: of the state,
    seconds of the wall clock. `applied`: the last record of each node that it has, by incarnation.
    `behind_…`: records of all nodes that it lacks, and for how long there have been any that it lacks.
    `formats`: the lowest and the highest that it reads; None: it has not been heard since this node started.
    `progress`: whether it gets what it lacks: all is there; nothing can be said; in `left_s` seconds; not as
    long as so much is added; it has applied nothing for seconds. `rows_taken`: of a snapshot that this node
    gives to it, so far; None: it gives none.
    """

    name: str
    incarnation: str  # 16 hexadecimal digits
    address: str
    is_self: bool
    state: MemberState
    since: float
    heard_s: float  # since its last heartbeat; of this node 0
    last: int  # of its own records
    applied: Mapping[str, int]
    behind_records: int
    behind_s: float
    copies: Copies | None  # that it has of this node's log; None: it gets none
    formats: tuple[int, int] | None = None
    progress: Progress = "unknown"
    left_s: float | None = None
    rows_taken: int | None = None


@dataclass(frozen=True, slots=True)
class Trouble:
    """Why a node, or what it sent, was refused, or could not be reached: whose, by incarnation or address,
    how often, and when the last time (seconds of the wall clock).
    """

    whose: str
    text: str
    count: int
    at: float


@dataclass(frozen=True, slots=True)
class DrainFigures:
    """Of a node that leaves: its sessions go to the others; it is about to be no member; it is none."""

    phase: Literal["moving", "leaving", "left"]
    sessions_left: int  # as of the last look


@dataclass(frozen=True, slots=True)
class ComparedNode:
    """A node whose rows were compared, and, where a row differs, what it has of that."""

    name: str
    incarnation: str  # 16 hexadecimal digits
    has: str


@dataclass(frozen=True, slots=True)
class VerifyFigures:
    """A comparison of all nodes' rows. `text`: what is being done, or what came out. `rows`: read until now,
    on all nodes; `looks`: how often some were looked at. `kind` and `what`: of the first row that differs.
    `left_out`: members that were not there.
    """

    outcome: Literal["running", "equal", "different", "unknown"]
    text: str
    nodes: Sequence[ComparedNode]
    left_out: Sequence[str]
    rows: int = 0
    looks: int = 1
    kind: str = ""
    what: str = ""


@dataclass(frozen=True, slots=True)
class ClusterFigures:
    """A cluster as one of its nodes sees it. `degraded`: what is not as it should be, in words; `drain`: of
    this node; None: it stays.
    """

    name: str
    members: Sequence[MemberFigures]
    log_records: int  # of this node's own log, until all members have them
    log_bytes: int
    degraded: Sequence[str]
    troubles: Sequence[Trouble]
    drain: DrainFigures | None = None
    format: int = 0  # in which this node writes; 0: none yet, it joins


class Clustering(Protocol):
    """Of one broker. Methods that are not coroutines may wait, and are called on other threads."""

    def make_keeper(self, store: Store, access: StoreAccess, **options: Any) -> Keeper:
        """In the place of `Keeper`."""

    def report_forks(self, report: OnForks) -> None:
        """`report` is called of forked sessions, on any thread. To be called before `begin`."""

    async def begin(self, engine: Engine) -> None:
        """The keeper runs, the engine has not started. Returns when it has what is at home here."""

    async def serve(self) -> None:
        """The engine has started."""

    async def find_session(self, request: SessionRequest) -> int:
        """Returns when a client's session is in the engine, or there is none: 0, or why it is refused."""

    def session_ready(self, connection: int, reason: int) -> None:
        """As `StoreAccess.session_ready`."""

    def close(self) -> None:
        """No client is connected any more. May be called again."""

    def counts(self) -> dict[str, int]:
        """Counters, by name."""

    def figures(self) -> ClusterFigures | None:
        """How the cluster is; never waits. None: the node has not begun."""

    async def drain(self, disconnect_all: Callable[[], Awaitable[int]]) -> None:
        """The node begins to leave. `disconnect_all` ends the connections of all clients, with a reason, and
        gives how many there were. ClusterError where nobody could take the sessions.
        """

    async def forget(self, who: str) -> str:
        """A node is gone for good, by its name or incarnation; gives both. ClusterError: it may not be."""

    async def verify(self, wait_s: float) -> VerifyFigures:
        """Begins to compare the rows of all nodes that are there. `wait_s`: for those that have not applied
        the same. ClusterError where they are being compared, or there is nobody to compare with.
        """

    def verification(self) -> VerifyFigures | None:
        """How far that is, or what came out; None: nothing was compared."""

    def problems(self) -> Sequence[str]:
        """What the node does not do as it should, in words."""
