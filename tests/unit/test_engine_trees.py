"""Topic matching by table: the examples of the standard (section 4.7), and the contract of the indexes."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator

import pytest
from unit.trees_kit import group_of, walk_of

from tidemq.engine.base.allocation import count_live_blocks
from tidemq.engine.index.retained_index import RetainedIndexView
from tidemq.engine.index.subscription_view import SubscriptionIndexView
from tidemq.limits import Limits
from tidemq.wire.topics import topic_filter_ways

# (filter, topic name, whether it matches)
MATCHES = [
    # 5.0 section 4.7.1.2
    ("sport/tennis/player1/#", "sport/tennis/player1", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/ranking", True),
    ("sport/tennis/player1/#", "sport/tennis/player1/score/wimbledon", True),
    ("sport/tennis/player1/#", "sport/tennis/player2", False),
    ("sport/tennis/player1/#", "sport/tennis", False),
    ("sport/#", "sport", True),
    ("#", "sport", True),
    ("#", "sport/tennis/player1", True),
    ("sport/tennis/#", "sport/tennis/player1", True),
    # 5.0 section 4.7.1.3
    ("sport/tennis/+", "sport/tennis/player1", True),
    ("sport/tennis/+", "sport/tennis/player2", True),
    ("sport/tennis/+", "sport/tennis/player1/ranking", False),
    ("sport/+", "sport", False),
    ("sport/+", "sport/", True),
    ("+", "sport", True),
    ("+", "sport/tennis", False),
    ("+/tennis/#", "sport/tennis", True),
    ("+/tennis/#", "sport/tennis/player1", True),
    ("sport/+/player1", "sport/tennis/player1", True),
    ("sport/+/player1", "sport/player1", False),
    ("+/+", "/finance", True),
    ("/+", "/finance", True),
    ("+", "/finance", False),
    # 5.0 section 4.7.2
    ("#", "$SYS/monitor/Clients", False),
    ("+/monitor/Clients", "$SYS/monitor/Clients", False),
    ("$SYS/#", "$SYS/monitor/Clients", True),
    ("$SYS/monitor/+", "$SYS/monitor/Clients", True),
    ("#", "$SYS", False),
    ("+", "$SYS", False),
    ("+/#", "$SYS/a", False),
    ("$SYS/#", "$SYS", True),
    ("a/#", "a/$SYS", True),
    ("a/+", "a/$SYS", True),
    # 5.0 section 4.7.3
    ("ACCOUNTS", "Accounts", False),
    ("/finance", "finance", False),
    ("finance/", "finance", False),
    ("Accounts payable", "Accounts payable", True),
    # empty levels
    ("/", "/", True),
    ("/", "//", False),
    ("+/+/+", "//", True),
    ("//#", "/", True),
    ("//#", "", False),
    ("///#", "/", False),
    ("//#", "//", True),
    ("//#", "///", True),
    ("/#", "/", True),
    ("#", "/", True),
    ("+//+", "a//b", True),
    ("a/+/#", "a", False),
    ("a/+/#", "a/", True),
    # levels longer than a node holds, and levels that are equal up to their length
    ("a" * 13, "a" * 13, True),
    ("a" * 14, "a" * 14, True),
    ("a" * 14, "a" * 13, False),
    ("a" * 33 + "/b", "a" * 33 + "/b", True),
    ("a" * 33 + "/b", "a" * 32 + "b/b", False),
    ("x" * 65535, "x" * 65535, True),
    ("a/a/a", "a/a", False),
    ("aa", "a", False),
    ("temp\u00e9rature/\u6e29\u5ea6", "temp\u00e9rature/\u6e29\u5ea6", True),
]


@pytest.fixture(autouse=True)
def _nothing_leaks() -> Iterator[None]:
    """Everything that a test's indexes allocated is given back."""
    before = count_live_blocks()
    yield
    assert count_live_blocks() == before


def sessions(index: SubscriptionIndexView, topic: str | bytes) -> list[int]:
    """The plain subscriptions' sessions that match, sorted."""
    name = topic.encode() if isinstance(topic, str) else topic
    return sorted(session for session, *_ in index.match(name)[0])


@pytest.mark.parametrize(("filter", "topic", "matches"), MATCHES)
def test_subscription_matches(filter: str, topic: str, matches: bool) -> None:
    index = SubscriptionIndexView()
    index.put(filter.encode(), 7)
    assert sessions(index, topic) == ([7] if matches else [])


