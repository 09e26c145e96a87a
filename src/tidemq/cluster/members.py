"""Who belongs to the cluster, and who of them is there, as their heartbeats say."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace

from tidemq.cluster.formats import Formats
from tidemq.cluster.forms import Reader, encode
from tidemq.cluster.hybrid_clock import HybridClock
from tidemq.cluster.records import formats_read
from tidemq.cluster.vectors import Vector
from tidemq.errors import ClusterError

BEAT_S = 0.3
SUSPECT_S = 1.5  # without a heartbeat
MEMBERS_MAX = 16
STRUCK_TEXT = (
    "is no member of the cluster any more (forgotten, drained, or absent for too long); started again, it"
    " begins anew"
)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """What a node says of itself.

    `format`: what it writes; 0: nothing yet. `formats`: what it reads, `common`: the highest that all members
    read, as far as it knows.
    `boot`: how often it has been started, which with `nonce`, drawn at the start, tells two processes of one
    incarnation apart. `number`: its last record, `first`: the first that it still has. `applied`: records of
    others that it has, durably, and whose consequences all others may take for known to it. `peers`: the
    members that it knows, with their boots, and which of them it hears now. `addresses`: a line for each node
    that it knows, with its incarnation (hexadecimal) and where it is reached.
    """

    cluster: str
    format: int
    name: str
    incarnation: int
    boot: int
    nonce: int
    address: str
    wall_ns: int
    hybrid_ns: int
    number: int
    applied: Vector
    first: int = 1
    addresses: str = ""
    formats: Formats = field(default_factory=formats_read)
    common: int = 0
    peers: dict[int, tuple[int, bool]] = field(default_factory=dict)


@dataclass(slots=True)
class Member:
    """A node of the cluster, as of its last heartbeat, which came at `heard_at`. Of this process of its the
    first came at `since`. `deaf_since`: it says that it does not hear this node, and was not silent itself
    meanwhile; infinite: it hears it.
    """

    beat: Heartbeat
    heard_at: float
    since: float
    deaf_since: float


class Members:
    """The members as this node knows them. Times are seconds of a monotonic clock."""

    def __init__(
        self,
        own: Heartbeat,
        clock: HybridClock,
        before: Iterable[int] = (),
        *,
        suspect_s: float = SUSPECT_S,
        is_struck: Callable[[int], bool] = lambda _: False,
        written: Callable[[], int] | None = None,
    ) -> None:
        """`before`: the members of before a restart, which have not been heard since. `suspect_s`: without a
        heartbeat, until a member counts as gone. `is_struck`: whether a node is a member no more. `written`:
        the format that this node writes, 0: none yet; without it that of `own`.
        """
        self.suspect_s = suspect_s
        self._is_struck = is_struck
        self._written = written or (lambda: own.format)
        self.unreadable = ""  # why this node cannot be one of them: it does not read what they write
        self._own = own
        self._clock = clock
        self._before = set(before)
        self._members: dict[int, Member] = {}
        # since when messages wait that have come and are not read: nobody is judged by a later time, for a
        # heartbeat may be among them. Where nothing waits, infinite
        self.unread_since: Callable[[], float] = lambda: math.inf
        self.reached: Collection[int] = ()  # nodes to which this one can send

    @property
    def incarnations(self) -> list[int]:
        """All members, this node included, whether they are there or not."""
        others = {each for each in {*self._before, *self._members} if not self._is_struck(each)}
        return sorted({self._own.incarnation, *others})

    def known(self) -> list[Member]:
        """The other members."""
        return [each for each in self._members.values() if not self._is_struck(each.beat.incarnation)]

    def hear(self, beat: Heartbeat, now: float, late_s: float = 0) -> None:
        """A heartbeat that came `late_s` ago, which is `now`. ClusterError says what was expected and what
        came, where its node is refused.
        """
        self._check(beat, late_s)
        before = self._members.get(beat.incarnation)
        if len({*self.incarnations, beat.incarnation}) > MEMBERS_MAX:
            raise ClusterError(f"{beat.name} would be one more than {MEMBERS_MAX} members of the cluster")
        if before is not None and self._is_older(beat, before, now):
            return
        self._clock.raise_to(beat.hybrid_ns)
        is_same = before is not None and before.beat.boot == beat.boot
        since = before.since if before is not None and is_same else now
        goes_on = before is not None and is_same and now - before.heard_at < self.suspect_s
        deaf_since = min(now, before.deaf_since) if before is not None and goes_on else now
        if self._hears_this(beat):
            deaf_since = math.inf
        self._members[beat.incarnation] = Member(beat, now, since, deaf_since)

    def _is_older(self, beat: Heartbeat, before: Member, now: float) -> bool:
        """Whether it is one that comes late. ClusterError where it is of a second process."""
        last = before.beat
        late = beat.boot < last.boot and now - before.since < self.suspect_s
        if (beat.boot == last.boot and beat.nonce != last.nonce) or (beat.boot < last.boot and not late):
            raise ClusterError(
                f"two nodes have the incarnation {beat.incarnation:016x}, {beat.name} at {beat.address} and"
                f" {last.name} at {last.address}: was the data directory copied?"
            )
        return late

    def _check(self, beat: Heartbeat, late_s: float) -> None:
        if beat.cluster != self._own.cluster:
            raise ClusterError(
                f"{beat.name} belongs to the cluster {beat.cluster!r}, this node to {self._own.cluster!r}"
            )
        if self._is_struck(beat.incarnation):
            raise ClusterError(f"{beat.name} {STRUCK_TEXT}")
        self._check_own(beat)
        self._check_formats(beat)
        self._clock.check(beat.wall_ns + int(late_s * 1e9), beat.name)

    def _check_formats(self, beat: Heartbeat) -> None:
        own, written = self._own.formats, self._written()
        if beat.format and not own.reads(beat.format):
            text = f"{beat.name} writes format {beat.format}, this node's version reads {own}"
            if not written or beat.incarnation in self.incarnations:  # else it is for the other one to go
                self.unreadable = f"{text}: the node needs a version that reads format {beat.format}"
            raise ClusterError(text)
        if written and not beat.formats.reads(written):
            raise ClusterError(
                f"{beat.name} reads format {beat.formats}, this cluster writes {written}: the node needs a"
                f" version that reads format {written}"
            )
        if beat.formats.highest < own.lowest or own.highest < beat.formats.lowest:
            raise ClusterError(f"{beat.name} reads format {beat.formats}, this node {own}")

    def common_format(self) -> int:
        """The highest format that all members read, whether they are there or not. Of one that this node has
        not heard since it was started it does not know what it reads, unless it is what is written now.
        """
        if any(each not in self._members for each in self.incarnations if each != self._own.incarnation):
            return self._written() or self._own.formats.lowest
        return min([self._own.formats.highest, *(each.beat.formats.highest for each in self.known())])

    def format_to_write(self, now: float) -> int:
        """What this node is to write: what one of the others writes already, for that one knew that all read
        it, or what all those who are there say that all read. It never goes back.
        """
        there = [each.beat.common for each in self.known() if self.is_live(each.beat.incarnation, now)]
        others = [each.beat.format for each in self.known()]
        return max([self._written(), min([self.common_format(), *there]), *others])

    def _check_own(self, beat: Heartbeat) -> None:
        """Whether another process says that it is this node, or a member hears one that began later."""
        own = self._own
        boot, heard = beat.peers.get(own.incarnation, (0, False))
        same = beat.incarnation == own.incarnation
        if (same and beat.nonce != own.nonce) or (not same and heard and boot > own.boot):
            raise ClusterError(
                f"another node has this one's incarnation {own.incarnation:016x}, as {beat.name} at"
                f" {beat.address} says: was the data directory copied?"
            )

    def is_live(self, incarnation: int, now: float) -> bool:
        """Whether its last heartbeat is not long ago, nor has it said for long that it does not hear this
        node: then this one is dead for it, whose sessions it takes. This node is always there.
        """
        return self._is_live(incarnation, now, self.suspect_s)

    def _is_live(self, incarnation: int, now: float, within_s: float) -> bool:
        member = self._members.get(incarnation)
        is_deaf = member is not None and self._by_now(now) - member.deaf_since >= within_s
        return self._is_heard(incarnation, now, within_s) and not is_deaf

    def is_heard(self, incarnation: int, now: float) -> bool:
        """Whether its last heartbeat is not long ago; this node hears itself."""
        return self._is_heard(incarnation, now, self.suspect_s)

    def _by_now(self, now: float) -> float:
        """Up to when all that was said is known."""
        return min(now, self.unread_since())

    def _is_heard(self, incarnation: int, now: float, within_s: float) -> bool:
        member = self._members.get(incarnation)
        return incarnation == self._own.incarnation or (
            member is not None
            and not self._is_struck(incarnation)
            and self._by_now(now) - member.heard_at < within_s
        )

    def is_heard_by(self, incarnation: int) -> bool:
        """Whether the node says that it hears this process."""
        member = self._members.get(incarnation)
        return member is not None and self._hears_this(member.beat)

    def _hears_this(self, beat: Heartbeat) -> bool:
        return beat.peers.get(self._own.incarnation) == (self._own.boot, True)

    def live(self, now: float) -> list[int]:
        """The members that are there, this node included, in the order of the ring."""
        return [each for each in self.incarnations if self.is_live(each, now)]

    def in_touch(self, now: float) -> int:
        """How many would be there if two thirds of the time were enough after which one counts as gone; this
        node among them. In between a heartbeat of each that is there has come.
        """
        return sum(self._is_live(each, now, self.suspect_s * 2 / 3) for each in self.incarnations)

    def replica(self, now: float) -> int | None:
        """The member that gets this node's copies: the next in the ring; None: nobody is there."""
        others = [each for each in self.live(now) if each != self._own.incarnation]
        return next_in_ring(others, self._own.incarnation) if others else None

    def peers(self, now: float) -> dict[int, tuple[int, bool]]:
        """As a heartbeat tells of them."""
        return {each: (member.beat.boot, self.is_heard(each, now)) for each, member in self._members.items()}

    def has_met_all(self, now: float) -> bool:
        """Whether each member that is there hears this process of the node, and the node all that they hear,
        and all that it reaches.

        Of two nodes that begin at once and meet a third one, that one hears one of them first, and so says
        it to the other together with the word that the other is heard: one of the two knows of both.
        """
        there = [each.beat for each in self._members.values() if self.is_live(each.beat.incarnation, now)]
        if not all(each in self._members or self._is_struck(each) for each in self.reached):
            return False
        return all(
            self.is_heard_by(beat.incarnation)
            and all(self.is_heard(peer, now) for peer, (_, heard) in beat.peers.items() if heard)
            for beat in there
        )


