"""A byte stream taken apart into control packets."""

from __future__ import annotations

from tidemq.wire.control_packets import Connect, Packet
from tidemq.wire.reader import PACKET_BYTES_MAX, decode


class Decoder:
    """Takes bytes as they come and gives whole packets: an iterator that ends where bytes are missing.

    `version` is that of the connection, 3, 4 or 5; a CONNECT that passes sets it. Iterating raises
    `ProtocolError` at a fault, and again if it is asked again. One thread at a time.
    """

    def __init__(self, version: int = 4, packet_bytes_max: int = PACKET_BYTES_MAX) -> None:
        self.version = version
        self._packet_bytes_max = packet_bytes_max
        self._buffer = bytearray()
        self._used = 0

    def feed(self, data: bytes | bytearray | memoryview) -> None:
        """Append what came from the peer; it is copied."""
        del self._buffer[: self._used]
        self._used = 0
        self._buffer += data

    def __iter__(self) -> Decoder:
        return self

    def __next__(self) -> Packet:
        with memoryview(self._buffer) as whole, whole[self._used :] as rest:
            found = decode(rest, self.version, self._packet_bytes_max)
        if found is None:
            raise StopIteration
        packet, size = found
        self._used += size
        if isinstance(packet, Connect):
            self.version = packet.version
        return packet
