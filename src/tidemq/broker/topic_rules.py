"""The file of what an operator wants of topics: new names, how long messages stay retained, subscriptions
made at CONNECT, filters that a client may have to itself, and messages that may be delayed.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictInt, model_validator

from tidemq.broker.host.toml_files import read_toml
from tidemq.broker.host.watched_files import WatchedFiles
from tidemq.config import refused
from tidemq.engine.door.rule_row import CLIENT_MARK, USER_MARK
from tidemq.engine.door.topic_rule_rows import REWRITES_PUBLISH, REWRITES_SUBSCRIBE, TopicRuleRows
from tidemq.errors import TideMQError
from tidemq.wire.topics import topic_filter_fault, topic_name_fault

RULES_MAX = 64  # of [[rewrite]], and of [[retained]]
SUBSCRIPTIONS_MAX = 16  # [[subscribe]]
WILDCARDS_MAX = 9  # of a filter of [[rewrite]]
DELAY_S_MAX = 365 * 86_400
FILE_BYTES_MAX = 1 << 20
_ACCEPTED = "[[rewrite]], [[retained]], [[subscribe]], [delayed], exclusive_subscriptions, as documented"
_ACTIONS = {
    "publish": REWRITES_PUBLISH,
    "subscribe": REWRITES_SUBSCRIBE,
    "all": REWRITES_PUBLISH | REWRITES_SUBSCRIBE,
}

Filter = Annotated[str, Field(min_length=1, max_length=65_535)]

_log = logging.getLogger("tidemq")


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _check_filter(topic_filter: str) -> None:
    if topic_filter_fault(topic_filter):
        raise ValueError(f"filter: {topic_filter!r} is no topic filter")
    if topic_filter.startswith("$"):
        raise ValueError(f"filter: {topic_filter!r} begins with a $, where no client publishes")


class Rewrite(_Table):
    """One `[[rewrite]]`: topics of a filter get another name."""

    filter: Filter
    to: Filter
    action: Literal["publish", "subscribe", "all"] = "all"

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_filter(self.filter)
        levels, wanted = self.filter.split("/"), self.to.split("/")
        wildcards = sum(level in ("+", "#") for level in levels)
        if wildcards > WILDCARDS_MAX:
            raise ValueError(f"filter: it has {wildcards} wildcards, at most {WILDCARDS_MAX}")
        named = {f"${number}" for number in range(1, wildcards + 1)}
        for level in wanted:
            if "$" in level and level not in named:
                raise ValueError(f"to: the level {level!r} is none of {', '.join(sorted(named)) or 'none'}")
        if topic_name_fault(self.to):
            raise ValueError(f"to: {self.to!r} is no topic; $1 stands for what the first wildcard does")
        if levels[-1] == "#" and f"${wildcards}" in wanted[:-1]:
            raise ValueError(f"to: ${wildcards}, which stands for all of the #, may be the last level only")
        return self

    def row(self) -> tuple[bytes, bytes, int]:
        """As the engine takes it."""
        return self.filter.encode(), self.to.encode(), _ACTIONS[self.action]


class Retained(_Table):
    """One `[[retained]]`: messages on a filter stay retained for so long."""

    filter: Filter
    ttl_s: Annotated[StrictInt, Field(ge=1, le=0xFFFFFFFF)]

    @model_validator(mode="after")
    def _check(self) -> Self:
        _check_filter(self.filter)
        return self


class Subscribe(_Table):
    """One `[[subscribe]]`: each client is subscribed to it when it connects."""

    filter: Filter
    qos: Annotated[StrictInt, Field(ge=0, le=2)] = 0
    no_local: StrictBool = False
    retain_as_published: StrictBool = False
    retain_handling: Annotated[StrictInt, Field(ge=0, le=2)] = 0

    @model_validator(mode="after")
    def _check(self) -> Self:
        if topic_filter_fault(self.filter):
            raise ValueError(f"filter: {self.filter!r} is no topic filter")
        if self.filter.startswith("$stream/"):
            raise ValueError(f"filter: {self.filter!r} asks for a stream, which clients do themselves")
        if self.no_local and self.filter.startswith("$share/"):
            raise ValueError("no_local: MQTT has none for a shared subscription")
        return self

    def row(self) -> tuple[bytes, int]:
        """As the engine takes it."""
        marked = self.filter.encode().replace(b"%u", USER_MARK).replace(b"%c", CLIENT_MARK)
        options = self.qos | self.no_local << 2 | self.retain_as_published << 3 | self.retain_handling << 4
        return marked, options


class Delayed(_Table):
    """`[delayed]`: clients may publish to `$delayed/SECONDS/TOPIC`, within these bounds."""

    seconds_max: Annotated[StrictInt, Field(ge=1, le=DELAY_S_MAX)] = 86_400
    messages_max: Annotated[StrictInt, Field(ge=1, le=1_000_000)] = 10_000
    bytes_max: Annotated[StrictInt, Field(ge=1024, le=1 << 40)] = 64 << 20


class TopicRules(_Table):
    """The whole file."""

    rewrite: Annotated[tuple[Rewrite, ...], Field(max_length=RULES_MAX)] = ()
    retained: Annotated[tuple[Retained, ...], Field(max_length=RULES_MAX)] = ()
    subscribe: Annotated[tuple[Subscribe, ...], Field(max_length=SUBSCRIPTIONS_MAX)] = ()
    exclusive_subscriptions: StrictBool = False
    delayed: Delayed | None = None

    def rows(self) -> TopicRuleRows:
        """As the engine takes them."""
        delayed = self.delayed
        return TopicRuleRows(
            rewrites=tuple(each.row() for each in self.rewrite),
            lifetimes=tuple((each.filter.encode(), each.ttl_s * 1000) for each in self.retained),
            subscriptions=tuple(each.row() for each in self.subscribe),
            exclusive=self.exclusive_subscriptions,
            delay_s_max=0 if delayed is None else delayed.seconds_max,
            delayed_max=0 if delayed is None else delayed.messages_max,
            delayed_bytes_max=0 if delayed is None else delayed.bytes_max,
        )


def read_topic_rules(path: Path, levels_max: int) -> TopicRules:
    """What the file says. ConfigError for a wrong one; `levels_max`: the limit topic_levels_max."""
    rules = read_toml(path, TopicRules, _ACCEPTED, FILE_BYTES_MAX)
    for place, each in enumerate(rules.subscribe):
        if topic_filter_fault(each.filter, levels_max):
            problem = f"{each.filter!r} has more than {levels_max} levels"
            raise refused(str(path), f"subscribe.{place}", problem, ["a filter within topic_levels_max"])
    return rules


class TopicRuleFile:
    """Gives the engine its rules of topics. ConfigError when the file is wrong at the start; later on the old
    rules stay in force, and the log says what is wrong.
    """

    def __init__(self, path: Path, levels_max: int, change: Callable[[TopicRuleRows], None]) -> None:
        self._path = path
        self._levels_max = levels_max
        self._change = change
        self.counts: Counter[str] = Counter()
        self.counts["topic_rule_reloads"] = self.counts["topic_rule_reloads_failed"] = 0
        self._file = WatchedFiles([path], self._read, self._use)
        change(self._file.value)

    async def reload(self) -> None:
        """Reads the file now. ConfigError where it is wrong; then nothing has changed."""
        await self._file.reload()

    async def watch(self) -> None:
        """Reads the file again whenever it has changed; never returns."""
        await self._file.watch()

    def _read(self) -> TopicRuleRows:
        try:
            return read_topic_rules(self._path, self._levels_max).rows()
        except TideMQError:
            self.counts["topic_rule_reloads_failed"] += 1
            raise

    def _use(self, rows: TopicRuleRows) -> None:
        self._change(rows)
        self.counts["topic_rule_reloads"] += 1
        _log.info("%s was read again", self._path)
