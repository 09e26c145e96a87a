"""What of a node's rows is equal on all nodes that have applied the same, in the order of keys.

It is what the engine would read, whatever of it the records of all nodes explain, and what of the family
`cluster` decides about it. What is each node's own is left out: numbers of queues, how many queues refer to a
message, what is remembered of removals and can be forgotten, and what an ended session has left. Where a row
does not say what the records said, or is there without any, that is a part of it, so that it differs from
that of a node where all is well. One that is in a queue without any counts as an entry of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from hashlib import blake2b

from tidemq.cluster.conversion import STREAM
from tidemq.cluster.forms import Reader, decode, encode
from tidemq.cluster.operations import GROUP, SESSION, Owner, Stamp
from tidemq.cluster.owners import ELSEWHERE, LETTER
from tidemq.cluster.pending import Readable
from tidemq.cluster.piece_cuts import join
from tidemq.cluster.rows import End
from tidemq.cluster.stored_rows import parse_end
from tidemq.cluster.stored_tables import FAMILY
from tidemq.cluster.vectors import Dot
from tidemq.errors import ClusterError
from tidemq.store.interface import Row
from tidemq.store.rows import IDLE, IN_FLIGHT, RELEASED, RETAIN

SESSIONS, SUBSCRIPTIONS, QUEUES, RETAINED = "session", "subscription", "queue entry", "retained message"
MESSAGES, FORGOTTEN = "message", "forgotten node"
KINDS = (SESSIONS, SUBSCRIPTIONS, QUEUES, RETAINED, MESSAGES, FORGOTTEN)

WINDOW = 128  # entries of one queue that are put together with its rows at once
ID_BYTES = 16
_STREAM = STREAM.encode()

# of what lies beside an entry: behind the queue and the epoch how many records have added it; of the first
# then its record, whether it is shared, and unsent; flags, QoS, bytes, when it expires; and subscriptions'
# identifiers
_ADDS, _FIELDS, _IDS = 24, 46, 60
_FIELDS_BYTES = 14
_PLACE = slice(_FIELDS_BYTES, _FIELDS_BYTES + 8)  # in the row of a queue
_ADDED = "dot ? ? B B I q I*"

# how an entry's row is, before its place in the outbox and what the records have said
WAITS, FLIES, RELEASES, IS_MISSING, IS_OTHER, HAS_STRAYS = (bytes([each]) for each in range(1, 7))
_NONE = b"\0"  # behind a row: no record has brought it
_OTHER = b"\1"  # another one than what the record said
_SAME = b"\2"


class _Followed:
    """Rows of the family `cluster` with one letter, asked for in the order of their keys."""

    def __init__(self, store: Readable, letter: bytes, family: str = FAMILY) -> None:
        self._store = store
        self._letter = letter
        self._family = family
        self._rows: Iterator[Row] | None = None
        self._next: Row | None = None

    def at(self, name: bytes) -> list[Row]:
        """Those whose key begins with this, behind the letter; not before one that was asked for before."""
        prefix = self._letter + name
        if self._rows is None:
            self._rows = iter(self._store.scan(self._family, self._letter, prefix[:-1]))
            self._next = next(self._rows, None)
        while self._next is not None and self._next[0] < prefix:
            self._next = next(self._rows, None)
        found: list[Row] = []
        while self._next is not None and self._next[0].startswith(prefix):
            found.append(self._next)
            self._next = next(self._rows, None)
        return found


class ComparableRows:
    """Of one store, or of what was frozen of one. ClusterError where a row cannot be read."""

    def __init__(self, store: Readable) -> None:
        self._store = store
        self._scans: dict[str, Callable[[bytes], Iterator[Row]]] = {
            SESSIONS: self._sessions,
            SUBSCRIPTIONS: self._subscriptions,
            QUEUES: self._queues,
            RETAINED: self._retained,
            MESSAGES: lambda after: self._store.scan("payload", b"", after),
            FORGOTTEN: self._forgotten,
        }

    @property
    def vector(self) -> dict[int, int]:
        """The last record of each node that is applied."""
        rows = self._store.scan(FAMILY, b"a")
        return {decode("Q", key[1:])[0]: decode("Q digest", value)[0] for key, value in rows}

    def scan(self, kind: str, after: bytes = b"") -> Iterator[Row]:
        """All of a kind that come after a key, in the order of keys: the key, and what is to be equal."""
        return self._scans[kind](after)

    def find(self, kind: str, key: bytes) -> bytes | None:
        """What is to be equal of one key; None: it is not there."""
        after = _before(key)
        for found, text in self._queues(after, key) if kind == QUEUES else self.scan(kind, after):
            if found >= key:
                return text if found == key else None
        return None

    # --- sessions and subscriptions ----------------------------------------------------------------

    def _sessions(self, after: bytes) -> Iterator[Row]:
        """By the client's name, its size before it."""
        for key, beside in self._store.scan(FAMILY, b"s", b"s" + after):
            row = self._store.get("session", key[5:])
            if row is None:
                yield key[1:], beside[:33] + beside[49:] + _OTHER
                continue
            received = [each[8:] for each, _ in self._store.scan("received", row[:8])]
            marks = encode("I", len(received)) + b"".join(received)
            yield key[1:], beside[:33] + beside[49:] + _SAME + marks + row[8:]

    def _subscriptions(self, after: bytes) -> Iterator[Row]:
        """By the client's name, the size of that before it, and the filter, as the engine reads them."""
        sessions, ends, records = (_Followed(self._store, each) for each in (b"s", b"e", b"u"))
        client, has_session = b"", False
        ended: list[End] = []
        beside: dict[bytes, bytes] = {}
        for key, value in self._store.scan("subscription", b"", after):
            size = int.from_bytes(key[:2])
            name, topic_filter = key[2 : 2 + size], key[2 + size :]
            if topic_filter.startswith(_STREAM):
                continue
            spelled = encode("bytes", name)
            if spelled != client:
                client, has_session = spelled, bool(sessions.at(spelled))
                ended = [parse_end(each) for _, each in ends.at(spelled)]
                beside = {each[9 + size :]: text for each, text in records.at(spelled)}
            record = beside.get(topic_filter)
            if not has_session or (record and _is_hidden(ended, record[16:32])):
                continue
            if record is None:
                yield key, _NONE + value
            else:
                yield key, (_SAME if record[32] else _OTHER) + value + record[:16]

    # --- queues ------------------------------------------------------------------------------------

    def _queues(self, after: bytes, until: bytes = b"") -> Iterator[Row]:
        """By the owner (its kind, the size of its name, the name) and the message's id; without one, that a
        session has a queue: so also who has many that are empty gets on. Some more may come behind `until`.
        """
        sessions, ends = _Followed(self._store, b"s"), _Followed(self._store, b"e")
        owner, is_there = b"", True
        numbers: list[bytes] = []
        ended: list[End] = []
        for name, known, low, high, window in self._by_owner(after):
            if until and name > until:
                return
            if name != owner:
                owner, is_there = name, True
                ended = []
                if name[0] == SESSION:
                    is_there = bool(sessions.at(name[1:]))
                    ended = [parse_end(each) for _, each in ends.at(name[1:])]
                    if is_there and known and name > after:
                        yield name, b""
                numbers = self._numbers(name, known, window) if is_there else []
            if is_there:
                yield from self._window(name, numbers, low, high, window, ended)

    def _by_owner(self, after: bytes) -> Iterator[tuple[bytes, bytes, bytes, bytes, list[Row]]]:
        """As `_windows`, with the numbers of each owner's queues, as they are stored. Who has no entries, or
        none that come after, has one window without any.
        """
        entries = _windows(self._store.scan(FAMILY, b"q", b"q" + after), after)
        queues = self._known(_owner_bytes(after))
        window, queue = next(entries, None), next(queues, None)
        while window is not None or queue is not None:
            if window is None or (queue is not None and queue[0] < window[0]):
                assert queue is not None
                name, known = queue
                yield name, known, after[len(name) :] if after.startswith(name) else b"", b"", []
                queue = next(queues, None)
                continue
            name, known = window[0], b""
            if queue is not None and queue[0] == name:
                known, queue = queue[1], next(queues, None)
            while window is not None and window[0] == name:
                yield name, known, *window[1:]
                window = next(entries, None)

    def _known(self, first: bytes) -> Iterator[Row]:
        """Owners from one on, and the numbers of their queues, as they are stored."""
        if first[:1] == bytes([GROUP]) and self._store.get(FAMILY, LETTER + first) is None:
            yield first, b""  # its messages may be elsewhere
        for key, known in self._store.scan(FAMILY, LETTER, _before(LETTER + first)):
            if not self._is_of_another(key[1:]):
                yield key[1:], known

    def _is_of_another(self, owner: bytes) -> bool:
        """Whether it stands for what another node serves of a group, and that group has entries or queues."""
        if owner[0] != GROUP or not owner.startswith(ELSEWHERE.encode(), 5):
            return False
        group = encode("B bytes", GROUP, owner[5 + len(ELSEWHERE) :])
        has_queues = self._store.get(FAMILY, LETTER + group) is not None
        return has_queues or next(self._store.scan(FAMILY, b"q" + group), None) is not None

    def _numbers(self, owner: bytes, known: bytes, window: Sequence[Row]) -> list[bytes]:
        """Of an owner's queues those with rows. Of a session's only the current one: in the others is what
        ended sessions have left.
        """
        if owner[0] == SESSION:
            numbers = [known[-8:]] if known else []
        else:
            elsewhere = encode("B bytes", GROUP, ELSEWHERE.encode() + owner[5:])
            beside = self._store.get(FAMILY, LETTER + elsewhere) or b""
            numbers = [each[at : at + 8] for each in (known, beside) for at in range(4, len(each), 8)]
        here = window[0][1][:8] if window else b""
        return [each for each in numbers if each == here or next(self._store.scan("queue", each), None)]

    def _window(
        self,
        owner: bytes,
        numbers: Sequence[bytes],
        low: bytes,
        high: bytes,
        window: list[Row],
        ended: Sequence[End],
    ) -> list[Row]:
        """Of one owner what comes after `low`, and where there is `high` not behind it."""
        number = window[0][1][:8] if window else b""
        if not ended and all(each == number for each in numbers):
            if not window:
                return []
            both = [self._queue(number, status, low, high) for status in (IDLE, IN_FLIGHT)]
            joined = join(owner, window, *both)
            if joined is not None:
                return joined
        entries = [(key[-ID_BYTES:], text) for key, text in window]
        return self._odd_window(owner, numbers, low, high, entries, ended)

    def _queue(self, number: bytes, status: int, low: bytes, high: bytes) -> list[Row]:
        """Rows of a queue in a range of ids."""
        prefix = number + bytes([status])
        last = prefix + high
        rows = self._store.scan("queue", prefix, prefix + low)
        if not high:
            return list(rows)
        found: list[Row] = []
        for row in rows:
            if row[0] <= last:
                found.append(row)
            if row[0] >= last:  # not one more: it would be the first of a page
                break
        return found

    def _odd_window(
        self,
        owner: bytes,
        numbers: Iterable[bytes],
        low: bytes,
        high: bytes,
        window: list[Row],
        ended: Sequence[End],
    ) -> list[Row]:
        """The same where something is not as it nearly always is."""
        said = {message_id: text[_ADDS:] for message_id, text in window}
        if ended:
            said = {each: shown for each, text in said.items() if (shown := _shown(text, ended))}
        rows: dict[bytes, list[tuple[bytes, int, bytes]]] = {}  # number, status and row, by the message's id
        for number in sorted({*numbers, *(text[:8] for message_id, text in window if message_id in said)}):
            for status in (IDLE, IN_FLIGHT):
                for key, row in self._queue(number, status, low, high):
                    rows.setdefault(key[9:], []).append((number, status, row))
        found: dict[bytes, bytes] = {}
        for message_id, text in window:
            there = rows.get(message_id, [])
            own = next((each for each in reversed(there) if each[0] == text[:8]), None)
            if own is not None:
                there.remove(own)
            if message_id in said:
                found[message_id] = _state(text, own) + said[message_id]
        for message_id, there in rows.items():
            if there:
                strays = b"".join(sorted(bytes([status]) + encode("bytes", row) for _, status, row in there))
                found[message_id] = HAS_STRAYS + encode("bytes", strays) + found.get(message_id, b"")
        return [(owner + message_id, text) for message_id, text in sorted(found.items())]

    # --- the rest ----------------------------------------------------------------------------------

    def _retained(self, after: bytes) -> Iterator[Row]:
        """By the topic, as the engine reads them."""
        for topic, value in self._store.scan("retained", b"", after):
            record = self._store.get(FAMILY, b"t" + encode("bytes", topic))
            if record is None:
                yield topic, _NONE + value
            else:
                same = record[32] and record[:16] == value[:16]
                yield topic, (_SAME if same else _OTHER) + value

    def _forgotten(self, after: bytes) -> Iterator[Row]:
        """By the incarnation."""
        for key, value in self._store.scan(FAMILY, b"k", b"k" + after):
            yield key[1:], value[:-8]


