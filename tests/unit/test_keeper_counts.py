"""How many refer to a message's payload is right in the store, whatever fails meanwhile."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples
from unit.keeper_double import Access, Store, work
from unit.test_keeper import BROKEN, do, message_id, told

from tidemq.broker.durability.keeper import Keeper

CHANGES = st.lists(
    st.lists(st.tuples(st.integers(0, 3), st.sampled_from([1, 1, -1])), max_size=5), max_size=8
)


@settings(max_examples=examples(50))
@given(CHANGES, st.sets(st.integers(0, 7)), st.booleans())
def test_counts_are_right_whatever_fails(batches: list[Any], failing: Any, applied: Any) -> None:
    """Counts follow the changes, those of batches that failed too: what is removed stays removed."""
    store, access = Store(), Access()
    store.applied = applied
    keeper = Keeper(store, access)  # type: ignore[arg-type]
    keeper.start()
    ids = [message_id(number) for number in range(4)]
    do(access, *[("payload", each, b"p") for each in ids], references=[(each, 10) for each in ids])
    totals = dict.fromkeys(ids, 10)
    for number, changes in enumerate(batches):
        given_work = work(("meta", b"x", b"%d" % number), references=[(ids[at], by) for at, by in changes])
        if number in failing:
            # removals are tried again, what was new is undone
            removals = [(ids[at], by) for at, by in changes if by < 0]
            undone = [(ids[at], 0) for at, by in changes if by > 0]
            access.rests[id(given_work)] = work(references=removals + undone)
            store.failures.append(BROKEN)
            changes = [(at, by) for at, by in changes if by < 0]
        access.works.put(given_work)
        assert told(access)[0] is given_work
        for at, by in changes:
            totals[ids[at]] -= -by
    keeper.finish()
    counts = {each: int.from_bytes(value) for each, value in store.rows("reference").items()}
    assert counts == {each: count for each, count in totals.items() if count > 0}
    assert set(store.rows("payload")) == set(counts)
