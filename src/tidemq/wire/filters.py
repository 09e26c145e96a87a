"""Which topic filters match a topic name (5.0 section 4.7)."""

from __future__ import annotations

from itertools import zip_longest


def bare_filter(topic_filter: str) -> str:
    """A shared subscription's filter without `$share` and the group."""
    if topic_filter.startswith("$share/"):
        return topic_filter.split("/", 2)[2]
    return topic_filter


def matches(topic_filter: str, topic: str) -> bool:
    """Whether a well-formed filter, shared or not, matches a topic name."""
    wanted = bare_filter(topic_filter).split("/")
    levels = topic.split("/")
    if topic.startswith("$") and wanted[0] in ("+", "#"):
        return False  # [MQTT-4.7.2-1]
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place == len(levels) or level not in ("+", levels[place]):
            return False
    return len(wanted) == len(levels)


def overlap(first: str, second: str) -> bool:
    """Whether some topic matches both of these well-formed filters."""
    one, other = (bare_filter(each).split("/") for each in (first, second))
    if any(a[0] in ("+", "#") and b[0].startswith("$") for a, b in ((one, other), (other, one))):
        return False  # [MQTT-4.7.2-1]
    for a, b in zip_longest(one, other):
        if "#" in (a, b):
            return True
        if None in (a, b) or ("+" not in (a, b) and a != b):
            return False
    return True
