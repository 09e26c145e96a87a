"""What each fault means: the reason code that answers it, the statement that was broken, and a line of text.

The text says what was wrong and what would be right. A tag of 5.0 stands alone, one of 3.1.1 after "3.1.1 ".
"""

from __future__ import annotations

from dataclasses import dataclass

from tidemq.errors import ProtocolError
from tidemq.wire.codes import Fault, ReasonCode
from tidemq.wire.protocol import reason_of_fault


@dataclass(frozen=True, slots=True)
class Explanation:
    """One fault explained. `tags` is empty where the rule has no number or is the broker's own."""

    reason: ReasonCode
    tags: tuple[str, ...]
    text: str


_TAGS_AND_TEXTS: dict[Fault, tuple[tuple[str, ...], str]] = {
    Fault.VARINT_OVERLONG: (
        ("MQTT-1.5.5-1",),
        "a variable byte integer has more than four bytes or is not in its shortest form",
    ),
    Fault.PACKET_TYPE: (
        (),
        "the packet type is 0, is AUTH below MQTT 5.0, or is one that this side never receives",
    ),
    Fault.FLAGS: (
        ("MQTT-2.1.3-1", "MQTT-3.6.1-1", "MQTT-3.8.1-1", "MQTT-3.10.1-1"),
        "the flags of the fixed header are not its type's: 2 in PUBREL, SUBSCRIBE and UNSUBSCRIBE, else 0",
    ),
    Fault.TRUNCATED: ((), "a field reaches past the end of the packet; the remaining length must cover it"),
    Fault.TRAILING: ((), "bytes follow the last field of the packet; the remaining length must end with it"),
    Fault.UTF8: (("MQTT-1.5.4-1",), "a string is not UTF-8 without surrogates and overlong forms"),
    Fault.NUL: (("MQTT-1.5.4-2",), "a string holds U+0000, which no MQTT string may"),
    Fault.PROTOCOL_NAME: (
        ("MQTT-3.1.2-1",),
        "the protocol name is neither MQTT nor, for version 3.1, MQIsdp",
    ),
    Fault.PROTOCOL_VERSION: (
        ("MQTT-3.1.2-2",),
        "the protocol version is not supported; 3 goes with MQIsdp, 4 and 5 with MQTT",
    ),
    Fault.RESERVED_BIT: (
        ("MQTT-3.1.2-3", "MQTT-3.2.2-1", "MQTT-3.8.3-5"),
        "a reserved bit is set in the flags of CONNECT or CONNACK or in subscription options; it must be 0",
    ),
    Fault.WILL_FLAGS: (
        ("MQTT-3.1.2-11", "MQTT-3.1.2-12", "MQTT-3.1.2-13"),
        "CONNECT has a will QoS or will retain without a will, or will QoS 3; QoS 0, 1 and 2 exist",
    ),
    Fault.PASSWORD_WITHOUT_USERNAME: (
        ("3.1.1 MQTT-3.1.2-22",),
        "CONNECT has a password without a user name; only MQTT 5.0 allows that",
    ),
    Fault.CLIENT_ID: (
        ("3.1.1 MQTT-3.1.3-8",),
        "the client identifier is empty; the broker may require one (client_id_required), and below MQTT 5.0 "
        "an empty one needs version 3.1.1 and clean session",
    ),
    Fault.QOS: (("MQTT-3.3.1-4",), "the QoS of a PUBLISH is 3; it must be 0, 1 or 2"),
    Fault.DUP_QOS_0: (("MQTT-3.3.1-2",), "DUP is set in a PUBLISH at QoS 0, which is never sent again"),
    Fault.PACKET_ID_ZERO: (("MQTT-2.2.1-3",), "the packet identifier is 0; it must be 1 to 65,535"),
    Fault.TOPIC_EMPTY: (
        ("MQTT-4.7.3-1",),
        "a topic name or filter is empty; only a PUBLISH with a topic alias may leave its topic out",
    ),
    Fault.TOPIC_WILDCARD: (
        ("MQTT-3.3.2-2",),
        "a topic name holds + or #, which belong in topic filters only",
    ),
    Fault.TOPIC_FILTER: (
        ("MQTT-4.7.1-1", "MQTT-4.7.1-2", "MQTT-4.8.2-1", "MQTT-4.8.2-2"),
        "a topic filter is malformed: + and # stand alone in a level, # in the last one; a shared one is "
        "$share/{group}/{filter}",
    ),
    Fault.TOPIC_LEVELS: ((), "a topic name or filter has more levels or bytes than the broker's limit"),
    Fault.NO_FILTERS: (
        ("MQTT-3.8.3-2", "MQTT-3.10.3-2"),
        "SUBSCRIBE or UNSUBSCRIBE holds no topic filter; at least one is needed",
    ),
    Fault.SUBSCRIPTION_OPTIONS: ((), "subscription options ask for QoS 3 or retain handling 3; 0 to 2 exist"),
    Fault.NO_LOCAL_SHARED: (
        ("MQTT-3.8.3-4",),
        "no local is set on a shared subscription; it must be 0 there",
    ),
    Fault.PROPERTY_UNKNOWN: ((), "there is no property with this identifier"),
    Fault.PROPERTY_MISPLACED: ((), "a property is in a packet that cannot have it"),
    Fault.PROPERTY_TWICE: (
        (),
        "a property comes twice; only user properties and a server's subscription identifiers may",
    ),
    Fault.PROPERTY_VALUE: (
        ("MQTT-3.3.2-14",),
        "a property has a value that the standard excludes: 0, flags above 1, a wildcard in a response topic",
    ),
    Fault.AUTH_DATA_WITHOUT_METHOD: ((), "authentication data comes without an authentication method"),
    Fault.REASON_CODE: ((), "the reason code is not one that this packet can have"),
    Fault.PACKET_TOO_LARGE: (("MQTT-3.2.2-15",), "the packet is larger than the maximum packet size"),
    Fault.BEFORE_CONNECT: (("MQTT-3.1.0-1",), "the first packet on the connection is not CONNECT"),
    Fault.SECOND_CONNECT: (("MQTT-3.1.0-2",), "a second CONNECT came on the connection; one is allowed"),
    Fault.TOPIC_ALIAS: (
        ("MQTT-3.3.2-8", "MQTT-3.3.2-9"),
        "a topic alias is 0, above the receiver's maximum, or was never given a topic",
    ),
    Fault.RECEIVE_MAXIMUM: (
        ("MQTT-3.3.4-7",),
        "more messages at QoS 1 and 2 are unacknowledged than the receive maximum allows",
    ),
    Fault.PACKET_ID_UNKNOWN: ((), "an acknowledgement has a packet identifier that is not in use"),
    Fault.SESSION_EXPIRY: ((), "DISCONNECT sets a session expiry where CONNECT had none"),
    Fault.AUTH_UNEXPECTED: (
        ("MQTT-4.12.0-7", "MQTT-4.12.1-1"),
        "AUTH came without an authentication method in CONNECT, with another one, or out of turn",
    ),
    Fault.CONNECT_TIMEOUT: ((), "no CONNECT came in the time that the broker allows for it"),
    Fault.KEEP_ALIVE: (("MQTT-3.1.2-22",), "nothing came for one and a half times the keep alive"),
    Fault.LIMIT: ((), "a declared limit of the broker was passed"),
    Fault.TRANSPORT: ((), "what MQTT is wrapped in is broken: the PROXY header, TLS or the WebSocket"),
    Fault.REMOTE: (
        (),
        "it is on another machine, and without an authenticator only clients of this one may connect; "
        'authenticator = "password_file", or authenticator_options.remote = true',
    ),
    Fault.PACKET_LATE: (
        (),
        "a packet did not arrive completely in the time that the broker allows",
    ),
    Fault.OUTPUT_STALLED: (
        (),
        "the client took nothing of what waits for it, for longer than the broker allows",
    ),
    Fault.ACK_OF_OTHER_QOS: (
        ("3.1.1 MQTT-4.8.0-1",),
        "an acknowledgement is of another QoS than its message: PUBACK is of QoS 1, PUBREC and PUBCOMP of 2",
    ),
    Fault.FLAPPING: ((), "the client connects too often; it is let in again after a while"),
    Fault.STORE: ((), "the store fails, and this would have to be stored"),
    Fault.TLS: ((), "the client speaks TLS, and this listener does not"),
    Fault.QOS_NOT_SUPPORTED: (
        ("MQTT-3.2.2-11", "MQTT-3.2.2-12"),
        "the QoS of a PUBLISH or a will is above the broker's qos_max",
    ),
    Fault.RETAIN_NOT_SUPPORTED: (
        ("MQTT-3.2.2-13", "MQTT-3.2.2-14"),
        "RETAIN is set in a PUBLISH or a will, and the broker does not retain (retain_available)",
    ),
}

EXPLANATIONS: dict[Fault, Explanation] = {
    fault: Explanation(ReasonCode(reason_of_fault(fault)), tags, text)
    for fault, (tags, text) in _TAGS_AND_TEXTS.items()
}


def fault_text(fault: int) -> str:
    """One line for logs: what was wrong and what would be right."""
    return EXPLANATIONS[Fault(fault)].text


def protocol_error(fault: int) -> ProtocolError:
    """The exception for a fault. `Fault.NONE` and `Fault.NEED_MORE` are no faults: `KeyError`."""
    explanation = EXPLANATIONS[Fault(fault)]
    tag = explanation.tags[0] if explanation.tags else ""
    return ProtocolError(explanation.text, reason=explanation.reason, tag=tag, fault=Fault(fault))
