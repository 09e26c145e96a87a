"""Control packets as Python values, of clients and servers alike.

They say what is in a packet, not whether it is allowed: `encode` and `decode` judge. Below 5.0 there are no
properties and, but for CONNACK and SUBACK, no reason codes. Text is `str`; payloads, passwords, correlation
data and authentication data are `bytes`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from tidemq.wire.codes import ReasonCode
from tidemq.wire.payloads import Payload, payload_bytes


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Properties:
    """The properties of a packet or a will (5.0 section 2.2.2); `None` means absent.

    A subscription identifier is a tuple because a PUBLISH from a server may have several.
    """

    payload_format: int | None = None  # 1: the payload is UTF-8
    message_expiry_s: int | None = None
    content_type: str | None = None
    response_topic: str | None = None
    correlation_data: bytes | None = None
    subscription_ids: tuple[int, ...] = ()  # 1 to 268,435,455
    session_expiry_s: int | None = None  # 0xFFFFFFFF: never
    assigned_client_id: str | None = None
    server_keep_alive_s: int | None = None
    auth_method: str | None = None
    auth_data: bytes | None = None
    request_problem_info: bool | None = None
    will_delay_s: int | None = None
    request_response_info: bool | None = None
    response_info: str | None = None
    server_reference: str | None = None
    reason_string: str | None = None
    receive_maximum: int | None = None
    topic_alias_maximum: int | None = None
    topic_alias: int | None = None
    maximum_qos: int | None = None  # 0 or 1
    retain_available: bool | None = None
    user_properties: tuple[tuple[str, str], ...] = ()  # in order; a name may come again
    maximum_packet_size: int | None = None
    wildcard_available: bool | None = None
    subscription_ids_available: bool | None = None
    shared_available: bool | None = None

    def __repr__(self) -> str:
        """Only what is present."""
        values = ((field.name, getattr(self, field.name)) for field in fields(self))
        present = (f"{name}={value!r}" for name, value in values if value is not None and value != ())
        return f"Properties({', '.join(present)})"


NO_PROPERTIES = Properties()


@dataclass(frozen=True, slots=True, init=False)
class Will:
    """What the server publishes when the client goes without a DISCONNECT (5.0 section 3.1.2.5)."""

    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: Properties

    def __init__(
        self,
        topic: str,
        payload: Payload = b"",
        *,
        qos: int = 0,
        retain: bool = False,
        properties: Properties = NO_PROPERTIES,
    ) -> None:
        """As a client's `publish`."""
        values = (topic, payload_bytes(payload), qos, retain, properties)
        for each, value in zip(fields(self), values, strict=True):
            object.__setattr__(self, each.name, value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Connect:
    """CONNECT (5.0 section 3.1). `version` is 3 (MQTT 3.1), 4 (3.1.1) or 5 (5.0)."""

    version: int
    client_id: str = ""
    clean_start: bool = True  # clean session below 5.0
    keep_alive_s: int = 60  # 0: none
    will: Will | None = None
    username: str | None = None
    password: bytes | None = field(default=None, repr=False)
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Connack:
    """CONNACK (5.0 section 3.2). `reason` is a `ReasonCode` in 5.0, a `ConnectReturnCode` below."""

    session_present: bool = False  # always false in 3.1
    reason: int = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Publish:
    """PUBLISH (5.0 section 3.3). `packet_id` is 0 at QoS 0."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    dup: bool = False
    packet_id: int = 0
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Puback:
    """PUBACK (5.0 section 3.4), the answer to a PUBLISH at QoS 1."""

    packet_id: int
    reason: int = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Pubrec:
    """PUBREC (5.0 section 3.5), the first answer to a PUBLISH at QoS 2."""

    packet_id: int
    reason: int = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Pubrel:
    """PUBREL (5.0 section 3.6), the answer to a PUBREC."""

    packet_id: int
    reason: int = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Pubcomp:
    """PUBCOMP (5.0 section 3.7), the answer to a PUBREL."""

    packet_id: int
    reason: int = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A topic filter and its options (5.0 section 3.8.3.1). Below 5.0 only the QoS may be set."""

    filter: str
    qos: int = 0
    no_local: bool = False
    retain_as_published: bool = False
    retain_handling: int = 0  # 0: send retained messages, 1: only if the subscription is new, 2: do not


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribe:
    """SUBSCRIBE (5.0 section 3.8)."""

    packet_id: int
    subscriptions: tuple[Subscription, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Suback:
    """SUBACK (5.0 section 3.9). Reasons in the order of the subscriptions: the QoS granted, or a failure."""

    packet_id: int
    reasons: tuple[int, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsubscribe:
    """UNSUBSCRIBE (5.0 section 3.10)."""

    packet_id: int
    filters: tuple[str, ...]
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Unsuback:
    """UNSUBACK (5.0 section 3.11). Reasons in the order of the filters; none below 5.0."""

    packet_id: int
    reasons: tuple[int, ...] = ()
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Pingreq:
    """PINGREQ (5.0 section 3.12)."""


@dataclass(frozen=True, slots=True)
class Pingresp:
    """PINGRESP (5.0 section 3.13)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disconnect:
    """DISCONNECT (5.0 section 3.14). Below 5.0 only clients send it, and without a reason."""

    reason: int = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True, kw_only=True)
class Auth:
    """AUTH (section 3.15), which only 5.0 has."""

    reason: int = ReasonCode.SUCCESS
    properties: Properties = NO_PROPERTIES


Packet = (
    Connect
    | Connack
    | Publish
    | Puback
    | Pubrec
    | Pubrel
    | Pubcomp
    | Subscribe
    | Suback
    | Unsubscribe
    | Unsuback
    | Pingreq
    | Pingresp
    | Disconnect
    | Auth
)
