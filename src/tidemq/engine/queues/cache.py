"""A reactor's memory of who receives a topic, so that most messages need no look-up in the shared index.

An entry is good as long as the index's version has not moved since it was made, or none of its topic's marks
has: then it names no session that has left. Pointers in it are to sessions of this reactor only; other
reactors, and other nodes of a cluster, are one bit each.
"""

import cython
from cython.cimports.libc.stdint import uint8_t, uint16_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcmp, memcpy
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.vector import vector
from cython.cimports.tidemq.engine.base.asserting import ASSERTS, holds, may_touch
from cython.cimports.tidemq.engine.base.counters import C_CACHE_MISSES, C_MESSAGES_REWRITTEN, MEMORY_CACHES
from cython.cimports.tidemq.engine.base.steps import count_steps
from cython.cimports.tidemq.engine.index.interest import whole_filter
from cython.cimports.tidemq.engine.index.marks import marks_of_topic
from cython.cimports.tidemq.engine.index.subscribers import (
    NODE_REACTOR,
    OPTION_NO_LOCAL,
    OPTION_QOS,
    OPTION_RETAIN_AS_PUBLISHED,
    OPTION_STORED,
    PLUGIN_REACTOR,
    STREAM_REACTOR,
    Subscription,
)
from cython.cimports.tidemq.engine.index.subscriptions import (
    has_moved,
    lock_shared,
    match_topic,
    read_version,
    unlock_shared,
)
from cython.cimports.tidemq.engine.index.topic_rules import (
    REWRITES_PUBLISH,
    find_lifetime,
    find_rewrite,
    rewrite,
)
from cython.cimports.tidemq.engine.link.replies import span_of
from cython.cimports.tidemq.engine.queues.cache import Identifier
from cython.cimports.tidemq.engine.queues.groups import local_group
from cython.cimports.tidemq.engine.state.client import Session
from cython.cimports.tidemq.engine.state.nodes import NODES_MAX
from cython.cimports.tidemq.engine.state.routing import (
    CACHE_WAYS,
    JUDGEMENTS,
    CacheEntry,
    CacheSlot,
    Group,
    GroupShare,
    NodeShare,
    Receiver,
    TopicCache,
)
from cython.cimports.tidemq.engine.state.work import take_work

_SLOTS_FIRST = cython.declare(uint32_t, 256)  # of the table; it doubles
_SPARSE = cython.declare(uint32_t, 8)  # slots for each topic; then it grows no more

_FORGOTTEN_MAX = cython.declare(cython.size_t, 8192)  # topics in a tick
_RECEIVER_BYTES = cython.declare(uint64_t, 32)  # about


def hash_text(seed, text):
    """A seeded hash, eight bytes a step. That of topics has a seed that strangers do not know."""
    h: uint64_t = seed ^ text.size
    word: uint64_t
    at: uint32_t = 0
    while at + 8 <= text.size:
        memcpy(cython.address(word), text.data + at, 8)
        h = (h ^ word) * cython.cast(uint64_t, 0x9E3779B97F4A7C15)
        h ^= h >> 29
        at += 8
    if at < text.size:
        word = 0
        if at:
            memcpy(cython.address(word), text.data + text.size - 8, 8)  # the rest, and some again
        else:
            for at in range(text.size):
                word = word << 8 | text.data[at]
        h = (h ^ word) * cython.cast(uint64_t, 0xBF58476D1CE4E5B9)
        h ^= h >> 32
    h = (h ^ seed >> 7) * cython.cast(uint64_t, 0x94D049BB133111EB)
    return h ^ h >> 31


def _grow(cache):
    """Twice as many sets; each old one is dealt out to two new ones, so none overflows."""
    larger: vector[CacheSlot]
    larger.resize(cache.slots.size() * 2 if cache.slots.size() else _SLOTS_FIRST)
    sets: cython.size_t = larger.size() // CACHE_WAYS
    index: cython.size_t
    for index in range(cache.slots.size()):
        slot: CacheSlot = cache.slots[index]
        if slot.entry != cython.NULL:
            first: cython.size_t = (slot.hash & (sets - 1)) * CACHE_WAYS
            at: cython.size_t = first
            while larger[at].entry != cython.NULL:
                at += 1
            holds(at < first + CACHE_WAYS, b"cache: no set overflows when the table grows")
            larger[at] = slot
    cache.slots.swap(larger)


