"""The index of subscriptions as tests and benchmarks see it: one of its own, without an engine."""

import cython
from cython.cimports.libc.stdint import uint16_t, uint32_t, uint64_t
from cython.cimports.libcpp.vector import vector
from cython.cimports.tidemq.engine.base.clock import clock_ns
from cython.cimports.tidemq.engine.index.marks import (
    MARKS_OF_TOPIC,
    marks_of_topic,
)
from cython.cimports.tidemq.engine.index.subscribers import (
    PLAIN,
    Subscription,
)
from cython.cimports.tidemq.engine.index.subscription_view import Tally
from cython.cimports.tidemq.engine.index.subscriptions import (
    Matches,
    SharedGroup,
    SubscriptionIndex,
    find_group,
    free_subscription_index,
    has_moved,
    lock_exclusive,
    lock_shared,
    mark_online,
    match_topic,
    new_subscription_index,
    put_subscription,
    read_version,
    remove_subscription,
    unlock_exclusive,
    unlock_shared,
)
from cython.cimports.tidemq.wire.protocol import Span, bytes_of, span_of


def match_spans(index, topics, tally):
    """Matches topics as a reactor does that has 64 of them in a turn."""
    out = cython.declare(Matches)
    at: cython.size_t
    for at in range(topics.size()):
        if at % 64 == 0:
            lock_shared(index)
        out.subscriptions.clear()
        out.groups.clear()
        match_topic(index, topics[0][at], cython.address(out))
        if at % 64 == 63 or at + 1 == topics.size():
            unlock_shared(index)
        found: uint64_t = out.subscriptions.size() + out.groups.size()
        tally.total += found
        tally.fewest = min(tally.fewest, found)
        tally.most = max(tally.most, found)


@cython.cclass
class SubscriptionIndexView:
    """A subscription index of its own for tests and benchmarks: sessions are numbers above 0. Any thread."""

    index: cython.pointer[SubscriptionIndex]

    def __cinit__(self, last_group_id: int = 0) -> None:
        self.index = new_subscription_index()
        self.index.last_group_id = last_group_id

    def __dealloc__(self) -> None:
        free_subscription_index(self.index)

    def __len__(self) -> int:
        return self.index.count

    def version(self) -> int:
        """Moves with every change that may alter a match."""
        return read_version(self.index)

    def holds(self, topic: bytes, version: int) -> bool:
        """Whether what was found for a topic at this version still holds."""
        marks: uint16_t[MARKS_OF_TOPIC]
        marks_of_topic(cython.address(self.index.marks), span_of(topic), marks)
        return not has_moved(self.index, marks, version)

    def visits(self, topic: bytes) -> int:
        """How many nodes a look-up goes through."""
        out = cython.declare(Matches)
        lock_shared(self.index)
        match_topic(self.index, span_of(topic), cython.address(out))
        unlock_shared(self.index)
        return out.frontier.size()

    def node_count(self) -> int:
        """Nodes of both trees, the roots included."""
        return self.index.filters.node_count + self.index.groups.node_count

    def put(
        self,
        filter: bytes,
        session: int,
        group: bytes = b"",
        options: int = 0,
        subscription_id: int = 0,
        reactor: int = 0,
    ) -> bool:
        """Inserts or replaces a subscription; returns whether it existed."""
        assert session > 0
        filter_span: Span = span_of(filter)
        group_span: Span = span_of(group)
        item: Subscription = Subscription(
            session=cython.cast(cython.p_void, cython.cast(cython.size_t, session)),
            subscription_id=subscription_id,
            reactor=reactor,
            options=options,
            kind=PLAIN,
        )
        existed: cython.bint
        with cython.nogil:
            lock_exclusive(self.index)
            existed = put_subscription(self.index, filter_span, group_span, item)
            unlock_exclusive(self.index)
        return existed

    def remove(self, filter: bytes, session: int, group: bytes = b"") -> bool:
        """Removes a subscription; returns whether it existed."""
        filter_span: Span = span_of(filter)
        group_span: Span = span_of(group)
        pointer: cython.p_void = cython.cast(cython.p_void, cython.cast(cython.size_t, session))
        existed: cython.bint
        with cython.nogil:
            lock_exclusive(self.index)
            existed = remove_subscription(self.index, filter_span, group_span, pointer)
            unlock_exclusive(self.index)
        return existed

    def match(self, topic: bytes) -> tuple[list[tuple[int, int, int, int]], list[int]]:
        """What matches: (session, options, subscription id, reactor) of each, and the shared groups' ids."""
        out = cython.declare(Matches)
        topic_span: Span = span_of(topic)
        with cython.nogil:
            lock_shared(self.index)
            match_topic(self.index, topic_span, cython.address(out))
            unlock_shared(self.index)
        plain = []
        for at in range(out.subscriptions.size()):
            item: Subscription = out.subscriptions[at]
            session = cython.cast(cython.size_t, item.session)
            plain.append((session, item.options, item.subscription_id, item.reactor))
        return plain, [out.groups[at].id for at in range(out.groups.size())]

    def group(self, group_id: int) -> tuple[bytes, bytes, list[int]] | None:
        """A shared group's name, filter and member sessions; None when it is gone."""
        found: cython.pointer[SharedGroup]
        lock_shared(self.index)
        found = find_group(self.index, group_id)
        result = None
        if found != cython.NULL:
            members = [
                cython.cast(cython.size_t, found.members.items[at].session)
                for at in range(found.members.count)
            ]
            result = bytes_of(found.name), bytes_of(found.filter), members
        unlock_shared(self.index)
        return result

    def set_online(self, group_id: int, session: int, online: bool) -> None:
        """A member's client has come or gone."""
        member: cython.p_void = cython.cast(cython.p_void, cython.cast(cython.size_t, session))
        with_it: cython.bint = online
        lock_exclusive(self.index)
        mark_online(self.index, group_id, member, with_it)
        unlock_exclusive(self.index)

    def online(self, group_id: int) -> tuple[int, list[int]]:
        """How many members of a shared group are stored, and how many are online on each reactor."""
        lock_shared(self.index)
        found: cython.pointer[SharedGroup] = find_group(self.index, group_id)
        result = found.stored, [found.online[at] for at in range(found.reactors)]
        unlock_shared(self.index)
        return result

    def match_all(self, topics: list[bytes], rounds: int = 1) -> tuple[int, int, int, int]:
        """Matches a list of topics some times over, without the GIL, under one lock for each 64 topics.

        Returns how many subscriptions and groups matched in all, the fewest and the most for one topic, and
        the nanoseconds that it took.
        """
        spans = cython.declare(vector[Span])
        joined: bytes = b"".join(topics)  # side by side, as in a connection's buffer
        topic: Span = span_of(joined)
        tally: Tally = Tally(total=0, fewest=0xFFFFFFFFFFFFFFFF, most=0)
        rounds_left: uint32_t = rounds
        began: uint64_t
        for size in map(len, topics):
            topic.size = size
            spans.push_back(topic)
            topic.data += topic.size
        with cython.nogil:
            began = clock_ns()
            while rounds_left > 0:
                match_spans(self.index, cython.address(spans), cython.address(tally))
                rounds_left -= 1
            began = clock_ns() - began
        return tally.total, tally.fewest, tally.most, began
