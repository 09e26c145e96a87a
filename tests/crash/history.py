"""What happened in one run, in order, and the verdict on it.

Everything is recorded by one thread, so the numbers of events are their order: a PUBLISH was first sent after
a SUBACK was received exactly when its number is the larger one. What the broker owes follows from that alone,
never from clock times.
"""

from __future__ import annotations

import itertools
import re
import time
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

SHOWN_MAX = 60  # events of a failure's history
NEVER = 1 << 60
KILLED, STOPPED = "is killed", "is stopped"  # kinds of faults that take a broker's memory


@dataclass(slots=True)
class Message:
    """One application message; `number` counts its publisher's. Places are numbers of events."""

    publisher: str
    number: int
    topic: str
    qos: int
    retain: bool
    payload: bytes
    sent_at: int = NEVER
    acknowledged_at: int = NEVER  # PUBACK or PUBREC that says success
    sends: list[int] = field(default_factory=list)  # each PUBLISH, the first too
    packet_id: int = 0
    refused: bool = False  # a reason code said no: it may come or not

    def __str__(self) -> str:
        retain = " retain" if self.retain else ""
        return f"{self.publisher} #{self.number} QoS {self.qos}{retain} on {self.topic}"


@dataclass(slots=True)
class Connection:
    """One that a broker, of many perhaps, has accepted: from CONNECT to its end as its client saw it."""

    client: str
    broker: str
    clean: bool
    session_present: bool
    asked_at: int
    accepted_at: int
    ended_at: int = NEVER


@dataclass(slots=True)
class Fault:
    """Something that was done to a broker, or between brokers."""

    kind: str
    broker: str
    at: int
    ended_at: int = NEVER


@dataclass(slots=True)
class Split:
    """Brokers in two parts that do not know of each other. `side`: the names of one part. `met_at`: when each
    knew again what the others had done meanwhile.
    """

    side: frozenset[str]
    at: int
    ended_at: int = NEVER
    met_at: int = NEVER

    def spans(self, at: int) -> bool:
        return self.at <= at < self.met_at

    def is_crossed(self, brokers: Collection[str]) -> bool:
        """Whether these are of both parts."""
        return 0 < len(self.side.intersection(brokers)) < len(set(brokers))


@dataclass(slots=True)
class Delivery:
    """A PUBLISH that a subscriber took for a new message (what its QoS 2 state knows already is none)."""

    subscriber: str
    message: Message
    qos: int
    at: int
    dup: bool = False
    packet_id: int = 0
    connection: Connection | None = None


@dataclass(slots=True)
class Interest:
    """One subscription from SUBSCRIBE to its end. `group` is a shared subscription's name, else empty.

    It is sure from `acknowledged_at` until `ending_at` (UNSUBSCRIBE sent), and possible from `asked_at` until
    `ended_at` (UNSUBACK received). A new session (CONNECT, CONNACK) ends it as well.
    """

    subscriber: str
    filter: str
    qos: int
    group: str = ""
    asked_at: int = NEVER
    acknowledged_at: int = NEVER
    ending_at: int = NEVER
    ended_at: int = NEVER
    discarded_at: int = NEVER  # together with its session, and so with all that was waiting

    @property
    def written(self) -> str:
        """As SUBSCRIBE has it."""
        return f"$share/{self.group}/{self.filter}" if self.group else self.filter

    def wants(self, message: Message) -> bool:
        return bool(filter_pattern(self.filter).fullmatch(message.topic))


@dataclass(frozen=True, slots=True)
class Failure:
    """What the broker did wrong, and with which message and client."""

    kind: str
    text: str
    message: Message | None = None
    client: str = ""


_patterns: dict[str, re.Pattern[str]] = {}


def filter_pattern(topic_filter: str) -> re.Pattern[str]:
    """A topic filter as a regular expression of its topic names."""
    if topic_filter not in _patterns:
        pattern = (
            re.escape(topic_filter).replace(r"/\#", "(/.*)?").replace(r"\#", ".*").replace(r"\+", "[^/]*")
        )
        _patterns[topic_filter] = re.compile(pattern)
    return _patterns[topic_filter]


class _Known:
    """What was found out of a history as it is, so that a long one is judged in minutes."""

    def __init__(self, size: tuple[int, ...], connections: Iterable[Connection]) -> None:
        self.size = size
        self.brokers: dict[int, set[str]] = {}  # by the message
        self.latest: dict[int, int] = {}
        self.crossed: dict[str, list[Split]] = {}  # by the client
        self.connected: dict[tuple[int, str], set[str]] = {}  # brokers, by when and which client
        self.connections: dict[str, list[Connection]] = defaultdict(list)  # by the client
        for each in connections:
            self.connections[each.client].append(each)


