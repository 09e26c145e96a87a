"""What a node's clients want, as it tells the others."""

from __future__ import annotations

import json

from tidemq.errors import ClusterError

Interest = dict[str, int]
"""Filters that somebody has; of a shared group, how many of its members are online, else 0."""

GONE = -1  # in place of a number: nobody has it any more
COUNT_MAX = 2**31 - 1  # of members of a group

EXCLUSIVE = "$exclusive/"  # before a filter that one client has to itself


def matched_filter(topic_filter: str) -> str:
    """What a subscription's filter matches, as nodes say that they want it."""
    return topic_filter.removeprefix(EXCLUSIVE)


def encode_interest(changes: list[tuple[str, int]]) -> bytes:
    """Of filters, in order."""
    return json.dumps(changes).encode()


def parse_interest(body: bytes) -> list[tuple[str, int]]:
    """What `encode_interest` made; ClusterError says what is wrong with anything else."""
    try:
        found = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise ClusterError(f"what a node wants is no JSON: {error}") from error
    if not isinstance(found, list):
        raise ClusterError(f"what a node wants is a list, not {type(found).__name__}")
    changes = []
    for each in found:
        text, count = each if isinstance(each, list) and len(each) == 2 else (None, None)
        if type(text) is not str or type(count) is not int or not GONE <= count <= COUNT_MAX:
            raise ClusterError(f"what a node wants is a filter and a number, not {str(each)[:100]}")
        changes.append((text, count))
    return changes
