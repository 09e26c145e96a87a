"""What the engine did to its rows, as operations that other nodes understand.

The engine numbers queues; operations name their owners. Of QoS 2 messages it also has rows for sessions that
other nodes have, which it names, as these nodes have named them. It says nothing of epochs; here are those of
the sessions that it has.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Iterator, Mapping
from typing import Any

from tidemq.cluster import operations as ops
from tidemq.cluster.forms import decode
from tidemq.cluster.message_runs import pack_run
from tidemq.cluster.operations import GROUP, SESSION, Operation, Owner, PutSession, Stamp
from tidemq.cluster.session_rows import mark_of
from tidemq.cluster.sharing import Sharing
from tidemq.cluster.stored_rows import StoredRows
from tidemq.store import Write
from tidemq.store.rows import RETAIN, parse_session, parse_subscription

STREAM = "$stream/"
IN_RUNS = {"add", "send", "return", "release", "remove"}

Described = list[tuple[Any, ...]]
"""As in `StoreWork.described`."""


class Conversion:
    """Of one node, on the keeper's thread. `stamp` gives a new time, later than what `heard` was told.
    `shared`: clients to whose sessions another node may add the same messages, now.

    `counts`: `cluster_rows_without_owner`, of sessions that had ended; `cluster_added_after_removal`,
    messages whose client had them elsewhere.
    """

    def __init__(
        self,
        rows: StoredRows,
        home: int,
        stamp: Callable[[], Stamp],
        heard: Callable[[int], None],
        shared: Sharing,
    ) -> None:
        self._rows = rows
        self._home = home
        self._stamp = stamp
        self._heard = heard
        # of the queues that the engine has; while a batch is converted, of sessions elsewhere by client id
        self._owners: dict[int | bytes, Owner] = {}
        self._epochs: dict[str, Stamp] = {}  # of its sessions
        self._connected: dict[str, Stamp] = {}  # those of these clients' last CONNECTs
        self._messages: dict[bytes, bytes] = {}  # that came in this batch
        self._brought: set[bytes] = set()  # and that were told
        self._ended: set[str] = set()  # sessions in this batch
        self._begins: set[str] = set()  # the same
        self._subscribed: dict[tuple[str, str], Stamp | None] = {}  # in it, and when; None: not any more
        # how it was before what was converted last: by queue, and by client
        self._owners_before: dict[int, Owner | None] = {}
        self._epochs_before: dict[str, tuple[Stamp | None, Stamp | None]] = {}
        self._given: dict[str, Stamp] = {}  # epochs of which it is open whether the store has them
        self.shared = shared
        self.came: list[tuple[Owner, Stamp]] = []  # rows for sessions elsewhere that are here by now
        self._plain: list[Write] = []
        self.subscribes = False  # of what was converted last: there are subscriptions in it
        self.ended: Container[str] = ()  # clients whose sessions ended last, as the applier has them
        self.changed: list[tuple[str, str]] = []  # whose subscriptions, to which filters
        self.begun: list[str] = []  # whose sessions, of those that are shared
        self.counts: Counter[str] = Counter()
        self._acts: dict[str, Callable[..., Iterator[Operation]]] = {
            "add": self._add,
            "send": self._send,
            "return": self._return,
            "release": self._release,
            "remove": self._remove,
            "retain": self._retain,
            "serve": self._serve,
            "put": self._put,
        }
        self._puts: dict[str, Callable[[bytes, bytes | None], Iterator[Operation]]] = {
            "session": self._put_session,
            "subscription": self._put_subscription,
            "received": self._put_received,
            "shared": self._put_shared,
        }

    def know(self, number: int, owner: Owner, row: PutSession | None = None) -> None:
        """The engine has this queue from now on; of a session, whose row this is."""
        self._owners[number] = owner
        if row is not None:
            self._epochs[owner.name], self._connected[owner.name] = row.epoch, row.connected

    def begin_epoch(self, row: PutSession) -> None:
        """A session that the engine has goes on so."""
        if row.client in self._epochs:
            self._epochs[row.client], self._connected[row.client] = row.epoch, row.connected

    def catch_up_with(self, row: PutSession) -> None:
        """This node has said so; it does not know where the batch failed, and is in the store after all."""
        rank = self.rank(row.client)
        if rank is not None and rank < row.rank:
            self.begin_epoch(row)

    def forget(self, number: int) -> None:
        """The engine has this queue no more."""
        self._owners.pop(number, None)
        self._owners_before.pop(number, None)

    def forget_session(self, client: str) -> None:
        """The engine has this session no more."""
        self._epochs_before.pop(client, None)
        if self._forget_epoch(client) is not None:
            for number in self._rows.owners.numbers(Owner(SESSION, client)):
                self._owners.pop(number, None)

    def _forget_epoch(self, client: str) -> Stamp | None:
        self._connected.pop(client, None)
        return self._epochs.pop(client, None)

    @property
    def home(self) -> Mapping[str, Stamp]:
        """The clients whose sessions the engine has, with the epochs of these."""
        return self._epochs

    def owner(self, number: int) -> Owner | None:
        """Whose queue of the engine's this is."""
        return self._owners.get(number)

    def number(self, owner: Owner) -> int:
        """The current queue of a session that the engine has; 0: it has none."""
        if owner.kind != SESSION or owner.name not in self._epochs:
            return 0
        number = self._rows.owners.current(owner)
        return number if self._owners.get(number) == owner else 0

    def epoch(self, client: str) -> Stamp | None:
        """The epoch of a session that the engine has."""
        return self._epochs.get(client)

    def has_current(self, client: str) -> bool:
        """Whether the session that all know is the one that the engine has."""
        standing = self._rows.standing(client)
        return standing is not None and standing.epoch == self._epochs.get(client)

    def rank(self, client: str) -> tuple[Stamp, Stamp] | None:
        """As `PutSession` has it, of a session that the engine has."""
        epoch = self._epochs.get(client)
        return (self._connected[client], epoch) if epoch is not None else None

    def has_ended(self, client: str) -> bool:
        """Whether the session that the engine has is over, whatever its client has elsewhere by now. One goes
        on in another that began where it was not known: what is taken for it here is that one's.
        """
        rank = self.rank(client)
        ends = (end.over for _, end in self._rows.ends.of(client) if end.known is not None)
        return rank is not None and any(over is not None and over[0] >= rank[0] for over in ends)

    def convert(
        self, described: Described, elsewhere: Collection[bytes] = ()
    ) -> tuple[list[Operation], list[Write]]:
        """What was done, in order; and rows that concern nobody else, as they are to be written. `elsewhere`
        is that of `StoreWork`: `came` are those of its rows that the engine is to be told of when they are
        written. What was converted before, and is not `stored`, was not, and comes again (`left_rows.py`).
        """
        self._go_back()
        self.subscribes = False
        self._messages.clear()
        self._brought.clear()
        self._ended.clear()
        self._begins.clear()
        self._subscribed.clear()
        self._plain = []
        self.came.clear()
        if elsewhere:
            described = self._each_once(described, elsewhere)
        try:
            return self._operations(described, *self._shared_of(described, elsewhere)), self._plain
        finally:
            for name in elsewhere:
                del self._owners[name]

    def _operations(
        self, described: Described, shared: set[int | bytes], gone: set[tuple[int | bytes, bytes]]
    ) -> list[Operation]:
        """`shared`, `gone`: as `_shared_of` gives them."""
        found: list[Operation] = []
        at, count = 0, len(described)
        while at < count:
            if described[at][0] in IN_RUNS:
                text, number, at = pack_run(
                    described, at, self._owners, self._epochs, shared, gone, self._brought
                )
                if number:
                    found.append(ops.Run(text, number))
                    continue
            what, *rest = described[at]
            found += self._acts[what](*rest)
            at += 1
        return found

    def stored(self) -> None:
        """What was converted last is in the store, or nothing of it needs to be."""
        self._owners_before.clear()
        self._epochs_before.clear()
        self._given.clear()

    def _go_back(self) -> None:
        """All is as it was before the last conversion."""
        for client, (epoch, _) in self._epochs_before.items():
            given = self._epochs.get(client)
            if given is not None and given != epoch:
                self._given[client] = given
        for number, owner in self._owners_before.items():
            self._owners.pop(number, None)
            if owner is not None:
                self._owners[number] = owner
        for client, (epoch, connected) in self._epochs_before.items():
            self._forget_epoch(client)
            if epoch is not None and connected is not None:
                self._epochs[client], self._connected[client] = epoch, connected
        self._owners_before.clear()
        self._epochs_before.clear()

    def _shared_of(
        self, described: Described, elsewhere: Collection[bytes]
    ) -> tuple[set[int | bytes], set[tuple[int | bytes, bytes]]]:
        """The queues to which another node may add the same; what has been removed of what is for these, and
        what is for nobody.
        """
        owners: dict[int | bytes, Owner] = {}
        for number in {row[1] for row in described if row[0] == "add"} if self.shared else ():
            owner = self._owners.get(number)
            if owner is not None and owner.kind == SESSION and owner.name in self.shared:
                owners[number] = owner
        over = {each for each in (*owners, *elsewhere) if self._is_nobody(each, self._owners[each])}
        if not (owners or over):
            return set(), set()
        added = [(row[1], row[2]) for row in described if row[0] == "add"]
        gone = self._rows.which_are_removed(owners, [each for each in added if each[0] in owners])
        if over:
            puts = (row for row in described if row[0] == "put" and row[1] == "session")
            begun = {key for _, _, key, value in puts if value is not None}  # who is named may be one of them
            nobody = {each for each in added if each[0] in over and each[0] not in begun}
            self.counts["cluster_rows_without_owner"] += sum(each[0] in owners for each in nobody)
            gone |= nobody
        return set(owners), gone

    def _is_nobody(self, number: int | bytes, owner: Owner) -> bool:
        """Whether what is added there is for a session that is over: it would be the next one's, on nodes
        that do not remember any more that this one has ended, or all, where they know of the next one.
        """
        if owner.kind != SESSION:
            return False
        if isinstance(number, int):
            return self._has_none(owner.name) or self.has_ended(owner.name)
        # who is named, and was never heard of, has just begun there
        return owner.name not in self._begins and self.is_over(number)

    def is_over(self, named: bytes) -> bool:
        """Whether a session that another node has named has ended, as far as is known here. That node may
        have begun the client's next one. So has one whose end is forgotten here, as all nodes know it: others
        may not have forgotten it.
        """
        client = named.decode()
        is_known = client in self.ended or bool(self._rows.ends.of(client))
        return is_known and self._rows.standing(client) is None

    def _has_none(self, client: str) -> bool:
        """Whether a client has no session, as where another node has ended it."""
        return client not in self._begins and self._rows.standing(client) is None

    def _each_once(self, described: Described, elsewhere: Collection[bytes]) -> Described:
        """Of a session that moves two nodes say that it takes a message, of which this one may be one. What
        this one takes for a session that is over is none: it is named for the client's next one.
        """
        owners: dict[int | bytes, Owner] = {name: Owner(SESSION, name.decode()) for name in elsewhere}
        self._owners.update(owners)
        names = {
            number: name
            for name, owner in owners.items()
            for number in self._rows.owners.numbers(owner)
            if not self._is_nobody(number, owner)
        }
        here = {(names[row[1]], row[2]) for row in described if row[0] == "add" and row[1] in names}
        left: Described = []
        for row in described:
            if row[0] == "add" and row[1] in owners:
                name, key, message = row[1], row[2], row[-1]
                if (name, key) in here:
                    if message is not None:
                        self._messages[key] = message
                    continue
                here.add((name, key))
                if owners[name].name in self._epochs:
                    self.came.append((owners[name], as_stamp(key)))
            left.append(row)
        return left

    def _owner_of(self, number: int | bytes) -> Owner | None:
        owner = self._owners.get(number)
        if owner is None:
            self.counts["cluster_rows_without_owner"] += 1
        return owner

    def _epoch_of(self, owner: Owner) -> Stamp:
        """A group's entry is given to a member now, or taken back."""
        return self._stamp() if owner.kind == GROUP else self._epochs[owner.name]

    def _owner_that_sends(self, number: int) -> Owner | None:
        owner = self._owner_of(number)
        if owner is None or owner.kind == GROUP or owner.name in self._epochs:
            return owner
        self.counts["cluster_rows_without_owner"] += 1  # its session is over
        return None

    # --- rows of queues ----------------------------------------------------------------------------

    def _add(
        self,
        number: int | bytes,
        key: bytes,
        qos: int,
        retain: bool,
        message_bytes: int,
        expires_at_ms: int,
        subscription_ids: tuple[int, ...],
        place: int | None,
        _moved: bool,
        message: bytes | None,
    ) -> Iterator[Operation]:
        message_id = as_stamp(key)
        if message is not None:
            self._messages[key] = message
        owner = self._owner_of(number)
        if owner is None:
            return
        moves = owner.kind == SESSION and owner.name in self.shared
        if moves and self._rows.removed.get(owner, message_id) is not None:
            self.counts["cluster_added_after_removal"] += 1
            return  # its client has had it, on another node
        if (moves or isinstance(number, bytes)) and self._is_nobody(number, owner):
            self.counts["cluster_rows_without_owner"] += not moves  # else it was counted with its batch
            return
        if key not in self._brought:
            self._brought.add(key)
            yield ops.Payload(message_id, self._messages[key])
        flags = RETAIN * retain
        if owner.kind == GROUP and isinstance(number, int):
            self._rows.place(owner, message_id, number)
        yield ops.Add(
            owner,
            message_id,
            flags,
            qos,
            message_bytes,
            expires_at_ms,
            shared=moves,
            subscription_ids=subscription_ids,
        )
        if place is not None:
            yield ops.Send(owner, self._epoch_of(owner), message_id, place)

    def _send(self, number: int, key: bytes, place: int) -> Iterator[Operation]:
        owner = self._owner_that_sends(number)
        if owner is not None:
            yield ops.Send(owner, self._epoch_of(owner), as_stamp(key), place)

    def _return(self, number: int, key: bytes, _place: int) -> Iterator[Operation]:
        owner = self._owner_that_sends(number)
        if owner is not None:
            yield ops.Return(owner, self._epoch_of(owner), as_stamp(key))

    def _release(self, number: int, key: bytes, _place: int) -> Iterator[Operation]:
        owner = self._owner_that_sends(number)
        if owner is not None:
            yield ops.Release(owner, self._epoch_of(owner), as_stamp(key))

    def _remove(self, number: int | bytes, key: bytes, _place: int = 0) -> Iterator[Operation]:
        owner = self._owner_of(number)
        if owner is not None:
            yield ops.Remove(owner, as_stamp(key))

    # --- everything else ---------------------------------------------------------------------------

    def _retain(self, topic: bytes, value: bytes | None, key: bytes, asked: bool) -> Iterator[Operation]:
        """Each change has the time of its message, for the engine may have retained a later one by now. What
        has gone by itself, as it expired, goes with its own: what another node has retained in its place
        stays. Who asks for nothing any more means what is known here, too. What was changed elsewhere since
        its message came is not for a record: nodes may have forgotten by then what cleared it.
        """
        name, message_id = topic.decode(), as_stamp(key if value is None else value[:16])
        self._heard(message_id.clock)  # what is later than that here is so for all, wherever its id is from
        before = self._rows.retained.get(name, None)
        is_newest = before is None or before.id < message_id
        if value is None:
            yield ops.Clear(name, message_id if is_newest or not asked else self._stamp())
        elif is_newest:
            yield ops.Retain(name, message_id, value[16:])

    def _put(self, family: str, key: bytes, value: bytes | None) -> Iterator[Operation]:
        return self._puts[family](key, value)

    def _put_session(self, key: bytes, value: bytes | None) -> Iterator[Operation]:
        client = key.decode()
        self._epochs_before.setdefault(client, (self._epochs.get(client), self._connected.get(client)))
        if value is None:
            self._ended.add(client)
            rank = self.rank(client)
            self._forget_epoch(client)
            session = self._rows.sessions.get(client, None)
            # else it goes on elsewhere
            if rank is not None and (session is None or session.row.rank <= rank):
                yield ops.EndSession(client, rank[0])
            return
        replaces = client in self._ended or self._rows.standing(client) is not None
        self._ended.discard(client)
        row = parse_session(key, value)
        owner = Owner(SESSION, client)
        begins = self._owners.get(row.queue) != owner and not self._has_begun(client, row.queue)
        if begins and row.queue in self._rows.owners.numbers(owner):
            self.counts["cluster_rows_without_owner"] += 1
            return  # it was here before, and has left: to begin it would end it elsewhere
        if not begins and self._has_none(client):
            self.counts["cluster_rows_without_owner"] += 1
            return  # another node has ended it, and the engine says last what became of its connection
        if begins:
            self._begins.add(client)
            self._owners_before.setdefault(row.queue, self._owners.get(row.queue))
            self._owners[row.queue] = owner
            self._epochs[client] = self._connected[client] = self._stamp()
            self._rows.owners.expect(owner, row.queue)
            if client in self.shared:
                self.begun.append(client)
        yield ops.PutSession(
            client,
            self._epochs[client],
            self._home,
            begins,
            0,
            row.expiry_s,
            row.ends_at_ms,
            row.will_due_at_ms,
            row.will_delay_s,
            row.will_expiry_s,
            value[len(value) - will_bytes(value) :],
            connected=self._connected[client],
            replaces=begins and replaces,
        )

    def _has_begun(self, client: str, number: int) -> bool:
        """Whether the store has a session although that could not be written, as it said; then it is known
        from now on.
        """
        owner, standing, given = Owner(SESSION, client), self._rows.standing(client), self._given.get(client)
        if given is None or standing is None or standing.epoch != given or standing.home != self._home:
            return False
        if self._rows.owners.numbers(owner)[-1:] != (number,):
            return False  # it is the client's next one
        self._owners_before.setdefault(number, self._owners.get(number))
        self._owners[number] = owner
        self._epochs[client] = self._connected[client] = given
        return True

    def _put_subscription(self, key: bytes, value: bytes | None) -> Iterator[Operation]:
        """What is of a stream concerns this node alone, and what ends with a session needs no word."""
        self.subscribes = True
        end = 2 + int.from_bytes(key[:2])
        client, topic_filter = key[2:end].decode(), key[end:].decode()
        if topic_filter.startswith(STREAM):
            self._plain.append(("subscription", key, value))
        elif value is not None:
            self.changed.append((client, topic_filter))
            row = parse_subscription(key, value)
            stamp = self._subscribed[client, topic_filter] = self._stamp()
            yield ops.Subscribe(client, topic_filter, stamp, row.options, row.subscription_id)
        elif client not in self._ended:
            self.changed.append((client, topic_filter))
            self._subscribed[client, topic_filter] = None
            yield ops.Unsubscribe(client, topic_filter, self._stamp())

    def _serve(self, key: bytes, value: bytes) -> Iterator[Operation]:
        """That is no new SUBSCRIBE: the client may have unsubscribed since, on another node."""
        row = parse_subscription(key, value)
        name = row.client_id, row.topic_filter
        known = self._rows.subscription(*name)
        stamp = self._subscribed.get(name, known.stamp if known is not None else None)
        if stamp is not None:
            yield ops.Serve(*name, stamp)

    def _put_received(self, key: bytes, value: bytes | None) -> Iterator[Operation]:
        owner = self._owner_of(int.from_bytes(key[:8]))
        if owner is None or owner.name not in self._epochs:
            return
        epoch = self._epochs[owner.name]
        if value is None:
            yield ops.Forget(owner.name, epoch, int.from_bytes(key[8:]))
        else:
            yield ops.Receive(owner.name, epoch, mark_of(key, value))

    def _put_shared(self, key: bytes, value: bytes | None) -> Iterator[Operation]:
        """A shard of a group's queue, which is this node's own."""
        number = int.from_bytes(key)
        self._plain.append(("shared", key, value))
        if value is not None:
            owner = Owner(GROUP, value.decode())
            self.know(number, owner)
            self._rows.owners.add(owner, number)
        yield from ()


def as_stamp(key: bytes) -> Stamp:
    """A message id as operations have it."""
    stamp: Stamp = decode("stamp", key)[0]
    return stamp


def will_bytes(value: bytes) -> int:
    """The size of the will in a session's row."""
    return int.from_bytes(value[40:44])
