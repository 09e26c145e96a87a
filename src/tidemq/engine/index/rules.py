"""What clients may publish and subscribe to: rules in their order, the first that speaks of a case decides,
and what none speaks of is refused.

A `Policy` is all rules. A `RuleSet` is those among them that are about a client: clients with the same share
one. Both are constant but for the sets that a policy knows, and any thread may judge by them.
"""

import cython
from cython.cimports.libc.stdint import int64_t, uint8_t, uint32_t
from cython.cimports.libc.string import memchr, memcmp
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.counters import LIVE_RULES, MEMORY_RULES
from cython.cimports.tidemq.engine.base.locks import lock, unlock
from cython.cimports.tidemq.engine.base.system import (
    ACQ_REL,
    RELAXED,
    add_i64,
    add_int,
    pthread_mutex_destroy,
    pthread_mutex_init,
)
from cython.cimports.tidemq.engine.index.rules import (
    ACTION_PUBLISH,
    ANY_USER,
    EVERY_MESSAGE,
    NAMES_CLIENT,
    NAMES_USER,
    ONE_USER,
    USER_BYTE,
    Line,
    Policy,
    Rule,
    RuleSet,
    hold_policy,
)
from cython.cimports.tidemq.wire.protocol import Span
from cython.cimports.tidemq.wire.topics import HASH, PLUS, SLASH

_DOLLAR = cython.declare(uint8_t, 0x24)
_STAR = cython.declare(uint8_t, 0x2A)


# --- policies and sets -----------------------------------------------------------------------------


def new_policy():
    """Without rules, held once; `close_policy` follows when it has them."""
    owner: unique_ptr[Policy] = make_unique[Policy]()
    policy: cython.pointer[Policy] = owner.release()
    policy.references = 1
    pthread_mutex_init(cython.address(policy.lock), cython.NULL)
    return policy


def close_policy(policy, tally):
    """It has all its rules: counts it, and notes which of them it takes a look at the client for."""
    index: uint32_t
    for index in range(cython.cast(uint32_t, policy.rules.size())):
        rule: cython.pointer[Rule] = cython.address(policy.rules[index])
        if (
            rule.whose != ANY_USER
            or rule.names & NAMES_USER
            or rule.has_network
            or not rule.group.empty()
            or not rule.client.empty()
        ):
            policy.selective.push_back(index)
    tally[LIVE_RULES] += 1
    tally[MEMORY_RULES] += _policy_bytes(policy)


def _policy_bytes(policy):
    """About so many bytes; strings of up to 15 stand in the rule itself."""
    index: cython.size_t
    size: cython.size_t = cython.sizeof(Policy) + policy.selective.capacity() * 4
    for index in range(policy.rules.size()):
        rule: cython.pointer[cython.const[Rule]] = cython.address(policy.rules[index])
        size += cython.sizeof(Rule) + rule.filter.size() + rule.user.size() + rule.group.size()
        size += rule.client.size()
    return cython.cast(int64_t, size)


def _set_bytes(rules):
    """About so many bytes; its key stands in the policy's table as well."""
    lines: cython.size_t = rules.lines.capacity() * cython.sizeof(Line)
    return cython.cast(int64_t, cython.sizeof(RuleSet) + lines + 2 * rules.key.size())


def release_policy(policy, tally):
    """One holder less; NULL is none."""
    if policy != cython.NULL and add_int(cython.address(policy.references), -1, ACQ_REL) == 0:
        holds(policy.sets.empty(), b"rules: a policy that is freed has no sets")
        pthread_mutex_destroy(cython.address(policy.lock))
        tally[LIVE_RULES] -= 1
        tally[MEMORY_RULES] -= _policy_bytes(policy)
        del policy


def _like(pattern, text):
    """Whether the text is as the pattern, whose `*` stand for any characters."""
    size: cython.size_t = pattern.size()
    at: cython.pointer[cython.const[uint8_t]] = cython.cast(
        cython.pointer[cython.const[uint8_t]], pattern.data()
    )
    i: cython.size_t = 0
    j: uint32_t = 0
    star: cython.size_t = size  # the last that was met; `size`: none
    again: uint32_t = 0  # where the text goes on after what that one stands for
    while j < text.size:
        if i < size and at[i] == _STAR:
            star = i
            again = j
            i += 1
        elif i < size and at[i] == text.data[j]:
            i += 1
            j += 1
        elif star != size:
            again += 1
            i = star + 1
            j = again
        else:
            return False
    while i < size and at[i] == _STAR:
        i += 1
    return i == size


