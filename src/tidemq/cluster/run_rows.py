"""What runs of operations (`message_runs.py`) do to the rows of a store, without an object for each.

It is what `applying.py` does with the same operations one by one, and the rows are the same to the byte.
What is not plain is left to it: an entry that this batch has changed otherwise, that another node may add,
that several records have added; one whose removal is remembered; and operations under an older epoch.
"""

from __future__ import annotations

import cython
from cython.cimports.cpython.bytes import PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cython.cimports.libc.stdint import uint8_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcmp, memcpy, memset
from cython.cimports.tidemq.cluster.message_runs import (
    FIELDS_BYTES,
    ID_BYTES,
    RELEASE,
    REMOVE,
    SEND,
    Addition,
    Change,
    Group,
    put_u32,
    put_u64,
    read_addition,
    read_change,
    read_group,
    read_u32,
    read_u64,
)
from cython.cimports.tidemq.cluster.run_rows import Beside, Newest

from tidemq.store.rows import COUNTED, IDLE, IN_FLIGHT, RELEASED, RETAIN, SENT

if not cython.compiled:
    raise ImportError("tidemq.cluster.run_rows is to be compiled: make build")

SOURCES_MAX = 1024  # whose newest ids are known
_FAMILY = "cluster"
_SOURCE = cython.declare(uint8_t, 63)  # the lowest bits of a clock: the reactor that has given the id
_PLACE_MAX = cython.declare(uint64_t, 0xFFFFFFFFFFFFFFFF)
_RETAIN = cython.declare(uint8_t, RETAIN)
_COUNTED = cython.declare(uint8_t, COUNTED)
_SENT = cython.declare(uint8_t, SENT)
_RELEASED = cython.declare(uint8_t, RELEASED)
_IDLE = cython.declare(uint8_t, IDLE)
_IN_FLIGHT = cython.declare(uint8_t, IN_FLIGHT)
# what lies beside a session: epoch, home, whether it begins, next place, record, and what no run changes
_NEXT = cython.declare(cython.size_t, 25)
_SESSION_BYTES = cython.declare(cython.size_t, 66)
# what lies beside an entry: queue, epoch, how many records, the first of these, and what it said: whether the
# entry is shared, whether it is unsent, and its fields
_EPOCH = cython.declare(cython.size_t, 8)
_RECORDS = cython.declare(cython.size_t, 24)
_DOT = cython.declare(cython.size_t, 28)
_SHARED = cython.declare(cython.size_t, 44)
_FIELDS = cython.declare(cython.size_t, 46)


def _bytes(data, size):
    return PyBytes_FromStringAndSize(cython.cast(cython.p_const_char, data), size)


def _data(text):
    return cython.cast(cython.pointer[cython.const[uint8_t]], PyBytes_AS_STRING(text))


def _size(text):
    return len(text)


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
        put_u64(cython.address(id[0]), clock)
        put_u64(cython.address(id[8]), incarnation)
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

    def _copy(self):
        made = NewestIds(())
        made.sources = self.sources
        return made

    def _find(self, incarnation, source):
        index: cython.size_t
        for index in range(self.sources.size()):
            found: cython.pointer[Newest] = cython.address(self.sources[index])
            if found.incarnation == incarnation and found.source == source:
                return found
        return cython.NULL

    def _is_new(self, id):
        clock: uint64_t = read_u64(id)
        found: cython.pointer[Newest] = self._find(read_u64(id + 8), clock & _SOURCE)
        if found == cython.NULL:
            return self.sources.size() < SOURCES_MAX
        return clock > found.clock

    def _note(self, id):
        clock: uint64_t = read_u64(id)
        found: cython.pointer[Newest] = self._find(read_u64(id + 8), clock & _SOURCE)
        if found == cython.NULL:
            if self.sources.size() < SOURCES_MAX:
                self.sources.push_back(Newest(read_u64(id + 8), clock & _SOURCE, clock, True))
        elif clock > found.clock:
            found.clock, found.changed = clock, True


