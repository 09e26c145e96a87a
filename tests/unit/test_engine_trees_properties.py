"""Topic matching against a brute-force opinion, on random filters, topics and histories."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from quick import examples
from unit.trees_kit import group_of, walk_of

from tidemq.engine.base.allocation import count_live_blocks
from tidemq.engine.index.retained_index import RetainedIndexView
from tidemq.engine.index.subscription_view import SubscriptionIndexView

LEVEL = st.sampled_from(["", "a", "b", "$", "$a", "a-level-that-no-node-holds-inline", "é"])
FILTER_LEVEL = st.one_of(LEVEL, st.just("+"))


def is_valid(text: str) -> bool:
    """Topic names and filters have at least one byte [MQTT-4.7.3-1]."""
    return text != ""


TOPICS = st.lists(LEVEL, min_size=1, max_size=5).map("/".join).filter(is_valid)
FILTERS = st.builds(
    lambda levels, rest: "/".join(levels + rest),
    st.lists(FILTER_LEVEL, max_size=5),
    st.sampled_from([[], ["#"]]),
).filter(is_valid)
SESSIONS = st.integers(1, 100)
GROUPS = st.sampled_from(["", "g", "h"])


def matches(filter: str, topic: str) -> bool:
    """Section 4.7 as plainly as it can be said."""
    filter_levels, topic_levels = filter.split("/"), topic.split("/")
    if topic.startswith("$") and filter_levels[0] in ("+", "#"):
        return False
    if filter_levels[-1] == "#":
        filter_levels.pop()
        topic_levels = topic_levels[: len(filter_levels)]
    return len(filter_levels) == len(topic_levels) and all(
        wanted in ("+", level) for wanted, level in zip(filter_levels, topic_levels, strict=True)
    )


@given(st.lists(FILTERS, max_size=40), st.lists(TOPICS, max_size=10))
def test_match_finds_what_brute_force_finds(filters: list[str], topics: list[str]) -> None:
    index = SubscriptionIndexView()
    for number, filter in enumerate(filters, 1):
        index.put(filter.encode(), number)
    for topic in topics:
        found = sorted(session for session, *_ in index.match(topic.encode())[0])
        assert found == [number for number, filter in enumerate(filters, 1) if matches(filter, topic)]


@given(st.sets(TOPICS, max_size=40), FILTERS, st.integers(1, 8))
def test_walk_finds_what_brute_force_finds(topics: set[str], filter: str, slice_max: int) -> None:
    index = RetainedIndexView()
    names = sorted(topics)
    for number, topic in enumerate(names):
        index.put(topic.encode(), number + 1)
    walk = walk_of(index, filter.encode())
    found: list[int] = []
    while walk.more:
        found += walk.next_slice(slice_max)
    assert sorted(found) == [number + 1 for number, topic in enumerate(names) if matches(filter, topic)]


class SubscriptionHistory(RuleBasedStateMachine):
    """Puts, removals and matches in any order, beside a dictionary that does the same."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = count_live_blocks()
        self.index = SubscriptionIndexView()
        self.nodes = self.index.node_count()
        self.model: dict[tuple[str, str, int], tuple[int, int, int]] = {}
        self.known: dict[str, tuple[int, object]] = {}

    @rule(filter=FILTERS, group=GROUPS, session=SESSIONS, options=st.integers(0, 63), ident=st.integers(0, 2))
    def put(self, filter: str, group: str, session: int, options: int, ident: int) -> None:
        key, value = (filter, group, session), (options, ident, session % 3)
        version = self.index.version()
        existed = self.index.put(filter.encode(), session, group.encode(), options, ident, session % 3)
        assert existed == (key in self.model)
        assert (self.index.version() > version) == (self.model.get(key) != value)
        self.model[key] = value

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove_existing(self, data: st.DataObject) -> None:
        filter, group, session = key = data.draw(st.sampled_from(sorted(self.model)))
        version = self.index.version()
        assert self.index.remove(filter.encode(), session, group.encode())
        assert self.index.version() > version
        del self.model[key]

    @rule(filter=FILTERS, group=GROUPS, session=SESSIONS)
    def remove_any(self, filter: str, group: str, session: int) -> None:
        existed = self.index.remove(filter.encode(), session, group.encode())
        assert existed == (self.model.pop((filter, group, session), None) is not None)

    @rule(topic=TOPICS)
    def match(self, topic: str) -> None:
        version, before = self.known.get(topic, (-1, None))
        plain, groups = self.index.match(topic.encode())
        if version >= 0 and self.index.holds(topic.encode(), version):
            assert (Counter(plain), Counter(groups)) == before
        self.known[topic] = self.index.version(), (Counter(plain), Counter(groups))
        assert Counter(plain) == Counter(
            (session, *value)
            for (filter, group, session), value in self.model.items()
            if not group and matches(filter, topic)
        )
        members: Counter[Any] = Counter()
        for group_id in groups:
            name, filter_bytes, sessions = group_of(self.index, group_id)
            members.update((filter_bytes.decode(), name.decode(), session) for session in sessions)
        assert members == Counter(key for key in self.model if key[1] and matches(key[0], topic))

    @invariant()
    def count_is_right(self) -> None:
        assert len(self.index) == len(self.model)

    def teardown(self) -> None:
        for filter, group, session in self.model:
            assert self.index.remove(filter.encode(), session, group.encode())
        assert self.index.node_count() == self.nodes
        del self.index
        assert count_live_blocks() == self.blocks


