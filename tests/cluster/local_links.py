"""Links within one process: what is sent is there at once, unless it is cut."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from waiting import until

from tidemq.broker.clustering import ClusterFigures, VerifyFigures
from tidemq.broker.plugins.forks import OnForks
from tidemq.cluster.identity import Identity
from tidemq.cluster.keeping import ClusterKeeper
from tidemq.engine import Engine, StoreAccess
from tidemq.engine.door.events import SessionRequest
from tidemq.store import Store


class LocalLinks:
    """Of all nodes of a test. Each takes its own by `of`."""

    def __init__(self) -> None:
        self.keepers: dict[int, ClusterKeeper] = {}
        self.copies: dict[int, dict[int, dict[int, bytes]]] = {}  # by holder, incarnation and number
        self.cut: set[int] = set()  # nodes that nobody reaches, and which reach nobody
        self.unheard: set[int] = set()  # nodes that hear nobody, and whose servers take copies all the same
        self.copying = True
        self.dropped: set[str] = set()  # kinds of messages that reach nobody


class Links:
    """As in `tidemq.cluster.links`."""

    def __init__(self, all_links: LocalLinks) -> None:
        self._all = all_links
        self.own = 0

    def join(self, keeper: ClusterKeeper) -> None:
        """The node is there from now on."""
        self.own = keeper.node.incarnation
        self._all.keepers[self.own] = keeper

    def leave(self) -> None:
        """The node is gone."""
        self._all.keepers.pop(self.own, None)

    def others(self) -> list[int]:
        """The other nodes that are there."""
        return [each for each in self._all.keepers if each != self.own and each not in self._all.cut]

    def _reached(self, to: int) -> ClusterKeeper | None:
        cut = self._all.cut & {to, self.own}
        return None if cut else self._all.keepers.get(to)

    def send(self, to: int, kind: str, body: bytes) -> None:
        keeper = self._reached(to)
        heard = to not in self._all.unheard and kind not in self._all.dropped
        if keeper is not None and heard:
            keeper.inbox.take_in(kind, self.own, body)

    def broadcast(self, kind: str, body: bytes) -> None:
        for each in list(self._all.keepers):
            if each != self.own:
                self.send(each, kind, body)

    def copy(self, to: int, records: Sequence[tuple[int, bytes]]) -> None:
        if self._reached(to) is None or not self._all.copying:
            return
        kept = self._all.copies.setdefault(to, {}).setdefault(self.own, {})
        kept.update(records)
        keeper = self._all.keepers.get(self.own)
        if keeper is not None:  # else it leaves, and writes its last
            keeper.inbox.take_copied(to, max(kept))

    def trim(self, number: int) -> None:
        for of_holder in self._all.copies.values():
            kept = of_holder.get(self.own, {})
            for each in [each for each in kept if each <= number]:
                del kept[each]

    def fetch(self, holder: int, incarnation: int, first: int, last: int) -> None:
        kept = self._all.copies.get(holder, {}).get(incarnation, {})
        found = [kept[each] for each in range(first, last + 1) if each in kept]
        if found and self._reached(holder) is not None:
            self._all.keepers[self.own].inbox.take_fetched(holder, found)

    def ask_for_last(self, incarnation: int) -> None:
        kept = self._all.copies.get(self.own, {}).get(incarnation, {})
        self._all.keepers[self.own].inbox.take_last(incarnation, max(kept, default=0))

    def meet(self, incarnation: int, address: str) -> None:
        """All know each other."""

    def greet(self, incarnation: int) -> None:
        """All serve each other."""

    def has_met(self, _incarnation: int) -> bool:
        return True

    def part(self, _incarnation: int) -> None:
        """No message goes to another node."""

    def expect(self, _incarnation: int, _filters: list[str]) -> None:
        """No message goes to another node."""

    def hold(self, _client: str, _incarnation: int, _filters: list[str]) -> bool:
        return True

    def let_go(self, _client: str) -> None:
        """No message goes to another node."""

    def open(self, _incarnation: int) -> None:
        """Nobody was parted with."""

    def apart(self) -> tuple[int, ...]:
        return ()

    def use_format(self, _number: int) -> None:
        """No batch goes to another node."""

    def announce(self, *, flush: bool = False) -> int:
        return 0

    def announced(self, _number: int) -> tuple[int, ...] | None:
        return ()

    def taken_so_far(self) -> list[tuple[int, int, int]]:
        return []

    def given_so_far(self) -> list[int]:
        return []

    def has_acted_on(self, _given: Sequence[int]) -> bool:
        return True

    def forget_copies(self, incarnation: int, number: int) -> None:
        kept = self._all.copies.get(self.own, {})
        if max(kept.get(incarnation, {}), default=0) <= number:
            kept.pop(incarnation, None)

    def drop(self, _incarnation: int) -> None:
        """All know each other."""

    def refuse(self, _incarnation: int) -> None:
        """Nobody was asked."""

    def taken_over(self, _incarnation: int) -> None:
        """Nobody waits for it."""


class LocalCluster:
    """As `Clustering` in `tidemq.broker`, over `LocalLinks`. No message goes to another node at once."""

    def __init__(self, name: str, links: LocalLinks, **identity: Any) -> None:
        self._identity = Identity("c", name, "here", **identity)
        self._links = Links(links)
        self._access: StoreAccess | None = None
        self.keeper: ClusterKeeper | None = None

    def make_keeper(self, store: Store, access: StoreAccess, **options: Any) -> ClusterKeeper:
        self._access = access
        self.keeper = ClusterKeeper(store, access, identity=self._identity, links=self._links, **options)
        return self.keeper

    def report_forks(self, report: OnForks) -> None:
        assert self.keeper is not None
        self.keeper.on_forks = report

    async def begin(self, _engine: Engine) -> None:
        assert self.keeper is not None
        keeper = self.keeper
        self._links.join(keeper)
        if self._links.others():
            await until(lambda: asyncio.wrap_future(keeper.ask(lambda: keeper.is_up_to_date)))
        await asyncio.wrap_future(keeper.ask(keeper.load_engine))

    async def serve(self) -> None:
        assert self.keeper is not None
        await asyncio.wrap_future(self.keeper.ask(self.keeper.serve))

    async def find_session(self, request: SessionRequest) -> int:
        assert self.keeper is not None
        return await asyncio.wrap_future(self.keeper.connect(request.client_id, request.clean_start))

    def session_ready(self, connection: int, reason: int) -> None:
        assert self._access is not None
        self._access.session_ready(connection, reason)

    def close(self) -> None:
        self._links.leave()

    def counts(self) -> dict[str, int]:
        return {}

    def figures(self) -> ClusterFigures | None:
        return self.keeper.survey.figures(time.monotonic()) if self.keeper is not None else None

    async def drain(self, _disconnect_all: Callable[[], Awaitable[int]]) -> None:
        raise NotImplementedError

    async def forget(self, who: str) -> str:
        assert self.keeper is not None
        return await asyncio.wrap_future(self.keeper.forget(who))

    async def verify(self, wait_s: float) -> VerifyFigures:
        assert self.keeper is not None
        return await asyncio.wrap_future(self.keeper.verifying.begin(wait_s))

    def verification(self) -> VerifyFigures | None:
        return self.keeper.verifying.figures() if self.keeper is not None else None

    def problems(self) -> list[str]:
        return []