@dataclass(slots=True)
class History:
    """Events, messages, subscriptions, connections, deliveries and faults of one run."""

    events: list[tuple[float, str, str, Message | None]] = field(default_factory=list)
    messages: list[Message] = field(default_factory=list)
    interests: list[Interest] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    connections: list[Connection] = field(default_factory=list)
    faults: list[Fault] = field(default_factory=list)
    splits: list[Split] = field(default_factory=list)  # in the order of their beginnings
    failures: list[Failure] = field(default_factory=list)
    started_s: float = field(default_factory=time.monotonic)
    _known: _Known = field(default_factory=lambda: _Known((), ()))

    def _size(self) -> tuple[int, ...]:
        return len(self.events), len(self.connections), len(self.splits)

    def _as_it_is(self) -> _Known:
        if self._known.size != self._size():
            self._known = _Known(self._size(), self.connections)
        return self._known

    def note(self, who: str, what: str, message: Message | None = None) -> int:
        """Records an event; returns its number."""
        self.events.append((time.monotonic() - self.started_s, who, what, message))
        return len(self.events)

    def seconds_since(self, at: int) -> float:
        """From that event until now."""
        return time.monotonic() - self.started_s - self.events[at - 1][0]

    def fail(self, kind: str, text: str, message: Message | None = None, client: str = "") -> None:
        known = self._as_it_is()
        self.note(client or "verdict", f"FAILURE {kind}: {text}", message)
        known.size = self._size()  # a failure is nothing that happened
        self.failures.append(Failure(kind, text, message, client))

    def begin_fault(self, kind: str, broker: str) -> Fault:
        """It lasts until its `ended_at` is set."""
        fault = Fault(kind, broker, self.note(broker, kind))
        self.faults.append(fault)
        return fault

    def fault(self, kind: str, broker: str) -> None:
        """One of a moment."""
        self.begin_fault(kind, broker).ended_at = len(self.events)

    def connections_of(self, client: str) -> list[Connection]:
        """In the order in which they were asked for."""
        return self._as_it_is().connections[client]

    def crossed_by(self, client: str) -> list[Split]:
        """The splits in which a client was connected to both sides."""
        known = self._as_it_is()
        if client not in known.crossed:
            known.crossed[client] = [
                split
                for split in self.splits
                if split.is_crossed(
                    {
                        each.broker
                        for each in known.connections[client]
                        if each.accepted_at < split.met_at and each.ended_at > split.at
                    }
                )
            ]
        return known.crossed[client]

    def brokers_of(self, message: Message) -> set[str]:
        """To which it was sent, as far as is known; also those to which its publisher came meanwhile."""
        known = self._as_it_is()
        if id(message) not in known.brokers:
            known.brokers[id(message)] = {
                each.broker
                for each in known.connections[message.publisher]
                if message.sent_at < each.accepted_at < message.acknowledged_at
                or any(each.accepted_at < at <= each.ended_at for at in message.sends)
            }
        return known.brokers[id(message)]

    def known_at(self, at: int, client: str, message: Message) -> int:
        """When the brokers to which a message was sent knew what the client's broker acknowledged at that
        place: at once, but where a split was between them.
        """
        if self._latest(at) == at:
            return at
        for each in self.splits:
            if each.spans(at):
                mine, theirs = self.brokers_at(at, client), self.brokers_of(message)
                if not mine or not theirs or each.is_crossed(mine | theirs):
                    at = each.met_at
        return at

    def _latest(self, at: int) -> int:
        """When any broker knew at the latest what one acknowledged at that place."""
        known = self._as_it_is().latest
        if at not in known:
            known[at] = at
            for each in self.splits:
                if each.spans(known[at]):
                    known[at] = each.met_at
        return known[at]

    def brokers_at(self, at: int, client: str) -> set[str]:
        """To which a client was connected then."""
        known = self._as_it_is()
        if (at, client) not in known.connected:
            mine = known.connections[client]
            known.connected[at, client] = {
                each.broker for each in mine if each.accepted_at <= at <= each.ended_at
            }
        return known.connected[at, client]

    def is_sure(self, interest: Interest, message: Message) -> bool:
        """Whether the subscription was known where the message was sent, before it first was."""
        if not interest.acknowledged_at < message.sent_at:
            return False
        return self.known_at(interest.acknowledged_at, interest.subscriber, message) < message.sent_at

    def covers(self, interest: Interest, delivery: Delivery) -> bool:
        """Whether the subscription was there all the time from before the message was first sent; a group
        promises less.
        """
        wants = delivery.at < interest.ending_at and not interest.group and interest.wants(delivery.message)
        return wants and self.is_sure(interest, delivery.message)  # which takes longer

    def explains(self, interest: Interest, delivery: Delivery) -> bool:
        """Whether the delivery may be due to the subscription."""
        message, client = delivery.message, interest.subscriber
        return (
            interest.asked_at < min(delivery.at, message.acknowledged_at)
            and self._latest(interest.ended_at) > message.sent_at  # as of nearly none of a long history
            and interest.wants(message)
            and self.known_at(interest.ended_at, client, message) > message.sent_at
            and self.known_at(interest.discarded_at, client, message) > delivery.at
        )

    def explain(self, failure: Failure) -> str:
        """The events that concern a failure's message and the broker, and the connections of its client and
        the message's publisher.
        """
        lines = []
        concerned = {failure.client, failure.message.publisher if failure.message is not None else ""}
        for number, (at_s, who, what, message) in enumerate(self.events, 1):
            of_message = message is not None and message is failure.message
            of_client = message is None and who in concerned and not what.startswith("got PUB")
            if of_message or of_client or who.startswith("broker"):
                lines.append(f"    {number:7} {at_s:8.3f} s  {who}: {what}")
        if len(lines) > SHOWN_MAX:
            half = SHOWN_MAX // 2
            lines[half:-half] = [f"    ... {len(lines) - SHOWN_MAX} more"]
        name = f" ({failure.message})" if failure.message else ""
        return "\n".join([f"  {failure.kind}: {failure.text}{name}", *lines])


