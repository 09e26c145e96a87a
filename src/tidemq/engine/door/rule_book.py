"""Rules from Python: made into a policy, and asked without a broker."""

from __future__ import annotations

import cython
from cython.cimports.libc.stdint import int64_t
from cython.cimports.libc.string import memset
from cython.cimports.tidemq.engine.base.counters import COUNTER_COUNT
from cython.cimports.tidemq.engine.door.conversion import string_of
from cython.cimports.tidemq.engine.index.rules import (
    ANY_USER,
    NAMES_CLIENT,
    NAMES_USER,
    NO_USER,
    ONE_USER,
    Asker,
    Policy,
    RuleSet,
    close_policy,
    find_rules,
    judge,
    new_policy,
    release_policy,
    release_rules,
)
from cython.cimports.tidemq.engine.link.mail import new_letter
from cython.cimports.tidemq.engine.state.mail import Letter
from cython.cimports.tidemq.wire.protocol import span_of

from tidemq.engine.door.rule_row import CLIENT_MARK, USER_MARK
from tidemq.errors import UsageError


def _fill_rule(rule, row):
    """Copies a `RuleRow`."""
    filter: bytes = row.filter
    network: bytes = row.network or bytes(16)
    index: cython.int
    rule.allows = row.allows
    rule.actions = row.actions
    rule.messages = row.messages
    rule.whose = NO_USER if row.no_user else (ANY_USER if row.user is None else ONE_USER)
    rule.user = row.user or b""
    rule.group = row.group or b""
    rule.client = row.client or b""
    rule.filter = filter
    rule.names = 0
    if USER_MARK in filter:
        rule.names |= NAMES_USER
    if CLIENT_MARK in filter:
        rule.names |= NAMES_CLIENT
    rule.has_network = row.network is not None
    for index in range(16):
        rule.network[index] = network[index]
    rule.prefix = row.prefix


def policy_of(rows, tally):
    """The rules as the engine judges by them. Raises what a row that is none raises."""
    policy: cython.pointer[Policy] = new_policy()
    index: cython.size_t
    try:
        policy.rules.resize(len(rows))
        for index in range(policy.rules.size()):
            _fill_rule(cython.address(policy.rules[index]), rows[index])
    except BaseException:
        close_policy(policy, tally)
        release_policy(policy, tally)
        raise
    close_policy(policy, tally)
    return policy


def letter_of(username, groups, rules, tally):
    """A letter that says who a client is, and has rules of its own. Raises UsageError for a group with a NUL:
    it would be two.
    """
    for group in groups:
        if "\0" in group:
            raise UsageError(f"the group {group!r} has a NUL, must have none")
    user: bytes | None = None if username is None else username.encode()
    joined: bytes = b"".join([group.encode() + b"\0" for group in groups])
    own: cython.pointer[Policy] = cython.NULL
    if rules is not None:
        own = policy_of(rules, tally)
    letter: cython.pointer[Letter] = new_letter()
    letter.username = string_of(user)
    letter.groups = string_of(joined or None)
    letter.own_rules = own
    return letter


def judge_rows(rows, action, topic, *, user, client_id, groups, address) -> int:
    """The messages that a client may publish to a topic, or the QoS at which it may subscribe to a filter, as
    `RuleRow.messages`. ``address``: 16 bytes, IPv4 as ::ffff:0:0/96; None: it has none.
    """
    tally: int64_t[COUNTER_COUNT]
    memset(tally, 0, cython.sizeof(tally))
    joined: bytes = b"".join([group + b"\0" for group in groups])
    name: bytes = user or b""
    asked: bytes = topic
    own: bytes = client_id
    where: bytes = address or bytes(16)
    asker: Asker
    index: cython.int
    asker.user = span_of(name)
    asker.has_user = user is not None
    asker.client_id = span_of(own)
    asker.groups = span_of(joined)
    asker.has_address = address is not None
    for index in range(16):
        asker.address[index] = where[index]
    numbers: int64_t = 0
    policy: cython.pointer[Policy] = policy_of(rows, tally)
    rules: cython.pointer[RuleSet] = find_rules(policy, cython.address(asker), cython.address(numbers), tally)
    messages: int = judge(rules, cython.address(asker), span_of(asked), action)
    release_rules(rules, tally)
    release_policy(policy, tally)
    return messages
