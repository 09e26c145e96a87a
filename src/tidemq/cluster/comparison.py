"""Whether nodes have the same rows, and if not, which is the first that differs.

All freeze their stores. Where all had applied the same by then, what differs is wrong. On a cluster under
load they hardly ever have; then what differs may be on its way, and is looked at again and again, each time
when each node has applied what any of them had the last time.

So what a node has at one look lies between what another one has at the look before and at the one after: in
records, not in time. A row that one node has at all three, unchanged, and another one has not at the look
between, is wrong on one of them: there all was applied that had made the row, and nothing that changes it, or
it would be changed at the third look. This holds for a row that does not come back once it has changed or is
gone. That there is *none* comes back, so nobody is wrong by having none two times. What a row says comes back
where it is a state: a message waits, is sent, and waits again; the mark of a QoS 2 message comes, goes, and
comes with the next one of its packet identifier. Where two nodes have a row of such a kind, and not the same,
no number of looks makes it certain. It counts as different when neither has changed it in many.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tidemq.cluster.comparable_rows import KINDS, MESSAGES, QUEUES, SESSIONS, name_of, owner_of
from tidemq.cluster.digests import (
    CUT,
    DESCRIBE,
    FIND_OWNERS,
    FREEZE,
    LOOK,
    PIECE_BITS,
    Part,
    Question,
    parse_part,
    ranges_that_differ,
)
from tidemq.cluster.forms import decode
from tidemq.cluster.operations import SESSION
from tidemq.cluster.vectors import covers, raised

TRIES = 5  # to find all nodes at one vector, before rows are compared all the same
TRY_S = 0.2
UNEVEN = 0.618  # no two waits are equally long: looks are not to keep step with a client that publishes
SUSPECTS_MAX = 2000  # rows that are looked at again at once
LOOKS = 3  # in a row at which one node has the same, and another one something else at the middle one
LOOKS_AT_STATES = 12  # in a row at which two have what they had, of kinds that say what they said before
STATES = (SESSIONS, QUEUES)  # these kinds
KEYS_MAX = 64  # in one question

Texts = Mapping[int, bytes]


class Asking(Protocol):
    """`Question`s without nonce and turn, put to nodes."""

    def __call__(self, questions: Mapping[int, Question]) -> dict[int, bytes]:
        """What each answers. ClusterError where one does not, or cannot."""


@dataclass(frozen=True, slots=True)
class Difference:
    """A row that is not the same on all nodes: of which kind, what it is about, and what each node has."""

    kind: str
    what: str
    has: Mapping[int, str]


@dataclass(slots=True)
class Outcome:
    """`difference`: the first; None: none is known. `undecided`: why nothing can be said; empty: it can.
    `looks`: how often rows were looked at; 1: all nodes had applied the same.
    """

    difference: Difference | None = None
    undecided: str = ""
    looks: int = 1


@dataclass(frozen=True, slots=True)
class _Suspect:
    kind: str
    key: bytes
    looks: Sequence[Texts] = field(compare=False)  # digests by node; empty: it has no such row

    @property
    def digests(self) -> Texts:
        return self.looks[-1]

    def seen_again(self, digests: Texts) -> _Suspect:
        return _Suspect(self.kind, self.key, [*self.looks, digests][-LOOKS_AT_STATES:])

    def is_different(self) -> bool:
        """Whether it can not be on its way; see above."""
        return any(
            self._is_wrong(one, other) for one in self.digests for other in self.digests if one != other
        )

    def _is_wrong(self, one: int, other: int) -> bool:
        """One of these two is: `one` has had the same all the time, the other something else."""
        if len(self.looks) < LOOKS:
            return False
        may_return = self.kind in STATES and self.looks[-2][other]
        wanted = LOOKS_AT_STATES if may_return else LOOKS
        looks = self.looks[-wanted:]
        has = self.digests[one]
        if len(looks) < wanted or not has or any(each[one] != has for each in looks):
            return False
        others = {each[other] for each in looks[1:]}
        return has not in others and (not may_return or len(others) == 1)


def _question(act: int, kind: str = KINDS[0], **more: Any) -> Question:
    return Question(0, 0, act, KINDS.index(kind))._replace(**more)


class Comparison:
    """Of some nodes. `run` waits; `rows` says how far it is, to any thread."""

    def __init__(
        self,
        nodes: Sequence[int],
        ask: Asking,
        *,
        wait_s: float,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], object] = time.sleep,
    ) -> None:
        self._nodes = nodes
        self._ask = ask
        self._clock, self._sleep = clock, sleep
        self._ends_at = clock() + wait_s
        self._vectors: list[dict[int, int]] = []
        self._waits = 0
        self.rows = 0  # that were read on all nodes
        self.doing = "waits until all nodes have the same"

    def run(self) -> Outcome:
        """ClusterError where a node does not answer."""
        looks, more = 1, True
        behind = KINDS[0], b""
        while more:
            vectors = self._freeze_together()
            same = _are_equal(vectors)
            suspects, more = self._find(*behind, first_only=same)
            if suspects:  # none of these may be a difference; if so, the rest is compared
                behind = suspects[-1].kind, suspects[-1].key
            if same:
                if found := self._first(suspects):
                    return Outcome(found, looks=looks)
                continue
            while suspects:
                looks += 1
                if not self._freeze_after(vectors):
                    first = name_of(suspects[0].kind, suspects[0].key)
                    text = (
                        f"{len(suspects)}{' or more' if more else ''} rows differ, perhaps by what is still"
                        f" on its way; the first is {suspects[0].kind} of {first}"
                    )
                    return Outcome(undecided=text, looks=looks)
                suspects, sure = self._look_again(suspects)
                if found := self._first(sure):
                    return Outcome(found, looks=looks)
                vectors = self._vectors
        return Outcome(looks=looks)

    # --- moments -----------------------------------------------------------------------------------

    def _freeze(self) -> list[dict[int, int]]:
        answers = self._ask(dict.fromkeys(self._nodes, _question(FREEZE)))
        self._vectors = [decode("vector", each)[0] for each in answers.values()]
        return self._vectors

    def _freeze_together(self) -> list[dict[int, int]]:
        """Where all nodes have applied the same. Where one is only behind it is waited for; where more and
        more happens it is left at some tries.
        """
        vectors = self._freeze()
        tried = 1
        while not _are_equal(vectors) and self._clock() < self._ends_at:
            self._sleep(TRY_S)
            before, vectors = _top(vectors), self._freeze()
            tried += _top(vectors) != before
            if tried >= TRIES:
                break
        return vectors

    def _freeze_after(self, vectors: Sequence[Mapping[int, int]]) -> bool:
        """When each node has applied what any had; False: that took too long."""
        self.doing = "waits until each node has what the others had"
        top = _top(vectors)
        while self._clock() < self._ends_at:
            self._waits += 1
            self._sleep(TRY_S * (1 + self._waits * UNEVEN % 1))
            if all(covers(each, top) for each in self._freeze()):
                return True
        return False

    # --- rows --------------------------------------------------------------------------------------

    def _find(self, kind: str, after: bytes, *, first_only: bool) -> tuple[list[_Suspect], bool]:
        """Rows behind that one that differ, in order, and whether there may be more."""
        found: list[_Suspect] = []
        for each in KINDS[KINDS.index(kind) :]:
            self.doing = f"compares rows of the kind {each}"
            for low, until in ranges_that_differ(self._pieces(each, after), after):
                for suspect in self._rows_that_differ(each, low, until):
                    found.append(suspect)
                    if len(found) >= SUSPECTS_MAX or (first_only and self._is_sure(suspect)):
                        return found, True
            after = b""
        return found, False

    def _is_sure(self, suspect: _Suspect) -> bool:
        """Whether nothing else need be asked. A message that one node lacks may be left over on another."""
        return suspect.kind != MESSAGES or all(suspect.digests.values())

    def _pieces(self, kind: str, after: bytes) -> list[dict[bytes, bytes]]:
        """Of each node's rows of a kind, behind a key."""
        pieces: dict[int, dict[bytes, bytes]] = {each: {} for each in self._nodes}
        at = dict.fromkeys(self._nodes, after)
        while at:
            questions = {node: _question(CUT, kind, after=key, bits=PIECE_BITS) for node, key in at.items()}
            for node, part in self._parts(questions).items():
                pieces[node].update(part.pairs)
                at[node] = part.last
                if part.is_end:
                    del at[node]
        return list(pieces.values())

    def _rows_that_differ(self, kind: str, after: bytes, until: bytes) -> Iterator[_Suspect]:
        """In a range, in order. Holds an answer of each node."""
        rows: dict[int, dict[bytes, bytes]] = {each: {} for each in self._nodes}
        at: dict[int, bytes] = dict.fromkeys(self._nodes, after)  # up to where rows of a node are known
        while at:
            low = min(at.values())
            behind = {node: key for node, key in at.items() if key == low}
            questions = {node: _question(CUT, kind, after=key, until=until) for node, key in behind.items()}
            for node, part in self._parts(questions).items():
                rows[node].update(part.pairs)
                at[node] = part.last
                if part.is_end:
                    del at[node]
            known = min(at.values(), default=None)
            keys = {key for each in rows.values() for key in each if known is None or key <= known}
            for key in sorted(keys):
                digests = {node: each.pop(key, b"") for node, each in rows.items()}
                if len({*digests.values()}) > 1:
                    yield _Suspect(kind, key, [digests])

    def _parts(self, questions: Mapping[int, Question]) -> dict[int, Part]:
        parts = {node: parse_part(text) for node, text in self._ask(questions).items()}
        self.rows += sum(each.rows for each in parts.values())
        return parts

    # --- what differs ------------------------------------------------------------------------------

    def _look_again(self, suspects: Sequence[_Suspect]) -> tuple[list[_Suspect], list[_Suspect]]:
        """What still differs, and of that what is sure to."""
        left: list[_Suspect] = []
        sure: list[_Suspect] = []
        for suspect, digests in zip(suspects, self._look(suspects), strict=True):
            if len({*digests.values()}) == 1:
                continue
            now = suspect.seen_again(digests)
            (sure if now.is_different() else left).append(now)
        return left, sure

    def _look(self, suspects: Sequence[_Suspect]) -> list[dict[int, bytes]]:
        self.doing = f"looks again at {len(suspects)} rows"
        found: dict[tuple[str, bytes], dict[int, bytes]] = {}
        for kind in KINDS:
            keys = [each.key for each in suspects if each.kind == kind]
            for at in range(0, len(keys), KEYS_MAX):
                question = _question(LOOK, kind, keys=keys[at : at + KEYS_MAX])
                for node, part in self._parts(dict.fromkeys(self._nodes, question)).items():
                    for key, digest in part.pairs:
                        found.setdefault((kind, key), {})[node] = digest
        return [found[each.kind, each.key] for each in suspects]

    def _first(self, suspects: Sequence[_Suspect]) -> Difference | None:
        """The first that is a difference, in words."""
        owners: dict[bytes, bytes] | None = None
        for suspect in suspects:
            whose = ""
            if suspect.kind == MESSAGES:
                if owners is None:
                    owners = self._find_owners(suspects)
                if not self._is_sure(suspect) and suspect.key not in owners:
                    continue
                if suspect.key in owners:
                    owner = owner_of(owners[suspect.key])
                    word = "client" if owner.kind == SESSION else "group"
                    whose = f", in the queue of {word} {owner.name}"
            question = _question(DESCRIBE, suspect.kind, keys=[suspect.key])
            answers = self._ask(dict.fromkeys(self._nodes, question))
            has = {node: str(decode("text", text)[0]) for node, text in answers.items()}
            return Difference(suspect.kind, name_of(suspect.kind, suspect.key) + whose, has)
        return None

    def _find_owners(self, suspects: Sequence[_Suspect]) -> dict[bytes, bytes]:
        """An entry of a queue that has the message, where a node has that and not the message."""
        self.doing = "looks for the queues of messages"
        lacks = {each.key: each.digests for each in suspects if each.kind == MESSAGES}
        found: dict[bytes, bytes] = {}
        after = dict.fromkeys(self._nodes, b"")
        while after:
            questions = {
                node: _question(FIND_OWNERS, QUEUES, after=key, keys=[*lacks]) for node, key in after.items()
            }
            for node, part in self._parts(questions).items():
                for message_id, key in part.pairs:
                    if not lacks[message_id][node] or all(lacks[message_id].values()):
                        found.setdefault(message_id, key)
                after[node] = part.last
                if part.is_end:
                    del after[node]
        return found


def _are_equal(vectors: Sequence[Mapping[int, int]]) -> bool:
    return all(each == vectors[0] for each in vectors)


def _top(vectors: Sequence[Mapping[int, int]]) -> dict[int, int]:
    top: dict[int, int] = {}
    for each in vectors:
        top = raised(top, each)
    return top