@pytest.mark.parametrize(("filter", "topic", "matches"), [row for row in MATCHES if row[1]])
def test_retained_matches(filter: str, topic: str, matches: bool) -> None:
    index = RetainedIndexView()
    index.put(topic.encode(), 7)
    assert walk_of(index, filter.encode()).next_slice(10) == ([7] if matches else [])


@pytest.mark.parametrize("topic", sorted({row[1] for row in MATCHES if row[1]}))
def test_all_filters_together(topic: str) -> None:
    index = SubscriptionIndexView()
    filters = sorted({row[0] for row in MATCHES})
    for number, filter in enumerate(filters, 1):
        index.put(filter.encode(), number)
    expected = {filters.index(row[0]) + 1: row[2] for row in MATCHES if row[1] == topic}
    found = sessions(index, topic)
    for number, matches in expected.items():
        assert (number in found) == matches, filters[number - 1]


def test_overlapping_subscriptions_are_all_reported() -> None:
    index = SubscriptionIndexView()
    for filter in (b"a/b", b"a/+", b"a/#", b"+/b", b"+/+", b"#", b"+/#"):
        index.put(filter, 1, options=2)
    assert index.match(b"a/b")[0] == [(1, 2, 0, 0)] * 7


def test_put_replaces_by_filter_and_session() -> None:
    index = SubscriptionIndexView()
    assert not index.put(b"a", 1, options=1, subscription_id=5, reactor=3)
    assert index.put(b"a", 1, options=2, subscription_id=6, reactor=4)
    assert not index.put(b"a", 2)
    assert sorted(index.match(b"a")[0]) == [(1, 2, 6, 4), (2, 0, 0, 0)]
    assert len(index) == 2


def test_remove_takes_one_session_only() -> None:
    index = SubscriptionIndexView()
    index.put(b"a/+", 1)
    index.put(b"a/+", 2)
    assert index.remove(b"a/+", 1)
    assert not index.remove(b"a/+", 1)
    assert not index.remove(b"a/b", 2)
    assert not index.remove(b"a", 2)
    assert sessions(index, "a/x") == [2]
    assert index.remove(b"a/+", 2)
    assert len(index) == 0


def test_group_ids_do_not_come_again_after_32_bits() -> None:
    index = SubscriptionIndexView(last_group_id=0xFFFFFFFE)  # type: ignore[call-arg]
    for number in (1, 2, 3):
        index.put(b"t", number, group=b"g%d" % number)
    ids = index.match(b"t")[1]
    assert sorted(ids) == [0xFFFFFFFF, 0x100000000, 0x100000001]
    assert [group_of(index, each)[2] for each in sorted(ids)] == [[1], [2], [3]]
    index.remove(b"t", 2, group=b"g2")
    assert index.group(0x100000000) is None


def test_a_group_counts_its_members_that_are_stored_and_online() -> None:
    stored, online = 0x40, 0x80
    index = SubscriptionIndexView()
    index.put(b"t", 1, group=b"g", options=1 | online, reactor=0)
    index.put(b"t", 2, group=b"g", options=1 | stored, reactor=2)
    index.put(b"t", 3, group=b"g", options=2 | stored | online, reactor=2)
    (number,) = index.match(b"t")[1]
    assert index.online(number) == (2, [1, 0, 1])
    version = index.version()
    index.set_online(number, 2, True)
    index.set_online(number, 1, False)
    assert index.version() > version
    assert index.online(number) == (2, [0, 0, 2])
    index.put(b"t", 3, group=b"g", options=1 | online, reactor=2)
    index.remove(b"t", 2, group=b"g")
    assert index.online(number) == (0, [0, 0, 1])


def test_nodes_go_with_their_last_subscription() -> None:
    index = SubscriptionIndexView()
    bare = index.node_count()
    filters = [b"a/b/c", b"a/b", b"a/+/#", b"+/+/+", b"#", b"/", b"x" * 100 + b"/y"]
    for filter in filters:
        index.put(filter, 1)
        index.put(filter, 1, group=b"g")
    for filter in filters:
        index.remove(filter, 1)
        index.remove(filter, 1, group=b"g")
    assert index.node_count() == bare


