"""What a cluster does not yet promise, as docs/cluster.md says: failures that have such a cause are counted
and not reported.

A gap that has been mended goes from here together with its sentence there; a test holds the two together.
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from crash.history import KILLED, STOPPED, Connection, Failure, Fault, History, Message

ENDING_S = 2.0  # from the end of a session until no message of before is on its way to it
UNSUBSCRIBING_S = 2.0  # until all nodes know that a client has unsubscribed
MOVING_S = 10.0  # after which the old home has forgotten a session, also where a node was not there

REFUSED_S = 2.0  # after nodes have met, until nothing is refused any more that goes from one to the other
HEARD_S = 1.0  # until nodes that reach each other have heard of a clock that was set; half of it at rest

CUT, SILENT = "is cut off", "is not heard"  # kinds of faults
SPLIT = "is split from the others"
FULL = "has a full disk"
CLOCK_SET = "has a clock that is"  # how its kind begins
TAKEN_FOR_DEAD = "is taken for dead"  # the kind of a fault: a node that was there all the time


@dataclass(frozen=True, slots=True)
class Gap:
    """`sentence`: how its paragraph begins in docs/cluster.md. `kinds`: of failures that it may cause."""

    sentence: str
    kinds: tuple[str, ...]
    is_cause: Callable[[History, Failure], bool]


def _faults_meanwhile(history: History, message: Message) -> list[Fault]:
    """Those while the message was sent and not yet acknowledged."""
    return [
        each
        for each in history.faults
        if each.at < message.acknowledged_at and each.ended_at > message.sent_at
    ]


def _a_node_ended(history: History, failure: Failure) -> bool:
    """Whether one was not there, or had just come back, at a time when the message was sent and not yet
    acknowledged.
    """
    message = failure.message
    return message is not None and any(
        each.kind in (KILLED, STOPPED)
        and each.at < message.acknowledged_at
        and _seconds(history, message.sent_at) < _seconds(history, each.ended_at) + REFUSED_S
        for each in history.faults
    )


def _its_node_was_killed(history: History, failure: Failure) -> bool:
    """Whether one to which the message was sent was killed before it was acknowledged."""
    message = failure.message
    if message is None or message.qos != 2:
        return False
    nodes = history.brokers_of(message)
    return any(each.kind == KILLED and each.broker in nodes for each in _faults_meanwhile(history, message))


def _it_was_under_way_as_its_session_ended(history: History, failure: Failure) -> bool:
    """Whether the message was sent, and more or less not yet acknowledged, when its node can have heard that
    the client has ended its session: when nodes met that had been split, and at QoS 2 at once.
    """
    message = failure.message
    if message is None:
        return False
    ends = [each for each in history.connections_of(failure.client) if each.clean]
    heard = [(end.asked_at, end.ended_at) for end in ends if message.qos == 2]
    heard += [
        (each.ended_at, each.met_at)
        for end in ends
        for each in history.splits
        if each.at <= end.accepted_at and end.asked_at < each.met_at
    ]
    return _was_sent_as_it_was_heard(history, message, heard)


def _its_session_began_anew_at_once(history: History, failure: Failure) -> bool:
    """Whether the message was sent, and more or less not yet acknowledged, as the client ended its session by
    a CONNECT that begins another one, and the nodes heard of both.
    """
    message, ends = failure.message, [each for each in history.connections_of(failure.client) if each.clean]
    heard = [(each.asked_at, each.accepted_at) for each in ends]
    return message is not None and _was_sent_as_it_was_heard(history, message, heard)


def _was_sent_as_it_was_heard(history: History, message: Message, heard: list[tuple[int, int]]) -> bool:
    sent_s = _seconds(history, message.sent_at)
    until_s = _seconds(history, message.acknowledged_at) + ENDING_S
    return any(
        sent_s < _seconds(history, over) + HEARD_S and until_s > _seconds(history, begin)
        for begin, over in heard
    )


def _seconds(history: History, at: float) -> float:
    """When an event was; one that never was is later than all."""
    return history.events[int(at) - 1][0] if at <= len(history.events) else at


def _its_session_moved(history: History, failure: Failure) -> bool:
    """Whether the message was sent while the client came from another node, or soon after; or while it came
    back to its own one, which had been away, from the one that had its session meanwhile.
    """
    message = failure.message
    if message is None:
        return False
    sent_s = _seconds(history, message.sent_at)
    return any(
        message.sent_at > after.asked_at
        and sent_s < _moved_until_s(history, after)
        and (before.broker != after.broker or _was_away(history, after))
        for before, after in itertools.pairwise(history.connections_of(failure.client))
    )


def _moved_until_s(history: History, connection: Connection) -> float:
    """When an old home has forgotten the session at last: it waits until all nodes know where that is, and
    one that is killed, or cannot store it, before it can have heard of it, hears of it only afterwards.
    """
    known_s = _seconds(history, connection.accepted_at) + MOVING_S
    knows_s: dict[str, float] = {}
    for fault in history.faults:
        begun_s, node_knows_s = _seconds(history, fault.at), knows_s.get(fault.broker, known_s)
        if (
            fault.kind in (KILLED, FULL)
            and begun_s < node_knows_s
            and fault.ended_at > connection.accepted_at
        ):
            knows_s[fault.broker] = max(node_knows_s, _seconds(history, fault.ended_at) + MOVING_S)
    return max(knows_s.values(), default=known_s)


def _it_was_unsubscribed_as_nodes_met(history: History, failure: Failure) -> bool:
    """Whether the client unsubscribed a moment before the message was sent, while another node may still have
    taken messages for its session, as it does from a split on until all know who has the session.
    """
    message = failure.message
    if message is None:
        return False
    sent_s = _seconds(history, message.sent_at)
    healed = [each for each in history.splits if each.ended_at < message.sent_at]
    if not any(sent_s < _seconds(history, each.met_at) + MOVING_S for each in healed):
        return False
    return any(
        each.subscriber == failure.client
        and each.wants(message)
        and each.ended_at < each.discarded_at
        and sent_s - _seconds(history, each.ended_at) < UNSUBSCRIBING_S
        for each in history.interests
    )


def _was_away(history: History, connection: Connection) -> bool:
    """Whether the node had been, until a moment before it took the client in."""
    accepted_s = _seconds(history, connection.accepted_at)
    return any(
        each.kind in (KILLED, STOPPED)
        and each.broker == connection.broker
        and each.at < connection.accepted_at
        and accepted_s - _seconds(history, each.ended_at) < MOVING_S
        for each in history.faults
    )


def _somebody_was_slow(history: History, _failure: Failure) -> bool:
    return any(each.kind == TAKEN_FOR_DEAD for each in history.faults)


def _a_clock_was_set(history: History, failure: Failure) -> bool:
    """Whether the message was sent when not all can have heard yet how late it is where a clock was set."""
    message = failure.message
    if message is None:
        return False
    sent_s = history.events[message.sent_at - 1][0]
    return any(
        each.kind.startswith(CLOCK_SET)
        and each.at < message.sent_at
        and (
            sent_s - _seconds(history, each.at) < HEARD_S
            or any(
                cut.kind in (CUT, SILENT) and cut.at < message.sent_at and cut.ended_at > each.at
                for cut in history.faults
            )
        )
        for each in history.faults
    )


def _it_was_on_both_sides(history: History, failure: Failure) -> bool:
    """Whether the subscriber or the publisher was connected to both sides of a split."""
    message = failure.message
    clients = {failure.client, message.publisher if message is not None else ""}
    return any(
        message is None or message.sent_at < split.met_at
        for client in clients
        for split in history.crossed_by(client)
    )


def _it_had_subscribed_on_the_other_side(history: History, failure: Failure) -> bool:
    """Whether the client had a subscription for it until, in a split, it ended that session on one side only,
    or a side that did not know the session gave it a new one; and has ended neither since they met, or only
    in another split, on one side.
    """
    message, client = failure.message, failure.client
    if message is None:
        return False
    fitting = [each for each in history.interests if each.subscriber == client and each.wants(message)]
    crossed = history.crossed_by(client)
    ends = [each for each in history.connections_of(client) if each.clean and each.asked_at < message.sent_at]
    ends = [each for each in ends if not any(split.spans(each.accepted_at) for split in crossed)]
    for split in crossed:
        if any(each.accepted_at > split.met_at for each in ends):
            continue
        for interest in fitting:
            lost_it = interest.asked_at < split.met_at and split.spans(interest.discarded_at)
            unsubscribed = any(
                each.filter == interest.filter and split.met_at < each.ended_at < message.sent_at
                for each in fitting
            )
            if lost_it and not unsubscribed:
                return True
    return False


def _it_was_under_way_in_a_split(history: History, failure: Failure) -> bool:
    """Whether the message may have been refused, and sent again: as nodes parted, or met."""
    message = failure.message
    return message is not None and any(
        _seconds(history, message.sent_at) < _seconds(history, each.met_at) + REFUSED_S
        and message.acknowledged_at > each.at
        for each in history.splits
    )


def _it_went_to_both_sides(history: History, failure: Failure) -> bool:
    """Whether a QoS 2 message that was under way when a split began was sent to both of its sides, or to one
    and somebody who was to get it was on the other: then it was not acknowledged.
    """
    message = failure.message
    return (
        message is not None
        and message.qos == 2
        and any(
            message.sent_at < each.at < message.acknowledged_at
            and each.is_crossed(history.brokers_of(message) | _homes_of_receivers(history, message, each.at))
            for each in history.splits
        )
    )


def _homes_of_receivers(history: History, message: Message, at: int) -> set[str]:
    """The brokers to which those were connected last who had subscribed to a message."""
    homes: set[str] = set()
    for interest in history.interests:
        if interest.wants(message) and interest.asked_at < at < interest.ended_at:
            mine = history.connections_of(interest.subscriber)
            homes.update([each.broker for each in mine if each.accepted_at < at][-1:])
    return homes


GAPS = (
    Gap("**QoS 2 while a node ends**", ("disorder",), _a_node_ended),
    Gap("**QoS 2 of a node that is killed**", ("twice", "disorder"), _its_node_was_killed),
    Gap(
        "**A session that ends while messages are on their way to it**",
        ("stray", "quality"),
        _it_was_under_way_as_its_session_ended,
    ),
    Gap(
        "**A session that ends and begins anew at once**",
        ("stray", "quality"),
        _its_session_began_anew_at_once,
    ),
    Gap("**UNSUBSCRIBE soon after a session has moved**", ("stray", "quality"), _its_session_moved),
    Gap(
        "**UNSUBSCRIBE soon after a session has moved**",
        ("stray", "quality"),
        _it_was_unsubscribed_as_nodes_met,
    ),
    Gap("**Order where a clock is set**", ("retained", "disorder"), _a_clock_was_set),
    Gap(
        "**Splits**",
        (
            "twice",
            "repeated",
            "disorder",
            "identifier",
            "flow",
            "unreleased",
            "session back",
            "session lost",
            "stray",
            "quality",
            "came back",
        ),
        _it_was_on_both_sides,
    ),
    Gap("**Splits**", ("stray", "quality"), _it_had_subscribed_on_the_other_side),
    Gap("**Splits**", ("disorder",), _it_was_under_way_in_a_split),
    Gap("**Splits**", ("twice",), _it_went_to_both_sides),
    # it is a split: sessions are served on both sides
    Gap(
        "**A node whose process stands still**",
        (
            "twice",
            "repeated",
            "disorder",
            "identifier",
            "flow",
            "stalled",
            "unreleased",
            "stray",
            "session back",
            "came back",
        ),
        _somebody_was_slow,
    ),
)


def excuse(history: History) -> Counter[str]:
    """Takes out of a history's failures what is a gap's; gives how many, by the gap's sentence."""
    excused: Counter[str] = Counter()
    left = []
    taken = {(each.subscriber, id(each.message)) for each in history.deliveries}
    hidden: set[tuple[str, int]] = set()  # by another message's identifier: whose, and of which message
    for failure in sorted(history.failures, key=lambda each: each.kind != "identifier"):
        causes = (each for each in GAPS if failure.kind in each.kinds and each.is_cause(history, failure))
        cause = next(causes, None)  # of thousands of failures: no more is looked for
        key = failure.client, id(failure.message)
        if failure.kind == "identifier" and key in taken:
            continue  # its client had released the other one
        if cause is not None:
            excused[cause.sentence] += 1
            hidden |= {key} if failure.kind == "identifier" else set()
        elif failure.kind != "lost" or key not in hidden:
            left.append(failure)
    history.failures[:] = left
    return excused
