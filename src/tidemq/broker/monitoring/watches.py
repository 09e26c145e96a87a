"""Topic filters that the configuration names, or that somebody asked to watch: how many messages there are on
each, and on no other.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from tidemq.config import refused
from tidemq.engine.door.view import EngineView
from tidemq.errors import UsageError

WATCHES_MAX = 100  # as many as the engine has places


@dataclass(frozen=True, slots=True)
class Watch:
    """Of one filter. `receiver`: its number in the engine."""

    topic_filter: str
    place: int
    receiver: int
    since: datetime


@dataclass(slots=True)
class Watches:
    """Of one broker; belongs to its event loop."""

    view: EngineView
    _by_filter: dict[str, Watch] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._by_filter)

    def __contains__(self, topic_filter: str) -> bool:
        return topic_filter in self._by_filter

    def begin(self, topic_filters: Iterable[str]) -> None:
        """Watches those of the configuration. ConfigError for a filter that is none."""
        for topic_filter in topic_filters:
            try:
                self.add(topic_filter)
            except UsageError as error:
                raise refused(
                    "configuration", "watched_topics", str(error), ["topic filters, as plant/+/state"]
                ) from error

    def add(self, topic_filter: str) -> None:
        """From now on; nothing new where it is watched already. There has to be room. UsageError for a filter
        that is none.
        """
        if topic_filter in self._by_filter:
            return
        taken = {each.place for each in self._by_filter.values()}
        place = next(each for each in range(WATCHES_MAX) if each not in taken)
        receiver = self.view.watch(topic_filter, place)
        self._by_filter[topic_filter] = Watch(topic_filter, place, receiver, datetime.now(UTC))

    def remove(self, topic_filter: str) -> bool:
        """Whether it was watched."""
        watch = self._by_filter.pop(topic_filter, None)
        if watch is not None:
            self.view.end_watch(watch.receiver)
        return watch is not None

    def counted(self) -> list[tuple[Watch, int, int]]:
        """All, with messages and bytes of their payloads, the oldest first."""
        return [(each, *self.view.watched(each.place)) for each in self._by_filter.values()]