def test_wildcard_children_are_found_in_any_order_of_coming_and_going() -> None:
    for order in ([b"a/#", b"a/+", b"a/b"], [b"a/b", b"a/+", b"a/#"], [b"a/+", b"a/#", b"a/b"]):
        index = SubscriptionIndexView()
        for number, filter in enumerate(order, 1):
            index.put(filter, number)
        assert sessions(index, "a/b") == [1, 2, 3]
        for number, filter in enumerate(order, 1):
            index.remove(filter, number)
            assert sessions(index, "a/b") == list(range(number + 1, 4))


def test_version_moves_with_every_change_of_a_result() -> None:
    index = SubscriptionIndexView()
    changes: list[Callable[[], object]] = [
        lambda: index.put(b"a", 1),
        lambda: index.put(b"a", 1, options=1),
        lambda: index.put(b"a", 1, options=1, subscription_id=9),
        lambda: index.put(b"a", 1, options=1, subscription_id=9, reactor=1),
        lambda: index.put(b"a", 1, group=b"g"),
        lambda: index.put(b"a", 2, group=b"g"),
        lambda: index.remove(b"a", 1, group=b"g"),
        lambda: index.remove(b"a", 2, group=b"g"),
        lambda: index.remove(b"a", 1),
    ]
    for change in changes:
        before = index.version()
        change()
        assert index.version() > before


def test_version_stands_still_without_change() -> None:
    index = SubscriptionIndexView()
    index.put(b"a", 1, options=1)
    before = index.version()
    index.put(b"a", 1, options=1)
    index.remove(b"b", 1)
    index.remove(b"a", 2)
    index.remove(b"a", 1, group=b"g")
    index.match(b"a")
    assert index.version() == before


@pytest.mark.parametrize(
    ("filter", "topic"), [(filter, topic) for filter, topic, matches in MATCHES if matches]
)
def test_a_change_voids_what_is_known_of_each_topic_under_its_filter(filter: str, topic: str) -> None:
    index = SubscriptionIndexView()
    for change in (index.put, lambda *which: index.put(*which, options=1), index.remove):  # type: ignore[misc]
        before = index.version()
        assert index.holds(topic.encode(), before)
        change(filter.encode(), 1)
        assert not index.holds(topic.encode(), before)


@pytest.mark.parametrize(
    "filter", ["t/{}", "u/{}/#", "t/+/{}", "+/{}", "{}/+", "+/{}/{}/+/+", "{}/#", "t/5/v/{}/#", "$SYS/{}/#"]
)
def test_a_change_of_other_filters_voids_nothing_but_by_chance(filter: str) -> None:
    """Two filters share a mark with probability 1/4096, and a topic has ten. Where a filter's mark is the
    same for all numbers, one index in 400 voids what it knows each time: three with their own secrets do not.
    """
    assert min(voided_of_200(filter) for _ in range(3)) < 15


def voided_of_200(filter: str) -> int:
    """How many of so many changes void what a new index knows of one topic."""
    index = SubscriptionIndexView()
    voided = 0
    for number in range(200):
        before = index.version()
        index.put(filter.replace("{}", f"x{number}").encode(), 1)
        voided += not index.holds(b"t/5/v", before)
    return voided


@pytest.mark.parametrize("depth", [4, 64])
def test_all_filters_that_are_allowed_keep_every_look_up_short(depth: int) -> None:
    """Those of all strangers together: a filter for each place that `+` may have before each level."""
    index = SubscriptionIndexView()
    ways_max = Limits().wildcard_ways_max
    paths = [""]
    for _ in range(depth):
        longer = [f"{path}{level}/" for path in paths for level in ("a", "+")]
        paths = [path for path in longer if topic_filter_ways(path[:-1]) <= ways_max]
        for path in paths:
            index.put(f"{path}#".encode(), 1)
    visits = index.visits("/".join(["a"] * depth).encode())
    assert visits < 18_000
    if depth == 4:
        assert visits == 2 + 4 + 8 + 16 + 1  # nothing is refused that is not deep


def test_shared_group_lives_as_long_as_its_members() -> None:
    index = SubscriptionIndexView()
    index.put(b"a/+", 1, group=b"g")
    index.put(b"a/+", 2, group=b"g")
    index.put(b"a/+", 3)
    [(session, *_)], [group] = index.match(b"a/b")
    assert session == 3
    assert index.group(group) == (b"g", b"a/+", [1, 2])
    assert index.put(b"a/+", 1, group=b"g", options=2)  # a replacement keeps the group
    assert index.match(b"a/b")[1] == [group]
    index.remove(b"a/+", 1, group=b"g")
    assert index.group(group) == (b"g", b"a/+", [2])
    index.remove(b"a/+", 2, group=b"g")
    assert index.group(group) is None
    assert index.match(b"a/b") == ([(3, 0, 0, 0)], [])
    index.put(b"a/+", 1, group=b"g")
    assert index.match(b"a/b")[1] != [group]