def _is_member(group, groups):
    at: uint32_t = 0
    while at < groups.size:
        end: uint32_t = at
        while groups.data[end]:
            end += 1
        if end - at == group.size() and memcmp(group.data(), groups.data + at, end - at) == 0:
            return True
        at = end + 1
    return False


def _is_within(rule, address):
    whole: cython.int = rule.prefix // 8
    rest: cython.int = rule.prefix % 8
    if memcmp(rule.network, address, whole):
        return False
    return rest == 0 or (rule.network[whole] ^ address[whole]) >> (8 - rest) == 0


def _is_about(rule, asker):
    """Whether a rule is about this client."""
    if rule.whose == ONE_USER:
        if not asker.has_user or asker.user.size != rule.user.size():
            return False
        if memcmp(asker.user.data, rule.user.data(), asker.user.size):
            return False
    elif rule.whose != ANY_USER and asker.has_user:
        return False
    if rule.names & NAMES_USER and not asker.has_user:
        return False
    if not rule.group.empty() and not _is_member(cython.address(rule.group), asker.groups):
        return False
    if not rule.client.empty() and not _like(cython.address(rule.client), asker.client_id):
        return False
    if not rule.has_network:
        return True
    return asker.has_address and _is_within(rule, cython.cast(cython.p_uchar, asker.address))


def find_rules(policy, asker, counter, tally):
    """The rules that are about a client, held once more. ``counter``: of the numbers that sets have had."""
    key: string
    place: cython.size_t
    for place in range(policy.selective.size()):
        number: uint32_t = policy.selective[place]
        if _is_about(cython.address(policy.rules[number]), asker):
            key.append(cython.cast(cython.p_char, cython.address(number)), 4)
    lock(cython.address(policy.lock))
    rules: cython.pointer[RuleSet]
    if policy.sets.count(key):
        rules = policy.sets[key]
        holds(rules.references > 0, b"rules: a set that can be found is held")
        rules.references += 1
        unlock(cython.address(policy.lock))
        return rules
    rules = _new_rules(policy)
    rules.number = add_i64(counter, 1, RELAXED)
    rules.key = key
    rules.known = True
    _add_lines(rules, policy, asker)
    policy.sets[key] = rules
    _count_set(rules, tally)
    unlock(cython.address(policy.lock))
    return rules


def make_rules(own, policy, asker, tally):
    """A client's own rules, which it holds longer than this, and then those of all (or NULL) that are about
    it; held once. Nobody shares them.
    """
    rules: cython.pointer[RuleSet] = _new_rules(own if policy == cython.NULL else policy)
    rules.personal = True
    _add_lines(rules, own, asker)
    if policy != cython.NULL:
        _add_lines(rules, policy, asker)
    _count_set(rules, tally)
    return rules


def _new_rules(policy):
    owner: unique_ptr[RuleSet] = make_unique[RuleSet]()
    rules: cython.pointer[RuleSet] = owner.release()
    rules.references = 1
    rules.policy = policy
    hold_policy(policy)
    return rules


def _count_set(rules, tally):
    """When it has its lines: it is constant from now on."""
    tally[LIVE_RULES] += 1
    tally[MEMORY_RULES] += _set_bytes(rules)


def _add_lines(rules, policy, asker):
    """Adds the policy's rules that are about the client."""
    index: cython.size_t
    for index in range(policy.rules.size()):
        if _is_about(cython.address(policy.rules[index]), asker):
            rule: cython.pointer[Rule] = cython.address(policy.rules[index])
            line: Line
            line.filter = cython.cast(cython.pointer[cython.const[uint8_t]], rule.filter.data())
            line.size = cython.cast(uint32_t, rule.filter.size())
            line.allows = rule.allows
            line.actions = rule.actions
            line.messages = rule.messages
            line.names = rule.names
            rules.lines.push_back(line)
            rules.personal = rules.personal or rule.names != 0


def release_rules(rules, tally):
    """One holder less; NULL is none."""
    if rules == cython.NULL:
        return
    policy: cython.pointer[Policy] = rules.policy
    lock(cython.address(policy.lock))
    rules.references -= 1
    last: cython.bint = rules.references == 0
    if last and rules.known:
        policy.sets.erase(rules.key)
    unlock(cython.address(policy.lock))
    if last:
        tally[LIVE_RULES] -= 1
        tally[MEMORY_RULES] -= _set_bytes(rules)
        del rules
        release_policy(policy, tally)


# --- filters ---------------------------------------------------------------------------------------


def _is_wild(text, size):
    return size > 0 and (text[0] == PLUS or text[0] == HASH)


