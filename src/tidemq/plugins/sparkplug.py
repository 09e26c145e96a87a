"""Makes the broker a Sparkplug aware MQTT server (Eclipse Sparkplug specification 3.0, section 10.1.4).

The birth certificates of edge nodes and devices are kept, as retained messages at `$sparkplug/certificates`
(tck-id-conformance-mqtt-aware-store, ...-nbirth-mqtt-topic, ...-nbirth-mqtt-retain, ...-dbirth-mqtt-topic,
...-dbirth-mqtt-retain), and a death certificate is passed on with the time at which it is
(...-ndeath-timestamp).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, StrictBool

from tidemq.broker import Decision, HeldMessage, Route, hookimpl
from tidemq.broker.providers import read_options
from tidemq.config import Config

NAMESPACE = "spBv1.0"
CERTIFICATES = "$sparkplug/certificates/"
BIRTHS = {"NBIRTH": 4, "DBIRTH": 5}  # levels of their topics
SPARKPLUG_COUNTERS = ("sparkplug_births_kept", "sparkplug_births_empty", "sparkplug_deaths_unreadable")

_TIMESTAMP = 1  # number of the field in a Payload (section 6.4.1)
_VARINT, _FIXED_64, _BYTES, _FIXED_32 = 0, 1, 2, 5  # how a field is encoded
_VARINT_BYTES_MAX = 10


class SparkplugOptions(BaseModel):
    """Of this plugin."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ndeath_timestamp: StrictBool = True  # death certificates get the time at which they are passed on


class Sparkplug:
    """The plugin. `counts`: what it has done."""

    def __init__(self, options: SparkplugOptions | None = None) -> None:
        self._options = options or SparkplugOptions()
        self.counts: Counter[str] = Counter()
        births = [f"{NAMESPACE}/+/{kind}" + "/+" * (levels - 3) for kind, levels in BIRTHS.items()]
        deaths = [f"{NAMESPACE}/+/NDEATH/+"] if self._options.ndeath_timestamp else []
        self.filters = (*births, *deaths)

    @hookimpl
    def publish(self, messages: list[HeldMessage]) -> list[Decision | None]:
        """Passes all, certificates of birth to a second topic, too."""
        return [self._decide(message) for message in messages]

    def _decide(self, message: HeldMessage) -> Decision | None:
        if message.topic.split("/", 3)[2] == "NDEATH":
            return self._date(message)
        if not message.payload:  # to retain it would remove the certificate
            self.counts["sparkplug_births_empty"] += 1
            return None
        self.counts["sparkplug_births_kept"] += 1
        topic = CERTIFICATES + message.topic
        kept = Route(topic, message.payload, message.qos, retain=True, properties=message.properties)
        return Decision(routes=(kept,))

    def _date(self, message: HeldMessage) -> Decision | None:
        try:
            return Decision(payload=with_timestamp(message.payload, int(time.time() * 1000)))
        except ValueError:
            self.counts["sparkplug_deaths_unreadable"] += 1
            return None


def make_sparkplug(_: Config, options: Mapping[str, Any]) -> Sparkplug:
    """For `[[plugins]]`."""
    return Sparkplug(read_options("sparkplug", SparkplugOptions, options))


def with_timestamp(payload: bytes, timestamp_ms: int) -> bytes:
    """A Sparkplug B payload with another timestamp; all else stays as it is. ValueError where it is none."""
    rest = b"".join(payload[at:end] for number, at, end in _fields(payload) if number != _TIMESTAMP)
    return bytes([_TIMESTAMP << 3 | _VARINT]) + _encode_varint(timestamp_ms) + rest


def _fields(payload: bytes) -> Iterator[tuple[int, int, int]]:
    """Each field of a message of protobuf: its number, where it begins, and where it ends."""
    at = 0
    while at < len(payload):
        key, end = _read_varint(payload, at)
        kind = key & 7
        if kind == _VARINT:
            _, end = _read_varint(payload, end)
        elif kind == _BYTES:
            size, end = _read_varint(payload, end)
            end += size
        elif kind in (_FIXED_64, _FIXED_32):
            end += 8 if kind == _FIXED_64 else 4
        else:
            raise ValueError(f"wire type {kind}")
        if end > len(payload) or key >> 3 == 0:
            raise ValueError("it ends within a field, or a field has no number")
        yield key >> 3, at, end
        at = end


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    """The number, and where what follows begins."""
    value = 0
    for place in range(_VARINT_BYTES_MAX):
        if at + place >= len(data):
            raise ValueError("it ends within a number")
        value |= (data[at + place] & 0x7F) << 7 * place
        if data[at + place] < 0x80:
            return value, at + place + 1
    raise ValueError("a number is too long")


def _encode_varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