def cache_bytes(cache):
    return (
        cache.slots.size() * cython.sizeof(CacheSlot)
        + cache.count * cython.sizeof(CacheEntry)
        + cache.weight * _RECEIVER_BYTES
    )


def free_cache(r):
    """Forgets every topic."""
    index: cython.size_t
    count: uint32_t = 0
    for index in range(r.cache.slots.size()):
        entry: cython.pointer[CacheEntry] = r.cache.slots[index].entry
        if entry != cython.NULL:
            count += 1
            del entry
    holds(count == r.cache.count, b"cache: there are as many topics as are counted")
    r.cache.slots.clear()
    r.cache.count = 0
    r.cache.hand = 0
    r.cache.weight = 0
    r.tally[MEMORY_CACHES] = 0


def _add_receiver(entry, subscription, found):
    """Adds a subscription of this reactor, merged with an earlier one of the same session.

    Overlapping subscriptions give one copy, at the highest QoS, with all identifiers [MQTT-3.3.4-2]
    [MQTT-3.3.4-3]. Its identifier is added to ``found``, and counted.
    """
    session: cython.pointer[Session] = cython.cast(cython.pointer[Session], subscription.session)
    if ASSERTS:
        holds(may_touch(session.reactor), b"cache: the sessions of an entry are this reactor's")
    if session.ending:
        return
    qos: cython.uchar = subscription.options & OPTION_QOS
    count: uint32_t = cython.cast(uint32_t, entry.receivers.size())
    index: uint32_t = session.receiver
    if index >= count or entry.receivers[index].session != session:
        session.receiver = index = count
    receiver: cython.pointer[Receiver]
    if index == count:
        fresh: Receiver
        fresh.session = session
        fresh.qos = qos
        fresh.own_qos = 0
        fresh.takes_own = False
        fresh.retain_as_published = subscription.options & OPTION_RETAIN_AS_PUBLISHED
        fresh.ids_at = 0
        fresh.ids_count = 0
        fresh.own_ids_count = 0
        entry.receivers.push_back(fresh)
        receiver = cython.address(entry.receivers[index])
    else:
        receiver = cython.address(entry.receivers[index])
        if qos > receiver.qos:
            receiver.qos = qos
        if subscription.options & OPTION_RETAIN_AS_PUBLISHED:
            receiver.retain_as_published = True
    own: cython.bint = not subscription.options & OPTION_NO_LOCAL
    if own:
        receiver.takes_own = True
        if qos > receiver.own_qos:
            receiver.own_qos = qos
    if subscription.subscription_id:
        identifier: Identifier
        identifier.receiver = index
        identifier.value = subscription.subscription_id
        identifier.own = own
        found.push_back(identifier)
        receiver.ids_count += 1
        receiver.own_ids_count += own


def _place_identifiers(entry, found):
    """Those of each receiver side by side, first those of subscriptions without no-local. Linear in their
    number.
    """
    index: cython.size_t
    own: cython.int
    receiver: cython.pointer[Receiver]
    place: uint32_t = 0
    for index in range(entry.receivers.size()):
        receiver = cython.address(entry.receivers[index])
        receiver.ids_at = place
        place += receiver.ids_count
        receiver.ids_count = 0
    entry.ids.resize(place)
    for own in range(2):
        for index in range(found.size()):
            identifier: cython.pointer[Identifier] = cython.address(found[0][index])
            if identifier.own != own:
                receiver = cython.address(entry.receivers[identifier.receiver])
                place = receiver.ids_at + receiver.ids_count
                holds(place < entry.ids.size(), b"cache: each subscription identifier has a place")
                entry.ids[receiver.ids_at + receiver.ids_count] = identifier.value
                receiver.ids_count += 1


def _add_group(r, entry, common):
    """Adds a shared group: its members here, and how many are online elsewhere; there may be none."""
    group: Group
    group.number = common.id
    group.stored = common.stored > 0
    group.here = local_group(r, common.id)
    group.elsewhere_count = group.nodes_count = 0
    group.local = common.locals > 0
    reactor: uint32_t
    for reactor in range(common.reactors):
        if common.online[reactor] and reactor != r.index:
            share: GroupShare
            share.reactor = reactor
            share.members = common.online[reactor]
            group.elsewhere.push_back(share)
            group.elsewhere_count += share.members
    if common.nodes:
        _add_nodes(cython.address(group), common)
    entry.groups.push_back(group)


