"""The verdict on a split: one side does not know what the other has acknowledged until they meet."""

from __future__ import annotations

from dataclasses import replace

import pytest
from cluster.processes.gaps import ENDING_S, FULL, MOVING_S, excuse
from crash.history import (
    KILLED,
    Connection,
    Delivery,
    History,
    Interest,
    Message,
    Split,
    judge,
    judge_returns,
)

ONE, TWO = "broker 1", "broker 2"


class Story:
    """Two brokers that do not know of each other, from the beginning until `meet`. The subscriber is
    connected to the first, the publisher to `broker`.
    """

    def __init__(self, broker: str = ONE) -> None:
        self.history = History()
        self.part()
        self.connect("s", ONE)
        self.connect("p", broker)

    def connect(self, client: str, broker: str) -> None:
        at = self.history.note(client, f"connected to {broker}")
        for each in self.history.connections:
            if each.client == client:
                each.ended_at = min(each.ended_at, at)
        self.history.connections.append(Connection(client, broker, False, True, at, at))

    def subscribe(self) -> Interest:
        interest = Interest("s", "t", 2, asked_at=self.history.note("s", "asks"))
        interest.acknowledged_at = self.history.note("s", "SUBACK")
        self.history.interests.append(interest)
        return interest

    def unsubscribe(self, interest: Interest) -> None:
        interest.ending_at = self.history.note("s", "UNSUBSCRIBE")
        interest.ended_at = self.history.note("s", "UNSUBACK")

    def publish(self) -> Message:
        number = len(self.history.messages)
        message = Message("p", number, "t", 2, False, b"%d" % number)
        message.sent_at = self.history.note("p", "sends", message)
        message.sends.append(message.sent_at)
        message.acknowledged_at = self.history.note("p", "PUBREC", message)
        self.history.messages.append(message)
        return message

    def deliver(self, message: Message) -> None:
        at = self.history.note("s", "got PUBLISH", message)
        self.history.deliveries.append(Delivery("s", message, 2, at))

    def part(self) -> None:
        self.split = Split(frozenset({ONE}), self.history.note(ONE, "is split from the others"))
        self.history.splits.append(self.split)

    def meet(self) -> None:
        self.split.ended_at = self.history.note(ONE, "is reached again")
        self.split.met_at = self.history.note("brokers", "have met again")

    def deliver_again(self, moves: str) -> None:
        """A message comes, and again when they have met. Who `moves` was on the other side meanwhile."""
        self.subscribe()
        message = self.publish()
        self.deliver(message)
        self.connect(moves, TWO)
        self.meet()
        self.deliver(message)

    def kinds(self) -> list[str]:
        judge(self.history)
        excuse(self.history)
        return [each.kind for each in self.history.failures]


@pytest.mark.parametrize(("broker", "kinds"), [(ONE, ["lost"]), (TWO, [])])
def test_a_message_is_owed_to_who_had_subscribed_on_its_side(broker: str, kinds: list[str]) -> None:
    story = Story(broker)
    story.subscribe()
    story.publish()
    story.meet()
    assert story.kinds() == kinds


@pytest.mark.parametrize("broker", [ONE, TWO])
def test_it_is_owed_to_all_when_they_have_met(broker: str) -> None:
    story = Story(broker)
    story.subscribe()
    story.meet()
    story.publish()
    assert story.kinds() == ["lost"]


def test_what_was_subscribed_before_is_known_to_both_sides() -> None:
    story = Story(TWO)
    story.history.splits.clear()
    story.subscribe()
    story.part()
    story.publish()
    assert story.kinds() == ["lost"]


@pytest.mark.parametrize(("broker", "kinds"), [(ONE, ["stray"]), (TWO, [])])
def test_who_has_unsubscribed_gets_what_the_other_side_has_sent(broker: str, kinds: list[str]) -> None:
    story = Story(broker)
    story.unsubscribe(story.subscribe())
    message = story.publish()
    story.meet()
    story.deliver(message)
    assert story.kinds() == kinds


@pytest.mark.parametrize(("moves", "kinds"), [("nobody", ["twice"]), ("s", []), ("p", [])])
def test_twice_is_excused_to_who_was_on_both_sides(moves: str, kinds: list[str]) -> None:
    story = Story()
    story.deliver_again(moves)
    assert story.kinds() == kinds


@pytest.mark.parametrize("kind", ["nothing", FULL])
def test_an_old_home_takes_messages_as_long_as_a_node_cannot_hear_of_the_new_one(kind: str) -> None:
    story = Story()
    story.meet()
    story.unsubscribe(story.subscribe())
    fault = story.history.begin_fault(kind, TWO)
    story.connect("s", TWO)
    story.history.started_s -= MOVING_S
    fault.ended_at = story.history.note(TWO, "has room again")
    message = story.publish()
    story.deliver(message)
    assert story.kinds() == (["stray"] if kind == "nothing" else [])


@pytest.mark.parametrize(("broker", "kinds"), [(TWO, []), (ONE, ["stray"])])
def test_it_takes_none_for_a_node_that_has_heard_before_it_is_killed(broker: str, kinds: list[str]) -> None:
    story = Story()
    story.meet()
    story.unsubscribe(story.subscribe())
    full = story.history.begin_fault(FULL, TWO)
    story.connect("s", TWO)
    story.history.started_s -= MOVING_S
    full.ended_at = story.history.note(TWO, "has room again")
    killed = story.history.begin_fault(KILLED, broker)
    story.history.started_s -= MOVING_S
    killed.ended_at = story.history.note(broker, "is there again")
    message = story.publish()
    story.deliver(message)
    assert story.kinds() == kinds


