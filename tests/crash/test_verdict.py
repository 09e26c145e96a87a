"""The verdict on a run finds what is wrong in its history, and nothing where all is well."""

from __future__ import annotations

import pytest
from crash.history import Delivery, Failure, History, Interest, Message, filter_pattern, judge, judge_returns


class Story:
    """A history made by hand: one publisher, subscribers of `t/#`."""

    def __init__(self, qos: int = 2) -> None:
        self.history = History()
        self.qos = qos

    def subscribe(self, subscriber: str, group: str = "", topic_filter: str = "t/#") -> Interest:
        interest = Interest(
            subscriber, topic_filter, 2, group, asked_at=self.history.note(subscriber, "asks")
        )
        interest.acknowledged_at = self.history.note(subscriber, "SUBACK")
        self.history.interests.append(interest)
        return interest

    def publish(self, number: int, *, acknowledged: bool = True) -> Message:
        message = Message("p", number, "t/a", self.qos, False, b"%d" % number)
        message.sent_at = self.history.note("p", "sends", message)
        if acknowledged:
            message.acknowledged_at = self.history.note("p", "got PUBACK", message)
        self.history.messages.append(message)
        return message

    def deliver(self, subscriber: str, message: Message, qos: int | None = None) -> None:
        at = self.history.note(subscriber, "got PUBLISH", message)
        self.history.deliveries.append(Delivery(subscriber, message, self.qos if qos is None else qos, at))

    def kinds(self) -> list[str]:
        return [each.kind for each in judge(self.history)]


def test_all_is_well() -> None:
    story = Story()
    story.subscribe("s")
    for message in [story.publish(1), story.publish(2)]:
        story.deliver("s", message)
    assert story.kinds() == []


def test_a_lost_message_and_its_history() -> None:
    story = Story()
    story.subscribe("s")
    lost = story.publish(1)
    story.deliver("s", story.publish(2))
    failures = judge(story.history)
    assert [(each.kind, each.message) for each in failures] == [("lost", lost)]
    shown = story.history.explain(failures[0])
    assert "p #1 QoS 2 on t/a" in shown
    assert "p: got PUBACK" in shown
    assert "got PUBLISH" not in shown  # of the other message


def test_what_is_sent_until_done_is_owed_as_well() -> None:
    story = Story()
    story.subscribe("s")
    story.publish(1, acknowledged=False)
    assert story.kinds() == ["lost"]


def test_what_was_sent_before_the_suback_is_not_owed() -> None:
    story = Story()
    story.publish(1)
    story.subscribe("s")
    assert story.kinds() == []


def test_what_was_refused_is_not_owed_but_may_come() -> None:
    story = Story()
    story.subscribe("s")
    story.publish(1, acknowledged=False).refused = True
    refused = story.publish(2, acknowledged=False)
    refused.refused = True
    story.deliver("s", refused)
    assert story.kinds() == []


def test_twice_at_qos_2() -> None:
    story = Story()
    story.subscribe("s")
    message = story.publish(1)
    story.deliver("s", message)
    story.deliver("s", message)
    assert story.kinds() == ["twice"]


def test_twice_at_qos_1_is_allowed() -> None:
    story = Story(qos=1)
    story.subscribe("s")
    message = story.publish(1)
    story.deliver("s", message)
    story.deliver("s", message)
    assert story.kinds() == []


def test_disorder_among_first_deliveries_only() -> None:
    story = Story(qos=1)
    story.subscribe("s")
    first, second, third = (story.publish(number) for number in (1, 2, 3))
    for message in (first, second, first, second, third):
        story.deliver("s", message)
    assert story.kinds() == []
    story = Story(qos=1)
    story.subscribe("s")
    first, second = story.publish(1), story.publish(2)
    story.deliver("s", second)
    story.deliver("s", first)
    assert story.kinds() == ["disorder"]


def test_a_group_gets_a_message_once_whoever_takes_it() -> None:
    story = Story()
    for member in ("m1", "m2"):
        story.subscribe(member, "g")
    first, second, third = (story.publish(number) for number in (1, 2, 3))
    story.deliver("m1", first)
    story.deliver("m1", third)
    story.deliver("m2", third)
    failures: list[Failure] = judge(story.history)
    assert [(each.kind, each.message) for each in failures] == [("lost", second), ("twice", third)]


def test_what_comes_without_a_subscription() -> None:
    story = Story()
    interest = story.subscribe("s")
    interest.ending_at = story.history.note("s", "UNSUBSCRIBE")
    between = story.publish(1)
    interest.ended_at = story.history.note("s", "UNSUBACK")
    after = story.publish(2)
    story.deliver("s", between)
    assert story.kinds() == []
    story.deliver("s", after)
    assert story.kinds() == ["stray"]


def test_a_wrong_quality_of_service() -> None:
    story = Story(qos=1)
    story.subscribe("s")
    story.deliver("s", story.publish(1), qos=2)
    story.deliver("s", story.publish(2), qos=0)
    assert story.kinds() == ["quality", "quality"]


def test_filters_match_as_in_the_standard() -> None:
    matches = {"t/#": ["t", "t/a", "t/a/b"], "t/+": ["t/a", "t/"], "+/a": ["t/a"], "#": ["t", "t/a"]}
    for topic_filter, topics in matches.items():
        assert all(filter_pattern(topic_filter).fullmatch(topic) for topic in topics)
    for topic_filter, topic in (("t/#", "tt"), ("t/+", "t"), ("t/+", "t/a/b"), ("t.a", "tXa")):
        assert not filter_pattern(topic_filter).fullmatch(topic)


def test_what_comes_after_its_session_was_discarded() -> None:
    story = Story()
    old = story.subscribe("s")
    before = story.publish(1)
    old.ending_at = story.history.note("s", "CONNECT")
    old.ended_at = old.discarded_at = story.history.note("s", "CONNACK")
    story.subscribe("s")
    story.deliver("s", before)
    assert story.kinds() == ["stray"]


def test_order_says_nothing_of_what_was_sent_before_the_subscription() -> None:
    story = Story(qos=1)
    early = story.publish(1)
    story.subscribe("s")
    story.deliver("s", story.publish(2))
    story.deliver("s", early)
    assert story.kinds() == ["stray"]  # it was acknowledged before
    early.acknowledged_at = story.history.note("p", "got PUBACK", early)  # when it was sent again
    assert story.kinds() == ["stray"]  # the one from above, and no disorder


@pytest.mark.parametrize(
    ("qos", "sends", "before", "fails"), [(1, 1, 1, 1), (1, 3, 2, 0), (1, 3, 3, 1), (2, 3, 1, 1)]
)
def test_what_comes_again_is_a_copy_that_waited_only_where_it_was_sent_as_often(
    qos: int, sends: int, before: int, fails: int
) -> None:
    story = Story(qos)
    story.subscribe("s")
    message = story.publish(1)
    message.qos = qos
    message.sends = [1] * sends
    for _ in range(before):
        story.deliver("s", message)
    settled = len(story.history.deliveries)
    story.deliver("s", message)
    judge_returns(story.history, settled, "a restart")
    assert [each.kind for each in story.history.failures] == ["came back"] * fails
    story.history.failures.clear()
    judge_returns(story.history, settled, "a restart", of=["other"])
    assert story.history.failures == []