class RetainedHistory(RuleBasedStateMachine):
    """Messages come and go while walks are under way."""

    def __init__(self) -> None:
        super().__init__()
        self.index = RetainedIndexView()
        self.model: dict[str, int] = {}
        self.walks: list[dict[str, Any]] = []
        self.number = 0

    @rule(topic=TOPICS)
    def put(self, topic: str) -> None:
        self.number += 1
        assert self.index.put(topic.encode(), self.number) == self.model.get(topic, 0)
        self.model[topic] = self.number

    @rule(topic=TOPICS)
    def remove_any(self, topic: str) -> None:
        self.forget(topic)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def remove_existing(self, data: st.DataObject) -> None:
        self.forget(data.draw(st.sampled_from(sorted(self.model))))

    def forget(self, topic: str) -> None:
        assert self.index.remove(topic.encode()) == self.model.pop(topic, 0)
        for walk in self.walks:
            walk["stayed"].discard(topic)

    @rule(filter=FILTERS)
    def open_walk(self, filter: str) -> None:
        self.walks.append(
            {
                "view": walk_of(self.index, filter.encode()),
                "filter": filter,
                "stayed": {topic for topic in self.model if matches(filter, topic)},
                "reported": Counter(),
            }
        )

    @precondition(lambda self: self.walks)
    @rule(data=st.data(), slice_max=st.integers(1, 3))
    def continue_walk(self, data: st.DataObject, slice_max: int) -> None:
        self.advance(data.draw(st.integers(0, len(self.walks) - 1)), slice_max)

    def advance(self, number: int, slice_max: int) -> None:
        """One slice: what it reports is retained now and matches; when it ends, all that stayed came once."""
        walk = self.walks[number]
        topics = {message: topic for topic, message in self.model.items()}
        for message in walk["view"].next_slice(slice_max):
            assert matches(walk["filter"], topics[message])
            walk["reported"][topics[message]] += 1
        if not walk["view"].more:
            assert all(walk["reported"][topic] == 1 for topic in walk["stayed"])
            del self.walks[number]

    @invariant()
    def content_is_right(self) -> None:
        assert len(self.index) == len(self.model)
        for topic, message in self.model.items():
            assert self.index.find(topic.encode()) == message

    def teardown(self) -> None:
        while self.walks:
            self.advance(0, 2)
        for topic in list(self.model):
            self.forget(topic)
        assert self.index.node_count() == 1


TestSubscriptionHistory = SubscriptionHistory.TestCase
TestSubscriptionHistory.settings = settings(max_examples=examples(100), stateful_step_count=40)
TestRetainedHistory = RetainedHistory.TestCase
TestRetainedHistory.settings = settings(max_examples=examples(150), stateful_step_count=40)
