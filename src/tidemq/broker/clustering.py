"""What makes a broker a node of a cluster, as the broker sees it: `tidemq.cluster` has it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from tidemq.broker.durability.keeper import Keeper
    from tidemq.engine import Engine, StoreAccess
    from tidemq.engine.door.events import SessionRequest
    from tidemq.store import Store


class Clustering(Protocol):
    """Of one broker. Methods that are not coroutines may wait, and are called on other threads."""

    def make_keeper(self, store: Store, access: StoreAccess, **options: Any) -> Keeper:
        """In the place of `Keeper`."""

    async def begin(self, engine: Engine) -> None:
        """The keeper runs, the engine has not started. Returns when it has what is at home here."""

    async def serve(self) -> None:
        """The engine has started."""

    async def find_session(self, request: SessionRequest) -> int:
        """Returns when a client's session is in the engine, or there is none: 0, or why it is refused."""

    def session_ready(self, connection: int, reason: int) -> None:
        """As `StoreAccess.session_ready`."""

    def close(self) -> None:
        """No client is connected any more. May be called again."""

    def counts(self) -> dict[str, int]:
        """Counters, by name."""
