"""MQTT packets in words, for whoever traces a client. Passwords, authentication data and, unless they are
asked for, payloads are left out.
"""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from typing import Any

from tidemq.engine.door.events import Traced
from tidemq.errors import ProtocolError
from tidemq.wire import Decoder, ReasonCode, fault_text

SECRET = frozenset(("password", "auth_data"))
LONG = frozenset(("payload",))
SHOWN_MAX = 200  # characters of one value
PADDED_MAX = 4 << 20  # bytes of a PUBLISH whose end is missing; of a larger one only the size is said
_TYPES = [
    "-",
    "CONNECT",
    "CONNACK",
    "PUBLISH",
    "PUBACK",
    "PUBREC",
    "PUBREL",
    "PUBCOMP",
    "SUBSCRIBE",
    "SUBACK",
    "UNSUBSCRIBE",
    "UNSUBACK",
]
_TYPES += ["PINGREQ", "PINGRESP", "DISCONNECT", "AUTH"]


def words_of(event: Traced, *, with_payload: bool) -> str:
    """One line."""
    if not event.packet:
        return _end(event)
    kind, there = _TYPES[event.packet[0] >> 4], len(event.packet) - 1
    size = f"{event.body_bytes} bytes"
    if there < event.body_bytes and (kind != "PUBLISH" or event.body_bytes > PADDED_MAX):
        return f"{kind}, {size}"
    # of a PUBLISH the end of the payload may be missing, which nobody wants to see
    missing = event.body_bytes - there
    packet = _decoded(event.packet, missing, event.protocol_version)
    if packet is None:
        return f"{kind}, {size}: malformed"
    shown = _fields(packet, with_payload)
    if kind == "PUBLISH" and with_payload:
        shown.append(f"payload {value_of(packet.payload[: len(packet.payload) - missing])}")
    return ", ".join([f"{kind}, {size}", *shown])


def _decoded(packet: bytes, missing: int, version: int) -> Any:
    """None where it is malformed."""
    size, length = len(packet) - 1 + missing, bytearray()
    while True:
        size, digit = size >> 7, size & 0x7F
        length.append(digit | 0x80 if size else digit)
        if not size:
            break
    decoder = Decoder(version)
    try:
        decoder.feed(packet[:1] + bytes(length) + packet[1:] + bytes(missing))
        return next(iter(decoder), None)
    except ProtocolError:
        return None


def _end(event: Traced) -> str:
    why = fault_text(event.fault) if event.fault else ""
    if event.reason:
        try:
            code = ReasonCode(event.reason).name.replace("_", " ").lower()
        except ValueError:
            code = ""
        why = f"{event.reason:#04x} {code}{': ' if why else ''}{why}"
    return f"the connection ends{': ' if why else ''}{why}"


def _fields(packet: Any, with_payload: bool) -> list[str]:
    """What is not as by default, by name."""
    shown = []
    for each in fields(packet):
        value = getattr(packet, each.name)
        default = each.default_factory() if each.default_factory is not MISSING else each.default
        if each.name in LONG or value == default:
            continue
        if each.name in SECRET:
            shown.append(f"{each.name} (not shown)")
        elif is_dataclass(value):
            inner = _fields(value, with_payload)
            shown.append(f"{each.name} ({', '.join(inner)})")
        elif isinstance(value, tuple) and value and is_dataclass(value[0]):
            shown.append(
                f"{each.name} {[', '.join(_fields(one, with_payload)) for one in value]}"[:SHOWN_MAX]
            )
        else:
            shown.append(f"{each.name} {value_of(value)}")
    return shown


def value_of(value: object) -> str:
    """Cut, and without what is no text."""
    text = value if isinstance(value, str) and value.isprintable() else repr(value)
    return text if len(text) <= SHOWN_MAX else f"{text[:SHOWN_MAX]}…"
