"""What nodes say of their rows to be compared: digests of pieces, each up to a row that its own key chooses.

Nodes cut in the same places without a word about it, and a row that one of them lacks moves no other cut. A
piece that differs is asked for again, cut behind each row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from tidemq.cluster.comparable_rows import KINDS
from tidemq.cluster.forms import Reader, encode
from tidemq.cluster.piece_cuts import Cutter
from tidemq.errors import ClusterError
from tidemq.store.interface import Row

QUESTION, ANSWER = "verify", "verified"  # messages between nodes
FREEZE, CUT, LOOK, FIND_OWNERS, DESCRIBE, END = range(1, 7)  # what is asked

BUSY = "it is being compared for"  # begins what a node says that answers another one

PIECE_BITS = 12  # a cut behind one of so many rows: 2 to the power of this
PIECES_MAX = 4096  # in one answer
LOOK_ROWS, LOOK_BYTES = 16, 64 << 10  # between two looks at the time


class Question(NamedTuple):
    """What one node asks of another. `nonce`: of the comparison; `turn`: of the question; `kind`: a number in
    `KINDS`; `bits`: as `PIECE_BITS`, 0: behind each row.
    """

    nonce: int
    turn: int
    act: int
    kind: int = 0
    after: bytes = b""
    until: bytes = b""  # the last key; empty: to the end
    bits: int = 0
    keys: Sequence[bytes] = ()

    def encode(self) -> bytes:
        """As it goes to another node."""
        keys = b"".join(encode("bytes", each) for each in self.keys)
        return encode("Q Q B B bytes bytes B I", *self[:-1], len(self.keys)) + keys


def parse_question(text: bytes) -> Question:
    """ClusterError where it is none."""
    reader = Reader(text, 0, "a question about rows")
    nonce, turn, act, kind = (reader.read(form) for form in ("Q", "Q", "B", "B"))
    after, until, bits, count = (reader.read(form) for form in ("bytes", "bytes", "B", "I"))
    keys = [reader.read("bytes") for _ in range(count)]
    reader.end()
    question = Question(nonce, turn, act, kind, after, until, bits, keys)
    if question.kind >= len(KINDS) or not FREEZE <= question.act <= END or question.bits > 32:
        raise ClusterError(
            f"a question about rows is {question.act}, of the kind {question.kind}, with {question.bits}"
            f" bits; accepted: {FREEZE} to {END}, less than {len(KINDS)}, up to 32"
        )
    return question


class Part(NamedTuple):
    """A part of the rows that were asked for: pairs up to a key, and whether that is the end of all. `rows`:
    how many were read for it.
    """

    last: bytes
    is_end: bool
    rows: int
    pairs: list[tuple[bytes, bytes]]

    def encode(self) -> bytes:
        """As it goes to another node."""
        pairs = b"".join(encode("bytes bytes", *each) for each in self.pairs)
        return encode("bytes ? Q I", self.last, self.is_end, self.rows, len(self.pairs)) + pairs


def parse_part(text: bytes) -> Part:
    """ClusterError where it is none."""
    reader = Reader(text, 0, "an answer about rows")
    last, is_end, rows, count = (reader.read(form) for form in ("bytes", "?", "Q", "I"))
    pairs = [(reader.read("bytes"), reader.read("bytes")) for _ in range(count)]
    reader.end()
    return Part(last, is_end, rows, pairs)


def cut(rows: Iterable[Row], until: bytes, bits: int, is_late: Callable[[], bool]) -> Part:
    """Pieces of rows: the last key of each, and its digest. The rest behind the last cut has an empty key.
    When `is_late`, which is asked now and then, the next cut ends it.
    """
    cutter = Cutter(bits)
    add = cutter.add
    count = size = 0
    late = False
    for key, text in rows:
        if until and key > until:
            break
        count += 1
        ends = add(key, text)
        size += len(text)
        if not count % LOOK_ROWS or size > LOOK_BYTES:
            late, size = is_late() or late, 0
        if ends and (late or cutter.count >= PIECES_MAX):
            return Part(key, False, count, cutter.take())
    rest = [(b"", cutter.rest())] if bits else []
    return Part(b"", True, count, cutter.take() + rest)


def ranges_that_differ(
    of_nodes: Sequence[Mapping[bytes, bytes]], after: bytes = b""
) -> Iterator[tuple[bytes, bytes]]:
    """Where nodes' pieces, in order, differ: after which key, and up to which; empty: to the end. The first
    begins after a key.
    """
    common = set.intersection(*(set(each) for each in of_nodes)) - {b""}
    walks = [iter(each.items()) for each in of_nodes]
    for until in (*sorted(common), b""):
        pieces = [_pieces_up_to(walk, until) for walk in walks]
        if any(each != pieces[0] for each in pieces):
            yield after, until
        after = until


def _pieces_up_to(walk: Iterator[tuple[bytes, bytes]], until: bytes) -> list[tuple[bytes, bytes]]:
    found: list[tuple[bytes, bytes]] = []
    for pair in walk:
        found.append(pair)
        if pair[0] == until:
            break
    return found
