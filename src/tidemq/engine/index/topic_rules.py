"""What an operator wants of topics: new names for some, how long what is retained stays, what clients are
subscribed to when they connect. Of each kind the first rule that matches a topic counts.

Constant once made; any thread may look. What the rules say of a topic stands beside its cache entry, so that
they are gone through once for a topic, not for a message.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint16_t, uint32_t
from cython.cimports.libc.string import memchr, memcmp
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.tidemq.engine.base.counters import LIVE_RULES, MEMORY_RULES
from cython.cimports.tidemq.engine.base.system import ACQ_REL, add_int
from cython.cimports.tidemq.engine.index.topic_rules import Lifetime, Rewrite, TopicRules
from cython.cimports.tidemq.wire.protocol import Span
from cython.cimports.tidemq.wire.topics import HASH, PLUS, SLASH

_DOLLAR = cython.declare(uint8_t, 0x24)
_CAPTURES = cython.declare(cython.int, 9)  # $1 to $9; what further wildcards stand for nobody can ask for
_TOPIC_BYTES_MAX = cython.declare(cython.size_t, 65_535)  # that a packet can say


def new_topic_rules():
    """Without rules, held once; `close_topic_rules` follows when it has them."""
    owner: unique_ptr[TopicRules] = make_unique[TopicRules]()
    rules: cython.pointer[TopicRules] = owner.release()
    rules.references = 1
    return rules


def close_topic_rules(rules, tally):
    """They are all there: counts them."""
    tally[LIVE_RULES] += 1
    tally[MEMORY_RULES] += _bytes(rules)


def _bytes(rules):
    """About so many; strings of up to 15 stand in the rule itself."""
    index: cython.size_t
    size: cython.size_t = cython.sizeof(TopicRules)
    for index in range(rules.rewrites.size()):
        size += 80 + rules.rewrites[index].filter.size() + rules.rewrites[index].to.size()
    for index in range(rules.lifetimes.size()):
        size += 48 + rules.lifetimes[index].filter.size()
    for index in range(rules.subscriptions.size()):
        size += 48 + rules.subscriptions[index].filter.size()
    return cython.cast(int64_t, size)


def release_topic_rules(rules, tally):
    """One holder less; NULL is none."""
    if rules != cython.NULL and add_int(cython.address(rules.references), -1, ACQ_REL) == 0:
        tally[LIVE_RULES] -= 1
        tally[MEMORY_RULES] -= _bytes(rules)
        del rules


def fixed_bytes(filter):
    """How many bytes every topic begins with that a filter matches: all before its first wildcard but the
    slash, for a `/#` stands for the parent too.
    """
    size: cython.size_t = filter.find_first_of(cython.cast(cython.p_char, b"+#"))
    if size > filter.size():
        size = filter.size()
    elif size:
        size -= 1
    return cython.cast(uint32_t, size)


def find_rewrite(rules, topic, action):
    """1 + the number of the rule that gives a topic, or a filter, another name; 0: none does."""
    captures: Span[9]
    index: cython.size_t
    for index in range(rules.rewrites.size()):
        rule: cython.pointer[cython.const[Rewrite]] = cython.address(rules.rewrites[index])
        if not rule.actions & action or _begins_otherwise(cython.address(rule.filter), rule.fixed, topic):
            continue
        if _capture(cython.address(rule.filter), topic, captures):
            return cython.cast(uint16_t, index + 1)
    return 0


def find_lifetime(rules, topic):
    """1 + the number of the rule that says how long a message stays retained; 0: none does."""
    captures: Span[9]
    index: cython.size_t
    for index in range(rules.lifetimes.size()):
        rule: cython.pointer[cython.const[Lifetime]] = cython.address(rules.lifetimes[index])
        if _begins_otherwise(cython.address(rule.filter), rule.fixed, topic):
            continue
        if _capture(cython.address(rule.filter), topic, captures):
            return cython.cast(uint16_t, index + 1)
    return 0


def rewrite(rules, number, topic, out):
    """The new name by a rule that `find_rewrite` has found. False: it would be empty, begin with a `$` or be
    longer than a packet can say; then the topic keeps its own.
    """
    captures: Span[9]
    if not _capture(cython.address(rules.rewrites[number - 1].filter), topic, captures):
        return False
    _expand(cython.address(rules.rewrites[number - 1].to), captures, out)
    return not out.empty() and out[0][0] != _DOLLAR and out.size() <= _TOPIC_BYTES_MAX


def _begins_otherwise(filter, fixed, topic):
    """Whether a rule cannot match because of the beginning, which is so of most rules. The last byte of that
    is looked at first: there rules with a common beginning differ.
    """
    if topic.size < fixed:
        return True
    if fixed == 0:
        return False
    return topic.data[fixed - 1] != cython.cast(uint8_t, filter[0][fixed - 1]) or (
        memcmp(topic.data, filter.data(), fixed) != 0
    )


def _level_end(text, at):
    if at >= text.size:
        return text.size
    found: cython.pointer[cython.const[uint8_t]] = cython.cast(
        cython.pointer[cython.const[uint8_t]], memchr(text.data + at, SLASH, text.size - at)
    )
    return text.size if found == cython.NULL else cython.cast(uint32_t, found - text.data)


def _same_level(pattern, i, text, j):
    """Whether the levels that begin there are the same. The text's may be very long: its end is not looked
    for.
    """
    size: uint32_t = _level_end(pattern, i) - i
    if text.size - j < size or memcmp(pattern.data + i, text.data + j, size):
        return False
    return j + size == text.size or text.data[j + size] == SLASH


def _note(captures, number, found):
    if number < _CAPTURES:
        captures[number] = found


def _capture(filter, topic, captures):
    """Whether a topic, or every topic that a filter stands for, matches a rule's filter, and what each of
    that one's wildcards stands for. A last `/#` stands for the parent too: then its data is NULL.
    """
    pattern: Span = Span(
        cython.cast(cython.pointer[cython.const[uint8_t]], filter.data()),
        cython.cast(uint32_t, filter.size()),
    )
    i: uint32_t = 0
    j: uint32_t = 0
    count: cython.int = 0
    if topic.size == 0 or topic.data[0] == _DOLLAR:
        return False  # a rule's filter never begins with a `$`, and a wildcard is none [MQTT-4.7.2-1]
    while True:
        if i < pattern.size and pattern.data[i] == HASH:
            _note(captures, count, Span(topic.data + j, topic.size - j))
            return True
        if i < pattern.size and pattern.data[i] == PLUS:
            if j < topic.size and topic.data[j] == HASH:
                return False
            _note(captures, count, Span(topic.data + j, _level_end(topic, j) - j))
            count += 1
        elif not _same_level(pattern, i, topic, j):
            return False
        i = _level_end(pattern, i)
        j = _level_end(topic, j)
        if i == pattern.size:
            return j == topic.size
        if j == topic.size:
            _note(captures, count, Span(cython.NULL, 0))
            return i + 2 == pattern.size and pattern.data[i + 1] == HASH
        i += 1
        j += 1


def _expand(to, captures, out):
    """The new name. What stands for nothing takes its level along."""
    text: Span = Span(
        cython.cast(cython.pointer[cython.const[uint8_t]], to.data()), cython.cast(uint32_t, to.size())
    )
    at: uint32_t = 0
    first: cython.bint = True
    out.clear()
    while at <= text.size:
        end: uint32_t = _level_end(text, at)
        level: Span = Span(text.data + at, end - at)
        if level.size == 2 and level.data[0] == _DOLLAR:
            level = captures[level.data[1] - 0x31]  # from '1' on
        if level.data != cython.NULL:
            if not first:
                out.push_back(SLASH)
            out.append(cython.cast(cython.p_char, level.data), level.size)
            first = False
        at = end + 1