def _before(key: bytes) -> bytes:
    """A key after which this one comes, and none that matters comes in between."""
    return key[:-1] + bytes([key[-1] - 1]) + b"\xff" * 32 if key and key[-1] else key[:-1]


def _owner_bytes(key: bytes) -> bytes:
    """Of a queue entry's key, which may end anywhere."""
    return key[: 5 + int.from_bytes(key[1:5])]


def _windows(rows: Iterable[Row], after: bytes) -> Iterator[tuple[bytes, bytes, bytes, list[Row]]]:
    """Entries of one owner, some at a time: the owner, the id after which, and, where more come, the last;
    and of each the id and what lies beside it.
    """
    owner, low = b"", b""
    window: list[Row] = []
    for key, text in rows:
        if len(window) == WINDOW or not key.startswith(owner, 1) or len(key) != len(owner) + 1 + ID_BYTES:
            name = key[1:-ID_BYTES]
            goes_on = name == owner
            last = window[-1][0][-ID_BYTES:] if window else b""
            if window:
                yield owner, low, last if goes_on else b"", window
            low = last if goes_on else after[len(name) :] if after.startswith(name) else b""
            owner, window = name, []
        window.append((key, text))
    if window:
        yield owner, low, b"", window


def _state(text: bytes, there: tuple[bytes, int, bytes] | None) -> bytes:
    """How an entry's row is, beside what its records said."""
    if there is None:
        return IS_MISSING
    _, status, row = there
    if text[_ADDS : _ADDS + 4] == b"\0\0\0\1":  # one record, as nearly always
        ids = text[_IDS + 4 :]
    else:
        ids = text[_IDS + 4 : _IDS + 4 + 4 * int.from_bytes(text[_IDS : _IDS + 4])]
    fields = text[_FIELDS:_IDS]
    if row[1:_FIELDS_BYTES] != fields[1:] or row[_PLACE.stop :] != ids or (row[0] ^ fields[0]) & RETAIN:
        return IS_OTHER + bytes([status]) + row
    if status == IDLE:
        return WAITS
    return (RELEASES if row[0] & RELEASED else FLIES) + row[_PLACE]


