"""What a running engine shows of itself (`EngineView`)."""

from __future__ import annotations

from dataclasses import dataclass

Place = tuple[int, int, int]  # where the walk through a reactor's clients is to go on


@dataclass(frozen=True, slots=True, kw_only=True)
class ReactorFigures:
    """One reactor. `load`: share of the time that it was busy lately, 0 to 1; `inbox`: mails that wait."""

    connections: int
    sessions: int
    turns: int
    messages_received: int
    messages_sent: int
    inbox: int
    load: float


@dataclass(frozen=True, slots=True)
class Histogram:
    """How long things took: `counts[n]` of them less than 2**n ns and at least half of that; their sum."""

    counts: tuple[int, ...]
    sum_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Which clients of a reactor, from where on, and how many at most.

    `client_id`: how their identifiers begin; with `one` the whole identifier of the one that is wanted, with
    its filters, wherever it lives. `survey`: no clients, only how long messages wait. Empty strings and None
    want any.
    """

    rows_max: int = 1
    place: Place | None = None
    one: bool = False
    survey: bool = False
    client_id: str = ""
    address: str = ""
    listener: str = ""
    username: str | None = None
    connected: bool = True
    away: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFigures:
    """A client, or the session of one that is away. Dates are ms of the wall clock, 0: there is none.

    `since_ms`: of CONNACK; `ends_ms`: when the session of a client that is away expires. `left_…`: when and
    why its last connection ended, unless that was before the broker started: the 5.0 reason code, the number
    of a `tidemq.wire` Fault, and whether the client said DISCONNECT. `oldest_ms`: age of the oldest message
    in its queue (of one in flight: since it was first sent), -1: none. `paused`: it is not read from now;
    `slow`: publishers do not wait for it.
    """

    client_id: str
    username: str | None
    connected: bool
    peer: str
    listener: str
    protocol_version: int
    keep_alive_s: int
    since_ms: int
    session_expiry_s: int
    ends_ms: int
    subscriptions: int
    inflight: int
    inflight_max: int
    queued_messages: int
    queued_bytes: int
    oldest_ms: int
    output_bytes: int
    paused: bool
    slow: bool
    has_will: bool
    left_ms: int
    left_reason: int
    left_fault: int
    left_by_itself: bool
    reactor: int


@dataclass(frozen=True, slots=True)
class Roster:
    """What a Question found. `filters`, of one client: topic filter, options, subscription identifier (0:
    none).

    `place`: where to go on in this reactor; None: it has no more. `oldest`, of a survey: age in ms of the
    oldest message in a queue, -1 where all are empty, and whose queue it is (empty: a shared group's).
    """

    number: int
    clients: list[ClientFigures]
    filters: list[tuple[str, int, int]]
    more_filters: bool
    place: Place | None
    oldest: tuple[int, str] = (-1, "")
