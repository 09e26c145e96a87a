"""The engine's side towards other nodes of a cluster: their filters, what goes to them, what comes of them.

The engine opens no connection: bytes go out by ``take`` and come in by ``give``, and whatever lies between
carries them, each batch once and in order. A node is a slot, 0 to 15; which node has which is the caller's.

Left out: retained messages (who retains one is told by other means), and messages for streams.
"""

from __future__ import annotations

import struct
import time

import cython
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.string import string
from cython.cimports.libcpp.vector import vector
from cython.cimports.tidemq.engine.base.clock import clock_ns
from cython.cimports.tidemq.engine.base.locks import lock, unlock
from cython.cimports.tidemq.engine.base.system import (
    CLOCK_MONOTONIC,
    RELAXED,
    add_i64,
    clock_gettime,
    load_i64,
    pthread_cond_init,
    pthread_cond_signal,
    pthread_cond_timedwait,
    pthread_condattr_init,
    pthread_condattr_setclock,
    pthread_condattr_t,
    pthread_mutex_init,
    timespec,
)
from cython.cimports.tidemq.engine.door.conversion import string_of
from cython.cimports.tidemq.engine.door.engine import Engine
from cython.cimports.tidemq.engine.door.node_batches import (
    BATCH_FORMAT,
    BATCH_WHOLE,
    BatchCheck,
    BatchFormats,
    check_batch,
    cut_records,
    deal_batch,
)
from cython.cimports.tidemq.engine.index.interest import list_filters, list_groups
from cython.cimports.tidemq.engine.index.subscribers import NODE_REACTOR, PLAIN, Subscription
from cython.cimports.tidemq.engine.index.subscriptions import (
    SharedGroup,
    SubscriptionIndex,
    drop_everywhere,
    find_group_by_name,
    lock_exclusive,
    lock_shared,
    put_subscription,
    remove_subscription,
    unlock_exclusive,
    unlock_shared,
)
from cython.cimports.tidemq.engine.link.mail import new_letter, new_mail, post_directly
from cython.cimports.tidemq.engine.state.mail import MAIL_NODE, MAIL_SETTLE, Mail
from cython.cimports.tidemq.engine.state.nodes import NODE_BATCH_MAGIC, NodeHub
from cython.cimports.tidemq.engine.state.nodes import NODES_MAX as _NODES_MAX
from cython.cimports.tidemq.engine.state.reactor import Common, Reactor
from cython.cimports.tidemq.engine.state.wall_clock import id_offset
from cython.cimports.tidemq.wire.protocol import Span, span_of
from cython.operator import dereference, preincrement

from tidemq.engine.door.node_batches import WRONG
from tidemq.errors import ClusterError, RefusedError, UsageError
from tidemq.wire.faults import fault_text
from tidemq.wire.topics import topic_filter_fault

NODES_MAX = _NODES_MAX
_FILTERS_AT_ONCE = cython.declare(cython.int, 512)  # changed under the lock
_TREE_NODES_AT_ONCE = cython.declare(cython.size_t, 8192)  # looked at under the lock
_BATCH_BYTES_MAX = 512 * 1024
_TOPIC_BYTES_MOST = 0xFFFF  # as of every text (section 1.5.4)


def _wait(hub, timeout_ns):
    """Waits until something is handed over, the hub is closed or poked, or time is over."""
    until: timespec
    node: cython.int
    idle: cython.bint
    clock_gettime(CLOCK_MONOTONIC, cython.address(until))
    nanoseconds: int64_t = until.tv_nsec + timeout_ns
    until.tv_sec += nanoseconds // 1000000000
    until.tv_nsec = nanoseconds % 1000000000
    lock(cython.address(hub.lock))
    hub.waiting = True
    while not (hub.closed or hub.poked):
        idle = True
        for node in range(_NODES_MAX):
            idle = idle and hub.pending[node].empty()
        if not idle or pthread_cond_timedwait(
            cython.address(hub.ready), cython.address(hub.lock), cython.address(until)
        ):
            break
    hub.waiting = False
    hub.poked = False
    unlock(cython.address(hub.lock))


def _check_filter(text):
    """UsageError for one that is none. It may be as long and deep as MQTT allows: another node may have other
    limits for its clients.
    """
    if len(text.encode()) > _TOPIC_BYTES_MOST:
        raise UsageError(f"{text[:40]!r}... is longer than {_TOPIC_BYTES_MOST} bytes")
    fault = topic_filter_fault(text, _TOPIC_BYTES_MOST)
    if fault:
        raise UsageError(f"{text!r}: {fault_text(fault)}")