def _is_hidden(ended: Iterable[End], record: bytes) -> bool:
    dot = Dot(int.from_bytes(record[:8]), int.from_bytes(record[8:]))
    return any(each.hides(dot) for each in ended)


def _shown(text: bytes, ended: Sequence[End]) -> bytes:
    """What is there of what records have added; empty: nothing."""
    reader = Reader(text)
    shown: list[bytes] = []
    for _ in range(reader.count()):
        added = [reader.read(form) for form in _ADDED.split()]
        if not any(each.hides(added[0]) for each in ended):
            shown.append(encode(_ADDED, *added))
    return encode("I", len(shown)) + b"".join(shown) if shown else b""


# --- in words --------------------------------------------------------------------------------------------


def name_of(kind: str, key: bytes) -> str:
    """What a row is about."""
    if kind == SESSIONS:
        return f"client {_text(key[4:])}"
    if kind == SUBSCRIPTIONS:
        size = int.from_bytes(key[:2])
        return f"client {_text(key[2 : 2 + size])}, filter {_text(key[2 + size :])}"
    if kind == QUEUES:
        owner, message_id = owner_of(key), key[len(_owner_bytes(key)) :]
        whose = f"{'client' if owner.kind == SESSION else 'group'} {owner.name}"
        return f"{whose}, message {_id(message_id)}" if message_id else whose
    if kind == RETAINED:
        return f"topic {_text(key)}"
    return f"message {_id(key)}" if kind == MESSAGES else f"node {key.hex()}"


