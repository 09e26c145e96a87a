"""Links within one process: what is sent is there at once, unless it is cut."""

from __future__ import annotations

from collections.abc import Sequence

from tidemq.cluster.keeping import ClusterKeeper


class LocalLinks:
    """Of all nodes of a test. Each takes its own by `of`."""

    def __init__(self) -> None:
        self.keepers: dict[int, ClusterKeeper] = {}
        self.copies: dict[int, dict[int, dict[int, bytes]]] = {}  # by holder, incarnation and number
        self.cut: set[int] = set()  # nodes that nobody reaches, and which reach nobody
        self.copying = True


class Links:
    """As in `tidemq.cluster.links`."""

    def __init__(self, all_links: LocalLinks) -> None:
        self._all = all_links
        self.own = 0

    def join(self, keeper: ClusterKeeper) -> None:
        """The node is there from now on."""
        self.own = keeper.node.incarnation
        self._all.keepers[self.own] = keeper

    def _reached(self, to: int) -> ClusterKeeper | None:
        cut = self._all.cut & {to, self.own}
        return None if cut else self._all.keepers.get(to)

    def send(self, to: int, kind: str, body: bytes) -> None:
        keeper = self._reached(to)
        if keeper is not None:
            keeper.take_in(kind, self.own, body)

    def broadcast(self, kind: str, body: bytes) -> None:
        for each in list(self._all.keepers):
            if each != self.own:
                self.send(each, kind, body)

    def copy(self, to: int, records: Sequence[tuple[int, bytes]]) -> None:
        if self._reached(to) is None or not self._all.copying:
            return
        kept = self._all.copies.setdefault(to, {}).setdefault(self.own, {})
        kept.update(records)
        self._all.keepers[self.own].take_copied(to, max(kept))

    def trim(self, number: int) -> None:
        for of_holder in self._all.copies.values():
            kept = of_holder.get(self.own, {})
            for each in [each for each in kept if each <= number]:
                del kept[each]

    def fetch(self, holder: int, incarnation: int, first: int, last: int) -> None:
        kept = self._all.copies.get(holder, {}).get(incarnation, {})
        found = [kept[each] for each in range(first, last + 1) if each in kept]
        if found and self._reached(holder) is not None:
            self._all.keepers[self.own].take_fetched(holder, found)
