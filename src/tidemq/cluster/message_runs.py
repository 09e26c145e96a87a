"""Runs of new messages in a record, and their rows, without an object for each: most of what a node does.

A run is what it is in a record, operations one behind the other (`records.py`): groups, each a `Payload` and
one or more `Add`s of it, for sessions, that no other node adds. Anything else is an operation of its own.
What a run does to the rows is what `applying.py` does with its operations, where their ids are new.
"""

from __future__ import annotations

import cython
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcmp, memcpy, memset
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.cluster.message_runs import Addition, Group, Newest

from tidemq.store.rows import COUNTED, IDLE, RETAIN

if not cython.compiled:
    raise ImportError("tidemq.cluster.message_runs is to be compiled: make build")

SOURCES_MAX = 1024  # whose newest ids are known
# kinds of operations, and of owners
_PAYLOAD = cython.declare(uint8_t, 1)
_ADD = cython.declare(uint8_t, 2)
_SESSION = cython.declare(uint8_t, 1)
_SOURCE = cython.declare(uint8_t, 63)  # the lowest bits of a clock: the reactor that has given the id
_ID = cython.declare(cython.size_t, 16)
_FIELDS = cython.declare(cython.size_t, 14)  # flags, QoS, bytes of the message, expiry
_QUEUE_KEY = cython.declare(cython.size_t, 25)
_KEPT_FLAGS = cython.declare(uint8_t, RETAIN)
_COUNTED = cython.declare(uint8_t, COUNTED)
_IDLE = cython.declare(uint8_t, IDLE)


def _u32(at):
    return (
        cython.cast(uint32_t, at[0]) << 24
        | cython.cast(uint32_t, at[1]) << 16
        | cython.cast(uint32_t, at[2]) << 8
        | at[3]
    )


def _u64(at):
    return cython.cast(uint64_t, _u32(at)) << 32 | _u32(at + 4)


def _put_u32(at, value):
    at[0] = value >> 24
    at[1] = value >> 16 & 0xFF
    at[2] = value >> 8 & 0xFF
    at[3] = value & 0xFF


def _append_u32(text, value):
    spelled: uint8_t[4]
    _put_u32(cython.address(spelled[0]), value)
    text.append(cython.cast(cython.p_char, cython.address(spelled[0])), 4)


def _bytes(data, size):
    return PyBytes_FromStringAndSize(cython.cast(cython.p_const_char, data), size)


def _read_addition(data, at, size, found):
    """Whether an operation is there that adds a message as runs have it."""
    name: cython.size_t
    index: cython.size_t
    if size - at < 6 or data[at] != _ADD or data[at + 1] != _SESSION:
        return False
    name = _u32(data + at + 2)
    if size - at < 6 + name + _ID + _FIELDS + 1 + 4:
        return False
    found.owner, found.owner_size = data + at + 1, 5 + name
    for index in range(name):
        if found.owner[5 + index] & 0x80:
            return False  # names that are to be looked at closely are not for here
    found.id = found.owner + found.owner_size
    found.fields = found.id + _ID
    if found.fields[_FIELDS]:
        return False  # another node may add it
    found.ids = found.fields + _FIELDS + 1
    found.ids_size = 4 + 4 * cython.cast(cython.size_t, _u32(found.ids))
    at = found.ids - data
    if size - at < found.ids_size:
        return False
    found.end = at + found.ids_size
    return True


def _read_group(data, at, size, most, found):
    """Whether a group is there, of at most so many operations."""
    addition: Addition
    found.count = 0
    if size - at < 1 + _ID + 4 or data[at] != _PAYLOAD:
        return False
    found.id = data + at + 1
    found.message_size = _u32(found.id + _ID)
    found.message = found.id + _ID + 4
    at += 1 + _ID + 4
    if size - at < found.message_size:
        return False
    at += found.message_size
    found.first = found.end = at
    found.count = 1
    while found.count < most and _read_addition(data, found.end, size, cython.address(addition)):
        if memcmp(addition.id, found.id, _ID):
            break
        found.count += 1
        found.end = addition.end
    return found.count > 1


def run_end(text: bytes, at: cython.size_t, most: cython.uint) -> tuple:
    """Where the run ends that begins there, of at most so many operations, and how many it has; 0: none."""
    group: Group
    data: cython.pointer[cython.const[uint8_t]] = cython.cast(
        cython.pointer[cython.const[uint8_t]], PyBytes_AS_STRING(text)
    )
    size: cython.size_t = len(text)
    count: uint32_t = 0
    while at < size and count < most:
        if not _read_group(data, at, size, most - count, cython.address(group)):
            break
        count += group.count
        at = group.end
    return at, count


def group_end(run: bytes, at: cython.size_t) -> int:
    """Where the group of a run ends that begins there."""
    group: Group
    data: cython.pointer[cython.const[uint8_t]] = cython.cast(
        cython.pointer[cython.const[uint8_t]], PyBytes_AS_STRING(run)
    )
    _read_group(data, at, len(run), 0xFFFFFFFF, cython.address(group))
    return group.end