def owner_of(key: bytes) -> Owner:
    """Whose queue a queue entry is in."""
    return Owner(key[0], _text(_owner_bytes(key)[5:]))


def describe(kind: str, text: bytes | None) -> str:
    """What a node has, so that it can be told apart from what another one has."""
    if text is None:
        return "nothing"
    try:
        words = _DESCRIBE[kind](text)
    except (ClusterError, ValueError, IndexError):
        words = "what cannot be read"
    return f"{words} (digest {blake2b(text, digest_size=4).hexdigest()})"


def _describe_session(text: bytes) -> str:
    epoch, home, begins, following = (Reader(text, at).read(form) for at, form in _SESSION_FIELDS)
    row = "its row" if text[33:34] == _SAME else "no row"
    begun = ", begun anew" if begins else ""
    return f"epoch {_stamp(epoch)}, at home at {home:016x}{begun}, next place {following}, {row}"


_SESSION_FIELDS = ((0, "stamp"), (16, "Q"), (24, "?"), (25, "Q"))


def _describe_subscription(text: bytes) -> str:
    options, number = text[1], int.from_bytes(text[2:6])
    since = f", since {_stamp(Stamp(*decode('Q Q', text[6:22])))}" if text[:1] != _NONE else ""
    return f"options {options}, identifier {number}{since}{_ODD[text[:1]]}"


