"""What a node needs of the transport between nodes: `transport/` has it over NATS."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Protocol


class Links(Protocol):
    """Ways to other nodes, named by their incarnations. No method waits; all may be called on any thread."""

    def meet(self, incarnation: int, address: str) -> None:
        """Another node is reached there, if it is there at all."""

    def greet(self, incarnation: int) -> None:
        """Another node is there: it has said so itself."""

    def has_met(self, incarnation: int) -> bool:
        """Whether this node and that one know what each of them wants."""

    def part(self, incarnation: int) -> None:
        """What this node and that one have asked each other, and did not answer, is void from now on; they
        begin anew.
        """

    def expect(self, incarnation: int, filters: list[str]) -> None:
        """A node that this one has not heard since it began has sessions with these subscriptions: what is
        published for them waits, as for one that was parted with.
        """

    def hold(self, client: str, incarnation: int, filters: list[str]) -> bool:
        """What is published for a client's session is to wait for its home, as this node's engine forgets
        what it has of it: whether it does by now. It is asked until then. Where that is another home than
        before, it waits for that one.
        """

    def let_go(self, client: str) -> None:
        """The engine has the session, or will not have it and its home is opened to: what has waited is
        refused.
        """

    def open(self, incarnation: int) -> None:
        """All that one would miss that begins anew is known here: they go on."""

    def apart(self) -> Collection[int]:
        """Nodes that were parted with, by either side, and have not been opened to yet."""

    def send(self, to: int, kind: str, body: bytes) -> None:
        """A message that may be lost; those that arrive are in order."""

    def broadcast(self, kind: str, body: bytes) -> None:
        """The same to everybody who can be reached."""

    def copy(self, to: int, records: Sequence[tuple[int, bytes]]) -> None:
        """Records of this node's log, by number, that another node shall keep; it is told when it does."""

    def trim(self, number: int) -> None:
        """Copies up to this one need not be kept any more."""

    def forget_copies(self, incarnation: int, number: int) -> None:
        """This node's own server need not keep copies of another one's log, if they end with this record."""

    def fetch(self, holder: int, incarnation: int, first: int, last: int) -> None:
        """Asks for copies of a node's records from somebody who may have them; what there is comes."""

    def ask_for_last(self, incarnation: int) -> None:
        """Asks this node's own server for the last record of another node that it has a copy of, which that
        node may have counted on, although this one has never heard of it. `Inbox.take_last` is told.
        """

    def use_format(self, number: int) -> None:
        """What goes to others is in this format from now on."""

    def announce(self, *, flush: bool = False) -> int:
        """Has everybody told what this node wants of their messages now; gives a number for it. `flush`: it
        is done only when that has arrived, too, which they sent elsewhere before they knew.
        """

    def announced(self, number: int) -> Collection[int] | None:
        """None: not all nodes that are there know it yet. Else those that may not know it all the same, or
        have not said that what they sent before has arrived. Of each number that is said once.
        """

    def taken_so_far(self) -> list[tuple[int, int, int]] | None:
        """Which messages of all nodes this one has taken for its sessions: as `NodeAccess.taken_so_far`.
        None: this node is ending, and takes none any more.
        """

    def given_so_far(self) -> list[int]:
        """A mark for `has_acted_on`: what this node's engine has been given of others' messages until now."""

    def has_acted_on(self, given: Sequence[int]) -> bool:
        """Whether the engine has acted on all that it had been given at this mark."""

    def drop(self, incarnation: int) -> None:
        """A node is a member no more: it is not looked for, and has no copies."""

    def refuse(self, incarnation: int) -> None:
        """A dead node will not answer what it was asked so far: that is refused. It may be asked more."""

    def taken_over(self, incarnation: int) -> None:
        """The sessions of a dead node are elsewhere: nobody waits for its answers any more."""
