"""What the engine asks of, or tells, the control plane. ``connection`` is a number to answer with; a client
that has gone meanwhile makes it stale, and an answer to it is ignored. ``protocol_version`` is 3 (MQTT 3.1),
4 (3.1.1) or 5.
"""

from __future__ import annotations

from typing import NamedTuple


class ConnectRequest(NamedTuple):
    """A CONNECT to be accepted or refused; nothing more is read from the client until it is answered."""

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


class AuthRequest(NamedTuple):
    """An AUTH packet, the next step of an enhanced authentication (5.0 section 4.12)."""

    connection: int
    client_id: str
    reason: int
    auth_method: str
    auth_data: bytes | None


class SubscribeRequest(NamedTuple):
    """A SUBSCRIBE to be authorised: pairs of topic filter and requested QoS, in the packet's order.

    ``packet_bytes_max``: of a packet that the client takes. ``subscription_id``: 0 where it gave none.
    """

    connection: int
    client_id: str
    username: str | None
    filters: tuple[tuple[str, int], ...]
    protocol_version: int = 5
    packet_bytes_max: int = 0xFFFFFFFF
    subscription_id: int = 0


class Unsubscribed(NamedTuple):
    """A client wants no more of what a stream keeps: a filter below ``$stream/``."""

    connection: int
    topic_filter: str


class Delivered(NamedTuple):
    """What ``Engine.deliver`` was given is with the operating system, or the connection has ``gone``."""

    connection: int
    gone: bool


class PublishRequest(NamedTuple):
    """A PUBLISH to be authorised."""

    connection: int
    client_id: str
    username: str | None
    topic: str
    payload: bytes
    qos: int
    retain: bool


class Connected(NamedTuple):
    """A client has its CONNACK."""

    connection: int
    client_id: str
    peer: str
    protocol_version: int
    session_present: bool


class Disconnected(NamedTuple):
    """A connection has ended. ``fault`` is the number of a `tidemq.wire` Fault, 0 for none; ``reason`` the
    5.0 code.
    """

    connection: int
    client_id: str
    peer: str
    reason: int
    fault: int


class Received(NamedTuple):
    """A message for a receiver that ``Engine.subscribe`` made. ``properties`` are encoded 5.0 properties."""

    receiver: int
    topic: str
    payload: bytes
    qos: int
    retain: bool
    properties: bytes


class Stopped(NamedTuple):
    """All reactors have ended."""


Event = (
    ConnectRequest
    | AuthRequest
    | SubscribeRequest
    | Unsubscribed
    | Delivered
    | PublishRequest
    | Connected
    | Disconnected
    | Received
    | Stopped
)