def _add_nodes(group, common):
    """Other nodes with members of the group."""
    share: NodeShare
    for share.node in range(NODES_MAX):
        if common.nodes >> share.node & 1:
            share.members = common.online_there[share.node]
            group.nodes.push_back(share)
            group.nodes_count += share.members
    group.text = whole_filter(common.filter, common.name)


def _weigh(entry):
    """How many receivers, identifiers, groups and shares of them an entry holds."""
    index: cython.size_t
    weight: uint64_t = entry.receivers.size() + entry.ids.size()
    for index in range(entry.groups.size()):
        weight += 2 + entry.groups[index].elsewhere.size() + entry.groups[index].nodes.size()
    return weight


def _match(r, entry, topic):
    """Asks the shared index and fills the entry."""
    identifiers: vector[Identifier]
    index: cython.size_t
    if ASSERTS:
        holds(r.cache.weight >= _weigh(entry), b"cache: the weight is that of all entries")
    r.cache.weight -= _weigh(entry)
    entry.receivers.clear()
    entry.ids.clear()
    entry.groups.clear()
    entry.reactors = entry.stored_reactors = entry.streams = 0
    entry.nodes = 0
    entry.stored = False
    entry.plugins = 0
    r.matches.subscriptions.clear()
    r.matches.groups.clear()
    r.tally[C_CACHE_MISSES] += 1
    lock_shared(r.common.subscriptions)
    entry.version = read_version(r.common.subscriptions)
    match_topic(r.common.subscriptions, topic, cython.address(r.matches))
    entry.stored = not r.matches.groups.empty()
    for index in range(r.matches.groups.size()):
        _add_group(r, entry, r.matches.groups[index])
    unlock_shared(r.common.subscriptions)
    r.searched += r.matches.frontier.size() + r.matches.subscriptions.size()
    take_work(r, r.matches.subscriptions.size() + r.matches.groups.size())
    for index in range(r.matches.subscriptions.size()):
        subscription: cython.pointer[Subscription] = cython.address(r.matches.subscriptions[index])
        if subscription.reactor == PLUGIN_REACTOR:
            entry.plugins |= cython.cast(uint8_t, subscription.subscription_id)
            continue
        if subscription.reactor == NODE_REACTOR:
            entry.nodes |= cython.cast(uint32_t, 1) << subscription.subscription_id
            continue
        stored: cython.bint = subscription.options & OPTION_STORED
        entry.stored = entry.stored or stored
        if subscription.reactor == STREAM_REACTOR:
            entry.streams |= cython.cast(uint64_t, 1) << subscription.subscription_id
            entry.stored = True
        elif subscription.reactor == r.index:
            _add_receiver(entry, subscription, cython.address(identifiers))
        else:
            entry.reactors |= cython.cast(uint64_t, 1) << subscription.reactor
            if stored:
                entry.stored_reactors |= cython.cast(uint64_t, 1) << subscription.reactor
    if topic.size >= 5 and memcmp(topic.data, cython.cast(cython.p_char, b"$SYS/"), 5) == 0:
        entry.nodes = 0  # each node has its own
        _forget_nodes(entry)
    _place_identifiers(entry, cython.address(identifiers))
    _ask_topic_rules(r, entry, topic)
    r.cache.weight += _weigh(entry)


def _forget_nodes(entry):
    """Groups are served by their members here alone."""
    index: cython.size_t = entry.groups.size()
    while index:
        index -= 1
        entry.groups[index].nodes.clear()
        entry.groups[index].nodes_count = 0
        if not entry.groups[index].local:
            entry.groups[index] = entry.groups.back()
            entry.groups.pop_back()


def _ask_topic_rules(r, entry, topic):
    """Notes which of the operator's rules are about the topic; other ones make all entries void."""
    entry.rewrite = entry.lifetime = 0
    if r.topic_rules != cython.NULL:
        entry.rewrite = find_rewrite(r.topic_rules, topic, REWRITES_PUBLISH)
        entry.lifetime = find_lifetime(r.topic_rules, topic)
        take_work(r, r.topic_rules.rewrites.size() + r.topic_rules.lifetimes.size())