@cython.cclass
class Client:
    """What a run knows of a client, until something is done one by one."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue = self.session = b""
        self.is_known = self.changed = self.is_apart = False
        self.next_sequence = 0


@cython.cclass
class RunRows:
    """A run on its way into the rows: what it does is appended to ``pending.writes``.

    ``dot``: of its record, as rows have it, and what that had ``seen``; number 0: of none, which is not
    remembered. ``around`` says what the batch has
    changed otherwise (`Around` in `around_runs.py`).
    """

    def __init__(self, text: bytes, dot: bytes, seen, newest: NewestIds, pending, around) -> None:
        self.text, self.dot, self.seen = text, dot, seen
        self.newest, self.pending, self.around = newest, pending, around
        self.writes = pending.writes
        self.at = 0
        self.clients, self.beside, self.references, self.removed = {}, {}, {}, set()
        self.held = {}
        self._read()

    def go_on(self) -> bytes:
        """Does what can be done together. Gives the operations behind that, which are to be done one by one
        before this is called again; nothing: that was all.
        """
        data: cython.pointer[cython.const[uint8_t]] = _data(self.text)
        end: cython.size_t = 0
        left: bytes = b""
        while self.at < _size(self.text):
            done: cython.bint = self._act(data, cython.address(end))
            if not done:
                left = self.text[self.at : end]
            self.at = end
            if not done:
                break
        self._put_sessions()
        self.clients.clear()
        return left

    def _read(self):
        """The rows that the run is about, at once."""
        change: Change
        group: Group
        at: cython.size_t = 0
        size: cython.size_t = len(self.text)
        data: cython.pointer[cython.const[uint8_t]] = _data(self.text)
        removed: dict = {}
        ids: set = set()
        newest: NewestIds = self.newest._copy()  # as they will be when it is the turn of a group
        while at < size:
            if read_change(data, at, size, cython.address(change)):
                key: bytes = _entry_key(ord("q"), change.owner, change.owner_size, change.id)
                self.beside[key] = None
                if change.kind == REMOVE:
                    removed[key] = b"r" + key[1:]
                    ids.add(_bytes(change.id, ID_BYTES))
                at = change.end
            elif read_group(data, at, size, 0xFFFFFFFF, cython.address(group)):
                if newest._is_new(group.id):
                    newest._note(group.id)
                else:
                    self._ask_for(data, cython.address(group), removed)
                at = group.end
            else:
                break
        if not self.beside:
            return
        keys: list = list(self.beside)
        self.beside = dict(zip(keys, self.pending.get_many(_FAMILY, keys), strict=True))
        if self.held:
            keys = list(self.held)
            rows: list = self.pending.get_many("payload", keys)
            self.held = {key: value is not None for key, value in zip(keys, rows, strict=True)}
        if removed:
            found: list = self.pending.get_many(_FAMILY, list(removed.values()))
            self.removed = {key for key, value in zip(removed, found, strict=True) if value is not None}
            keys = list(ids)
            self.references = dict(zip(keys, self.pending.get_many("reference", keys), strict=True))

    def _ask_for(self, data, group, removed):
        """The rows of what a group adds that may be there already."""
        addition: Addition
        self.held[_bytes(group.id, ID_BYTES)] = None
        at: cython.size_t = group.first
        while at < group.end:
            read_addition(data, at, group.end, cython.address(addition))
            key: bytes = _entry_key(ord("q"), addition.owner, addition.owner_size, addition.id)
            self.beside[key] = None
            removed[key] = b"r" + key[1:]
            at = addition.sent.end if addition.is_sent else addition.end

    def _act(self, data, end):
        """Whether the next of it is done; where it ends."""
        change: Change
        group: Group
        size: cython.size_t = len(self.text)
        if read_change(data, self.at, size, cython.address(change)):
            end[0] = change.end
            return self._change(cython.address(change))
        if read_group(data, self.at, size, 0xFFFFFFFF, cython.address(group)):
            end[0] = group.end
            return self._add(data, cython.address(group))
        end[0] = size
        return False

    # --- sessions ----------------------------------------------------------------------------------

    def _client(self, owner, owner_size):
        name: bytes = _bytes(owner + 5, owner_size - 5)
        client: Client = self.clients.get(name)
        if client is None:
            client = self.clients[name] = Client(name.decode())
        return client

    def _may_send(self, client, epoch):
        """Whether this is the epoch of the client's session, which has one queue."""
        if not client.is_known:
            client.is_known = True
            client.queue, client.session = self.around.session(client.name)
            if _size(client.session) == _SESSION_BYTES and len(client.queue) == 8:
                client.next_sequence = read_u64(_data(client.session) + _NEXT)
            else:
                client.session = b""
        return len(client.session) > 0 and not memcmp(_data(client.session), epoch, ID_BYTES)

    def _raise_next(self, client, place):
        if place + 1 > client.next_sequence:
            client.next_sequence, client.changed = place + 1, True

    def _put_sessions(self):
        """The next places in the outboxes: once for all that was sent."""
        client: Client
        for client in self.clients.values():
            if client.changed:
                client.changed = False
                spelled: uint8_t[8]
                put_u64(cython.address(spelled[0]), client.next_sequence)
                place: bytes = _bytes(cython.address(spelled[0]), 8)
                client.session = client.session[:_NEXT] + place + client.session[_NEXT + 8 :]
                name: bytes = client.name.encode()
                self.writes.append((_FAMILY, b"s" + _count_bytes(len(name)) + name, client.session))

    # --- new messages ------------------------------------------------------------------------------

    def _add(self, data, group):
        addition: Addition
        is_new: cython.bint = self.newest._is_new(group.id)
        if not is_new and not self._is_absent(data, group):
            return False
        places: list = self._places(data, group)
        if not places:
            return False
        id: bytes = _bytes(group.id, ID_BYTES)
        count: uint32_t = group.additions
        held: cython.bint = not is_new and self._is_held(id)
        if held:  # for other queues
            counted: bytes = self.pending.get("reference", id)
            count += read_u32(_data(counted)) if counted is not None else 1
        else:
            self.writes.append(("payload", id, _bytes(group.message, group.message_size)))
            if id in self.held:
                self.held[id] = True
        self.references[id] = _count_bytes(count) if count > 1 else None
        if count > 1:
            self.writes.append(("reference", id, self.references[id]))
        next: cython.size_t = group.first
        for number in places:
            read_addition(data, next, group.end, cython.address(addition))
            self._write_addition(cython.address(addition), number)
            client: Client = self._client(addition.owner, addition.owner_size)
            if client.is_apart:
                self.around.note_added(client.name, id)
            next = addition.sent.end if addition.is_sent else addition.end
        self.newest._note(group.id)
        return True

    def _is_held(self, id):
        """Whether any queue has the message."""
        if id not in self.held:  # it was the newest when the run was read
            self.held[id] = self.pending.get("payload", id) is not None
        return self.held[id]

    def _is_absent(self, data, group):
        """Whether no queue of a group's additions has the message, nor had it and it was removed: what is not
        newer than all from its source may have come by another node. What this batch has changed otherwise
        is not seen here.
        """
        addition: Addition
        if self.around.has_changed_payload(read_u64(group.id), read_u64(group.id + 8)):
            return False
        at: cython.size_t = group.first
        while at < group.end:
            read_addition(data, at, group.end, cython.address(addition))
            client: Client = self._client(addition.owner, addition.owner_size)
            if client.has_changed is None:
                client.has_changed = self.around.has_changed_entries(client.name)
            key: bytes = _entry_key(ord("q"), addition.owner, addition.owner_size, addition.id)
            if key not in self.beside:  # it was the newest when the run was read
                self.beside[key] = self.pending.get(_FAMILY, key)
                if self.pending.get(_FAMILY, b"r" + key[1:]) is not None:
                    self.removed.add(key)
            if client.has_changed or self.beside[key] is not None or key in self.removed:
                return False
            at = addition.sent.end if addition.is_sent else addition.end
        return True

    def _places(self, data, group):
        """The queues of a group's additions, in order; none where one has none, or two have the same."""
        addition: Addition
        found: list = []
        at: cython.size_t = group.first
        while at < group.end:
            read_addition(data, at, group.end, cython.address(addition))
            client: Client = self._client(addition.owner, addition.owner_size)
            if client.place is None:
                client.place = self.around.place(client.name)
                client.is_apart = self.around.is_apart(client.name)
            if not client.place:
                return []
            found.append(client.place)
            at = addition.end
            if addition.is_sent:
                if addition.sent.place == _PLACE_MAX or not self._may_send(client, addition.sent.epoch):
                    return []
                at = addition.sent.end
        return [] if len(found) > 1 and len(set(found)) < len(found) else found

    def _write_addition(self, found, number):
        """The rows of one message in one queue; their layouts are those of `EntryLayout`."""
        text: cython.p_char
        ids: cython.size_t = found.ids_size - 4
        flags: uint8_t = found.fields[0] & _RETAIN | _COUNTED
        status: uint8_t = _IDLE
        place: uint64_t = 0
        if found.is_sent:
            flags, status, place = flags | _SENT, _IN_FLIGHT, found.sent.place
            self._raise_next(self._client(found.owner, found.owner_size), place)
        queue: cython.pointer[cython.const[uint8_t]] = _data(number)
        value: bytes = _queue_value(found.fields, flags, place, found.ids + 4, ids)
        self.writes.append(("queue", _queue_key(queue, status, found.id), value))
        if read_u64(found.fields + 6):
            self.writes.append(("expiry", _expiry_key(found.fields, queue, found.id), b""))
        value = PyBytes_FromStringAndSize(cython.NULL, _FIELDS + FIELDS_BYTES + found.ids_size)
        text = PyBytes_AS_STRING(value)
        memcpy(text, queue, 8)
        memset(text + 8, 0, _FIELDS - 8)  # no epoch, not unsent
        text[_SHARED] = found.shared
        put_u32(cython.cast(cython.pointer[uint8_t], text + _RECORDS), 1)
        if found.is_sent:
            memcpy(text + _EPOCH, found.sent.epoch, ID_BYTES)
        memcpy(text + _DOT, PyBytes_AS_STRING(self.dot), 16)
        memcpy(text + _FIELDS, found.fields, FIELDS_BYTES)
        memcpy(text + _FIELDS + FIELDS_BYTES, found.ids, found.ids_size)
        key: bytes = _entry_key(ord("q"), found.owner, found.owner_size, found.id)
        if key in self.beside:  # the run changes it later
            self.beside[key] = value
        self.writes.append((_FAMILY, key, value))

    # --- what is in queues -------------------------------------------------------------------------

    def _change(self, change):
        beside: Beside
        client: Client = self._client(change.owner, change.owner_size)
        if client.left_alone is None:
            client.left_alone = self.around.leaves_alone(client.name)
        if client.left_alone:
            return False
        if change.kind != REMOVE and (change.place == _PLACE_MAX or not self._may_send(client, change.epoch)):
            return False
        key: bytes = _entry_key(ord("q"), change.owner, change.owner_size, change.id)
        if change.kind == REMOVE and key in self.removed:
            return False
        text: bytes = self.beside[key]
        if text is None:
            if change.kind == SEND:
                self._raise_next(client, change.place)
            return True
        if not _read_beside(text, cython.address(beside)) or not self._has_seen(beside.queue + _DOT):
            return False
        if change.kind == REMOVE:
            return self._remove(change, key, cython.address(beside))
        if memcmp(beside.queue, _data(client.queue), 8):
            return False
        if change.kind == SEND:
            return self._put_in_flight(change, key, text, cython.address(beside), client)
        if change.kind == RELEASE:
            return self._release(change, cython.address(beside))
        return self._return(change, key, text, cython.address(beside))

    def _remove(self, change, key, beside):
        id: bytes = _bytes(change.id, ID_BYTES)
        if self.around.has_changed_payload(read_u64(change.id), read_u64(change.id + 8)):
            return False
        counted: bytes = self.references[id]
        count: uint32_t = 1
        if counted is not None:
            count = read_u32(_data(counted)) if len(counted) == 4 else 0
            if count < 2:
                return False
        writes: list = self.writes
        writes.append(("queue", _queue_key(beside.queue, _IDLE, change.id), None))
        writes.append(("queue", _queue_key(beside.queue, _IN_FLIGHT, change.id), None))
        if read_u64(beside.fields + 6):
            writes.append(("expiry", _expiry_key(beside.fields, beside.queue, change.id), None))
        if beside.shared and read_u64(_data(self.dot) + 8):
            self.removed.add(key)
            writes.append((_FAMILY, b"r" + key[1:], _count_bytes(1) + self.dot))
        writes.append((_FAMILY, key, None))
        self.beside[key] = None
        if count == 1:
            writes.append(("payload", id, None))
            if id in self.held:
                self.held[id] = False
        else:
            counted = _count_bytes(count - 1) if count > 2 else None
            self.references[id] = counted
            writes.append(("reference", id, counted))
        return True

    def _has_seen(self, dot):
        """Whether the record knew of that which has added an entry: mostly it is one of the same node."""
        if not memcmp(dot, _data(self.dot), 8):
            return True
        number: object = self.seen.get(read_u64(dot), 0)
        return cython.cast(uint64_t, number) >= read_u64(dot + 8)

    def _put_in_flight(self, change, key, text, beside, client):
        flags: uint8_t = beside.fields[0] & _RETAIN | _COUNTED | _SENT
        value: bytes = _queue_value(beside.fields, flags, change.place, beside.ids, beside.ids_size)
        self.writes.append(("queue", _queue_key(beside.queue, _IDLE, change.id), None))
        self.writes.append(("queue", _queue_key(beside.queue, _IN_FLIGHT, change.id), value))
        text = _under_epoch(text, change.epoch)
        self.beside[key] = text
        self.writes.append((_FAMILY, key, text))
        self._raise_next(client, change.place)
        return True

    def _release(self, change, beside):
        key: bytes = _queue_key(beside.queue, _IN_FLIGHT, change.id)
        row: bytes = self.pending.get("queue", key)
        if row is None or _size(row) != FIELDS_BYTES + 8 + beside.ids_size:
            return False
        flags: uint8_t = beside.fields[0] & _RETAIN | _COUNTED | _RELEASED | _data(row)[0] & _SENT
        place: uint64_t = read_u64(_data(row) + FIELDS_BYTES)
        value: bytes = _queue_value(beside.fields, flags, place, beside.ids, beside.ids_size)
        self.writes.append(("queue", key, value))
        return True

    def _return(self, change, key, text, beside):
        flying: bytes = _queue_key(beside.queue, _IN_FLIGHT, change.id)
        row: bytes = self.pending.get("queue", flying)
        if row is None or _size(row) != FIELDS_BYTES + 8 + beside.ids_size:
            return False
        flags: uint8_t = beside.fields[0] & _RETAIN | _COUNTED | _data(row)[0] & _SENT
        value: bytes = _queue_value(beside.fields, flags, 0, beside.ids, beside.ids_size)
        self.writes.append(("queue", flying, None))
        self.writes.append(("queue", _queue_key(beside.queue, _IDLE, change.id), value))
        text = _under_epoch(text, change.epoch)
        self.beside[key] = text
        self.writes.append((_FAMILY, key, text))
        return True


