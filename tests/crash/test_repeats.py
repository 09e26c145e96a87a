"""Repeated at QoS 1: with a cause it is what the standard allows, and without one it is found."""

from __future__ import annotations

from crash.history import KILLED, Connection, Delivery, History, Interest, Message, judge


class Story:
    """One publisher of QoS 1, one subscriber, made by hand."""

    def __init__(self) -> None:
        self.history = History()
        self.subscribe()
        self.message = Message("p", 1, "t", 1, False, b"1")
        self.history.messages.append(self.message)
        self.connection = self.connect("broker 1")
        self.send()
        self.message.acknowledged_at = self.history.note("p", "got PUBACK", self.message)

    def subscribe(self) -> None:
        interest = Interest("s", "t", 1, asked_at=self.history.note("s", "asks"))
        interest.acknowledged_at = self.history.note("s", "SUBACK")
        self.history.interests.append(interest)

    def begin_anew(self) -> None:
        """The session ends, and another one begins."""
        connection = self.connect("broker 1")
        for each in self.history.interests:
            each.ending_at = min(each.ending_at, connection.accepted_at)
            each.discarded_at = each.ended_at = each.ending_at
        self.subscribe()

    def connect(self, broker: str) -> Connection:
        asked_at = self.history.note("s", "sends CONNECT")
        at = self.history.note("s", "connected")
        self.connection = Connection("s", broker, False, True, asked_at, at)
        return self.connection

    def send(self) -> None:
        at = self.history.note("p", "sends", self.message)
        self.message.sent_at = min(self.message.sent_at, at)
        self.message.sends.append(at)

    def deliver(self, packet_id: int, *, dup: bool = False) -> None:
        at = self.history.note("s", "got PUBLISH", self.message)
        self.history.deliveries.append(Delivery("s", self.message, 1, at, dup, packet_id, self.connection))

    def kinds(self) -> list[str]:
        return [each.kind for each in judge(self.history)]


def test_again_on_one_connection() -> None:
    story = Story()
    story.deliver(1)
    story.deliver(1, dup=True)
    assert story.kinds() == ["repeated"]


def test_again_on_a_later_connection() -> None:
    story = Story()
    story.deliver(1)
    story.connect("broker 1")
    story.deliver(1, dup=True)
    assert story.kinds() == []
    story.deliver(2)
    assert story.kinds() == ["repeated"]


def test_as_often_as_it_was_sent() -> None:
    story = Story()
    story.deliver(1)
    story.deliver(2)
    story.send()  # later
    assert story.kinds() == ["repeated"]
    story = Story()
    story.send()
    story.deliver(1)
    story.deliver(2)
    assert story.kinds() == []
    story.deliver(3)
    assert story.kinds() == ["repeated"]


def test_again_from_another_broker() -> None:
    story = Story()
    story.deliver(1)
    story.history.fault(KILLED, "broker 2")  # not the one that had sent it
    story.connect("broker 3")
    story.deliver(32_769, dup=True)
    assert story.kinds() == ["repeated"]
    story = Story()
    story.deliver(1)
    story.history.fault(KILLED, "broker 1")
    story.connect("broker 3")
    story.deliver(32_769, dup=True)
    assert story.kinds() == []


def test_again_where_the_first_was_read_after_its_broker_had_died() -> None:
    """It was in the socket's buffer; the acknowledgement reaches nobody."""
    story = Story()
    story.history.fault(KILLED, "broker 1")
    story.deliver(5)
    story.connect("broker 1")
    story.deliver(1, dup=True)
    assert story.kinds() == []
    story = Story()
    story.history.fault(KILLED, "broker 1")
    story.connect("broker 1")
    story.deliver(1)
    story.connect("broker 1")
    story.deliver(2)
    assert story.kinds() == ["repeated"]


def test_again_in_the_next_session() -> None:
    """What its publisher sends again is for the sessions that there are."""
    story = Story()
    story.deliver(1)
    story.begin_anew()
    story.send()
    story.message.acknowledged_at = story.history.note("p", "got PUBACK", story.message)  # not before
    story.deliver(1)
    story.deliver(2)
    assert story.kinds() == []
    story.deliver(3)
    assert story.kinds() == ["repeated"]
