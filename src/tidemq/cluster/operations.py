"""What a node did to what all nodes keep, one operation after the other.

Owners are named, for the numbers of queues are each node's own. An epoch is the time of a CONNECT: of two
rows of one session that with the higher epoch is the newer. `Stamp` is the layout of message ids, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class Stamp(NamedTuple):
    """A time that no other node gives, in the order of time: nanoseconds, and whose."""

    clock: int
    incarnation: int


NEVER = Stamp(0, 0)


class Owner(NamedTuple):
    """Whose queue: a client's (`SESSION`, its identifier) or a group's (`GROUP`, `$share/group/filter`)."""

    kind: int
    name: str


SESSION, GROUP = 1, 2


@dataclass(frozen=True, slots=True)
class Payload:
    """The message (layout of the family `payload`) of the `Add`s in the same record."""

    id: Stamp
    message: bytes


@dataclass(frozen=True, slots=True)
class Add:
    """A message in a queue. `shared`: another node may add it as well, as it has not answered, or as the
    session was moving.
    """

    owner: Owner
    id: Stamp
    flags: int
    qos: int
    message_bytes: int
    expires_at_ms: int
    shared: bool = False
    subscription_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Remove:
    """Delivered, expired or dropped."""

    owner: Owner
    id: Stamp


@dataclass(frozen=True, slots=True)
class Send:
    """In flight from now on, in this place of the outbox.

    `epoch`, here and below: of a session that of its row; of a group's entry the time at which it was given
    to a member, by whose node alone it is changed under it.
    """

    owner: Owner
    epoch: Stamp
    id: Stamp
    sequence: int


@dataclass(frozen=True, slots=True)
class Release:
    """PUBREC has come: only PUBREL and PUBCOMP are left."""

    owner: Owner
    epoch: Stamp
    id: Stamp


@dataclass(frozen=True, slots=True)
class Return:
    """In flight no more: it waits again."""

    owner: Owner
    epoch: Stamp
    id: Stamp


class Flight(NamedTuple):
    """A message in flight: its place in the outbox, and whether PUBREC has come."""

    id: Stamp
    sequence: int
    released: bool


@dataclass(frozen=True, slots=True)
class PutSession:
    """A session as it is from now on; under a new epoch at CONNECT, under its own when it changes.

    `home`: the incarnation of the node that has it. `begins`: it is a new session, and whatever is known of
    an earlier one has ended; that is said once. `next_sequence`: the next place in its outbox, whose packet
    identifier never goes back, or it could mean two messages. `received`: marks of messages that wait for
    PUBREL. `flights`: what is in flight. These two, and `begins`, count under a new epoch; under its own
    `Receive`, `Send` and their like say it.

    `connected`: the epoch of the client's last CONNECT. A session has a newer epoch where a node has taken it
    without its client. `unasked`: a node has taken it without a word of its home, at any time: the client may
    hold packet identifiers of messages that are known nowhere, or not as these. It stays so. `replaces`: it
    begins, and its node knew of the session that was there: what nodes that do not know of it add for that
    one is not for this one.
    """

    client: str
    epoch: Stamp
    home: int
    begins: bool
    next_sequence: int
    expiry_s: int
    ends_at_ms: int
    will_due_at_ms: int
    will_delay_s: int
    will_expiry_s: int
    will: bytes = b""
    received: tuple[int, ...] = ()
    flights: tuple[Flight, ...] = ()
    connected: Stamp = NEVER
    unasked: bool = False
    replaces: bool = False

    @property
    def rank(self) -> tuple[Stamp, Stamp]:
        """Of a client's sessions that with the highest goes on: that of its last CONNECT, and of what nodes
        have made of that without the client, the last.
        """
        return self.connected, self.epoch


@dataclass(frozen=True, slots=True)
class EndSession:
    """The session of the CONNECT with this epoch, and those before it, with subscriptions and queue, as far
    as this node knows them, and what nodes add to it that do not know of this yet.
    """

    client: str
    epoch: Stamp


def packet_id_of(mark: int) -> int:
    """Of a `Receive`."""
    return mark & 0xFFFF


@dataclass(frozen=True, slots=True)
class Receive:
    """A QoS 2 message waits for PUBREL. `mark`: its packet identifier, and above these 16 bits 48 of a
    fingerprint; 0: it is not known.
    """

    client: str
    epoch: Stamp
    mark: int


@dataclass(frozen=True, slots=True)
class Forget:
    """PUBREL has come: the packet identifier is free again."""

    client: str
    epoch: Stamp
    packet_id: int


@dataclass(frozen=True, slots=True)
class Subscribe:
    """SUBSCRIBE, at the time of `stamp`; options as in the family `subscription`."""

    client: str
    topic_filter: str
    stamp: Stamp
    options: int
    subscription_id: int


@dataclass(frozen=True, slots=True)
class Serve:
    """All that was retained has been sent to the subscription of this time."""

    client: str
    topic_filter: str
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class Unsubscribe:
    """UNSUBSCRIBE, at the time of `stamp`."""

    client: str
    topic_filter: str
    stamp: Stamp


@dataclass(frozen=True, slots=True)
class Retain:
    """The retained message of a topic from this id on."""

    topic: str
    id: Stamp
    message: bytes


@dataclass(frozen=True, slots=True)
class Clear:
    """Nothing is retained for the topic from this id on."""

    topic: str
    id: Stamp


@dataclass(frozen=True, slots=True)
class Strike:
    """A node is a member no more: nobody waits for it, and nothing of it counts. Of itself: it has left."""

    incarnation: int
    name: str


@dataclass(frozen=True, slots=True)
class Run:
    """Operations on queues of sessions, as a record has them (`message_runs.py`), and how many these are."""

    text: bytes
    count: int


Operation = (
    Payload
    | Add
    | Remove
    | Send
    | Release
    | Return
    | PutSession
    | EndSession
    | Receive
    | Forget
    | Subscribe
    | Serve
    | Unsubscribe
    | Retain
    | Clear
    | Strike
    | Run
)
