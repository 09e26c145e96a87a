"""One replay of a stream to an MQTT client: its messages, a piece at a time, as the engine takes them."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tidemq.broker.stream_filters import OFFSET_PROPERTY
from tidemq.stream import Stream
from tidemq.stream.ranges import Cursor
from tidemq.wire import Properties, Publish, encode, encode_properties

PIECE_ROWS = 256  # handed over at a time, at QoS 0,
PIECE_ROWS_QOS_1 = 128
PIECE_BYTES = 64 << 10  # or the first message that brings it to this
GAP_PROPERTY = "stream-gap"
_HEAD = struct.Struct(">QIII")  # of a message for `Engine.feed`


class Piece(NamedTuple):
    """Messages for the engine: packets at QoS 0, else what `Engine.feed` takes."""

    data: bytes
    messages: int
    too_large: int  # at QoS 0, so many were for the client
    end: int  # offset of the first message that comes after it
    missed: int  # offsets before it, or in it, whose messages are not kept any more


@dataclass(slots=True)
class Replay:
    """One subscription: what it goes through, and the form that the client gets it in."""

    topic_filter: str  # as the client wrote it
    stream: Stream
    topics: tuple[str, ...]  # filters of the topics that it wants
    prefix: str  # of the topics that the client gets
    qos: int
    protocol_version: int
    packet_bytes_max: int
    subscription_id: int  # 0: none
    key: tuple[int, str]  # connection and filter: its place among those that there may be
    start: bytes = b""  # what the engine is told where it is granted
    cursor: Cursor | None = None  # None: the engine has not yet said where it begins
    placed: bool = False  # it has a place
    busy: bool = False  # at QoS 1: there is no room for more
    rows: list[dict[str, Any]] = field(default_factory=list)  # read, and not yet handed over, the next last
    missed: int = 0  # offsets whose messages are not kept, of which the client has not been told

    def begin(self, offset: int) -> None:
        """Goes on from this offset."""
        self.cursor = Cursor(self.stream.log, self.topics, offset)

    def has_more(self) -> bool:
        """Whether there is something to be read now, and room for it."""
        if self.cursor is None or self.busy:
            return False
        return bool(self.rows) or not self.cursor.at_end

    def piece(self) -> Piece:
        """The next messages."""
        assert self.cursor is not None
        data = bytearray()
        messages = too_large = 0
        if not self.rows:
            self.rows = self.cursor.read(PIECE_ROWS_QOS_1 if self.qos else PIECE_ROWS)[::-1]
        missed = self.cursor.take_missed()
        self.missed += missed
        while self.rows and len(data) < PIECE_BYTES:
            row = self.rows.pop()
            packet = self._message(row) if self.qos else self._packet(row)
            if not self.qos and len(packet) > self.packet_bytes_max:
                too_large += 1
                continue
            data += packet
            messages += 1
        end = self.rows[-1]["offset"] if self.rows else self.cursor.offset
        return Piece(bytes(data), messages, too_large, end, missed)

    def _packet(self, row: dict[str, Any]) -> bytes:
        properties = self._properties(row, (self.subscription_id,) if self.subscription_id else ())
        packet = Publish(topic=self.prefix + row["topic"], payload=row["payload"], properties=properties)
        return encode(packet, self.protocol_version)

    def _message(self, row: dict[str, Any]) -> bytes:
        topic = (self.prefix + row["topic"]).encode()
        properties = encode_properties(self._properties(row, ()))
        payload = row["payload"]
        return b"".join(
            (_HEAD.pack(row["offset"], len(topic), len(properties), len(payload)), topic, properties, payload)
        )

    def _properties(self, row: dict[str, Any], subscription_ids: tuple[int, ...]) -> Properties:
        if self.protocol_version != 5:
            return Properties()
        told = [(OFFSET_PROPERTY, str(row["offset"])), ("stream-received", row["received"].isoformat())]
        if self.missed:
            told.append((GAP_PROPERTY, str(self.missed)))
            self.missed = 0
        return Properties(
            content_type=row["content_type"],
            response_topic=row["response_topic"],
            correlation_data=row["correlation_data"],
            user_properties=(*((each["name"], each["value"]) for each in row["user_properties"]), *told),
            subscription_ids=subscription_ids,
        )