def test_shared_groups_are_told_apart_by_name_and_filter() -> None:
    index = SubscriptionIndexView()
    for group, filter in ((b"g", b"a/b"), (b"h", b"a/b"), (b"g", b"a/+"), (b"g", b"a"), (b"a", b"b")):
        index.put(filter, 1, group=group)
    names = {group_of(index, group)[:2] for group in index.match(b"a/b")[1]}
    assert names == {(b"g", b"a/b"), (b"h", b"a/b"), (b"g", b"a/+")}
    assert len(index) == 5


def test_shared_subscription_of_reserved_topics() -> None:
    index = SubscriptionIndexView()
    index.put(b"#", 1, group=b"g")
    assert index.match(b"$SYS/a") == ([], [])


@pytest.mark.parametrize("group", [b"", b"g"])
@pytest.mark.parametrize("leaving", ["first in first out", "last in first out"])
def test_many_sessions_on_one_filter(group: bytes, leaving: str) -> None:
    """100,000 sessions come and go. Quadratic work here would take minutes, and the test would time out."""
    index = SubscriptionIndexView()
    count = 100_000
    numbers = [number * 64 for number in range(1, count + 1)]  # like addresses
    for number in numbers:
        assert not index.put(b"news/#", number, group=group)
    assert all(index.put(b"news/#", number, group=group) for number in numbers[::1000])
    assert len(index) == count
    if group:
        assert sorted(group_of(index, index.match(b"news")[1][0])[2]) == numbers
    else:
        assert sessions(index, "news") == numbers
    for number in numbers if leaving == "first in first out" else reversed(numbers):
        assert index.remove(b"news/#", number, group=group)
    assert len(index) == 0
    assert index.match(b"news") == ([], [])