def _name_and_filter(text):
    """Of ``$share/group/filter``."""
    return text.encode().split(b"/", 2)[1:]


@cython.cclass
class NodeAccess:
    """What a cluster does for an engine. Made before the engine starts, once; its methods may be called from
    any thread, ``take`` from one at a time.

    ``batch_bytes_max``: no batch is larger, but one with a single message that is. ``prefers_own``: the
    messages of a shared group go to its members here as long as any is online; else to all alike, wherever
    they are. ``offers``: nodes are asked who takes a QoS 2 message, and the keeper writes rows for
    sessions that are there (``StoreWork.elsewhere``); else each node writes its own, and may have the message
    twice when one ends. ``formats``: the lowest and the highest of batches that are read; the lowest is
    written until ``use_format`` says otherwise.
    """

    def __cinit__(
        self,
        engine: Engine,
        *,
        batch_bytes_max: int = _BATCH_BYTES_MAX,
        prefers_own: bool = False,
        offers: bool = False,
        formats: tuple[int, int] = (1, 1),
    ) -> None:
        attributes: pthread_condattr_t
        if engine.started or engine.closed:
            raise UsageError("other nodes are prepared for before the engine starts")
        if engine.common.nodes.get() != cython.NULL:
            raise UsageError("an engine has one NodeAccess")
        if batch_bytes_max < 1024:
            raise UsageError(f"batch_bytes_max is {batch_bytes_max}, must be 1024 or more")
        owner: unique_ptr[NodeHub] = make_unique[NodeHub]()
        self.hub = owner.get()
        self.hub.prefers_own = prefers_own
        self.hub.offers = offers
        self.groups = [set() for _ in range(_NODES_MAX)]
        pthread_mutex_init(cython.address(self.hub.lock), cython.NULL)
        pthread_condattr_init(cython.address(attributes))
        pthread_condattr_setclock(cython.address(attributes), CLOCK_MONOTONIC)
        pthread_cond_init(cython.address(self.hub.ready), cython.address(attributes))
        engine.common.nodes.swap(owner)
        self.engine = engine
        self.batch_bytes_max = batch_bytes_max
        self.formats = BatchFormats(formats[0], formats[1])
        self.format = self.formats.lowest

    def _check_node(self, node):
        if self.closed or self.engine.closed:
            raise UsageError("the engine's links to other nodes are closed")
        if not 0 <= node < _NODES_MAX:
            raise UsageError(f"node is {node}, must be 0 to {_NODES_MAX - 1}")

    def _check_filters(self, filters):
        for text in filters:
            _check_filter(text)
            if text.startswith("$share/"):
                raise UsageError(f"{text!r}: a shared group is changed with change_groups")

    # --- interest -------------------------------------------------------------------------------------

    def change_filters(self, node: int, removed, added) -> None:
        """Filters that a node wants no more, and others that it wants from now on: messages that are
        published here and match go to it. One that is removed and was not there, or added and is, is as it
        should be.

        UsageError for a filter that is malformed or shared, RefusedError for more than
        ``subscriptions_total_max``: then nothing is changed.
        """
        self._check_node(node)
        self._check_filters(added)
        most: int64_t = self.engine.common.limits.subscriptions_total_max
        if added and self.filters[node] + len(added) - len(removed) > most:
            raise RefusedError(f"node {node} wants more filters than subscriptions_total_max, {most}")
        changes: list = [(text.encode(), False) for text in removed]
        changes += [(text.encode(), True) for text in added]
        mark: cython.p_void = cython.address(self.marks[node])
        subscription: Subscription = Subscription(mark, node, NODE_REACTOR, 0, PLAIN)
        none: Span = Span(cython.NULL, 0)
        while changes:
            part: list = changes[:_FILTERS_AT_ONCE]
            changes = changes[_FILTERS_AT_ONCE:]
            self._check_node(node)
            index: cython.pointer[SubscriptionIndex] = self.engine.common.subscriptions
            lock_exclusive(index)
            for text, wanted in part:
                # they are nobody's subscriptions here, and are not counted as such
                if wanted and not put_subscription(index, span_of(text), none, subscription):
                    index.count -= 1
                    self.filters[node] += 1
                elif not wanted and remove_subscription(index, span_of(text), none, mark):
                    index.count += 1
                    self.filters[node] -= 1
            unlock_exclusive(index)
            if changes:
                time.sleep(0)  # others may have the lock, and Python

    def change_groups(self, node: int, changes) -> None:
        """Shared groups that a node has members of: (``$share/group/filter``, how many are online), -1 where
        it has none any more. UsageError for a text that is no shared filter, RefusedError as above, but never
        where no group is new: those that are known may change, and go, however many there are.
        """
        self._check_node(node)
        for text, online in changes:
            _check_filter(text)
            if not text.startswith("$share/") or not -1 <= online < 1 << 28:
                raise UsageError(f"{text!r} with {online} members is no shared group of a node")
        known: set = self.groups[node]
        new: set = {text for text, online in changes if online >= 0}.difference(known)
        gone: set = {text for text, online in changes if online < 0}.intersection(known)
        most: int64_t = self.engine.common.limits.subscriptions_total_max
        if new and len(known) + len(new) - len(gone) > most:
            raise RefusedError(f"node {node} has members of more groups than subscriptions_total_max")
        mark: cython.p_void = cython.address(self.marks[node])
        slot: uint32_t = cython.cast(uint32_t, node)
        index: cython.pointer[SubscriptionIndex] = self.engine.common.subscriptions
        for text, online in changes:
            name, filter = _name_and_filter(text)
            lock_exclusive(index)
            if online >= 0:
                member: Subscription = Subscription(
                    mark, slot | cython.cast(uint32_t, online) << 4, NODE_REACTOR, 0, PLAIN
                )
                if not put_subscription(index, span_of(filter), span_of(name), member):
                    index.count -= 1
                self.groups[node].add(text)
            elif remove_subscription(index, span_of(filter), span_of(name), mark):
                index.count += 1
                self.groups[node].discard(text)
            unlock_exclusive(index)

    def drop_node(self, node: int) -> None:
        """Forgets all filters and groups of a node, and what waits to be taken for it. What it was asked is
        open still: see ``settle``.
        """
        at: cython.size_t = 0
        self._check_node(node)
        more: cython.bint = True
        self.change_groups(node, [(text, -1) for text in self.groups[node]])
        mark: cython.p_void = cython.address(self.marks[node])
        while more and self.filters[node]:
            self._check_node(node)
            index: cython.pointer[SubscriptionIndex] = self.engine.common.subscriptions
            dropped: cython.size_t = 0
            lock_exclusive(index)
            more = drop_everywhere(index, mark, at, _TREE_NODES_AT_ONCE, cython.address(dropped))
            self.filters[node] -= dropped
            unlock_exclusive(index)
            at += _TREE_NODES_AT_ONCE
            time.sleep(0)
        lock(cython.address(self.hub.lock))
        size: int64_t = self.hub.pending[node].size()
        self.hub.pending[node].clear()
        add_i64(cython.address(self.hub.under_way[node]), -size, RELAXED)
        unlock(cython.address(self.hub.lock))

    def reset_node(self, node: int) -> None:
        """Another node has this number from now on. After ``drop_node`` and ``settle``, when nothing of the
        one before is on its way any more.
        """
        self._check_node(node)
        reactor: cython.int
        for reactor in range(64):
            self.taken[node * 64 + reactor] = 0
        self.origins[node] = 0

    def all_interest(self) -> list:
        """The filters that have subscribers here, online or not, a shared group as ``$share/group/filter``.
        From now on ``interest_changes`` tells what changes, anew.
        """
        self._check_node(0)
        found: vector[string]
        index: cython.pointer[SubscriptionIndex] = self.engine.common.subscriptions
        lock_exclusive(index)
        index.noting = True
        index.interest.clear()
        unlock_exclusive(index)
        for groups in (False, True):
            at: cython.size_t = 0
            more: cython.bint = True
            while more:
                self._check_node(0)
                lock_shared(index)
                if groups:
                    more = list_groups(index, at, _TREE_NODES_AT_ONCE, cython.address(found))
                else:
                    more = list_filters(index, at, _TREE_NODES_AT_ONCE, cython.address(found))
                unlock_shared(index)
                at += _TREE_NODES_AT_ONCE
                time.sleep(0)
        texts: list = found
        return [text.decode() for text in texts]

    def interest_changes(self) -> list:
        """Filters that have subscribers since the last time, or have none any more: (filter, there), each
        once. What is said may be known already; of a shared group ``members_online`` may have changed.
        Nothing before ``all_interest`` was called.
        """
        self._check_node(0)
        result: list = []
        index: cython.pointer[SubscriptionIndex] = self.engine.common.subscriptions
        lock_exclusive(index)
        item = index.interest.begin()
        while item != index.interest.end():
            name: string = dereference(item).first
            result.append((name, dereference(item).second))
            preincrement(item)
        index.interest.clear()
        unlock_exclusive(index)
        return [(text.decode(), there) for text, there in result]

    def members_online(self, groups) -> list:
        """How many members each of these shared groups, ``$share/group/filter``, has online here."""
        self._check_node(0)
        reactor: uint32_t
        result: list = []
        index: cython.pointer[SubscriptionIndex] = self.engine.common.subscriptions
        for text in groups:
            name, filter = _name_and_filter(text)
            count: uint32_t = 0
            lock_shared(index)
            group: cython.pointer[SharedGroup] = find_group_by_name(index, span_of(filter), span_of(name))
            if group != cython.NULL:
                for reactor in range(group.reactors):
                    count += group.online[reactor]
            unlock_shared(index)
            result.append(count)
        return result

    # --- out ------------------------------------------------------------------------------------------

    def take(self, timeout_s: float) -> list | None:
        """What there is for other nodes, (node, batch) in the order in which it is to be sent, after at most
        ``timeout_s``; it may be nothing. None: nothing will come. Waits without the GIL, on a thread of its
        own; another may wait with it, but then the order is theirs to keep.
        """
        taken: vector[string]
        node: cython.int
        closed: cython.bint
        timeout_ns: int64_t = cython.cast(int64_t, timeout_s * 1e9)
        taken.resize(_NODES_MAX)
        with cython.nogil:
            _wait(self.hub, timeout_ns)
            lock(cython.address(self.hub.lock))
            closed = self.hub.closed
            for node in range(_NODES_MAX):
                taken[node].swap(self.hub.pending[node])
            unlock(cython.address(self.hub.lock))
        if closed:
            return None
        result: list = []
        for node in range(_NODES_MAX):
            if not taken[node].empty():
                result += self._batches(node, cython.address(taken[node]))
        return result

    def use_format(self, number: int) -> None:
        """Batches that are taken from now on are in this format. UsageError for one that is not read here."""
        if not self.formats.lowest <= number <= self.formats.highest:
            raise UsageError(
                f"the format is {number}, must be {self.formats.lowest} to {self.formats.highest}"
            )
        self.format = number

    def _batches(self, node, records):
        head: bytes = struct.pack("=IIQ", NODE_BATCH_MAGIC, self.format, self.engine.common.incarnation)
        result: list = []
        at: cython.size_t = 0
        text: cython.p_char = cython.cast(cython.p_char, records.data())
        while at < records.size():
            end: cython.size_t = cut_records(records, at, self.batch_bytes_max - len(head))
            result.append((node, head + text[at:end]))
            add_i64(cython.address(self.hub.under_way[node]), len(head), RELAXED)
            at = end
        return result

    def sent(self, node: int, size: int) -> None:
        """So many bytes of batches for a node have left, or were thrown away: there is room for others. Each
        batch that was taken is to be reported once.

        UsageError for more than is under way.
        """
        if not 0 <= node < _NODES_MAX:
            raise UsageError(f"node is {node}, must be 0 to {_NODES_MAX - 1}")
        count: cython.pointer[int64_t] = cython.address(self.hub.under_way[node])
        if not 0 <= size <= load_i64(count, RELAXED):
            raise UsageError(f"{size} bytes cannot have left to node {node}: fewer are under way")
        add_i64(count, -cython.cast(int64_t, size), RELAXED)

    def under_way(self, node: int) -> int:
        """Bytes that were written for a node and have not left."""
        if not 0 <= node < _NODES_MAX:
            raise UsageError(f"node is {node}, must be 0 to {_NODES_MAX - 1}")
        return load_i64(cython.address(self.hub.under_way[node]), RELAXED)

    # --- in -------------------------------------------------------------------------------------------

    def give(self, node: int, batch: bytes) -> bool:
        """What has come from a node. False: what came before is still waiting for a reactor, and nothing of
        this was taken; try again soon, and give nothing else of this node before.

        ClusterError for a batch that is malformed, and nothing of it is taken; the node is not to be trusted
        any more, or has another version.
        """
        self._check_node(node)
        index: cython.size_t
        result: BatchCheck
        whole: Span = span_of(batch)
        common: cython.pointer[Common] = self.engine.common
        with cython.nogil:
            result = check_batch(whole, self.formats)
        if result.fault == BATCH_FORMAT:
            raise ClusterError(
                f"a batch from node {node} is in format {struct.unpack_from('=4xI', batch)[0]}; this node"
                f" reads {self.formats.lowest} to {self.formats.highest}"
            )
        if result.fault != BATCH_WHOLE:
            raise ClusterError(
                f"a batch of {len(batch)} bytes from node {node} is wrong at byte {result.at}: "
                f"{WRONG[result.fault]}"
            )
        self._check_node(node)
        for index in range(common.reactors.size()):
            waiting: int64_t = load_i64(cython.address(common.reactors[index].arrived_bytes), RELAXED)
            if waiting and waiting + len(batch) > common.limits.node_bytes_max:
                return False
        dealt: vector[string]
        dealt.resize(common.reactors.size())
        origin: uint64_t = deal_batch(
            whole, cython.address(self.hash), cython.address(dealt), cython.address(self.taken[node * 64])
        )
        self.origins[node] = origin
        for index in range(dealt.size()):
            if dealt[index].empty():
                continue
            target: cython.pointer[Reactor] = common.reactors[index]
            mail: Mail = new_mail(MAIL_NODE)
            mail.number = node
            mail.token = origin
            mail.letter = new_letter()
            mail.letter.data = string_of(b"")
            mail.letter.data.swap(dealt[index])
            add_i64(
                cython.address(target.arrived_bytes),
                cython.cast(int64_t, mail.letter.data.size()),
                RELAXED,
            )
            self.given[index] += mail.letter.data.size()
            post_directly(target, cython.address(mail))
        return True

    def given_so_far(self) -> list:
        """A mark for ``has_acted_on``: how much each reactor has been given."""
        self._check_node(0)
        return [self.given[index] for index in range(self.engine.common.reactors.size())]

    def has_acted_on(self, given) -> bool:
        """Whether the reactors have acted on all that they had been given at this mark; what comes of it for
        sessions on other reactors may be on its way.
        """
        self._check_node(0)
        index: cython.size_t
        for index in range(len(given)):
            waiting: int64_t = load_i64(
                cython.address(self.engine.common.reactors[index].arrived_bytes), RELAXED
            )
            if cython.cast(int64_t, self.given[index]) - waiting < given[index]:
                return False
        return True

    def taken_so_far(self) -> list:
        """Up to which ids this engine takes messages: (a node's incarnation, its reactor, clock) for each
        reactor of each node that messages came of, and for its own until now. Who is subscribed here gets
        all of them here.
        """
        self._check_node(0)
        reactor: cython.size_t
        common: cython.pointer[Common] = self.engine.common
        now: int64_t = clock_ns() + id_offset(common)
        result: list = [(common.incarnation, reactor, now) for reactor in range(common.reactors.size())]
        for node in range(_NODES_MAX):
            for reactor in range(64):
                if self.taken[node * 64 + reactor]:
                    result.append((self.origins[node], reactor, self.taken[node * 64 + reactor]))
        return result

    def settle(self, node: int, reason: int) -> None:
        """Answers all that a node was asked until now in its place: 0, as if it had kept it, or 0x80 and
        above, which refuses it. For a node that is dead, after ``drop_node``.
        """
        self._check_node(node)
        if reason != 0 and not 0x80 <= reason <= 0xFF:
            raise UsageError(f"reason is {reason}, must be 0 or 128 to 255")
        index: cython.size_t
        for index in range(self.engine.common.reactors.size()):
            mail: Mail = new_mail(MAIL_SETTLE)
            mail.number = node
            mail.reason = reason
            post_directly(self.engine.common.reactors[index], cython.address(mail))

    # --- the end --------------------------------------------------------------------------------------

    def poke(self) -> None:
        """Ends the wait of ``take``, with nothing where there is nothing."""
        lock(cython.address(self.hub.lock))
        self.hub.poked = True
        pthread_cond_signal(cython.address(self.hub.ready))
        unlock(cython.address(self.hub.lock))

    def close(self) -> None:
        """Nothing goes out and nothing comes in any more; ``take`` returns None. What nodes were asked and
        have not answered is refused (0x80), unless the engine has ended before. May be called again.
        """
        if not self.closed and not self.engine.closed:
            for node in range(_NODES_MAX):
                self.drop_node(node)
            for node in range(_NODES_MAX):
                self.settle(node, 0x80)
        self.closed = True
        lock(cython.address(self.hub.lock))
        self.hub.closed = True
        pthread_cond_signal(cython.address(self.hub.ready))
        unlock(cython.address(self.hub.lock))