def next_in_ring(incarnations: Collection[int], after: int) -> int:
    """The next one in the order of numbers, which begins anew at its end."""
    ring = sorted(incarnations)
    return ring[bisect_right(ring, after) % len(ring)]


# in every format, for it is read before anything is known of its node; a later one may add to the end
_FORMS = "text H H H H text Q Q Q text q Q Q vector Q text Q* Q* B*"


def encode_heartbeat(beat: Heartbeat) -> bytes:
    """As it goes to others."""
    peers = sorted(beat.peers)
    boots, there = [beat.peers[each][0] for each in peers], [beat.peers[each][1] for each in peers]
    formats = (*beat.formats, beat.format, beat.common)
    said = (beat.cluster, *formats, beat.name, beat.incarnation, beat.boot, beat.nonce, beat.address)
    return encode(
        _FORMS,
        *said,
        beat.wall_ns,
        beat.hybrid_ns,
        beat.number,
        beat.applied,
        beat.first,
        beat.addresses,
        peers,
        boots,
        there,
    )


def parse_heartbeat(text: bytes) -> Heartbeat:
    """ClusterError where it is none."""
    reader = Reader(text, 0, "a heartbeat")
    cluster, lowest, highest, written, common, *said, peers, boots, there = map(reader.read, _FORMS.split())
    if not len(peers) == len(boots) == len(there) <= MEMBERS_MAX:
        raise ClusterError(
            f"a heartbeat has {len(peers)} peers, {len(boots)} boots, {len(there)} words of them"
        )
    known = {each: (boot, bool(is_there)) for each, boot, is_there in zip(peers, boots, there, strict=True)}
    beat = Heartbeat(cluster, written, *said)
    return replace(beat, formats=Formats(lowest, highest), common=common, peers=known)
