"""What is shown of a cluster: how far members are behind, how long a log is, what was refused."""

from __future__ import annotations

import pytest
from cluster.nodes import START_NS, make_node, say
from hypothesis import given
from hypothesis import strategies as st

from tidemq.cluster.log_size import BLOCK, LogSize
from tidemq.cluster.members import BEAT_S, SUSPECT_S
from tidemq.cluster.node import Node
from tidemq.cluster.operations import Clear
from tidemq.cluster.survey import SAMPLES_MAX, STALE_S, Pace, Survey
from tidemq.cluster.troubles import TROUBLES_MAX, Troubles


def write(node: Node) -> bytes:
    """One record of a node's own."""
    record = node.write([Clear("t", node.stamp())])
    node.rows.take_changes()
    node.synced(node.rows.vector)
    return record.encoded


def looked(node: Node, now: float, settled: set[int] | None = None) -> dict[str, tuple[str, int, float]]:
    """State, records behind and for how long, by name."""
    survey = Survey("c")
    survey.look(node, now, settled=settled or set(), joins=False, degraded=[])
    figures = survey.figures(now)
    assert figures is not None
    return {each.name: (each.state, each.behind_records, each.behind_s) for each in figures.members}


def test_a_member_is_behind_by_what_it_has_not_applied() -> None:
    one, two = make_node(0, 2), make_node(1, 2)
    for _ in range(3):
        write(one)
    say(two, [one])
    assert looked(one, 0.0) == {"n1": ("alive", 0, 0.0), "n2": ("alive", 3, 0.0)}
    survey = Survey("c")
    for now in (0.0, 5.0):
        survey.look(one, now, settled=(), joins=False, degraded=[])
    figures = survey.figures(5.0)
    assert figures is not None
    two_now = figures.members[1]
    assert (two_now.behind_records, two_now.behind_s, two_now.heard_s) == (3, 5.0, 5.0)
    assert figures.members[0].applied == {"0000000000000001": 3}
    assert (figures.log_records, figures.log_bytes > 0) == (3, True)


def test_how_long_a_member_will_be_is_shown_as_long_as_it_is_heard() -> None:
    one, two = make_node(0, 2), make_node(1, 2)
    records = [write(one) for _ in range(100)]
    survey = Survey("c")
    for each in range(20):
        now = each * 0.5
        two.receive(records[each])
        two.rows.take_changes()
        two.synced(two.rows.vector)
        two.hear(one.beat(now, START_NS), now)
        one.hear(two.beat(now, START_NS), now)
        survey.look(one, now, settled=(), joins=False, degraded=[])
    figures = survey.figures(9.5)
    assert figures is not None
    own, other = figures.members
    assert (own.progress, own.left_s) == ("complete", None)
    assert other.left_s == pytest.approx(80 / 2, rel=0.05)
    survey.look(one, 9.5 + SUSPECT_S * 2, settled=(), joins=False, degraded=[])
    silent = survey.figures(9.5 + SUSPECT_S * 2)
    assert silent is not None
    assert (silent.members[1].progress, silent.members[1].left_s) == ("unknown", None)


def test_a_member_that_is_silent_is_suspected_and_dead_when_its_sessions_are_elsewhere() -> None:
    one, two = make_node(0, 3), make_node(1, 3)
    say(two, [one])
    late = SUSPECT_S + 0.1
    assert looked(one, SUSPECT_S / 2)["n2"][0] == "alive"
    assert looked(one, late) == {
        "n1": ("alive", 0, 0.0),
        "n2": ("suspected", 0, 0.0),
        "n3": ("suspected", 0, 0.0),  # never heard since the start
    }
    assert looked(one, late, {2})["n2"][0] == "dead"
    survey = Survey("c")
    survey.look(one, late, settled={2}, joins=False, degraded=["no copies"])
    figures = survey.figures(late + STALE_S * 2)
    assert figures is not None
    assert [text.split(",")[0] for text in figures.degraded] == [
        "the keeper",
        "no copies",
        "nothing is heard of n2",
        "nothing is heard of n3",
    ]


def test_a_member_that_lacks_what_no_log_has_any_more_joins() -> None:
    one, two = make_node(0, 2), make_node(1, 2)
    for _ in range(3):
        write(one)
    one.stability.collect({1: 2}, set())  # as if others had had them
    say(two, [one])
    assert looked(one, 0.0)["n2"][0] == "joining"
    survey = Survey("c")
    survey.look(one, 0.0, settled=(), joins=False, degraded=[], rows_given=7)
    figures = survey.figures(0.0)
    assert figures is not None
    assert [(each.progress, each.rows_taken) for each in figures.members] == [
        ("complete", None),
        ("unknown", 7),
    ]


def test_how_long_a_member_has_been_behind_is_known_for_what_there_was_then() -> None:
    pace = Pace()
    for second in range(10):
        pace.note({1: second + 1}, float(second))
    assert pace.behind_s({1: 10}, 9.0) == 0.0
    assert pace.behind_s({1: 9}, 9.5) == 0.5
    assert pace.behind_s({1: 3}, 9.0) == 6.0
    assert pace.behind_s({}, 9.0) == 9.0


def test_what_is_remembered_of_the_pace_is_bounded_and_the_beginning_stays() -> None:
    pace = Pace()
    for second in range(100_000):
        pace.note({1: second + 1}, float(second))
    assert len(pace._samples) <= SAMPLES_MAX
    assert pace.behind_s({1: 99_000}, 99_999.0) == pytest.approx(1000, rel=0.2)
    assert pace.behind_s({}, 99_999.0) == 99_999.0


@given(
    st.lists(st.tuples(st.sampled_from(["add", "again", "trim"]), st.integers(1, 3 * BLOCK)), max_size=40),
    st.integers(1, 1000),
)
def test_the_size_of_a_log_is_that_of_its_records(steps: list[tuple[str, int]], first: int) -> None:
    """Equal where all records have one size; whatever is trimmed."""
    size, held = LogSize(), range(first, first)
    for kind, value in steps:
        if kind == "add":
            for number in range(held.stop, held.stop + value):
                size.add(number, 10)
            held = range(held.start, held.stop + value)
        elif kind == "again" and held:
            size.add(held.stop - 1, value)
            size.add(held.stop - 1, 10)
        elif kind == "trim":
            held = range(min(held.start + value, held.stop), held.stop)
            size.trim(held.start)
        assert size.records == len(held)
        assert abs(size.bytes - 10 * len(held)) <= 10


def test_a_trouble_that_is_repeated_is_counted_and_the_oldest_of_many_goes(
    caplog: pytest.LogCaptureFixture,
) -> None:
    troubles = Troubles()
    for _ in range(5):
        troubles.note("a", "its clock is off")
    [only] = troubles.all()
    assert (only.whose, only.text, only.count) == ("a", "its clock is off", 5)
    assert len(caplog.messages) == 1
    for _ in range(5):
        troubles.note_state("a", "another")
    assert [(each.text, each.count) for each in troubles.all()] == [("another", 6)]
    for number in range(TROUBLES_MAX + 3):
        troubles.note(f"n{number}", "x" * 5000)
    names = [each.whose for each in troubles.all()]
    assert (len(names), names[0], names[-1]) == (TROUBLES_MAX, "n3", f"n{TROUBLES_MAX + 2}")


def test_a_node_that_takes_over_what_there_is_joins() -> None:
    survey = Survey("c")
    survey.look(make_node(0, 1), BEAT_S, settled=(), joins=True, degraded=[])
    figures = survey.figures(BEAT_S)
    assert figures is not None
    assert [each.state for each in figures.members] == ["joining"]