def _choose_slot(r, h):
    """Where a new topic goes: a free place of its set, or that of another topic, with its memory."""
    cache: cython.pointer[TopicCache] = cython.address(r.cache)
    if (
        cache.count * 4 >= cache.slots.size() * 3
        and cache.slots.size() * 2 <= r.common.limits.cache_topics_max
    ):
        _grow(cache)
    sets: cython.size_t = cache.slots.size() // CACHE_WAYS
    chosen: cython.pointer[CacheSlot] = cython.address(cache.slots[(h & (sets - 1)) * CACHE_WAYS])
    way: cython.int
    for way in range(CACHE_WAYS):
        if chosen[way].entry == cython.NULL:
            owner: unique_ptr[CacheEntry] = make_unique[CacheEntry]()
            chosen[way].entry = owner.release()
            cache.count += 1
            return chosen + way
    # a set is full while the table is not: topics that take turns there are looked up, and judged, each time
    if (
        cache.slots.size() <= cache.count * _SPARSE
        and cache.slots.size() * 2 <= r.common.limits.cache_topics_max
    ):
        _grow(cache)
        return _choose_slot(r, h)
    return chosen + (h >> 62)  # as good as drawn: the set was chosen by the other end


def _forget_topics(r, weight_max, topics_max):
    """Forgets so many topics, one place after the other, or until the rest is within a weight."""
    cache: cython.pointer[TopicCache] = cython.address(r.cache)
    while cache.count and topics_max and (cache.weight > weight_max or weight_max == 0):
        cache.hand = (cache.hand + 1) & (cache.slots.size() - 1)
        entry: cython.pointer[CacheEntry] = cache.slots[cache.hand].entry
        if entry != cython.NULL:
            count_steps(1)
            cache.weight -= _weigh(entry) + entry.topic.capacity() // _RECEIVER_BYTES
            cache.count -= 1
            cache.slots[cache.hand].entry = cython.NULL
            topics_max -= 1
            del entry


def shrink_cache(r):
    """Above the memory ceiling, once a tick: forgets a part of the topics, for nothing is lost by it."""
    _forget_topics(r, 0, _FORGOTTEN_MAX)
    if r.cache.count == 0:
        free_cache(r)


def _renew(r, entry, topic):
    """Looks a topic up again where what is known of it may not hold any more."""
    version: uint64_t = read_version(r.common.subscriptions)
    if entry.version == version:
        return
    if has_moved(r.common.subscriptions, entry.marks, entry.version):
        _match(r, entry, topic)
    else:
        entry.version = version


def find_receivers(r, topic):
    """Who receives a topic; valid until the next call."""
    cache: cython.pointer[TopicCache] = cython.address(r.cache)
    if cache.weight > r.common.limits.cache_receivers_max:
        _forget_topics(r, r.common.limits.cache_receivers_max, r.cache.count)
    if cache.slots.empty():
        _grow(cache)
    h: uint64_t = hash_text(cache.seed, topic[0])
    sets: cython.size_t = cache.slots.size() // CACHE_WAYS
    slot: cython.pointer[CacheSlot] = cython.address(cache.slots[(h & (sets - 1)) * CACHE_WAYS])
    entry: cython.pointer[CacheEntry]
    way: cython.int
    for way in range(CACHE_WAYS):
        if slot[way].hash == h and slot[way].entry != cython.NULL:
            entry = slot[way].entry
            if entry.topic.size() == topic.size and memcmp(entry.topic.data(), topic.data, topic.size) == 0:
                _renew(r, entry, topic[0])
                return entry
    slot = _choose_slot(r, h)
    slot.hash = h
    entry = slot.entry
    cache.weight -= entry.topic.capacity() // _RECEIVER_BYTES
    entry.topic.assign(cython.cast(cython.p_char, topic.data), topic.size)
    for way in range(JUDGEMENTS):
        entry.judgements[way].number = 0
    marks_of_topic(cython.address(r.common.subscriptions.marks), topic[0], entry.marks)
    cache.weight += entry.topic.capacity() // _RECEIVER_BYTES  # long topics are to be bounded as well
    _match(r, entry, topic[0])
    return entry


def rename_topic(r, topic):
    """The name that the operator wants for a topic, which is valid until the next; else it stays as it is."""
    if topic.size == 0 or topic.size > r.common.limits.topic_bytes_max:
        return
    number: uint16_t = find_receivers(r, topic).rewrite
    if number and rewrite(r.topic_rules, number, topic[0], cython.address(r.rewritten)):
        topic[0] = span_of(cython.address(r.rewritten))
        r.tally[C_MESSAGES_REWRITTEN] += 1


def find_cached_group(entry, number):
    """The entry's group with this number, or NULL."""
    index: cython.size_t
    for index in range(entry.groups.size()):
        if entry.groups[index].number == number:
            return cython.address(entry.groups[index])
    return cython.NULL
