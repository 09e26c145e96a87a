"""What a running engine shows of itself (`EngineView`)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

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


class InquiryKind(IntEnum):
    """What an Inquiry is about, and what its `text` is."""

    RETAINED = 0  # topic filter: retained messages; with `clears` they are removed
    SUBSCRIBED = 1  # topic filter, $share included: who has subscribed to it
    MATCHING = 2  # topic name: whose subscriptions match it
    QUEUE = 3  # client identifier: messages for the client that are in memory
    PURGE = 4  # client identifier: what was never sent to it is dropped
    END = 5  # client identifier: its session ends
    TRACE = 6  # client identifier: the trace that goes on is about it, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """A question that any reactor answers, or an order that it carries out.

    `place` and `skip`: those of the Finding before, to go on there. `rows_max` 0, of retained messages: they
    are only counted. `payload_bytes_max`: of each message that is listed.
    """

    kind: InquiryKind
    text: str
    rows_max: int = 0
    place: bytes = b""
    skip: int = 0
    payload_bytes_max: int = 0
    clears: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MessageFigures:
    """A message in a queue, or retained. Dates are ms of the wall clock, 0: not known, or never.

    `payload`: its first bytes, `payload_bytes` is its whole size.
    """

    topic: str
    payload: bytes
    payload_bytes: int
    qos: int
    retain: bool
    in_flight: bool
    came_ms: int
    expires_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberFigures:
    """A subscription. `client_id` is empty for the embedding program's; `stream`: a stream keeps messages."""

    client_id: str
    topic_filter: str
    group: str
    options: int
    subscription_id: int
    connected: bool
    stream: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What became of an Inquiry. `found`: there is such a client, or, of retained messages, `place` was one.

    `more`: there are more, from `place` or `skip` on. `count`: messages that were counted, removed or
    dropped, `count_bytes`: of their payloads. Of a queue: its `queue` in the store (0: it has none), where
    `stored` messages with ids above `edge` are.
    """

    number: int
    found: bool
    more: bool
    place: bytes
    skip: int
    count: int
    count_bytes: int
    queue: int
    stored: int
    edge: bytes
    messages: list[MessageFigures]
    subscribers: list[SubscriberFigures]


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
    bytes_received: int
    bytes_sent: int
    messages_received: int
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
