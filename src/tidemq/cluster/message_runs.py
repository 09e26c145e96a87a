"""Runs of operations in a record, without an object for each: most of what a node does.

A run is what it is in a record, operations one behind the other (`records.py`), for sessions: groups, each a
`Payload` and one or more `Add`s of it, each with a `Send` behind it where it is in flight at once; and
`Remove`, `Send`, `Release` and `Return`. Anything else is an operation of its own. What a run does to the
rows is in `run_rows.py`.
"""

from __future__ import annotations

import cython
from cython.cimports.cpython.bytes import PyBytes_AS_STRING
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcmp, memcpy
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.cluster.message_runs import (
    ADD,
    FIELDS_BYTES,
    ID_BYTES,
    PAYLOAD,
    RELEASE,
    REMOVE,
    RETURN,
    SEND,
    Addition,
    Change,
    Group,
    put_u32,
    read_u32,
    read_u64,
)

from tidemq.store.rows import RETAIN

if not cython.compiled:
    raise ImportError("tidemq.cluster.message_runs is to be compiled: make build")

_SESSION = cython.declare(uint8_t, 1)  # the kind of owners
_KEPT_FLAGS = cython.declare(uint8_t, RETAIN)
_CHANGES: dict = {"remove": REMOVE, "send": SEND, "release": RELEASE, "return": RETURN}


def _append_u32(text, value):
    spelled: uint8_t[4]
    put_u32(cython.address(spelled[0]), value)
    text.append(cython.cast(cython.p_char, cython.address(spelled[0])), 4)


def _append_u64(text, value):
    _append_u32(text, cython.cast(uint32_t, value >> 32))
    _append_u32(text, cython.cast(uint32_t, value))


# --- reading ---------------------------------------------------------------------------------------------


def _plain_owner(data, at, size):
    """The size of a session's owner that is there; 0: of another, or of one whose name is to be looked at
    closely, which is not for here.
    """
    index: cython.size_t
    if size - at < 5 or data[at] != _SESSION:
        return 0
    name: cython.size_t = read_u32(data + at + 1)
    if size - at - 5 < name:
        return 0
    for index in range(name):
        if data[at + 5 + index] & 0x80:
            return 0
    return 5 + name


def read_addition(data, at, size, found):
    """Whether an operation is there that adds a message as runs have it; with one that sends it, if that is
    next.
    """
    if size - at < 1 or data[at] != ADD:
        return False
    found.owner, found.owner_size = data + at + 1, _plain_owner(data, at + 1, size)
    at += 1 + found.owner_size
    if not found.owner_size or size - at < ID_BYTES + FIELDS_BYTES + 1 + 4:
        return False
    found.id = data + at
    found.fields = found.id + ID_BYTES
    if found.fields[FIELDS_BYTES] > 1:
        return False  # not as this version writes it
    found.shared = found.fields[FIELDS_BYTES] == 1
    found.ids = found.fields + FIELDS_BYTES + 1
    found.ids_size = 4 + 4 * cython.cast(cython.size_t, read_u32(found.ids))
    at = found.ids - data
    if size - at < found.ids_size:
        return False
    found.end = at + found.ids_size
    found.is_sent = (
        read_change(data, found.end, size, cython.address(found.sent))
        and found.sent.kind == SEND
        and found.sent.owner_size == found.owner_size
        and not memcmp(found.sent.owner, found.owner, found.owner_size)
        and not memcmp(found.sent.id, found.id, ID_BYTES)
    )
    return True


def read_change(data, at, size, found):
    """Whether an operation is there that changes what is in a queue, as runs have it."""
    if size - at < 1 or not REMOVE <= data[at] <= RETURN:
        return False
    found.kind = data[at]
    found.owner, found.owner_size = data + at + 1, _plain_owner(data, at + 1, size)
    at += 1 + found.owner_size
    rest: cython.size_t = ID_BYTES
    if found.kind != REMOVE:
        rest += ID_BYTES
    if found.kind == SEND:
        rest += 8
    if not found.owner_size or size - at < rest:
        return False
    found.epoch = data + at
    found.id = data + at if found.kind == REMOVE else data + at + ID_BYTES
    found.place = read_u64(found.id + ID_BYTES) if found.kind == SEND else 0
    found.end = at + rest
    return True


def read_group(data, at, size, most, found):
    """Whether a group is there, of at most so many operations."""
    addition: Addition
    found.count = found.additions = 0
    if size - at < 1 + ID_BYTES + 4 or data[at] != PAYLOAD:
        return False
    found.id = data + at + 1
    found.message_size = read_u32(found.id + ID_BYTES)
    found.message = found.id + ID_BYTES + 4
    at += 1 + ID_BYTES + 4
    if size - at < found.message_size:
        return False
    at += found.message_size
    found.first = found.end = at
    found.count = 1
    while found.count < most and read_addition(data, found.end, size, cython.address(addition)):
        if memcmp(addition.id, found.id, ID_BYTES):
            break
        found.count += 1
        found.additions += 1
        found.end = addition.end
        if addition.is_sent and found.count < most:
            found.count += 1
            found.end = addition.sent.end
    return found.additions > 0


def run_end(text: bytes, at: cython.size_t, most: cython.uint) -> tuple:
    """Where the run ends that begins there, of at most so many operations, and how many it has; 0: none."""
    group: Group
    change: Change
    data: cython.pointer[cython.const[uint8_t]] = cython.cast(
        cython.pointer[cython.const[uint8_t]], PyBytes_AS_STRING(text)
    )
    size: cython.size_t = len(text)
    count: uint32_t = 0
    while at < size and count < most:
        if read_change(data, at, size, cython.address(change)):
            count += 1
            at = change.end
        elif read_group(data, at, size, most - count, cython.address(group)):
            count += group.count
            at = group.end
        else:
            break
    return at, count


