"""What is done for each row where nodes' rows are compared: entries of queues joined with their rows, and
rows digested.

The digest has 64 bits and is for what went wrong, not for who wants two texts to have the same.
"""

from __future__ import annotations

import cython
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.stdint import uint8_t, uint64_t
from cython.cimports.libc.string import memcmp, memcpy
from cython.cimports.tidemq.cluster.message_runs import read_u64

from tidemq.store.rows import IDLE, IN_FLIGHT, RELEASED, RETAIN

if not cython.compiled:
    raise ImportError("tidemq.cluster.piece_cuts is to be compiled: make build")

_ID = cython.declare(cython.Py_ssize_t, 16)
# of what lies beside an entry, as in `comparable_rows`
_ADDS = cython.declare(cython.Py_ssize_t, 24)
_FIELDS = cython.declare(cython.Py_ssize_t, 46)
_IDS = cython.declare(cython.Py_ssize_t, 60)
_FIELDS_BYTES = cython.declare(cython.Py_ssize_t, 14)
_RETAIN = cython.declare(uint8_t, RETAIN)
_RELEASED = cython.declare(uint8_t, RELEASED)
_IDLE = cython.declare(uint8_t, IDLE)
_IN_FLIGHT = cython.declare(uint8_t, IN_FLIGHT)
_WAITS = cython.declare(uint8_t, 1)
_FLIES = cython.declare(uint8_t, 2)
_RELEASES = cython.declare(uint8_t, 3)


def _data(text):
    return cython.cast(cython.pointer[cython.const[uint8_t]], PyBytes_AS_STRING(text))


def _mixed(value):
    """Each bit of the value changes half of the result's (the finalizer of MurmurHash3)."""
    value ^= value >> 33
    value *= cython.cast(uint64_t, 0xFF51AFD7ED558CCD)
    value ^= value >> 33
    value *= cython.cast(uint64_t, 0xC4CEB9FE1A85EC53)
    return value ^ value >> 33


def _digest(data, size, seed):
    at: cython.Py_ssize_t = 0
    word: uint64_t = 0
    value: uint64_t = _mixed(seed ^ cython.cast(uint64_t, size))
    while at + 8 <= size:
        value = _mixed(value ^ read_u64(data + at)) + cython.cast(uint64_t, 0x9E3779B97F4A7C15)
        at += 8
    while at < size:
        word = word << 8 | data[at]
        at += 1
    return _mixed(value ^ word)


def _spelled(value):
    index: cython.Py_ssize_t
    text: bytes = PyBytes_FromStringAndSize(cython.NULL, 8)
    data: cython.p_char = PyBytes_AS_STRING(text)
    for index in range(8):
        data[7 - index] = cython.cast(cython.char, value & 0xFF)
        value >>= 8
    return text


def digest_of(text: bytes) -> bytes:
    """Of one row."""
    return _spelled(_digest(_data(text), len(text), 1))


@cython.cclass
class Cutter:
    """Digests of pieces of rows: a piece ends behind a row whose key has ``bits`` bits of its digest 0."""

    def __init__(self, bits: cython.int) -> None:
        self.mask = (cython.cast(uint64_t, 1) << bits) - 1
        self.digest = 0
        self.pairs = []

    def add(self, key: bytes, text: bytes) -> bool:
        """The next row; whether a piece ends with it."""
        found: uint64_t
        if not self.mask:
            self.pairs.append((key, digest_of(text)))
            return True
        found = _digest(_data(key), len(key), 2)
        self.digest = _digest(_data(text), len(text), self.digest ^ found)
        if found & self.mask:
            return False
        self.pairs.append((key, _spelled(self.digest)))
        self.digest = 0
        return True

    @property
    def count(self) -> int:
        """Pieces that have ended since `take`."""
        return len(self.pairs)

    def take(self) -> list:
        """The pieces that have ended: the last key, and the digest."""
        pairs, self.pairs = self.pairs, []
        return pairs

    def rest(self) -> bytes:
        """The digest of the piece that has not."""
        return _spelled(self.digest)


def join(owner: bytes, window: list, idle: list, flying: list):
    """What is to be equal of entries of one owner: ``window`` is what lies beside them, the others are the
    rows of their queue, all in order. None where anything is not as it nearly always is: one record has added
    each, and there is one row of each, which says what the record said.
    """
    found: list = []
    at_idle: cython.Py_ssize_t = 0
    at_flying: cython.Py_ssize_t = 0
    idles: cython.Py_ssize_t = len(idle)
    flyings: cython.Py_ssize_t = len(flying)
    key: bytes
    text: bytes
    there: bytes
    row: bytes
    name: cython.pointer[cython.const[uint8_t]]
    state: bytes
    for key, text in window:
        name = _data(key) + len(key) - _ID
        state = b""
        if at_idle < idles:
            there, row = idle[at_idle]
            if _is_of(there, text, name):
                at_idle += 1
                state = _state(text, row, _IDLE)
        if not state and at_flying < flyings:
            there, row = flying[at_flying]
            if _is_of(there, text, name):
                at_flying += 1
                state = _state(text, row, _IN_FLIGHT)
        if not state:
            return None
        found.append((key[1:], state))
    return found if at_idle == idles and at_flying == flyings else None


def _is_of(there, text, name):
    """Whether a row of a queue is that of what lies beside an entry."""
    data: cython.pointer[cython.const[uint8_t]] = _data(there)
    if len(there) != 9 + _ID or len(text) < 8:
        return False
    return not memcmp(data + 9, name, _ID) and not memcmp(data, _data(text), 8)


def _state(text, row, status):
    """How an entry's row is, and what its record said; empty: not as it should be."""
    place: cython.Py_ssize_t = 8 if status == _IN_FLIGHT else 0
    size: cython.Py_ssize_t = len(text)
    there: cython.Py_ssize_t = len(row)
    beside: cython.pointer[cython.const[uint8_t]] = _data(text)
    data: cython.pointer[cython.const[uint8_t]] = _data(row)
    if size < _IDS + 4 or memcmp(beside + _ADDS, b"\0\0\0\1", 4):
        return b""
    if there != _FIELDS_BYTES + 8 + size - _IDS - 4 or (data[0] ^ beside[_FIELDS]) & _RETAIN:
        return b""
    if memcmp(data + 1, beside + _FIELDS + 1, _FIELDS_BYTES - 1):
        return b""
    if memcmp(data + _FIELDS_BYTES + 8, beside + _IDS + 4, there - _FIELDS_BYTES - 8):
        return b""
    found: bytes = PyBytes_FromStringAndSize(cython.NULL, 1 + place + size - _ADDS)
    to: cython.pointer[uint8_t] = cython.cast(cython.pointer[uint8_t], PyBytes_AS_STRING(found))
    if place:
        to[0] = _RELEASES if data[0] & _RELEASED else _FLIES
        memcpy(to + 1, data + _FIELDS_BYTES, 8)
    else:
        to[0] = _WAITS
    memcpy(to + 1 + place, beside + _ADDS, size - _ADDS)
    return found
