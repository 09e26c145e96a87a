"""Letters between nodes: what is lost on the way is sent again, however much is new."""

from __future__ import annotations

import itertools

from tidemq.cluster.mailboxes import BATCH, RESEND_S, RESEND_S_MAX, Arriving, Outgoing


def test_a_letter_that_is_lost_comes_again_while_others_are_sent_all_the_time() -> None:
    outgoing, arriving = Outgoing(1 << 16), Arriving()
    taken: list[int] = []
    lost, now = 0.0, 0.0
    for number in range(1, 101):
        now += RESEND_S / 10
        outgoing.put(BATCH, b"")
        for text in outgoing.due(now):
            if number == 10:
                lost = now
                continue
            letter = arriving.take(text)
            if letter is not None:
                arriving.took(letter)
                taken.append(letter.number)
                if letter.number == 10:
                    assert now - lost < 1.5 * RESEND_S
            outgoing.arrived(arriving.answer)
    assert taken == list(range(1, 101))


def test_who_does_not_answer_is_sent_the_same_again_less_and_less_often() -> None:
    outgoing = Outgoing(1 << 16)
    outgoing.put(BATCH, b"")
    at = [step / 100 for step in range(2000) if outgoing.due(step / 100)]
    pauses = [round(after - before, 1) for before, after in itertools.pairwise(at)]
    assert pauses[:2] == [RESEND_S, 2 * RESEND_S]
    assert set(pauses[2:]) == {RESEND_S_MAX}