# --- rows ------------------------------------------------------------------------------------------------


def _entry_key(letter, owner, owner_size, id):
    key: bytes = PyBytes_FromStringAndSize(cython.NULL, 1 + owner_size + ID_BYTES)
    text: cython.p_char = PyBytes_AS_STRING(key)
    text[0] = letter
    memcpy(text + 1, owner, owner_size)
    memcpy(text + 1 + owner_size, id, ID_BYTES)
    return key


def _queue_key(number, status, id):
    key: bytes = PyBytes_FromStringAndSize(cython.NULL, 9 + ID_BYTES)
    text: cython.p_char = PyBytes_AS_STRING(key)
    memcpy(text, number, 8)
    text[8] = cython.cast(cython.char, status)
    memcpy(text + 9, id, ID_BYTES)
    return key


def _queue_value(fields, flags, place, ids, ids_size):
    value: bytes = PyBytes_FromStringAndSize(cython.NULL, FIELDS_BYTES + 8 + ids_size)
    text: cython.p_char = PyBytes_AS_STRING(value)
    memcpy(text, fields, FIELDS_BYTES)
    text[0] = cython.cast(cython.char, flags)
    put_u64(cython.cast(cython.pointer[uint8_t], text + FIELDS_BYTES), place)
    memcpy(text + FIELDS_BYTES + 8, ids, ids_size)
    return value


