"""MQTT's wire format: bytes to control packets and back, for MQTT 3.1, 3.1.1 and 5.0, clients and servers.

    >>> from tidemq.wire import Publish, decode, encode
    >>> encode(Publish(topic="a/b", payload=b"hello"), 4)
    b'0\\n\\x00\\x03a/bhello'
    >>> packet, size = decode(b"0\\n\\x00\\x03a/bhello", 4)
    >>> packet.payload
    b'hello'

Protocol versions are those of CONNECT: 3 is MQTT 3.1, 4 is 3.1.1, 5 is 5.0. The compiled modules
`protocol`, `cursor`, `topics`, `properties`, `reasons`, `packets` and `encoding` are the broker's, for C
callers without the GIL; the names below are Python's door to them. No state is kept but in a `Decoder`;
nothing here does I/O.
"""

from tidemq.wire.codes import ConnectReturnCode, Fault, PacketType, PropertyId, ReasonCode
from tidemq.wire.control_packets import (
    NO_PROPERTIES,
    Auth,
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
)
from tidemq.wire.payloads import Payload, payload_bytes

try:
    from tidemq.wire.decoder import Decoder
    from tidemq.wire.faults import EXPLANATIONS, Explanation, fault_text, protocol_error
    from tidemq.wire.property_blocks import decode_properties, encode_properties, forwarded_properties
    from tidemq.wire.reader import decode
    from tidemq.wire.topics import topic_filter_fault, topic_name_fault
    from tidemq.wire.writer import encode
except (ImportError, AttributeError) as error:  # the latter where Cython is installed
    raise ImportError(f"TideMQ's compiled modules are missing: run `make build` ({error})") from error

__all__ = [
    "EXPLANATIONS",
    "NO_PROPERTIES",
    "Auth",
    "Connack",
    "Connect",
    "ConnectReturnCode",
    "Decoder",
    "Disconnect",
    "Explanation",
    "Fault",
    "Packet",
    "PacketType",
    "Payload",
    "Pingreq",
    "Pingresp",
    "Properties",
    "PropertyId",
    "Puback",
    "Pubcomp",
    "Publish",
    "Pubrec",
    "Pubrel",
    "ReasonCode",
    "Suback",
    "Subscribe",
    "Subscription",
    "Unsuback",
    "Unsubscribe",
    "Will",
    "decode",
    "decode_properties",
    "encode",
    "encode_properties",
    "fault_text",
    "forwarded_properties",
    "payload_bytes",
    "protocol_error",
    "topic_filter_fault",
    "topic_name_fault",
]