class Debts:
    """Who must get which message: kept up to date while a run drains."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._counted = 0
        self._got: set[tuple[str, int]] = set()
        self._due = [
            (receiver, message) for message in history.messages for receiver in owed(history, message)
        ]

    def unpaid(self) -> list[tuple[str, Message]]:
        """Receivers (a subscriber's client identifier, or a shared group) and messages that they lack."""
        groups = {each.subscriber: set[str]() for each in self._history.interests}
        for each in self._history.interests:
            if each.group:
                groups[each.subscriber].add(each.group)
        for delivery in itertools.islice(self._history.deliveries, self._counted, None):
            for receiver in (delivery.subscriber, *groups[delivery.subscriber]):
                self._got.add((receiver, id(delivery.message)))
        self._counted = len(self._history.deliveries)
        self._due = [(who, message) for who, message in self._due if (who, id(message)) not in self._got]
        return self._due


def owed(history: History, message: Message) -> set[str]:
    """The receivers whose subscription was acknowledged before the message was first sent, and stayed."""
    if message.refused or message.sent_at == NEVER or not message.payload:
        return set()  # empty ones cannot be told apart
    return {
        each.group or each.subscriber
        for each in history.interests
        if each.ending_at == NEVER and each.wants(message) and history.is_sure(each, message)
    }


def judge(history: History) -> list[Failure]:
    """Everything that the broker owed and did not do, or did and must not, with what was seen on the way."""
    for receiver, message in Debts(history).unpaid():
        state = "acknowledged" if message.acknowledged_at != NEVER else "sent until done"
        history.fail("lost", f"{state}, never delivered to {receiver}", message, receiver)
    _judge_copies(history)
    _judge_repeats(history)
    _judge_order(history)
    _judge_strays(history)
    return history.failures


def judge_returns(history: History, settled: int, since: str, of: Collection[str] = ()) -> None:
    """Of the deliveries from number `settled` on, which came when everybody had acknowledged all before; or
    those to some subscribers, where they are named. Of a message that its publisher has sent several times at
    QoS 1 a copy may have waited until then.
    """
    taken = Counter((each.subscriber, id(each.message)) for each in history.deliveries[:settled])
    for delivery in history.deliveries[settled:]:
        key, meant = (delivery.subscriber, id(delivery.message)), not of or delivery.subscriber in of
        copies = len(delivery.message.sends) if delivery.message.qos == 1 else 1
        if meant and taken[key] and taken[key] >= copies:
            text = f"was acknowledged by its subscriber, and came again after {since}"
            history.fail("came back", text, delivery.message, delivery.subscriber)
        taken[key] += 1


def _judge_copies(history: History) -> None:
    """QoS 2 comes once: to a subscriber, and to all the members of a group together."""
    members = {(each.subscriber, each.filter): each.group for each in history.interests}
    shared_only = {
        subscriber: group
        for (subscriber, _), group in members.items()
        if group and sum(1 for other, _ in members if other == subscriber) == 1
    }
    copies: dict[tuple[str, int], list[Delivery]] = defaultdict(list)
    for delivery in history.deliveries:
        if delivery.qos == 2:
            receiver = shared_only.get(delivery.subscriber, delivery.subscriber)
            copies[receiver, id(delivery.message)].append(delivery)
    for (receiver, _), found in copies.items():
        if len(found) > 1:
            text = f"delivered {len(found)} times at QoS 2 to {receiver}"
            history.fail("twice", text, found[0].message, found[-1].subscriber)


def _judge_repeats(history: History) -> None:
    """At QoS 1 a message comes to a session as often as its publisher has sent it, and each of these again
    with DUP on later connections. A broker that died after it had sent a message may not know that it did.

    Of shared subscriptions nothing is said: what one member has not acknowledged may come to any.
    """
    shared = {each.subscriber for each in history.interests if each.group}
    ends: dict[str, list[int]] = defaultdict(list)  # of each subscriber's sessions
    for end, whose in sorted({(each.discarded_at, each.subscriber) for each in history.interests}):
        ends[whose].append(end)
    found: dict[tuple[str, int, int], list[Delivery]] = defaultdict(list)
    for delivery in history.deliveries:
        if delivery.qos != 1 or delivery.connection is None or delivery.subscriber in shared:
            continue
        session = bisect_left(ends[delivery.subscriber], delivery.at)
        copies = found[delivery.subscriber, session, id(delivery.message)]
        if any(_is_again(each, delivery) for each in copies):
            continue
        if copies and not _has_cause(history, copies, delivery):
            text = f"delivered again at QoS 1 to {delivery.subscriber}, without a cause"
            history.fail("repeated", text, delivery.message, delivery.subscriber)
        copies.append(delivery)


def _is_again(before: Delivery, delivery: Delivery) -> bool:
    """Whether it is the same one, which was not acknowledged in time."""
    same = before.packet_id == delivery.packet_id and before.connection is not delivery.connection
    return same and delivery.dup


def _has_cause(history: History, copies: list[Delivery], another: Delivery) -> bool:
    if len(copies) < sum(at < another.at for at in another.message.sends):
        return True
    deaths = [each for each in history.faults if each.kind == KILLED]
    message = another.message
    if not message.sends and any(message.sent_at < each.at < another.at for each in deaths):
        return True  # a will: nobody sent it but the broker, which may not have noted that it did
    # what a client reads after the death of a broker was sent before it, and its answer reaches nobody
    return any(
        fault.broker == each.connection.broker and each.connection.accepted_at < fault.at < another.at
        for fault in deaths
        for each in copies
        if each.connection is not None
    )


def _judge_order(history: History) -> None:
    """First deliveries of a publisher's messages on a topic, of one QoS, come in the order of publishing.

    Only of those that were first sent after the SUBACK: where a subscription was made meanwhile, what is sent
    again may come behind what was sent later.
    """
    mine: dict[str, list[Interest]] = defaultdict(list)
    for each in history.interests:
        mine[each.subscriber].append(each)
    newest: dict[tuple[str, str, str, int, int], Message] = {}
    seen: set[tuple[str, int]] = set()
    for delivery in history.deliveries:
        message = delivery.message
        if (delivery.subscriber, id(message)) in seen or message.refused:
            continue
        seen.add((delivery.subscriber, id(message)))
        if not any(history.covers(each, delivery) for each in mine[delivery.subscriber]):
            continue
        key = (delivery.subscriber, message.publisher, message.topic, message.qos, delivery.qos)
        before = newest.get(key)
        if before is not None and before.number > message.number:
            text = f"came after #{before.number} at QoS {delivery.qos} to {delivery.subscriber}"
            history.fail("disorder", text, message, delivery.subscriber)
        else:
            newest[key] = message


def _judge_strays(history: History) -> None:
    """Nothing comes without a subscription, or at a higher QoS than granted or published.

    A message is a stray also where it was first sent after the UNSUBACK of all that matched it, or
    acknowledged before the SUBSCRIBE, or where its session was discarded.
    """
    by_subscriber: dict[str, list[Interest]] = defaultdict(list)
    for each in history.interests:
        by_subscriber[each.subscriber].append(each)
    for delivery in history.deliveries:
        message = delivery.message
        possible = [each for each in by_subscriber[delivery.subscriber] if history.explains(each, delivery)]
        highest = max((min(each.qos, message.qos) for each in possible), default=-1)
        if not possible:
            text = f"delivered to {delivery.subscriber}, which had no subscription for it"
            history.fail("stray", text, message, delivery.subscriber)
        elif delivery.qos > highest:
            text = f"delivered at QoS {delivery.qos} to {delivery.subscriber}, granted {highest}"
            history.fail("quality", text, message, delivery.subscriber)
        elif delivery.qos < min(min(each.qos, message.qos) for each in possible):
            text = f"delivered at QoS {delivery.qos} only to {delivery.subscriber}"
            history.fail("quality", text, message, delivery.subscriber)
