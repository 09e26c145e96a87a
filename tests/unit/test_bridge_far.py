"""Which message the other side of a bridge does not take is found out over several connections."""

from __future__ import annotations

import pytest

from tidemq.bridge.far import Far
from tidemq.bridge.relay import Counts, Half
from tidemq.wire import Puback, Publish, ReasonCode, encode


class Line:
    """One connection: messages go to the other side, and may be answered."""

    def __init__(self, far: Far) -> None:
        counts = Counts()
        self._local = Half(counts, is_local=True, packet_bytes_max=1000)
        self.remote = Half(counts, is_local=False, packet_bytes_max=1000)
        self._local.join(self.remote)
        self._local.map(b"#", 0, b"")
        far.prepare(self.remote)

    def send(self, *packet_ids: int) -> None:
        for each in packet_ids:
            self._local.feed(encode(Publish(topic="a", qos=1, packet_id=each), 5))
        self._local.parse()

    def answer(self, packet_id: int) -> None:
        self.remote.feed(encode(Puback(packet_id=packet_id), 5))
        self.remote.parse()
        self._local.parse()


@pytest.fixture
def far() -> Far:
    return Far("mqtt://h", "c", is_private=False, is_notified=False)


def test_a_message_over_which_the_connection_ends_is_found_and_passed_by(far: Far) -> None:
    first = Line(far)
    first.send(1, 2, 3)
    far.note_disconnect(first.remote, ReasonCode.TOPIC_NAME_INVALID, 10)
    assert (far.careful, far.skip) == (10, 0)
    second = Line(far)
    second.send(1, 2, 3)
    second.answer(1)
    far.note_disconnect(second.remote, ReasonCode.TOPIC_NAME_INVALID, 10)
    assert (far.careful, far.skip) == (10, 0)
    third = Line(far)
    third.send(2, 3)
    far.note_disconnect(third.remote, ReasonCode.TOPIC_NAME_INVALID, 10)
    assert (far.careful, far.skip) == (10, 2)
    fourth = Line(far)
    fourth.send(2, 3)
    assert (fourth.remote.under_way, fourth.remote.last_id) == (1, 3)
    assert (far.careful, far.skip) == (0, 0)


def test_once_may_be_chance(far: Far) -> None:
    """As where a token has expired while a message was under way."""
    for _ in range(3):
        line = Line(far)
        line.send(1, 2)
        line.answer(1)
        far.note_disconnect(line.remote, ReasonCode.NOT_AUTHORIZED, 10)
        assert (far.careful, far.skip) == (10, 0)


@pytest.mark.parametrize("reason", [ReasonCode.SERVER_SHUTTING_DOWN, ReasonCode.SESSION_TAKEN_OVER])
def test_other_ends_are_no_message_s_fault(far: Far, reason: ReasonCode) -> None:
    line = Line(far)
    line.send(1)
    far.note_disconnect(line.remote, reason, 10)
    assert (far.careful, far.skip) == (0, 0)


def test_nor_is_one_with_nothing_under_way(far: Far) -> None:
    far.note_disconnect(Line(far).remote, ReasonCode.PROTOCOL_ERROR, 10)
    assert (far.careful, far.skip) == (0, 0)


def test_ends_without_a_word_make_it_careful_only_where_nothing_is_ever_answered(far: Far) -> None:
    for answers, expected in ((False, 0), (True, 0), (False, 0), (False, 10)):
        line = Line(far)
        line.send(1, 2)
        if answers:
            line.answer(1)
        far.note_loss(line.remote, 10)
        assert (far.careful, far.skip) == (expected, 0)


def test_what_may_be_taken_later_is_passed_by_only_where_the_time_is_given(far: Far) -> None:
    for _ in range(2):
        far.note_refusal(5, 0.0)
    assert far.skip == 0
    far.note_refusal(6, 3600.0)
    far.note_refusal(6, 3600.0)
    assert far.skip == 0
    far.note_refusal(6, 1e-9)
    assert far.skip == 6
    far.skip = 0
    far.note_refusal(6, 1e-9)  # another message that has the identifier now
    assert far.skip == 0
