"""Which queue of this node's store is whose.

Queues are numbered by each node for itself; records name their owners. An owner may have several: a session
that begins anew gets another, so that what is left of the one before is out of the engine's sight, and a
group has one for each of its shards.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence

from tidemq.cluster.forms import decode, encode
from tidemq.cluster.operations import Owner
from tidemq.cluster.pending import Readable
from tidemq.cluster.stored_tables import FAMILY
from tidemq.store import Write

REMEMBERED_MAX = 100_000  # owners
LETTER = b"o"
ELSEWHERE = "elsewhere/"  # before a group's name, which begins with `$share/`


class Owners:
    """Numbers by owner, the current one last. `new_number` gives one that no queue has had."""

    def __init__(self, store: Readable, new_number: Callable[[], int]) -> None:
        self._store = store
        self._new_number = new_number
        self._numbers: OrderedDict[Owner, tuple[int, ...]] = OrderedDict()
        self._changed: dict[Owner, tuple[int, ...]] = {}
        self._expected: dict[Owner, int] = {}

    def highest(self) -> int:
        """The highest number that any queue has."""
        rows = self._store.scan(FAMILY, LETTER)
        return max((number for _, text in rows for number in decode("Q*", text)[0]), default=0)

    def elsewhere(self, owner: Owner) -> int:
        """Where the messages of a group go that another node serves: no queue of the engine's."""
        return self.current(Owner(owner.kind, ELSEWHERE + owner.name))

    def numbers(self, owner: Owner) -> tuple[int, ...]:
        """All of an owner's; empty: it has none."""
        if owner in self._changed:
            return self._changed[owner]
        known = self._numbers.get(owner)
        if known is None:
            text = self._store.get(FAMILY, LETTER + encode("owner", owner))
            known = () if text is None else decode("Q*", text)[0]
            self._remember(owner, known)
        else:
            self._numbers.move_to_end(owner)
        return known

    def current(self, owner: Owner) -> int:
        """Where its messages go; a new one, if it has none."""
        numbers = self.numbers(owner)
        return numbers[-1] if numbers else self.begin(owner)

    def earlier(self, owner: Owner) -> int:
        """Where lies what a session that has ended has left, out of the engine's sight; a new one, if it has
        none.
        """
        numbers = self.numbers(owner)
        if len(numbers) < 2:
            numbers = (self._new_number(), *numbers)
            self.set(owner, numbers)
        return numbers[-2] if len(numbers) > 1 else numbers[0]

    def begin(self, owner: Owner) -> int:
        """A new one, which is the current one from now on."""
        number = self._expected.pop(owner, 0) or self._new_number()
        self.add(owner, number)
        return number

    def expect(self, owner: Owner, number: int) -> None:
        """What begins next for this owner has a number already."""
        self._expected[owner] = number

    def add(self, owner: Owner, number: int) -> None:
        """One that somebody else has made, which is the current one from now on."""
        self.set(owner, (*(each for each in self.numbers(owner) if each != number), number))

    def set(self, owner: Owner, numbers: Sequence[int]) -> None:
        """Exactly these."""
        self._changed[owner] = tuple(numbers)

    @property
    def changed(self) -> list[Owner]:
        """Owners whose numbers have been."""
        return list(self._changed)

    def writes(self) -> Iterator[Write]:
        """Those of what has been changed."""
        for owner, numbers in self._changed.items():
            text = encode("Q*", numbers) if numbers else None
            yield FAMILY, LETTER + encode("owner", owner), text

    def forget_changes(self) -> None:
        """They are in the store now, or are not to be."""
        for owner in self._changed:
            self._numbers.pop(owner, None)
        self._changed.clear()
        self._expected.clear()

    def read_again(self) -> None:
        """Nothing is remembered of what the store has."""
        self._numbers.clear()

    def _remember(self, owner: Owner, numbers: tuple[int, ...]) -> None:
        self._numbers[owner] = numbers
        while len(self._numbers) > REMEMBERED_MAX:
            self._numbers.popitem(last=False)
