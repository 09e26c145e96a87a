"""Rules of topics from Python."""

from __future__ import annotations

import cython
from cython.cimports.tidemq.engine.index.rules import NAMES_CLIENT, NAMES_USER
from cython.cimports.tidemq.engine.index.topic_rules import (
    ConnectSubscription,
    Lifetime,
    Rewrite,
    TopicRules,
    close_topic_rules,
    fixed_bytes,
    new_topic_rules,
    release_topic_rules,
)

from tidemq.engine.door.rule_row import CLIENT_MARK, USER_MARK


def topic_rules_of(rows, tally):
    """The `TopicRuleRows` as the engine has them. Raises what one that is none raises."""
    rules: cython.pointer[TopicRules] = new_topic_rules()
    try:
        _fill(rules, rows)
    except BaseException:
        close_topic_rules(rules, tally)
        release_topic_rules(rules, tally)
        raise
    close_topic_rules(rules, tally)
    return rules


def _fill(rules, rows):
    for topic_filter, to, actions in rows.rewrites:
        rewrite: Rewrite
        rewrite.filter = topic_filter
        rewrite.fixed = fixed_bytes(cython.address(rewrite.filter))
        rewrite.to = to
        rewrite.actions = actions
        rules.rewrites.push_back(rewrite)
    for topic_filter, ttl_ms in rows.lifetimes:
        lifetime: Lifetime
        lifetime.filter = topic_filter
        lifetime.fixed = fixed_bytes(cython.address(lifetime.filter))
        lifetime.ttl_ms = ttl_ms
        rules.lifetimes.push_back(lifetime)
    for topic_filter, options in rows.subscriptions:
        subscription: ConnectSubscription
        subscription.filter = topic_filter
        subscription.options = options
        subscription.names = 0
        if USER_MARK in topic_filter:
            subscription.names |= NAMES_USER
        if CLIENT_MARK in topic_filter:
            subscription.names |= NAMES_CLIENT
        rules.subscriptions.push_back(subscription)
    rules.exclusive = rows.exclusive
    rules.delay_s_max = rows.delay_s_max
    rules.delayed_max = rows.delayed_max
    rules.delayed_bytes_max = rows.delayed_bytes_max
