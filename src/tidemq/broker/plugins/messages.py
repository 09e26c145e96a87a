"""What a plugin answers for a message, and the messages that it publishes besides."""

from __future__ import annotations

from dataclasses import dataclass

from tidemq.engine.door.events import HeldMessage
from tidemq.errors import UsageError
from tidemq.limits import Limits
from tidemq.wire import NO_PROPERTIES, Properties, Publish, encode, encode_properties, topic_name_fault

# that a PUBACK or PUBREC may have (5.0 section 3.4.2.1)
REFUSALS = frozenset({0x80, 0x83, 0x87, 0x90, 0x91, 0x97, 0x99})


@dataclass(frozen=True, slots=True)
class Route:
    """A message that a plugin has the broker publish. Its topic may begin with `$`."""

    topic: str
    payload: bytes = b""
    qos: int = 0
    retain: bool = False
    properties: Properties = NO_PROPERTIES


@dataclass(frozen=True, slots=True)
class Decision:
    """What becomes of a message: `Decision()` passes it as it is.

    `reason`: 0x80, 0x83, 0x87, 0x90, 0x91, 0x97 or 0x99 refuses it; a 5.0 client is told so. `drop`: it is
    acknowledged, and goes to nobody. `topic`, `payload`, `properties` and `retain` take the place of the
    message's own; its QoS stays. `routes` are published besides, whatever becomes of the message itself.

    Raises UsageError for any other reason.
    """

    reason: int = 0
    drop: bool = False
    topic: str | None = None
    payload: bytes | None = None
    properties: Properties | None = None
    retain: bool | None = None
    routes: tuple[Route, ...] = ()

    def __post_init__(self) -> None:
        if self.reason and self.reason not in REFUSALS:
            accepted = ", ".join(f"{code:#04x}" for code in sorted(REFUSALS))
            raise UsageError(f"a decision's reason is {self.reason!r}; accepted: 0, {accepted}")

    @property
    def changes(self) -> bool:
        """Whether the message goes on as another one."""
        return (self.topic, self.payload, self.properties, self.retain) != (None, None, None, None)


PASS = Decision()


def change(message: HeldMessage, decision: Decision, limits: Limits) -> bytes:
    """The message as it goes on, as a 5.0 packet; it is changed itself as well. UsageError for what a client
    could not publish either, but for topics that begin with `$`; then it is as it was.
    """
    properties = message.properties if decision.properties is None else decision.properties
    topic = message.topic if decision.topic is None else decision.topic
    payload = message.payload if decision.payload is None else memoryview(decision.payload).tobytes()
    retain = message.retain if decision.retain is None else decision.retain
    packet = encode(
        Publish(
            topic=topic,
            payload=payload,
            qos=message.qos,
            retain=retain,
            packet_id=1 if message.qos else 0,
            properties=properties,
        ),
        5,
    )
    fault = topic_name_fault(topic, limits.topic_levels_max)
    large = limits.payload_bytes_max and len(payload) > limits.payload_bytes_max
    large = large or len(topic.encode()) > limits.topic_bytes_max or len(packet) > limits.packet_bytes_max
    if fault or large:
        raise UsageError(f"{topic[:40]!r}: topic or message is beyond the limits")
    message.topic, message.payload, message.retain = topic, payload, retain
    if decision.properties is not None:
        message.property_block, message.expiry_s = encode_properties(properties), None
    return packet
