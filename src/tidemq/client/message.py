"""One application message, received or to be published: cheap to make, its properties decoded when asked for.

Topics of received messages are shared: two messages on one topic mostly have the same `str`.
"""

import cython

from tidemq.errors import ProtocolError, UsageError
from tidemq.wire.control_packets import NO_PROPERTIES
from tidemq.wire.payloads import payload_bytes
from tidemq.wire.property_blocks import decode_properties, encode_properties

if not cython.compiled:
    raise ImportError("tidemq.client.message is compiled code: run `make build`")

_OVERHEAD = cython.declare(cython.Py_ssize_t, 64)


@cython.final
@cython.no_gc
@cython.freelist(1024)
@cython.cclass
class Message:
    """A message: `topic`, `payload`, `qos`, `retain`, `dup` and its properties. Not to be changed."""

    def __init__(
        self,
        topic: str,
        payload=b"",
        qos: cython.int = 0,
        retain: cython.bint = False,
        properties=NO_PROPERTIES,
    ) -> None:
        self.topic = topic
        self.payload = payload_bytes(payload)
        self.qos = qos
        self.retain = retain
        self.block = property_block(properties)
        self.decoded = properties

    @property
    def properties(self):
        if self.decoded is None:
            self.decoded = NO_PROPERTIES if self.block is None else decode_properties(self.block)
        return self.decoded

    @property
    def payload_format(self):
        return self.properties.payload_format

    @property
    def message_expiry_s(self):
        return self.properties.message_expiry_s

    @property
    def content_type(self):
        return self.properties.content_type

    @property
    def response_topic(self):
        return self.properties.response_topic

    @property
    def correlation_data(self):
        return self.properties.correlation_data

    @property
    def subscription_ids(self):
        return self.properties.subscription_ids

    @property
    def user_properties(self):
        return self.properties.user_properties

    def __repr__(self) -> str:
        parts = [repr(self.topic), repr(self.payload), f"qos={self.qos}"]
        if self.retain:
            parts.append("retain=True")
        if self.block is not None:
            parts.append(f"properties={self.properties!r}")
        return f"Message({', '.join(parts)})"


def size_of(message):
    size: cython.Py_ssize_t = _OVERHEAD + len(message.payload)
    return size if message.block is None else size + len(message.block)


def property_block(properties):
    if properties is None or properties is NO_PROPERTIES:
        return None
    block: bytes = encode_properties(properties)
    if not block:
        return None
    try:
        decode_properties(block)
    except ProtocolError as error:
        raise UsageError(f"the properties of a message: {error}") from error
    return block