# --- what an engine did, as a run ------------------------------------------------------------------------


def pack_run(described: list, at: cython.size_t, owners: dict, apart: set, brought: set) -> tuple:
    """The run that begins with this row of `StoreWork.described`, how many operations it has, and the row
    after it. `owners`: by queue; `apart`: clients whose messages other nodes may add as well; `brought`: ids
    of messages that are in the record already, to which those of the run come.
    """
    text: string
    count: uint32_t = 0
    while at < cython.cast(cython.size_t, len(described)):
        if not _append_group(
            cython.address(text), described, cython.address(at), cython.address(count), owners, apart, brought
        ):
            break
    whole: bytes = text
    return whole, count, at


def _append_group(text, described, at, count, owners, apart, brought):
    """Whether the next rows are a group; else nothing is appended."""
    before: cython.size_t = text.size()
    end: cython.size_t = at[0] + 1
    row: tuple = described[at[0]]
    if row[0] != "add" or row[10] is None or row[2] in brought:
        return False
    key: bytes = row[2]
    message: bytes = row[10]
    text.push_back(_PAYLOAD)
    text.append(PyBytes_AS_STRING(key), _ID)
    _append_u32(text, len(message))
    text.append(PyBytes_AS_STRING(message), len(message))
    fits: cython.bint = _append_addition(text, row, owners, apart)
    while fits and end < cython.cast(cython.size_t, len(described)):
        row = described[end]
        if row[0] != "add" or row[2] != key:
            break
        fits = _append_addition(text, row, owners, apart)
        end += 1
    if not fits:
        text.resize(before)
        return False
    brought.add(key)
    count[0] += 1 + end - at[0]
    at[0] = end
    return True


def _append_addition(text, row, owners, apart):
    owner = owners.get(row[1])
    if owner is None or row[8] is not None:
        return False
    kind: cython.int = owner[0]
    name: str = owner[1]
    if kind != _SESSION or name in apart or not name.isascii():
        return False
    spelled: bytes = name.encode()
    head: uint8_t[6]
    head[0], head[1] = _ADD, _SESSION
    _put_u32(cython.address(head[2]), len(spelled))
    text.append(cython.cast(cython.p_char, cython.address(head[0])), 6)
    text.append(PyBytes_AS_STRING(spelled), len(spelled))
    key: bytes = row[2]
    ids: tuple = row[7]
    retain: cython.bint = row[4]
    expires_ms: int64_t = row[6]
    rest: uint8_t[35]
    memcpy(cython.address(rest[0]), PyBytes_AS_STRING(key), _ID)
    rest[16], rest[17] = _KEPT_FLAGS if retain else 0, row[3]
    _put_u32(cython.address(rest[18]), row[5])
    _put_u32(cython.address(rest[22]), cython.cast(uint64_t, expires_ms) >> 32)
    _put_u32(cython.address(rest[26]), cython.cast(uint64_t, expires_ms) & 0xFFFFFFFF)
    rest[30] = 0  # no other node adds it
    _put_u32(cython.address(rest[31]), len(ids))
    text.append(cython.cast(cython.p_char, cython.address(rest[0])), 35)
    for each in ids:
        _append_u32(text, each)
    return True


# --- what a run does to the rows -------------------------------------------------------------------------


@cython.cclass
class NewestIds:
    """The newest message id of each source that any queue here has had: one that is newer than that of its
    source has never been here. A source gives them in order; what comes out of order is not taken for new.

    ``rows``: incarnation, lowest bits of the clock, the clock.
    """

    def __init__(self, rows) -> None:
        for incarnation, source, clock in rows:
            self.sources.push_back(Newest(incarnation, source, clock, False))

    def note(self, clock: uint64_t, incarnation: uint64_t) -> None:
        """A queue has it now."""
        id: uint8_t[16]
        index: cython.int
        for index in range(8):
            id[index] = clock >> (56 - 8 * index) & 0xFF
            id[8 + index] = incarnation >> (56 - 8 * index) & 0xFF
        self._note(cython.address(id[0]))

    def changes(self) -> list:
        """As ``rows``: those that have changed since `confirm`."""
        found: list = []
        index: cython.size_t
        for index in range(self.sources.size()):
            source: cython.pointer[Newest] = cython.address(self.sources[index])
            if source.changed:
                found.append((source.incarnation, source.source, source.clock))
        return found

    def confirm(self) -> None:
        """The store has the changes."""
        index: cython.size_t
        for index in range(self.sources.size()):
            self.sources[index].changed = False

    def _find(self, incarnation, source):
        index: cython.size_t
        for index in range(self.sources.size()):
            found: cython.pointer[Newest] = cython.address(self.sources[index])
            if found.incarnation == incarnation and found.source == source:
                return found
        return cython.NULL

    def _is_new(self, id):
        clock: uint64_t = _u64(id)
        found: cython.pointer[Newest] = self._find(_u64(id + 8), clock & _SOURCE)
        if found == cython.NULL:
            return self.sources.size() < SOURCES_MAX
        return clock > found.clock

    def _note(self, id):
        clock: uint64_t = _u64(id)
        found: cython.pointer[Newest] = self._find(_u64(id + 8), clock & _SOURCE)
        if found == cython.NULL:
            if self.sources.size() < SOURCES_MAX:
                self.sources.push_back(Newest(_u64(id + 8), clock & _SOURCE, clock, True))
        elif clock > found.clock:
            found.clock, found.changed = clock, True


