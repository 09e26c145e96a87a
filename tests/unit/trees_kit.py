"""The engine's indexes, for the tests of what they find."""

from __future__ import annotations

from tidemq.engine.index.retained_index import RetainedIndexView, RetainedWalkView
from tidemq.engine.index.subscription_view import SubscriptionIndexView


def walk_of(index: RetainedIndexView, topic_filter: bytes) -> RetainedWalkView:
    """A walk over what the filter finds."""
    return RetainedWalkView(index, topic_filter)  # type: ignore[call-arg]  # of __cinit__, which mypy does not know


def group_of(index: SubscriptionIndexView, group_id: int) -> tuple[bytes, bytes, list[int]]:
    """A shared group that there is: its name, filter and sessions."""
    found = index.group(group_id)
    assert found is not None
    return found
