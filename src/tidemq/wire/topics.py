"""Topic names and topic filters (5.0 sections 4.7 and 4.8.2): what is well formed, and a shared one's parts.

Matching is the engine's. Every function may run on any thread without the GIL and keeps nothing.
"""

import cython
from cython.cimports.libc.stdint import uint32_t, uint64_t
from cython.cimports.libc.string import memchr, memcmp, memcpy
from cython.cimports.tidemq.wire.cursor import check_utf8
from cython.cimports.tidemq.wire.protocol import (
    FAULT_NONE,
    FAULT_TOPIC_EMPTY,
    FAULT_TOPIC_FILTER,
    FAULT_TOPIC_LEVELS,
    FAULT_TOPIC_WILDCARD,
    Fault,
    Span,
)
from cython.cimports.tidemq.wire.topics import HASH, PLUS, SLASH, SharedFilter


def repeat(byte):
    return cython.cast(uint64_t, byte) * (~cython.cast(uint64_t, 0) // 0xFF)


def zero_bytes(word):
    """Has a byte's high bit set where `word`, all ASCII, has a zero byte; else none."""
    return (word - repeat(0x01)) & ~word


def plain_word(at):
    """Whether the eight bytes at `at` are ASCII and none of NUL, + and #."""
    word: uint64_t = 0
    memcpy(cython.address(word), at, 8)
    found: uint64_t = word | zero_bytes(word)
    found |= zero_bytes(word ^ repeat(PLUS)) | zero_bytes(word ^ repeat(HASH))
    return found & repeat(0x80) == 0


def check_topic_text(name):
    """Whether `name` is UTF-8 without wildcards: check_utf8 and half of check_topic_name in one pass.

    A topic name is checked at each PUBLISH, hence the short way for ASCII.
    """
    return FAULT_NONE if all_plain(name[0]) else check_topic_slowly(name[0])


def all_plain(name):
    """Whether all of `name` is ASCII and none of NUL, + and #."""
    at: uint32_t = 0
    if name.size >= 8:
        while at + 8 <= name.size:
            if not plain_word(name.data + at):
                return False
            at += 8
        return plain_word(name.data + name.size - 8)  # the rest, and some again
    while at < name.size:
        if not is_plain(name.data[at]):
            return False
        at += 1
    return True


def is_plain(byte):
    return byte < 0x80 and byte != 0 and byte != PLUS and byte != HASH


def check_topic_slowly(name):
    fault: Fault = check_utf8(name.data, name.size)
    if fault == FAULT_NONE and has_wildcard(name):
        fault = FAULT_TOPIC_WILDCARD  # [MQTT-3.3.2-2] [MQTT-4.7.0-1]
    return fault


def has_wildcard(name):
    if name.size == 0:
        return False
    return (
        memchr(name.data, PLUS, name.size) != cython.NULL or memchr(name.data, HASH, name.size) != cython.NULL
    )


def exceeds(name, levels_max):
    """Whether `name` has more levels; a short one cannot, and is not counted."""
    if name.size < levels_max:
        return False
    count: uint32_t = 1
    i: uint32_t
    for i in range(name.size):
        count += name.data[i] == SLASH
    return count > levels_max


def check_topic_levels(name, levels_max):
    """Whether `name` has at most `levels_max` levels."""
    return FAULT_TOPIC_LEVELS if exceeds(name[0], levels_max) else FAULT_NONE


def check_topic_name(name, levels_max):
    """Whether `name`, already UTF-8, is not empty, without wildcards, of at most `levels_max` levels."""
    if name.size == 0:
        return FAULT_TOPIC_EMPTY  # [MQTT-4.7.3-1]
    if not all_plain(name) and has_wildcard(name):
        return FAULT_TOPIC_WILDCARD  # [MQTT-3.3.2-2] [MQTT-4.7.0-1]
    return check_topic_levels(cython.address(name), levels_max)


def check_topic_filter(filter, levels_max):
    """Whether `filter`, already UTF-8, is well formed; of a shared one the levels after the group count."""
    if filter.size == 0:
        return FAULT_TOPIC_EMPTY  # [MQTT-4.7.3-1]
    if is_shared(filter):
        parts: SharedFilter = split_shared(filter)
        if not parts.shared:
            return FAULT_TOPIC_FILTER  # [MQTT-4.8.2-1] [MQTT-4.8.2-2]
        filter = parts.filter
    i: uint32_t
    for i in range(filter.size):
        if filter.data[i] == HASH and (i + 1 != filter.size or not stands_alone(filter, i)):
            return FAULT_TOPIC_FILTER  # [MQTT-4.7.1-1]
        if filter.data[i] == PLUS and not stands_alone(filter, i):
            return FAULT_TOPIC_FILTER  # [MQTT-4.7.1-2]
    return FAULT_TOPIC_LEVELS if exceeds(filter, levels_max) else FAULT_NONE


def wildcard_ways(filter):
    """In how many ways its `+` could be spread over its levels, a last `#` not counted: as many filters of
    its form may match the beginning of one topic. More `+` than half of the levels count as half, so that no
    beginning of a filter has more ways than all of it. Where all `+` stand at the beginning, or all at the
    end, there are no more than two for each level. More than 2**40 are 2**40.
    """
    levels: uint32_t = 0
    wild: uint32_t = 0
    edges: uint32_t = 0  # between levels that are `+` and levels that are not
    i: uint32_t
    for i in range(filter.size):
        if filter.data[i] == PLUS:
            wild += 1
        if filter.data[i] == SLASH and not (i + 2 == filter.size and filter.data[i + 1] == HASH):
            levels += 1
            before: cython.bint = i > 0 and filter.data[i - 1] == PLUS
            edges += before != (i + 1 < filter.size and filter.data[i + 1] == PLUS)
    levels += filter.size > 1 or filter.data[0] != HASH
    wild = min(wild, levels // 2)
    ways: uint64_t = 1
    for i in range(wild):
        ways = ways * (levels - i) // (i + 1)  # from binomial coefficient to binomial coefficient
        if ways >> 40:
            ways = cython.cast(uint64_t, 1) << 40
            break
    return min(ways, 2 * cython.cast(uint64_t, levels)) if edges <= 1 and levels else ways


def stands_alone(filter, i):
    """Whether the character at `i` is the whole of its level."""
    return (i == 0 or filter.data[i - 1] == SLASH) and (i + 1 == filter.size or filter.data[i + 1] == SLASH)


def is_shared(filter):
    return filter.size >= 7 and memcmp(filter.data, b"$share/", 7) == 0


def is_exclusive(filter):
    return filter.size > 11 and memcmp(filter.data, b"$exclusive/", 11) == 0


def split_shared(filter):
    """Take a shared filter apart, or one that a client wants for itself; where it is neither, or malformed,
    both are false and `filter` whole.
    """
    out: SharedFilter = SharedFilter(False, False, Span(cython.NULL, 0), filter)
    if is_exclusive(filter):
        out.exclusive = True
        out.filter = Span(filter.data + 11, filter.size - 11)
        return out
    if not is_shared(filter):
        return out
    group: Span = Span(filter.data + 7, filter.size - 7)
    i: uint32_t = 0
    while i < group.size and group.data[i] != SLASH:
        i += 1
    if i == 0 or i + 1 >= group.size:
        return out  # no group, no filter
    group.size = i
    if has_wildcard(group):
        return out
    out.shared = True
    out.group = group
    out.filter = Span(group.data + i + 1, filter.size - 7 - i - 1)
    return out


def utf8_fault(text):
    return FAULT_TOPIC_LEVELS if len(text) > 0xFFFF else check_utf8(text, cython.cast(uint32_t, len(text)))


def topic_name_fault(name: str, levels_max: uint32_t = 0x10000) -> cython.int:
    """The `Fault` of a topic name to publish to, 0 if it has none; for Python, as is `topic_filter_fault`."""
    text: bytes = name.encode("utf-8", "surrogatepass")
    fault: cython.int = utf8_fault(text)
    return fault or check_topic_name(Span(text, cython.cast(uint32_t, len(text))), levels_max)


def topic_filter_ways(filter: str) -> int:
    """What the limit `wildcard_ways_max` is about, of a filter that is well formed; for Python."""
    text: bytes = filter.encode()
    parts: SharedFilter = split_shared(Span(text, cython.cast(uint32_t, len(text))))
    return wildcard_ways(parts.filter)


def topic_filter_fault(filter: str, levels_max: uint32_t = 0x10000) -> cython.int:
    """The `Fault` of a topic filter, shared or not, to subscribe to; 0 if it has none."""
    text: bytes = filter.encode("utf-8", "surrogatepass")
    fault: cython.int = utf8_fault(text)
    return fault or check_topic_filter(Span(text, cython.cast(uint32_t, len(text))), levels_max)
