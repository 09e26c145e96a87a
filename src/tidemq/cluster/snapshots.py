"""How a node that is new gets what the others have: the rows of one of them, as of one moment, in pieces.

The giver freezes a copy of its store, which for RocksDB is links to files; the taker asks for one piece after
the other, so that nothing waits in between and a lost message is asked for again. Queues get the taker's own
numbers. What has happened since comes as records: the taker has been a member since before the copy was made,
and so no node has dropped any of them.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

from tidemq.cluster.conversion import STREAM
from tidemq.cluster.forms import Reader, decode, encode, write
from tidemq.cluster.stored_tables import FAMILY
from tidemq.errors import ClusterError, StoreError
from tidemq.store import CopyableStore, Store, Write
from tidemq.store.engines import open_existing
from tidemq.store.interface import Row

FOLDER = "snapshot"  # in the data directory: links do not go beyond a file system
PIECE_BYTES = 256 << 10
IDLE_S = 60.0  # after which a copy that nobody asks for goes
AGAIN_S = 3.0  # without an answer
ANEW_S = 30.0  # without an answer, although it was asked for again
REJOINS = b"j"  # in the family `cluster`, of a node that has left: where the others were, a line each
UNFINISHED = b"w"  # likewise: a snapshot has begun and not ended
ROWS_AT_ONCE = 4096  # in one batch, of what may be any number
# likewise: somebody says that this node is no member; what that one has applied, and addresses
STRUCK_OFF = b"y"
ASIDE = b"v"  # likewise: entries of queues that a node had before it began anew, and nobody else

FAMILIES = (
    "payload",
    "reference",
    "queue",
    "expiry",
    "session",
    "received",
    "subscription",
    "retained",
    FAMILY,
)
_OWN = (
    b"b",
    b"c",
    REJOINS,
    UNFINISHED,
    STRUCK_OFF,
    ASIDE,
)  # letters of rows of the family `cluster` that concern one node alone

_log = logging.getLogger("tidemq.cluster")


class Giver:
    """Gives to one taker at a time. `folder` is the data directory."""

    def __init__(self, store: Store, folder: Path | None) -> None:
        self._store = store
        self._folder = folder / FOLDER if folder is not None else None
        self._copy: Store | None = None
        self._nonce = 0
        self._asked_at = 0.0
        self._is_given = False  # all of it, and it stays for who has lost the end
        self._rows = 0  # given so far
        self._question: tuple[int, bytes] | None = None  # that was answered last, and may come again
        self._forget_files()

    def answer(self, body: bytes, now: float) -> bytes | None:
        """The piece that is asked for; None: somebody else takes a snapshot at this time, or it is one of a
        copy that is gone: what is here by now is no continuation of that.

        ClusterError where the question is none, StoreError where no copy can be made.
        """
        nonce, index, after = decode("Q B bytes", body)
        if index >= len(FAMILIES):
            raise ClusterError(f"a snapshot has {len(FAMILIES)} families; {index} is asked for")
        waits = self._copy is not None and not self._is_given and now - self._asked_at < IDLE_S
        if nonce != self._nonce and waits:
            return None
        if nonce != self._nonce or self._copy is None:
            if (index, after) != (0, b""):
                return None
            self._freeze(nonce)
        self._asked_at = now
        assert self._copy is not None
        rows, size = list[Row](), 0
        done = True
        for key, value in self._copy.scan(FAMILIES[index], b"", after):
            if size >= PIECE_BYTES:
                done = False
                break
            size += len(key) + len(value)
            rows.append((key, value))
        if (index, after) != self._question:
            self._question = index, after
            self._rows += len(rows)
        self._is_given = done and index == len(FAMILIES) - 1
        last = rows[-1][0] if rows else after
        text = bytearray(encode("Q B bytes bytes ?", nonce, index, after, last, done))
        for key, value in rows:
            if _is_given(FAMILIES[index], key):
                write(text, "bytes", key)
                write(text, "bytes", value)
        return bytes(text)

    def _freeze(self, nonce: int) -> None:
        if self._folder is None or not isinstance(self._store, CopyableStore):
            raise StoreError("this store has no files that could be copied")
        self.end()
        self._folder.mkdir(mode=0o700)
        self._store.copy_to(self._folder)
        self._copy = open_existing(self._folder)
        self._nonce = nonce
        self._rows, self._question = 0, None

    @property
    def rows_given(self) -> int | None:
        """How many rows the taker has got, as far as it has asked; None: nobody takes any."""
        return self._rows if self._copy is not None and not self._is_given else None

    def tend(self, now: float) -> None:
        """Removes a copy that nobody asks for any more."""
        if self._copy is not None and now - self._asked_at >= IDLE_S:
            self.end()

    def end(self) -> None:
        """Removes the copy."""
        if self._copy is not None:
            self._copy.close()
            self._copy = None
        self._forget_files()

    def _forget_files(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _is_given(family: str, key: bytes) -> bool:
    """Whether a row is of all nodes. Streams are each node's own."""
    if family == FAMILY:
        return key[:1] not in _OWN
    if family == "subscription":
        return not key[2 + int.from_bytes(key[:2]) :].startswith(STREAM.encode())
    return True