def _follows(rule, i, topic, j, asker):
    """Whether the level of the topic at ``j`` is that of the rule at ``i``, whose names are filled in; leaves
    both at their ends.
    """
    while i[0] < rule.size and rule.filter[i[0]] != SLASH:
        byte: uint8_t = rule.filter[i[0]]
        if byte >= USER_BYTE:
            name: Span = asker.user if byte == USER_BYTE else asker.client_id
            if topic.size - j[0] < name.size or memcmp(topic.data + j[0], name.data, name.size):
                return False
            j[0] += name.size
        elif j[0] < topic.size and topic.data[j[0]] == byte:
            j[0] += 1
        else:
            return False
        i[0] += 1
    return j[0] == topic.size or topic.data[j[0]] == SLASH


def _level_end(text, size, at):
    while at < size and text[at] != SLASH:
        at += 1
    return at


def _is_rest(text, size, at):
    """Whether what is left is `/#`, which stands for the parent too (5.0 section 4.7.1.2); that of `/#` would
    be an empty topic, which there is not (4.7.3).
    """
    return at > 0 and at + 2 == size and text[at] == SLASH and text[at + 1] == HASH


def _covers(rule, topic, asker):
    """Whether every topic that ``topic``, a topic name or a filter, stands for matches the rule's filter."""
    i: uint32_t = 0
    j: uint32_t = 0
    if topic.size and topic.data[0] == _DOLLAR and _is_wild(rule.filter, rule.size):
        return False  # [MQTT-4.7.2-1]
    while True:
        if i < rule.size and rule.filter[i] == HASH:
            return True
        if i < rule.size and rule.filter[i] == PLUS:
            if j < topic.size and topic.data[j] == HASH:
                return False
            i += 1
            j = _level_end(topic.data, topic.size, j)
        elif not _follows(rule, cython.address(i), topic, cython.address(j), asker):
            return False
        if i == rule.size:
            return j == topic.size
        if j == topic.size:
            return _is_rest(rule.filter, rule.size, i)
        i += 1
        j += 1


def _meets(rule, filter, asker):
    """Whether there may be a topic that matches both filters."""
    i: uint32_t = 0
    j: uint32_t = 0
    if filter.size and filter.data[0] == _DOLLAR and _is_wild(rule.filter, rule.size):
        return False
    if rule.size and rule.filter[0] == _DOLLAR and _is_wild(filter.data, filter.size):
        return False
    while True:
        if (i < rule.size and rule.filter[i] == HASH) or (j < filter.size and filter.data[j] == HASH):
            return True
        wild: cython.bint = (i < rule.size and rule.filter[i] == PLUS) or (
            j < filter.size and filter.data[j] == PLUS
        )
        if wild:
            i = _level_end(rule.filter, rule.size, i)
            j = _level_end(filter.data, filter.size, j)
        elif not _follows(rule, cython.address(i), filter, cython.address(j), asker):
            return False
        if i == rule.size:
            return j == filter.size or _is_rest(filter.data, filter.size, j)
        if j == filter.size:
            return _is_rest(rule.filter, rule.size, i)
        i += 1
        j += 1


def fits_level(name):
    """Whether a name filled into a filter makes it neither wider nor deeper, nor begin with a `$`."""
    return (
        name.size > 0
        and name.data[0] != _DOLLAR
        and memchr(name.data, PLUS, name.size) == cython.NULL
        and memchr(name.data, HASH, name.size) == cython.NULL
        and memchr(name.data, SLASH, name.size) == cython.NULL
    )


def judge(rules, asker, topic, action):
    """The set of messages that the client may publish to a topic; or the QoS at which it may subscribe to a
    filter, as bits.

    A filter is allowed when a rule that allows covers all of it, and none before that refuses a part of it. A
    name that does not fit into a filter makes no rule that allows; one that refuses then refuses all.
    """
    decided: uint8_t = 0
    allowed: uint8_t = 0
    odd: uint8_t = 0
    index: cython.size_t
    if not fits_level(asker.user):
        odd |= NAMES_USER
    if not fits_level(asker.client_id):
        odd |= NAMES_CLIENT
    for index in range(rules.lines.size()):
        line: cython.pointer[cython.const[Line]] = cython.address(rules.lines[index])
        fresh: uint8_t = line.messages & ~decided
        if not line.actions & action or fresh == 0:
            continue
        hit: cython.bint
        if line.names & odd:
            hit = not line.allows
        elif line.allows or action == ACTION_PUBLISH:
            hit = _covers(line, topic, asker)
        else:
            hit = _meets(line, topic, asker)
        if hit:
            decided |= fresh
            if line.allows:
                allowed |= fresh
            if decided == EVERY_MESSAGE:
                break
    return allowed