_ODD = {
    _SAME: "",
    _OTHER: ", which is not what its record said",
    _NONE: ", which no record has brought",
}


def _describe_entry(text: bytes) -> str:
    state = text[:1]
    if not state:
        return "a queue"
    if state == HAS_STRAYS:
        reader = Reader(text, 1)
        reader.read("bytes")
        stray = f"a row in the queue{_ODD[_NONE]}"
        return f"{_describe_entry(text[reader.at :])}, and {stray}" if reader.at < len(text) else stray
    if state == IS_MISSING:
        return "a record of it, and no row in the queue"
    if state == IS_OTHER:
        return f"a row{_ODD[_OTHER]}"
    if state == WAITS:
        return f"waiting{_describe_adds(text[1:])}"
    place = int.from_bytes(text[1:9])
    released = ", PUBREC has come" if state == RELEASES else ""
    return f"in flight in place {place}{released}{_describe_adds(text[9:])}"


def _describe_adds(text: bytes) -> str:
    reader = Reader(text)
    words = []
    for _ in range(reader.count()):
        (by, number), _, _, _, qos, size, expires_at_ms, _ = (reader.read(form) for form in _ADDED.split())
        expires = f", expires at {expires_at_ms} ms" if expires_at_ms else ""
        words.append(f"; added by record {number} of {by:016x} with QoS {qos}, {size} bytes{expires}")
    return "".join(words)


def _describe_retained(text: bytes) -> str:
    return f"message {_id(text[1:17])}, {len(text) - 17} bytes{_ODD[text[:1]]}"


_DESCRIBE: dict[str, Callable[[bytes], str]] = {
    SESSIONS: _describe_session,
    SUBSCRIPTIONS: _describe_subscription,
    QUEUES: _describe_entry,
    RETAINED: _describe_retained,
    MESSAGES: lambda text: f"{len(text)} bytes",
    FORGOTTEN: lambda text: _text(text[4:]),
}


def _text(name: bytes) -> str:
    return name.decode(errors="backslashreplace")


def _id(message_id: bytes) -> str:
    return message_id.hex()


def _stamp(stamp: Stamp) -> str:
    return f"{stamp.clock}/{stamp.incarnation:016x}"
