"""What the engine asks of, or tells, the control plane. ``connection`` is a number to answer with; a client
that has gone meanwhile makes it stale, and an answer to it is ignored. ``protocol_version`` is 3 (MQTT 3.1),
4 (3.1.1) or 5.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from tidemq.engine.door.figures import Roster
from tidemq.wire.codes import PacketType
from tidemq.wire.control_packets import NO_PROPERTIES, Properties
from tidemq.wire.property_blocks import decode_properties


@dataclass(frozen=True, slots=True)
class ConnectRequest:
    """A CONNECT to be accepted or refused; nothing more is read from the client until it is answered.

    ``certificate``: the client's, verified by TLS, in DER. ``listener``: the name of the one it came to.
    """

    connection: int
    client_id: str
    username: str | None
    password: bytes | None
    peer: str
    protocol_version: int
    clean_start: bool
    keep_alive_s: int
    will_topic: str | None
    auth_method: str | None
    auth_data: bytes | None
    certificate: bytes | None = None  # the client's, DER, verified by TLS
    listener: str = "default"  # name of the one where it came in

    def __repr__(self) -> str:
        """Without password and authentication data: it may stand in a log."""
        shown = f"connection={self.connection}, client_id={self.client_id!r}, username={self.username!r}"
        return f"ConnectRequest({shown}, peer={self.peer!r}, auth_method={self.auth_method!r})"


@dataclass(frozen=True, slots=True)
class AuthRequest:
    """An AUTH packet, the next step of an enhanced authentication (5.0 section 4.12). ``username`` is that of
    the CONNECT, if the client authenticates again.
    """

    connection: int
    client_id: str
    reason: int
    auth_method: str
    auth_data: bytes | None
    listener: str = "default"
    username: str | None = None
    peer: str = ""

    def __repr__(self) -> str:
        """Without authentication data."""
        shown = f"connection={self.connection}, client_id={self.client_id!r}, reason={self.reason}"
        return f"AuthRequest({shown}, auth_method={self.auth_method!r})"


@dataclass(frozen=True, slots=True)
class SessionRequest:
    """A client that has been let in is about to get its session: where ``StoreAccess.ask_for_sessions`` was
    called, each CONNECT waits for ``StoreAccess.session_ready``, so that the session can be brought here
    first.

    ``expiry_s``: how long the client wants its session to outlive the connection; 0xFFFFFFFF: for ever.
    """

    connection: int
    client_id: str
    protocol_version: int
    clean_start: bool
    expiry_s: int


@dataclass(frozen=True, slots=True)
class SubscribeRequest:
    """A SUBSCRIBE to be authorised: pairs of topic filter and requested QoS, in the packet's order.

    ``packet_bytes_max``: of a packet that the client takes. ``subscription_id``: 0 where it gave none.
    ``reasons``: what the engine's rules say of each filter, 0 or the reason that it is refused with; of those
    below ``$stream/`` nothing, see ``Engine.judge``.
    """

    connection: int
    client_id: str
    username: str | None
    filters: tuple[tuple[str, int], ...]
    protocol_version: int = 5
    packet_bytes_max: int = 0xFFFFFFFF
    subscription_id: int = 0
    reasons: bytes = b""
    user_properties: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Unsubscribed:
    """A client wants no more of what a stream keeps: a filter below ``$stream/``."""

    connection: int
    topic_filter: str


@dataclass(frozen=True, slots=True)
class Replaying:
    """A replay at QoS 1 begins, or goes on because its client is back: the subscription as it was granted,
    the stream's epoch, and the offset of the first message that the engine has not got. ``asked``: it was
    granted just now, else rules and authoriser are to be asked again.
    """

    request: SubscribeRequest
    epoch: int
    offset: int
    asked: bool


@dataclass(frozen=True, slots=True)
class Fed:
    """A replay has room for what ``Engine.feed`` brings next, or its connection has ``gone``."""

    connection: int
    topic_filter: str
    gone: bool


@dataclass(frozen=True, slots=True)
class Judged:
    """What ``Engine.judge`` was asked about: of each filter the QoS that the client may have, or the reason
    that it is refused with. Empty: the connection has gone.
    """

    connection: int
    reasons: bytes


@dataclass(frozen=True, slots=True)
class Delivered:
    """What ``Engine.deliver`` was given is with the operating system, or the connection has ``gone``."""

    connection: int
    gone: bool


@dataclass(frozen=True, slots=True)
class PublishRequest:
    """A PUBLISH to be authorised."""

    connection: int
    client_id: str
    username: str | None
    topic: str
    payload: bytes
    qos: int
    retain: bool


@dataclass(slots=True)
class HeldMessage:
    """A PUBLISH on a topic that plugins want, which waits for ``PluginAccess.answer``, the ``number``-th of
    this connection. A will that is due has connection 0, and is the control plane's to publish.

    ``property_block``: encoded 5.0 properties. ``expiry_s``: of a will.
    """

    connection: int
    number: int
    client_id: str
    username: str | None
    topic: str
    payload: bytes
    qos: int
    retain: bool
    property_block: bytes = b""
    expiry_s: int | None = None

    @property
    def properties(self) -> Properties:
        """Decoded at each call."""
        if not self.property_block and self.expiry_s is None:
            return NO_PROPERTIES
        found = decode_properties(self.property_block, PacketType.PUBLISH)
        expiry_s = found.message_expiry_s if self.expiry_s is None else self.expiry_s
        return replace(found, topic_alias=None, message_expiry_s=expiry_s)

    @property
    def is_will(self) -> bool:
        """Whether it is a will, whose client has gone."""
        return self.connection == 0


@dataclass(slots=True)
class Acknowledged:
    """A client has acknowledged a message that plugins want to know this of, with its QoS towards it."""

    client_id: str
    topic: str
    payload: bytes
    qos: int


@dataclass(frozen=True, slots=True)
class Connected:
    """A client has its CONNACK."""

    connection: int
    client_id: str
    peer: str
    protocol_version: int
    session_present: bool
    listener: str = "default"
    username: str | None = None  # where somebody keeps it: see `keep_username`


@dataclass(frozen=True, slots=True)
class Disconnected:
    """A connection has ended. ``fault`` is the number of a `tidemq.wire` Fault, 0 for none; ``reason`` the
    5.0 code; ``detail`` what the fault text leaves open, where something is known; ``listener`` where it came
    in.
    """

    connection: int
    client_id: str
    peer: str
    reason: int
    fault: int
    detail: str = ""
    listener: str = "default"
    username: str | None = None
    seconds: float = 0.0  # since its CONNECT
    bytes: int = 0  # both ways


@dataclass(frozen=True, slots=True)
class Received:
    """A message for a receiver that ``Engine.subscribe`` made. ``properties`` are encoded 5.0 properties."""

    receiver: int
    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: bytes


@dataclass(frozen=True, slots=True)
class Revoked:
    """Rules that do not allow them have ended subscriptions of a client, so many, ``topic_filter`` among
    them.
    """

    client_id: str
    topic_filter: str
    subscriptions: int


@dataclass(frozen=True, slots=True)
class Dropped:
    """Messages of a client were dropped, so many since the last report of these, which ``counter`` counts.

    ``client_id``: a shared group's whole filter where its queue dropped them; empty where nobody is known.
    """

    client_id: str
    counter: str
    messages: int


@dataclass(frozen=True, slots=True)
class Traced:
    """A packet of a client that is traced: its first byte and the beginning of its body, whose size is
    ``body_bytes``; ``out``: it goes to the client. An empty one: the connection ends, with this 5.0 reason
    code, and the number of a `tidemq.wire` Fault.
    """

    connection: int
    client_id: str
    peer: str
    protocol_version: int
    out: bool
    packet: bytes
    body_bytes: int
    reason: int
    fault: int


SPAN_STEPS = ("receive", "commit", "deliver")


@dataclass(frozen=True, slots=True)
class Spanned:
    """A step of a message with the user property ``traceparent``: it names the trace, and the parent of this
    span (W3C Trace Context). ``span_id``: that the message went on with; empty: any will do. ``client_id``:
    who published the message, or gets it; empty: it has gone. ``reason``: that the publisher is told. Begin
    and end are nanoseconds since 1970.
    """

    step: str  # one of `SPAN_STEPS`
    traceparent: str
    span_id: str
    client_id: str
    topic: str
    qos: int
    payload_bytes: int
    reason: int
    begin_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class Stopped:
    """All reactors have ended."""


Event = (
    ConnectRequest
    | AuthRequest
    | SessionRequest
    | SubscribeRequest
    | Unsubscribed
    | Replaying
    | Fed
    | Judged
    | Delivered
    | PublishRequest
    | HeldMessage
    | Acknowledged
    | Connected
    | Disconnected
    | Received
    | Dropped
    | Revoked
    | Roster
    | Spanned
    | Stopped
)
