"""When old homes of sessions ask whether these may be forgotten: ever more seldom, and of each by itself."""

from __future__ import annotations

from tidemq.cluster.move_states import Handed, Reminders


def asked(reminders: Reminders, there: dict[str, Handed], until: float) -> list[tuple[float, str]]:
    """When there was a word of which client, in so many seconds."""
    steps = (step / 10 for step in range(int(until * 10)))
    return [(now, client) for now in steps for client in reminders.due(there, now, 10)]


def test_a_session_is_spoken_of_ever_more_seldom() -> None:
    reminders, there = Reminders(2.0, 8.0), {"ann": Handed()}
    reminders.add("ann", there["ann"], 0.0)
    assert [now for now, _ in asked(reminders, there, 40.0)] == [2.0, 6.0, 14.0, 22.0, 30.0, 38.0]


def test_one_that_is_new_does_not_wait_for_others() -> None:
    reminders, there = Reminders(2.0, 8.0), {"ann": Handed(), "eve": Handed()}
    reminders.add("ann", there["ann"], 0.0)
    asked(reminders, there, 7.0)
    reminders.add("eve", there["eve"], 7.0)
    assert list(reminders.due(there, 9.0, 10)) == ["eve"]


def test_one_that_has_gone_is_not_spoken_of_nor_is_its_next_move_before_its_time() -> None:
    reminders, there = Reminders(2.0, 8.0), {"ann": Handed(), "eve": Handed()}
    for client, handed in there.items():
        reminders.add(client, handed, 0.0)
    del there["eve"]
    there["ann"] = Handed()
    reminders.add("ann", there["ann"], 1.0)
    assert asked(reminders, there, 2.9) == []
    assert list(reminders.due(there, 3.0, 10)) == ["ann"]


def test_so_many_at_once() -> None:
    reminders, there = Reminders(2.0, 8.0), {f"c{each}": Handed() for each in range(5)}
    for client, handed in there.items():
        reminders.add(client, handed, 0.0)
    assert [len(list(reminders.due(there, 2.0, 2))) for _ in range(4)] == [2, 2, 1, 0]