def _expiry_key(fields, number, id):
    key: bytes = PyBytes_FromStringAndSize(cython.NULL, 16 + ID_BYTES)
    text: cython.p_char = PyBytes_AS_STRING(key)
    memcpy(text, fields + 6, 8)
    memcpy(text + 8, number, 8)
    memcpy(text + 16, id, ID_BYTES)
    return key


def _count_bytes(count):
    spelled: uint8_t[4]
    put_u32(cython.address(spelled[0]), count)
    return _bytes(cython.address(spelled[0]), 4)


def _under_epoch(text, epoch):
    """What lies beside an entry, changed under this epoch."""
    changed: bytes = _bytes(_data(text), len(text))
    memcpy(PyBytes_AS_STRING(changed) + _EPOCH, epoch, ID_BYTES)
    return changed


def _read_beside(text, found):
    """Whether it is what one record has added."""
    data: cython.pointer[cython.const[uint8_t]] = _data(text)
    size: cython.size_t = len(text)
    if size < _FIELDS + FIELDS_BYTES + 4 or read_u32(data + _RECORDS) != 1:
        return False
    found.queue, found.shared, found.fields = data, data[_SHARED] != 0, data + _FIELDS
    found.ids = found.fields + FIELDS_BYTES + 4
    found.ids_size = size - (_FIELDS + FIELDS_BYTES + 4)
    return found.ids_size == 4 * cython.cast(cython.size_t, read_u32(found.ids - 4))
