"""Bytes of messages and copies, as they are in a message of NATS, which has a largest size.

A message: a word drawn for the connection (4), its number there (8), which piece it is (2) of how many (2),
and the piece. Copies: format (1), number of the first record (8), how many (4), which piece (2) of how many
(2), then either whole records, each its size (4) and its bytes, or one piece of one record. Big-endian.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from tidemq.errors import ClusterError

COPIES_FORMAT = 1
PIECES_MAX = 0xFFFF
ENDED_MAX = 8  # connections of one sender whose late messages are known for that
_PIECE = struct.Struct(">IQHH")
_COPIES = struct.Struct(">BQIHH")
_SIZE = struct.Struct(">I")
COPIES_HEAD_BYTES = _COPIES.size


def split(body: bytes, piece_bytes: int) -> list[bytes]:
    """The body in pieces of at most so many bytes; at least one."""
    if len(body) <= piece_bytes:
        return [body]
    return [body[at : at + piece_bytes] for at in range(0, len(body), piece_bytes)]


def pack_message(connection: int, number: int, body: bytes, piece_bytes: int) -> Iterator[bytes]:
    """The frames of a message, each a piece of so many bytes at most and 16 more."""
    pieces = split(body, piece_bytes)
    for place, piece in enumerate(pieces):
        yield _PIECE.pack(connection, number, place, len(pieces)) + piece


class Assembly:
    """Messages of one sender, put together again. `missed`: messages of a connection that did not come."""

    def __init__(self, message_bytes_max: int) -> None:
        self._bytes_max = message_bytes_max
        self._connection = 0
        self._ended: deque[int] = deque(maxlen=ENDED_MAX)
        self._next = 0  # number
        self._pieces: list[bytes] = []
        self._bytes = 0
        self.missed = 0

    def add(self, frame: bytes) -> bytes | None:
        """The message that this frame completes. ClusterError where it is none of ours."""
        if len(frame) < _PIECE.size:
            raise ClusterError(f"a message of {len(frame)} bytes; expected: {_PIECE.size} or more")
        connection, number, place, pieces = _PIECE.unpack_from(frame)
        if place >= pieces:
            raise ClusterError(f"a message's piece {place} of {pieces}")
        if connection in self._ended:  # a server may read what was left of it behind the next one's
            self.missed += not place
            return None
        if connection != self._connection:
            self._ended.append(self._connection)
            self._connection, self._next = connection, 0
            self._drop()
        if place and not (number == self._next and place == len(self._pieces)):
            return None  # its beginning did not come: counted with the next message
        if not place:
            self.missed += max(0, number - self._next)
            self._next = number
            self._drop()
        self._pieces.append(frame[_PIECE.size :])
        self._bytes += len(self._pieces[-1])
        if self._bytes > self._bytes_max:
            self._drop()
            raise ClusterError(f"a message has more than {self._bytes_max} bytes")
        if place + 1 < pieces:
            return None
        whole = self._pieces[0] if pieces == 1 else b"".join(self._pieces)
        self._next = number + 1
        self._drop()
        return whole

    def _drop(self) -> None:
        self._pieces, self._bytes = [], 0


@dataclass(frozen=True, slots=True)
class Copies:
    """One message of a stream of copies: records with rising numbers from `first` on, or a piece of one."""

    first: int
    records: tuple[bytes, ...]
    piece: int = 0
    pieces: int = 1

    @property
    def last_whole(self) -> int:
        """The last number that is there whole, where all before it are."""
        return self.first + len(self.records) - 1 if self.piece + 1 == self.pieces else self.first - 1


def pack_copies(first: int, records: Sequence[bytes], piece_bytes: int) -> list[bytes]:
    """The frames of records. More than one only where there is one record, and it is too large."""
    if len(records) == 1 and len(records[0]) > piece_bytes:
        pieces = split(records[0], piece_bytes)
        return [
            _COPIES.pack(COPIES_FORMAT, first, 1, place, len(pieces)) + piece
            for place, piece in enumerate(pieces)
        ]
    parts = [_COPIES.pack(COPIES_FORMAT, first, len(records), 0, 1)]
    for record in records:
        parts += [_SIZE.pack(len(record)), record]
    return [b"".join(parts)]


def unpack_copies(frame: bytes) -> Copies:
    """ClusterError where the frame is not whole, or none of ours."""
    if len(frame) < _COPIES.size:
        raise ClusterError(f"copies of {len(frame)} bytes; expected: {_COPIES.size} or more")
    form, first, count, piece, pieces = _COPIES.unpack_from(frame)
    if form != COPIES_FORMAT:
        raise ClusterError(f"copies of format {form}; expected: {COPIES_FORMAT}")
    if piece >= pieces or not count or (pieces > 1 and count != 1):
        raise ClusterError(f"copies of {count} records in piece {piece} of {pieces}")
    if pieces > 1:
        return Copies(first, (frame[_COPIES.size :],), piece, pieces)
    records: list[bytes] = []
    at = _COPIES.size
    while at < len(frame) and len(records) < count:
        end = at + _SIZE.size
        end += _SIZE.unpack_from(frame, at)[0] if end <= len(frame) else 0
        records.append(frame[at + _SIZE.size : end])
        at = end
    if at != len(frame) or len(records) != count:
        raise ClusterError(f"{count} copies end at byte {at} of {len(frame)}, after {len(records)} of them")
    return Copies(first, tuple(records))
