"""What a node tells the others, and hears from them: heartbeats, records, copies, and what is missing.

Runs on the keeper's thread. It holds nothing that must survive: what is not answered is said again.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

from tidemq.cluster.fetching import Fetch, Given, Holder, RecentRecords
from tidemq.cluster.last_words import LastWords
from tidemq.cluster.links import Links
from tidemq.cluster.members import BEAT_S, MEMBERS_MAX, encode_heartbeat, parse_heartbeat
from tidemq.cluster.membership import STRUCK, struck_word
from tidemq.cluster.node import Node
from tidemq.cluster.promises import Promises
from tidemq.cluster.records import Record
from tidemq.cluster.snapshots import Giver
from tidemq.cluster.troubles import Troubles
from tidemq.cluster.under_way import UnderWay
from tidemq.errors import ClusterError, StoreError

BEAT, RECORDS, APPLIED, FETCH = "beat", "records", "applied", "fetch"
ASK, PIECE = "ask-snapshot", "snapshot"
SENT_BYTES = 512 << 10  # of records in one message, and one record more
COPIED_BYTES_MAX = 16 << 20  # of the log that are on their way to the replica, and one message more
RESEND_S, RESEND_S_MAX = 1.0, 8.0  # copies, while no more of them are confirmed: at first, and at most
FETCHED_BYTES_MAX = 16 << 20  # of records that are sent for one question, and one message more

_SIZE = struct.Struct(">I")
_NUMBER = struct.Struct(">Q")
_WANTED = struct.Struct(">QQQ")  # whose records, from and to


class Exchange:
    """One node's talk with the others. `now`: seconds of a monotonic clock; `wall_ns`: of the wall clock.

    `counts`: `cluster_messages_refused`, of others, that could not be read or were refused; `troubles`: why.
    """

    def __init__(
        self,
        node: Node,
        promises: Promises,
        links: Links,
        giver: Giver,
        wall_ns: Callable[[], int],
        now: float,
    ) -> None:
        self.node = node
        self._promises = promises
        self._links = links
        self._giver = giver
        self._wall_ns = wall_ns
        self.pieces: list[tuple[int, bytes]] = []  # of a snapshot that have come, and from whom
        self._sent = self._copied = node.durable  # the last record that others were sent
        self._replica: int | None = None
        self._confirmed = 0  # the last that the replica has
        self._under_way = UnderWay()
        self._copied_at = now
        self._resend_s = RESEND_S
        self._more_is_confirmed = False
        self._beat_at = -BEAT_S
        self._now = now
        self._late_s = 0.0
        self._recent = RecentRecords()
        self._last_words = LastWords(node)
        self._given = Given()
        self._fetches: dict[int, Fetch] = {}  # what was asked for, by whose it is
        self._forgotten: set[int] = set()  # nodes that have left, whose copies here were told to go
        self._applied_by: dict[int, int] = {}  # the last record of this node that others have, by node
        self.counts: Counter[str] = Counter()
        self.troubles = Troubles()
        self.acts: dict[str, Callable[[int, bytes], list[Record]]] = {
            BEAT: self._hear_beat,
            RECORDS: self._hear_records,
            APPLIED: self._hear_applied,
            FETCH: self._hear_fetch,
            ASK: self._hear_ask,
            PIECE: self._hear_piece,
        }

    def receive(self, kind: str, source: int, body: bytes, now: float, late_s: float = 0) -> list[Record]:
        """A message of another node that came `late_s` ago, which is `now`; gives the records that were
        applied for it.
        """
        self._now, self._late_s = now, late_s
        act = self.acts.get(kind)
        try:
            if act is None:
                raise ClusterError(f"{source:016x} sends messages of the kind {kind!r}, unknown here")
            return act(source, body)
        except (ClusterError, struct.error) as error:
            self.refuse(source, error)
            return []

    def refuse(self, source: int, error: Exception) -> None:
        """A message of another node is none that can be."""
        self.counts["cluster_messages_refused"] += 1
        self.troubles.note(f"{source:016x}", str(error))

    def copied(self, to: int, number: int) -> None:
        """Another node has copies of all this node's records up to this one; fewer than before where it has
        lost some.
        """
        if to == self._replica:
            self._more_is_confirmed |= number > self._confirmed
            self._confirmed = number
            self._under_way.confirm(number)
            self._promises.copied(number)

    def records_came(self, holder: int, texts: Sequence[bytes]) -> list[Record]:
        """Records from somebody who has them, their own node or another one."""
        applied: list[Record] = []
        aside = self.node.incoming.aside
        for text in texts:
            applied += self.node.receive(text)
            self._recent.note(text)
            while aside:
                self.troubles.note(f"{holder:016x}", aside.popleft())
        return applied

    def send_new(self, now: float) -> None:
        """Records that have become durable go to everybody, and to the replica's log."""
        durable = self.node.durable
        others = self._others(now)
        for piece in self._pieces(self._sent + 1, durable):
            body = _pack([text for _, text in piece])
            for each in others:
                self._links.send(each, RECORDS, body)
        self._sent = max(self._sent, durable)
        self._copy(now)

    def tell_applied(self, applied: Sequence[Record]) -> None:
        """Each node whose records were applied, durably, hears of it."""
        for incarnation in {record.dot.incarnation for record in applied}:
            number = self.node.rows.vector.get(incarnation, 0)
            self._links.send(incarnation, APPLIED, _NUMBER.pack(number))

    def tick(self, now: float, *, unread: bool = False) -> None:
        """What is done now and then. `unread`: messages have come that were not read."""
        if now - self._beat_at < BEAT_S:
            return
        self._beat_at = now
        known = [member.beat for member in self.node.members.known()]
        addresses = "\n".join(f"{beat.incarnation:x} {beat.address}" for beat in known)
        beat = replace(self.node.beat(now, self._wall_ns()), addresses=addresses)
        self._links.broadcast(BEAT, encode_heartbeat(beat))
        self._copy(now)
        self._fetch(now, unread=unread)
        if self.node.members.has_met_all(now):  # or what a node lacks that was just met would be gone
            self.node.tidy()
            self._last_words.drop_known()
            self._recent.drop_stable(self.node.stable)
        members = self.node.members.incarnations
        self._given.keep(members)
        # what a node did last that is a member no more may be nowhere else, and others may lack it
        vector, struck = self.node.rows.vector, [each for each, _, _ in self.node.rows.struck.all()]
        is_known = self.node.stability.is_known
        lacking = [each for each in struck if not is_known(each, vector.get(each, 0), members)]
        self._recent.keep({*members, *lacking})
        for each in {*struck} - {*lacking} - self._forgotten:
            self._forgotten.add(each)
            self._links.forget_copies(each, vector.get(each, 0))
        self._links.trim(self.node.stability.first - 1)

    def keep_last_of(self, dead: Collection[int]) -> None:
        """Of nodes that have just died what they did last is kept, where a member may lack it."""
        self._last_words.keep(dead, self._recent)

    def keep_again(self) -> None:
        """What was kept last may not be stored."""
        self._last_words.begin_anew()

    def _others(self, now: float) -> list[int]:
        return [each for each in self.node.members.live(now) if each != self.node.incarnation]

    def _copy(self, now: float) -> None:
        """To the replica what it lacks: all of the log, a piece at a time, when it has just become it."""
        replica = self.node.members.replica(now)
        if replica != self._replica:
            self._replica = replica
            self._confirmed = 0
            self._begin_copying(self.node.stability.first)
            self._promises.copied(self._applied_by.get(replica or 0, 0))
        if self._more_is_confirmed:
            self._copied_at, self._resend_s, self._more_is_confirmed = now, RESEND_S, False
        if now - self._copied_at > self._resend_s and self._confirmed < self._copied:
            self._resend_s = min(2 * self._resend_s, RESEND_S_MAX)
            self._begin_copying(max(self._confirmed + 1, self.node.stability.first))
        full = self._under_way.bytes > COPIED_BYTES_MAX
        if replica is None or self._copied >= self.node.durable or full:
            return
        self._copied_at = now
        for piece in self._pieces(self._copied + 1, self.node.durable):
            self._links.copy(replica, piece)
            self._copied = piece[-1][0]
            self._under_way.add(self._copied, sum(len(text) for _, text in piece))
            if self._under_way.bytes > COPIED_BYTES_MAX:
                return
        self._copied = self.node.durable

    def _begin_copying(self, number: int) -> None:
        """Anew, with this record: nothing is on its way."""
        self._copied = number - 1
        self._under_way = UnderWay()

    def all_have(self, number: int, now: float) -> bool:
        """Whether this record, and all before, is at every node that is there, and in the replica's log for
        those that are not.
        """
        copied = self._replica is None or self._confirmed >= number
        return copied and all(self._applied_by.get(each, 0) >= number for each in self._others(now))

    def copies_lost(self, to: int, first: int) -> None:
        """The replica lacks this node's records from this one on."""
        if to == self._replica:
            self._copied = min(self._copied, first - 1)
            self._under_way.lose(first)

    def _pieces(self, first: int, last: int) -> Iterator[list[tuple[int, bytes]]]:
        """Records of this node's log, in messages of some size."""
        own = self.node.incarnation
        texts = ((number, self.node.record(own, number)) for number in range(first, last + 1))
        return _in_pieces((number, text) for number, text in texts if text is not None)

    def _fetch(self, now: float, *, unread: bool) -> None:
        """Asks for what is missing, one holder after the other until one answers: its own node, whoever's
        server has copies, and other nodes, which may have heard what this one has not before its node was on
        the other side of a split. This node's own server has what it was told of while it did not listen.
        """
        live = self._others(now)
        gaps = {gap.incarnation: gap for gap in self.node.incoming.gaps()}
        self._fetches = {each: fetch for each, fetch in self._fetches.items() if each in gaps}
        for gap in gaps.values():
            fetch = self._fetches.setdefault(gap.incarnation, Fetch())
            itself, others = Holder(gap.incarnation), [each for each in live if each != gap.incarnation]
            copies = [Holder(each, copies=True) for each in (self.node.incarnation, *others)]
            first = [itself] if itself.node in live else []
            holders = [*first, *copies, *map(Holder, others)]
            if not fetch.is_due(gap, now, holders, unread=unread):
                continue
            holder = fetch.choose(holders, itself)
            if holder.copies:
                self._links.fetch(holder.node, gap.incarnation, gap.first, gap.last)
            else:
                self._links.send(holder.node, FETCH, _WANTED.pack(gap.incarnation, gap.first, gap.last))

    def giver_of_all(self, now: float) -> int | None:
        """A node from whom all that is there is to be had, where records that this one lacks are gone; None:
        there are none, or it has records of its own, so that it cannot begin anew.
        """
        vector = self.node.rows.vector
        for member in self.node.members.known():
            beat = member.beat
            if beat.first <= vector.get(beat.incarnation, 0) + 1:
                continue
            if vector.get(self.node.incarnation, 0):
                text = (
                    f"this node has stored something of its own before it met {beat.name}, whose log begins"
                    f" with record {beat.first}: it can join with an empty data directory"
                )
                self.troubles.note_state(f"{beat.incarnation:016x}", text)
            elif self.node.members.is_live(beat.incarnation, now):
                return beat.incarnation
        return None

    def ask_for_piece(self, giver: int, question: bytes) -> None:
        """Asks for the next piece of a snapshot."""
        self._links.send(giver, ASK, question)

    # --- what comes --------------------------------------------------------------------------------

    def _hear_beat(self, source: int, body: bytes) -> list[Record]:
        beat = parse_heartbeat(body)
        struck = self.node.rows.struck.get(source, None)
        if struck is not None and struck[1] == source:
            return []  # it has left, and its last heartbeats are still on their way
        if struck is not None:
            self._links.send(source, STRUCK, struck_word(self.node))  # it may not know
        self.node.hear(beat, self._now, self._late_s)
        self._hear_applied(source, _NUMBER.pack(beat.applied.get(self.node.incarnation, 0)))
        self._links.meet(beat.incarnation, beat.address)
        self._links.greet(beat.incarnation)
        for line in beat.addresses.splitlines()[:MEMBERS_MAX]:
            incarnation, _, address = line.partition(" ")
            try:
                self._links.meet(int(incarnation, 16), address)
            except ValueError as error:
                raise ClusterError(f"a heartbeat has the address {line!r:.100}") from error
        return []

    def _hear_records(self, source: int, body: bytes) -> list[Record]:
        return self.records_came(source, _unpack(body))

    def _hear_applied(self, source: int, body: bytes) -> list[Record]:
        """The replica, which has applied a record, durably, has the best of copies. Another node that has is
        not asked for it, and the replica takes over what it knows of.
        """
        (number,) = _NUMBER.unpack(body)
        self._applied_by[source] = max(number, self._applied_by.get(source, 0))
        if source == self._replica:
            self._promises.copied(self._applied_by[source])
        return []

    def _hear_ask(self, source: int, body: bytes) -> list[Record]:
        try:
            piece = self._giver.answer(body, self._now)
        except StoreError as error:
            raise ClusterError(f"a snapshot cannot be given: {error}") from error
        if piece is not None:
            self._links.send(source, PIECE, piece)
        return []

    def _hear_piece(self, source: int, body: bytes) -> list[Record]:
        self.pieces.append((source, body))
        return []

    def _hear_fetch(self, source: int, body: bytes) -> list[Record]:
        incarnation, first, last = _WANTED.unpack(body)
        now = self._now + self._late_s
        first = self._given.rest(source, incarnation, first, now)
        sent = 0
        if incarnation == self.node.incarnation:
            pieces = self._pieces(first, min(last, self.node.durable))
        else:
            found = dict(self._recent.find(incarnation, first, last))
            found |= self._last_words.find(incarnation, first, last)
            pieces = _in_pieces(sorted(found.items()))
        for piece in pieces:
            body = _pack([text for _, text in piece])
            self._links.send(source, RECORDS, body)
            self._given.note(source, incarnation, (piece[0][0], piece[-1][0]), now)
            sent += len(body)
            if sent > FETCHED_BYTES_MAX:
                break  # the rest is asked for when this is there
        return []


def _in_pieces(records: Iterable[tuple[int, bytes]]) -> Iterator[list[tuple[int, bytes]]]:
    piece: list[tuple[int, bytes]] = []
    size = 0
    for number, text in records:
        piece.append((number, text))
        size += len(text)
        if size >= SENT_BYTES:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece


def _pack(texts: Sequence[bytes]) -> bytes:
    return b"".join(_SIZE.pack(len(text)) + text for text in texts)


def _unpack(body: bytes) -> list[bytes]:
    """ClusterError where the sizes do not add up."""
    texts, at = [], 0
    while at < len(body):
        if at + _SIZE.size > len(body):
            raise ClusterError("a message of records ends within a size")
        end = at + _SIZE.size + _SIZE.unpack_from(body, at)[0]
        if end > len(body):
            raise ClusterError(f"a message of records ends after {len(body)} bytes, within a record")
        texts.append(body[at + _SIZE.size : end])
        at = end
    return texts
