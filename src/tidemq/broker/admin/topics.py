"""Topic names and topic filters in requests."""

from __future__ import annotations

from tidemq.broker.admin.api import refuse
from tidemq.wire import fault_text
from tidemq.wire.topics import topic_filter_fault, topic_name_fault


def check_filter(text: str) -> str:
    """The filter; 400 for one that is malformed (5.0 section 4.7)."""
    if fault := topic_filter_fault(_encodable("topic_filter", text)):
        refuse(400, f"topic_filter: {text[:80]!r}: {fault_text(fault)}")
    return text


def check_topic(text: str) -> str:
    """The topic name; 400 for one that is malformed."""
    if fault := topic_name_fault(_encodable("topic", text)):
        refuse(400, f"topic: {text[:80]!r}: {fault_text(fault)}")
    return text


def _encodable(name: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        refuse(400, f"{name}: it is not UTF-8")
    return text