@pytest.mark.parametrize(("later_s", "kinds"), [(0.0, []), (ENDING_S, ["stray"])])
def test_what_is_sent_as_a_session_begins_anew_may_come_to_that(later_s: float, kinds: list[str]) -> None:
    story = Story()
    story.meet()
    interest = story.subscribe()
    story.connect("s", ONE)
    story.history.connections[-1].clean = True
    interest.ending_at = interest.ended_at = interest.discarded_at = story.history.connections[-1].accepted_at
    story.connect("s", ONE)
    story.history.started_s -= later_s
    message = story.publish()
    message.qos = 1
    story.deliver(message)
    assert story.kinds() == kinds


@pytest.mark.parametrize(("moves", "kinds"), [("nobody", ["came back", "twice"]), ("s", [])])
def test_what_comes_again_late_is_excused_to_who_was_on_both_sides(moves: str, kinds: list[str]) -> None:
    """What was in flight on one side comes again when the client stays long enough, maybe after a death."""
    story = Story()
    story.deliver_again(moves)
    judge_returns(story.history, 1, "the death of two")
    assert sorted(story.kinds()) == kinds


@pytest.mark.parametrize(("broker", "kinds"), [(ONE, ["twice"]), (TWO, [])])
def test_twice_is_excused_where_it_was_under_way_to_somebody_on_the_other_side(
    broker: str, kinds: list[str]
) -> None:
    """So its publisher got no acknowledgement, and sent it again."""
    story = Story()
    story.meet()
    story.subscribe()
    story.connect("t", broker)
    story.history.interests.append(Interest("t", "t", 2, asked_at=story.history.note("t", "asks")))
    message = story.publish()
    story.deliver(message)
    story.part()
    story.connect("p", ONE)
    message.acknowledged_at = story.history.note("p", "PUBREC", message)
    story.deliver(message)
    assert story.kinds() == kinds


def test_what_was_sent_when_they_had_met_comes_once() -> None:
    story = Story()
    story.subscribe()
    story.connect("s", TWO)
    story.meet()
    message = story.publish()
    story.deliver(message)
    story.deliver(message)
    assert story.kinds() == ["twice"]


@pytest.mark.parametrize(
    ("then", "kinds"),
    [("nothing", []), ("unsubscribes", ["stray"]), ("ends", ["stray"]), ("ends on one side", [])],
)
def test_a_subscription_of_a_session_that_the_other_side_did_not_know_stands(
    then: str, kinds: list[str]
) -> None:
    """Until the client unsubscribes, or ends its session, when the nodes have met, and all know of it."""
    story = Story(TWO)
    lost = story.subscribe()
    story.connect("s", TWO)
    lost.ended_at = lost.discarded_at = lost.ending_at = story.history.note("s", "session present: False")
    story.meet()
    if then == "unsubscribes":
        story.unsubscribe(story.subscribe())
    if then.startswith("ends"):
        again = then == "ends on one side"
        if again:
            story.part()
        story.connect("s", TWO)
        story.history.connections[-1] = replace(story.history.connections[-1], clean=True)
        story.connect("s", ONE if again else TWO)
        if again:
            story.meet()
    story.history.started_s -= 60.0  # so much later
    story.deliver(story.publish())
    assert story.kinds() == kinds


def test_who_has_stayed_on_one_side_has_what_it_has_subscribed_there() -> None:
    story = Story()
    lost = story.subscribe()
    lost.ended_at = lost.discarded_at = lost.ending_at = story.history.note("s", "discards its session")
    story.meet()
    story.deliver(story.publish())
    assert story.kinds() == ["stray"]


@pytest.mark.parametrize(("accepted", "kinds"), [("before", ["stray"]), ("meanwhile", [])])
def test_the_other_side_hears_of_an_end_when_they_meet(accepted: str, kinds: list[str]) -> None:
    """Also where its CONNECT was sent before they were split, and answered later."""
    story = Story(TWO)
    story.history.splits.clear()
    ended = story.subscribe()
    asked_at = story.history.note("s", "CONNECT")
    if accepted == "before":
        story.history.note("s", "CONNACK")
    story.part()
    accepted_at = asked_at + 1 if accepted == "before" else story.history.note("s", "CONNACK")
    story.history.connections[0].ended_at = asked_at
    story.history.connections.append(Connection("s", ONE, True, False, asked_at, accepted_at))
    ended.ended_at = ended.discarded_at = ended.ending_at = accepted_at
    story.connect("s", ONE)
    story.history.started_s -= 60.0  # so much later
    message = story.publish()
    story.meet()
    story.deliver(message)
    assert story.kinds() == kinds


@pytest.mark.parametrize(("later_s", "kinds"), [(0.0, []), (60.0, ["disorder"])])
def test_what_is_published_as_nodes_meet_may_come_behind_what_is_newer(
    later_s: float, kinds: list[str]
) -> None:
    """It is refused, and sent again."""
    story = Story(TWO)
    story.subscribe()
    story.meet()
    story.history.started_s -= later_s
    refused, taken = story.publish(), story.publish()
    story.deliver(taken)
    story.deliver(refused)
    assert story.kinds() == kinds