def add_run(run: bytes, at: cython.size_t, dot: bytes, newest: NewestIds, place, writes: list) -> int:
    """Does a run to the rows, by ``writes``, from this byte on; returns the byte where the group
    begins that is not done so, or the run ends.

    ``dot``: of its record, as rows have it. ``place``: gives the queue of a client, as keys have it; or
    nothing, where its messages are to be added otherwise.
    """
    group: Group
    addition: Addition
    next: cython.size_t
    data: cython.pointer[cython.const[uint8_t]] = cython.cast(
        cython.pointer[cython.const[uint8_t]], PyBytes_AS_STRING(run)
    )
    by: cython.pointer[cython.const[uint8_t]] = cython.cast(
        cython.pointer[cython.const[uint8_t]], PyBytes_AS_STRING(dot)
    )
    size: cython.size_t = len(run)
    known: dict = {}
    while at < size and _read_group(data, at, size, 0xFFFFFFFF, cython.address(group)):
        if not newest._is_new(group.id):
            break
        places: list = _places(data, cython.address(group), known, place)
        if not places:
            break
        id: bytes = _bytes(group.id, _ID)
        writes.append(("payload", id, _bytes(group.message, group.message_size)))
        if group.count > 2:
            writes.append(("reference", id, _reference(group.count - 1)))
        next = group.first
        for number in places:
            _read_addition(data, next, size, cython.address(addition))
            _write_addition(cython.address(addition), number, by, writes)
            next = addition.end
        newest._note(group.id)
        at = group.end
    return at


def _reference(count):
    """How many queues have a message, where there are several."""
    text: string
    _append_u32(cython.address(text), count)
    return text


def _places(data, group, known, place):
    """The queues of a group's additions, in order; none where one has none, or two have the same."""
    addition: Addition
    found: list = []
    at: cython.size_t = group.first
    while at < group.end:
        _read_addition(data, at, group.end, cython.address(addition))
        name: bytes = _bytes(addition.owner + 5, addition.owner_size - 5)
        number = known.get(name)
        if number is None:
            number = known[name] = place(name.decode())
        if not number:
            return []
        found.append(number)
        at = addition.end
    return [] if len(found) > 1 and len(set(found)) < len(found) else found


def _write_addition(found, number, dot, writes):
    """The rows of one message in one queue; their layouts are those of `EntryLayout`."""
    text: cython.p_char
    ids: cython.size_t = found.ids_size - 4
    key: bytes = PyBytes_FromStringAndSize(cython.NULL, _QUEUE_KEY)
    text = PyBytes_AS_STRING(key)
    memcpy(text, PyBytes_AS_STRING(number), 8)
    text[8] = cython.cast(cython.char, _IDLE)
    memcpy(text + 9, found.id, _ID)
    value: bytes = PyBytes_FromStringAndSize(cython.NULL, 22 + ids)
    text = PyBytes_AS_STRING(value)
    memcpy(text, found.fields, _FIELDS)
    text[0] = cython.cast(cython.char, found.fields[0] & _KEPT_FLAGS | _COUNTED)
    memset(text + _FIELDS, 0, 8)  # place in the outbox
    memcpy(text + 22, found.ids + 4, ids)
    writes.append(("queue", key, value))
    if _u64(found.fields + 6):
        key = PyBytes_FromStringAndSize(cython.NULL, 32)
        text = PyBytes_AS_STRING(key)
        memcpy(text, found.fields + 6, 8)
        memcpy(text + 8, PyBytes_AS_STRING(number), 8)
        memcpy(text + 16, found.id, _ID)
        writes.append(("expiry", key, b""))
    key = PyBytes_FromStringAndSize(cython.NULL, 1 + found.owner_size + _ID)
    text = PyBytes_AS_STRING(key)
    text[0] = ord("q")
    memcpy(text + 1, found.owner, found.owner_size)
    memcpy(text + 1 + found.owner_size, found.id, _ID)
    value = PyBytes_FromStringAndSize(cython.NULL, 45 + _FIELDS + found.ids_size)
    text = PyBytes_AS_STRING(value)
    memcpy(text, PyBytes_AS_STRING(number), 8)
    memset(text + 8, 0, 20)  # not shared, no epoch, and one record
    text[28] = 1
    memcpy(text + 29, dot, 16)
    memcpy(text + 45, found.fields, _FIELDS)
    memcpy(text + 45 + _FIELDS, found.ids, found.ids_size)
    writes.append(("cluster", key, value))