# --- what an engine did, as a run ------------------------------------------------------------------------


def pack_run(
    described: list,
    at: cython.size_t,
    owners: dict,
    epochs: dict,
    shared: set,
    gone: set,
    brought: set,
) -> tuple:
    """The run that begins with this row of `StoreWork.described`, how many operations it has, and the row
    after it. `owners`: by queue; `epochs`: of sessions, by client; `shared`: queues to which other nodes may
    add the same; `gone`: of which queues which messages are removed or for nobody, which are not for a run;
    `brought`: ids of messages that are in the record already, to which those of the run come.
    """
    text: string
    count: uint32_t = 0
    spelled = Owners(owners)
    while at < cython.cast(cython.size_t, len(described)):
        row: tuple = described[at]
        kind = _CHANGES.get(row[0])
        if kind is None:
            if not _append_group(
                cython.address(text),
                described,
                cython.address(at),
                cython.address(count),
                spelled,
                epochs,
                shared,
                gone,
                brought,
            ):
                break
            continue
        if not _append_change(cython.address(text), kind, spelled, row[1], row[2], row[3], epochs):
            break
        count += 1
        at += 1
    whole: bytes = text
    return whole, count, at


@cython.cclass
class Owners:
    """Sessions by queue, as runs have them. Most operations of a run are for owners that it has had."""

    def __init__(self, owners: dict) -> None:
        self.owners, self.found = owners, {}

    def find(self, number):
        """The owner's name and how a run spells it; None: none that may be in a run."""
        if number not in self.found:
            self.found[number] = self._spell(self.owners.get(number))
        return self.found[number]

    def _spell(self, owner):
        if owner is None or owner[0] != _SESSION or not owner[1].isascii():
            return None
        name: bytes = owner[1].encode()
        size: uint8_t[4]
        put_u32(cython.address(size[0]), len(name))
        kind: bytes = bytes([_SESSION])
        return owner[1], kind + cython.cast(cython.p_char, cython.address(size[0]))[:4] + name


def _append_head(text, kind, owner):
    text.push_back(cython.cast(cython.char, kind))
    text.append(PyBytes_AS_STRING(owner), len(owner))


def _append_change(text, kind, owners, number, key, place, epochs):
    """Whether the operation may be in a run; else nothing is appended."""
    owner: tuple = owners.find(number)
    epoch = None
    if owner is None or len(key) != ID_BYTES:
        return False
    if kind != REMOVE:
        epoch = epochs.get(owner[0])
        if epoch is None:
            return False
    _append_head(text, kind, owner[1])
    if epoch is not None:
        _append_u64(text, epoch[0])
        _append_u64(text, epoch[1])
    text.append(PyBytes_AS_STRING(key), ID_BYTES)
    if kind == SEND:
        _append_u64(text, place)
    return True


def _append_group(text, described, at, count, owners, epochs, shared, gone, brought):
    """Whether the next rows are a group; else nothing is appended."""
    before: cython.size_t = text.size()
    end: cython.size_t = at[0] + 1
    row: tuple = described[at[0]]
    if row[0] != "add" or row[10] is None or row[2] in brought:
        return False
    key: bytes = row[2]
    message: bytes = row[10]
    text.push_back(PAYLOAD)
    text.append(PyBytes_AS_STRING(key), ID_BYTES)
    _append_u32(text, len(message))
    text.append(PyBytes_AS_STRING(message), len(message))
    more: uint32_t = _append_addition(text, row, owners, epochs, shared, gone)
    number: uint32_t = 1 + more
    while more and end < cython.cast(cython.size_t, len(described)):
        row = described[end]
        if row[0] != "add" or row[2] != key:
            break
        more = _append_addition(text, row, owners, epochs, shared, gone)
        number += more
        end += 1
    if not more:
        text.resize(before)
        return False
    brought.add(key)
    count[0] += number
    at[0] = end
    return True


def _append_addition(text, row, owners, epochs, shared, gone):
    """How many operations were appended; 0: the row is not for a run."""
    owner: tuple = owners.find(row[1])
    key: bytes = row[2]
    if owner is None or len(key) != ID_BYTES:
        return 0
    if gone and (row[1], key) in gone:
        return 0
    is_shared: cython.bint = row[1] in shared
    _append_head(text, ADD, owner[1])
    ids: tuple = row[7]
    retain: cython.bint = row[4]
    expires_ms: int64_t = row[6]
    rest: uint8_t[35]
    memcpy(cython.address(rest[0]), PyBytes_AS_STRING(key), ID_BYTES)
    rest[16], rest[17] = _KEPT_FLAGS if retain else 0, row[3]
    put_u32(cython.address(rest[18]), row[5])
    put_u32(cython.address(rest[22]), cython.cast(uint64_t, expires_ms) >> 32)
    put_u32(cython.address(rest[26]), cython.cast(uint64_t, expires_ms) & 0xFFFFFFFF)
    rest[30] = is_shared
    put_u32(cython.address(rest[31]), len(ids))
    text.append(cython.cast(cython.p_char, cython.address(rest[0])), 35)
    for each in ids:
        _append_u32(text, each)
    if row[8] is None:
        return 1
    return 2 if _append_change(text, SEND, owners, row[1], key, row[8], epochs) else 0
