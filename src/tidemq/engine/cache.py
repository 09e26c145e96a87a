"""A reactor's memory of who receives a topic, so that most messages need no look-up in the shared index.

An entry is good as long as the index's version has not moved since it was made: then it names no session that
has left. Pointers in it are to sessions of this reactor only; other reactors are one bit each.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcmp, memcpy
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.unordered_map import unordered_map
from cython.cimports.libcpp.vector import vector
from cython.cimports.tidemq.engine.counters import C_CACHE_MISSES, MEMORY_CACHES
from cython.cimports.tidemq.engine.state import (
    CACHE_WAYS,
    JUDGEMENTS,
    CacheEntry,
    CacheSlot,
    Group,
    GroupMember,
    Reactor,
    Receiver,
    Session,
    TopicCache,
)
from cython.cimports.tidemq.engine.subscribers import (
    OPTION_NO_LOCAL,
    OPTION_QOS,
    OPTION_RETAIN_AS_PUBLISHED,
    OPTION_STORED,
    STREAM_REACTOR,
    Subscription,
)
from cython.cimports.tidemq.engine.subscriptions import (
    SharedGroup,
    lock_shared,
    match_topic,
    read_version,
    unlock_shared,
)
from cython.cimports.tidemq.engine.system import ACQUIRE, load_u8
from cython.cimports.tidemq.wire.protocol import Span

_SLOTS_FIRST = cython.declare(uint32_t, 256)  # of the table; it doubles
_SPARSE = cython.declare(uint32_t, 8)  # slots for each topic; then it grows no more
_SCAN_MAX = cython.declare(uint32_t, 16)  # receivers looked through one by one before a map is made

_RECEIVER_BYTES = cython.declare(uint64_t, 32)  # about


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _hash(seed: uint64_t, text: Span) -> uint64_t:
    """A seeded hash of a topic, eight bytes a step; strangers do not know the seed."""
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


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _grow(cache: cython.pointer[TopicCache]) -> cython.void:
    """Twice as many sets; each old one is dealt out to two new ones, so none overflows."""
    larger: vector[CacheSlot]
    larger.resize(cache.slots.size() * 2 if cache.slots.size() else _SLOTS_FIRST)
    sets: cython.size_t = larger.size() // CACHE_WAYS
    index: cython.size_t
    for index in range(cache.slots.size()):
        slot: CacheSlot = cache.slots[index]
        if slot.entry != cython.NULL:
            at: cython.size_t = (slot.hash & (sets - 1)) * CACHE_WAYS
            while larger[at].entry != cython.NULL:
                at += 1
            larger[at] = slot
    cache.slots.swap(larger)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def cache_bytes(cache: cython.pointer[cython.const[TopicCache]]) -> int64_t:
    return (
        cache.slots.size() * cython.sizeof(CacheSlot)
        + cache.count * cython.sizeof(CacheEntry)
        + cache.weight * _RECEIVER_BYTES
    )


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def free_cache(r: cython.pointer[Reactor]) -> cython.void:
    """Forgets every topic."""
    index: cython.size_t
    for index in range(r.cache.slots.size()):
        entry: cython.pointer[CacheEntry] = r.cache.slots[index].entry
        if entry != cython.NULL:
            del entry
    r.cache.slots.clear()
    r.cache.count = 0
    r.cache.weight = 0
    r.tally[MEMORY_CACHES] = 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_receiver(
    entry: cython.pointer[CacheEntry],
    places: cython.pointer[unordered_map[uint64_t, uint32_t]],
    subscription: cython.pointer[Subscription],
) -> cython.void:
    """Adds a subscription of this reactor, merged with an earlier one of the same session.

    Overlapping subscriptions give one copy, at the highest QoS, with all identifiers [MQTT-3.3.4-2]
    [MQTT-3.3.4-3].
    """
    session: cython.pointer[Session] = cython.cast(cython.pointer[Session], subscription.session)
    qos: cython.uchar = subscription.options & OPTION_QOS
    count: uint32_t = cython.cast(uint32_t, entry.receivers.size())
    index: uint32_t = count
    if count <= _SCAN_MAX:
        index = 0
        while index < count and entry.receivers[index].session != session:
            index += 1
    if count >= _SCAN_MAX:
        key: uint64_t = cython.cast(uint64_t, session)
        if count == _SCAN_MAX:
            known: uint32_t
            for known in range(count):
                places[0][cython.cast(uint64_t, entry.receivers[known].session)] = known
        if places.count(key):
            index = places[0][key]
        else:
            places[0][key] = index = count
    receiver: cython.pointer[Receiver]
    if index == count:
        fresh: Receiver
        fresh.session = session
        fresh.qos = qos
        fresh.own_qos = 0
        fresh.takes_own = False
        fresh.retain_as_published = subscription.options & OPTION_RETAIN_AS_PUBLISHED
        fresh.ids_at = cython.cast(uint32_t, entry.ids.size())
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
        _add_identifier(entry, receiver, subscription.subscription_id, own)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_identifier(
    entry: cython.pointer[CacheEntry],
    receiver: cython.pointer[Receiver],
    identifier: uint32_t,
    own: cython.bint,
) -> cython.void:
    """A receiver's identifiers stay together: where others follow them, they move to the end first."""
    if receiver.ids_at + receiver.ids_count != entry.ids.size():
        index: uint32_t
        moved: uint32_t = cython.cast(uint32_t, entry.ids.size())
        for index in range(receiver.ids_count):
            value: uint32_t = entry.ids[receiver.ids_at + index]
            entry.ids.push_back(value)
        receiver.ids_at = moved
    entry.ids.push_back(identifier)
    receiver.ids_count += 1
    if own:  # to the front, among its like
        first: uint32_t = receiver.ids_at + receiver.own_ids_count
        last: uint32_t = receiver.ids_at + receiver.ids_count - 1
        entry.ids[last] = entry.ids[first]
        entry.ids[first] = identifier
        receiver.own_ids_count += 1


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _add_group(
    r: cython.pointer[Reactor], entry: cython.pointer[CacheEntry], shared: cython.pointer[SharedGroup]
) -> cython.void:
    """Adds a shared group with its members that are online; there may be none."""
    group: Group
    group.number = shared.id
    group.stored = False
    index: uint32_t
    for index in range(shared.members.count):
        subscription: cython.pointer[Subscription] = cython.address(shared.members.items[index])
        session: cython.pointer[Session] = cython.cast(cython.pointer[Session], subscription.session)
        if subscription.options & OPTION_STORED:
            group.stored = True
        if not load_u8(cython.address(session.online), ACQUIRE):
            continue
        member: GroupMember
        member.session = session
        if subscription.reactor != r.index:
            member.session = cython.NULL
        member.reactor = subscription.reactor
        member.qos = subscription.options & OPTION_QOS
        member.retain_as_published = subscription.options & OPTION_RETAIN_AS_PUBLISHED
        member.subscription_id = subscription.subscription_id
        group.members.push_back(member)
    entry.groups.push_back(group)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _weigh(entry: cython.pointer[CacheEntry]) -> uint64_t:
    """How many receivers, identifiers and members an entry holds."""
    index: cython.size_t
    weight: uint64_t = entry.receivers.size() + entry.ids.size()
    for index in range(entry.groups.size()):
        weight += entry.groups[index].members.size()
    return weight


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _match(r: cython.pointer[Reactor], entry: cython.pointer[CacheEntry], topic: Span) -> cython.void:
    """Asks the shared index and fills the entry."""
    places: unordered_map[uint64_t, uint32_t]
    index: cython.size_t
    r.cache.weight -= _weigh(entry)
    entry.receivers.clear()
    entry.ids.clear()
    entry.groups.clear()
    entry.reactors = entry.stored_reactors = entry.streams = 0
    entry.stored = False
    r.matches.subscriptions.clear()
    r.matches.groups.clear()
    r.tally[C_CACHE_MISSES] += 1
    lock_shared(r.shared.subscriptions)
    entry.version = read_version(r.shared.subscriptions)
    match_topic(r.shared.subscriptions, topic, cython.address(r.matches))
    entry.stored = not r.matches.groups.empty()
    for index in range(r.matches.groups.size()):
        _add_group(r, entry, r.matches.groups[index])
    unlock_shared(r.shared.subscriptions)
    for index in range(r.matches.subscriptions.size()):
        subscription: cython.pointer[Subscription] = cython.address(r.matches.subscriptions[index])
        stored: cython.bint = subscription.options & OPTION_STORED
        entry.stored = entry.stored or stored
        if subscription.reactor == STREAM_REACTOR:
            entry.streams |= cython.cast(uint64_t, 1) << subscription.subscription_id
            entry.stored = True
        elif subscription.reactor == r.index:
            _add_receiver(entry, cython.address(places), subscription)
        else:
            entry.reactors |= cython.cast(uint64_t, 1) << subscription.reactor
            if stored:
                entry.stored_reactors |= cython.cast(uint64_t, 1) << subscription.reactor
    r.cache.weight += _weigh(entry)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def _choose_slot(r: cython.pointer[Reactor], h: uint64_t) -> cython.pointer[CacheSlot]:
    """Where a new topic goes: a free place of its set, or that of another topic, with its memory."""
    cache: cython.pointer[TopicCache] = cython.address(r.cache)
    if (
        cache.count * 4 >= cache.slots.size() * 3
        and cache.slots.size() * 2 <= r.shared.limits.cache_topics_max
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
        and cache.slots.size() * 2 <= r.shared.limits.cache_topics_max
    ):
        _grow(cache)
        return _choose_slot(r, h)
    return chosen + (h >> 62)  # as good as drawn: the set was chosen by the other end


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def find_receivers(
    r: cython.pointer[Reactor], topic: cython.pointer[cython.const[Span]]
) -> cython.pointer[CacheEntry]:
    """Who receives a topic; valid until the next call."""
    cache: cython.pointer[TopicCache] = cython.address(r.cache)
    if cache.weight > r.shared.limits.cache_receivers_max:
        free_cache(r)
    if cache.slots.empty():
        _grow(cache)
    h: uint64_t = _hash(cache.seed, topic[0])
    sets: cython.size_t = cache.slots.size() // CACHE_WAYS
    slot: cython.pointer[CacheSlot] = cython.address(cache.slots[(h & (sets - 1)) * CACHE_WAYS])
    entry: cython.pointer[CacheEntry]
    way: cython.int
    for way in range(CACHE_WAYS):
        if slot[way].hash == h and slot[way].entry != cython.NULL:
            entry = slot[way].entry
            if entry.topic.size() == topic.size and memcmp(entry.topic.data(), topic.data, topic.size) == 0:
                if entry.version != read_version(r.shared.subscriptions):
                    _match(r, entry, topic[0])
                return entry
    slot = _choose_slot(r, h)
    slot.hash = h
    entry = slot.entry
    cache.weight -= entry.topic.capacity() // _RECEIVER_BYTES
    entry.topic.assign(cython.cast(cython.p_char, topic.data), topic.size)
    for way in range(JUDGEMENTS):
        entry.judgements[way].number = 0
    cache.weight += entry.topic.capacity() // _RECEIVER_BYTES  # long topics are to be bounded as well
    _match(r, entry, topic[0])
    return entry


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def find_cached_group(entry: cython.pointer[CacheEntry], number: cython.uint) -> cython.pointer[Group]:
    """The entry's group with this number, or NULL."""
    index: cython.size_t
    for index in range(entry.groups.size()):
        if entry.groups[index].number == number:
            return cython.address(entry.groups[index])
    return cython.NULL