def test_set_keeps_its_members_through_every_size() -> None:
    index = SubscriptionIndexView()
    members: list[int] = []
    for number in range(1, 300):
        index.put(b"a", number)
        members.append(number)
        assert sessions(index, "a") == members
    while members:
        index.remove(b"a", members.pop(len(members) // 3))
        assert sessions(index, "a") == members


def test_table_keeps_every_edge_through_growth_and_removal() -> None:
    """Many more filters than one segment of the table holds, then every other one removed."""
    index = SubscriptionIndexView()
    filters = [b"site/%d/device/%d" % (number % 97, number) for number in range(40_000)]
    for number, filter in enumerate(filters, 1):
        index.put(filter, number)
    for number, filter in enumerate(filters, 1):
        if number % 2:
            assert index.remove(filter, number)
    for number, filter in enumerate(filters, 1):
        assert sessions(index, filter) == ([] if number % 2 else [number])


def test_deepest_filter_and_topic() -> None:
    """65,535 levels neither overflow the stack nor blow up."""
    index = SubscriptionIndexView()
    deepest = b"/" * 65_534
    index.put(deepest, 1)
    index.put(b"/".join([b"+"] * 32_768), 2)
    index.put(b"/".join([b"+"] * 1_000) + b"/#", 3)
    assert sessions(index, deepest) == [1, 3]
    retained = RetainedIndexView()
    retained.put(deepest, 5)
    walk = walk_of(retained, b"/".join([b"+"] * 1_000) + b"/#")
    found: list[int] = []
    while walk.more:
        found += walk.next_slice(100)
    assert found == [5]


def test_many_wildcards_do_not_multiply() -> None:
    """A topic of 40 levels under 40 filters of pluses visits each stored prefix once, not 2 ** 40 of them."""
    index = SubscriptionIndexView()
    for depth in range(1, 41):
        index.put(b"/".join([b"+"] * depth) + b"/#", depth)
        index.put(b"/".join([b"a"] * depth), 100 + depth)
    assert sessions(index, "/".join(["a"] * 40)) == [*range(1, 41), 140]


def test_retained_put_find_remove() -> None:
    index = RetainedIndexView()
    assert index.put(b"a/b", 1) == 0
    assert index.put(b"a/b", 2) == 1
    assert index.put(b"a", 3) == 0
    assert (index.find(b"a/b"), index.find(b"a"), index.find(b"a/c"), index.find(b"a/b/c")) == (2, 3, 0, 0)
    assert len(index) == 2
    assert index.remove(b"a") == 3
    assert index.remove(b"a") == 0
    assert index.find(b"a/b") == 2
    assert index.remove(b"a/b") == 2
    assert (len(index), index.node_count()) == (0, 1)


@pytest.mark.parametrize("slice_max", [1, 2, 3, 7, 100])
@pytest.mark.parametrize(
    ("filter", "expected"),
    [
        (b"#", {1, 2, 3, 4, 5, 6}),
        (b"+", {1}),
        (b"a/#", {1, 2, 3, 4}),
        (b"a/+", {2, 3}),
        (b"+/b", {2, 5}),
        (b"+/+/c", {4}),
        (b"+/#", {1, 2, 3, 4, 5, 6}),
        (b"$SYS/#", {7, 8, 9}),
        (b"$SYS/+", {8}),
        (b"/+", {6}),
        (b"no/such/#", set()),
    ],
)
def test_walk_in_slices(filter: bytes, expected: set[int], slice_max: int) -> None:
    index = RetainedIndexView()
    topics = [b"a", b"a/b", b"a/c", b"a/b/c", b"x/b", b"/x", b"$SYS", b"$SYS/x", b"$SYS/x/y"]
    for message, topic in enumerate(topics, 1):
        index.put(topic, message)
    walk = walk_of(index, filter)
    found: list[int] = []
    while walk.more:
        messages = walk.next_slice(slice_max)
        assert len(messages) <= slice_max
        found += messages
    assert walk.next_slice(slice_max) == []
    assert sorted(found) == sorted(expected)


def test_walk_is_bounded_where_nothing_matches() -> None:
    """A slice ends after a bounded number of topics, though none of them is reported."""
    index = RetainedIndexView()
    for number in range(1_000):
        index.put(b"%d/a" % number, number + 1)
    walk = walk_of(index, b"+/b")
    assert walk.next_slice(10) == []
    assert walk.more
    slices = 1
    while walk.more:
        assert walk.next_slice(10) == []
        slices += 1
    assert slices > 10


def test_walk_goes_on_when_its_place_is_removed() -> None:
    """Whatever is removed between slices, what stays is reported once and what went never."""
    for removed_after in range(6):
        index = RetainedIndexView()
        for number in range(1, 7):
            index.put(b"a/%d/x" % number, number)
        walk = walk_of(index, b"a/+/x")
        found = [message for _ in range(removed_after) for message in walk.next_slice(1)]
        gone = {2, 3, 5}
        for number in gone:
            index.remove(b"a/%d/x" % number)
        reported_before = set(found)
        while walk.more:
            found += walk.next_slice(1)
        assert sorted(found) == sorted({1, 4, 6} | reported_before)


def test_walk_ends_when_the_tree_is_emptied() -> None:
    index = RetainedIndexView()
    for number in range(1, 100):
        index.put(b"a/b/c/%d" % number, number)
    walks = [walk_of(index, filter) for filter in (b"#", b"a/b/#", b"a/+/c/+")]
    for walk in walks:
        assert walk.next_slice(10)
    for number in range(1, 100):
        index.remove(b"a/b/c/%d" % number)
    for number in range(1, 10):
        index.put(b"z/%d" % number, number)  # reuses the nodes
    assert [walk.next_slice(10) for walk in walks] == [[], [], []]
    assert not any(walk.more for walk in walks)


def test_walk_in_a_reference_cycle_is_collected() -> None:
    index = RetainedIndexView()
    for message in range(1, 10):
        index.put(b"a/%d" % message, message)
    walk = walk_of(index, b"#")
    walk.next_slice(2)
    cycle: list[object] = [walk]
    del walk
    cycle.append(cycle)
    del cycle
    gc.collect()
    assert index.remove(b"a/1") == 1


def test_abandoned_walk_leaves_nothing_behind() -> None:
    index = RetainedIndexView()
    index.put(b"a", 1)
    index.put(b"b", 2)
    walk = walk_of(index, b"#")
    walk.next_slice(1)
    del walk
    assert index.remove(b"a") == 1
    assert index.remove(b"b") == 2