class Taker:
    """Takes one snapshot into an empty store. `new_number` gives the number of a queue that never was. Given
    up, it has no `giver`: 0.
    """

    def __init__(self, giver: int, new_number: Callable[[], int]) -> None:
        self.giver = giver
        self._new_number = new_number
        self._numbers: dict[bytes, bytes] = {}
        self._nonce = secrets.randbits(63)
        self._index = 0
        self._after = b""
        self._asked_at = -AGAIN_S
        self._waits_since: float | None = None
        # that has come: its last key, whether it is the family's last piece, and its rows
        self._piece: tuple[bytes, bool, int] | None = None
        self.rows = 0
        self.is_done = False

    def question(self, now: float) -> bytes | None:
        """What is to be asked for now; None: the answer is still awaited."""
        if self.is_done or now - self._asked_at < AGAIN_S:
            return None
        self._asked_at = now
        self._waits_since = now if self._waits_since is None else self._waits_since
        return encode("Q B bytes", self._nonce, self._index, self._after)

    def is_lost(self, now: float) -> bool:
        """Whether the rest does not come: the giver is gone, or its copy."""
        return self._waits_since is not None and now - self._waits_since >= ANEW_S

    def give_up(self, store: Store) -> None:
        """What has come is of a moment that is gone. The next one begins with an empty store."""
        _log.warning("the rest of what %016x has does not come: this node begins anew", self.giver)
        remove_rows(store)
        self.giver, self._waits_since = 0, None

    def take(self, body: bytes) -> list[Write]:
        """The writes of a piece, which is `took` when they are in the store; none where it is not the one
        that was asked for.
        """
        reader = Reader(body, 0, "a piece of a snapshot")
        nonce, index, after, last, done = (reader.read(form) for form in ["Q", "B", "bytes", "bytes", "?"])
        if (nonce, index, after) != (self._nonce, self._index, self._after) or self.is_done:
            return []
        writes: list[Write] = []
        while reader.at < len(body):
            writes.append(self._renumbered(FAMILIES[index], reader.read("bytes"), reader.read("bytes")))
        self._piece = last, done, len(writes)
        return writes

    def took(self) -> None:
        """The next piece is wanted."""
        if self._piece is None:
            return
        (last, done, count), self._piece = self._piece, None
        self.rows += count
        self._asked_at, self._waits_since = -AGAIN_S, None
        self._after = b"" if done else last
        self._index += done
        self.is_done = self._index == len(FAMILIES)

    def _number(self, number: bytes) -> bytes:
        if number not in self._numbers:
            self._numbers[number] = self._new_number().to_bytes(8)
        return self._numbers[number]

    def _renumbered(self, family: str, key: bytes, value: bytes) -> Write:
        """A row with the numbers that queues have here."""
        if family in ("queue", "received"):
            key = self._number(key[:8]) + key[8:]
        elif family == "expiry":
            key = key[:8] + self._number(key[8:16]) + key[16:]
        elif family == "session" or (family == FAMILY and key[:1] == b"q"):
            value = self._number(value[:8]) + value[8:]
        elif family == FAMILY and key[:1] == b"o":
            numbers = (self._number(each.to_bytes(8)) for each in decode("Q*", value)[0])
            value = encode("Q*", [int.from_bytes(each) for each in numbers])
        return family, key, value


def begin_taking(store: Store, giver: int, new_number: Callable[[], int]) -> Taker:
    """Into a store of which nothing is to stay. Each start goes on with that until the snapshot has ended."""
    store.write([(FAMILY, UNFINISHED, b"")], sync=True)
    remove_rows(store)
    _log.warning("this node takes over what %016x has", giver)
    return Taker(giver, new_number)


def remove_rows(store: Store) -> None:
    """Removes what a snapshot that was not ended has left. While `UNFINISHED` is there, which stays, each
    start goes on with it.
    """
    write_in_pieces(
        store,
        (
            (family, key, None)
            for family in FAMILIES
            for key, _ in store.scan(family)
            if family != FAMILY or key[:1] not in _OWN
        ),
    )


def write_in_pieces(store: Store, writes: Iterable[Write]) -> None:
    """However many there are; durable when it returns."""
    left = iter(writes)
    while piece := list(itertools.islice(left, ROWS_AT_ONCE)):
        store.write(piece, sync=False)
    store.sync()
