"""Rules for alerts: a TOML file, one table for each.

[[alerts]]
name = "hot"
filter = "plant/+/climate"      # an MQTT topic filter
value = "celsius"               # a field of a JSON object; without it, the payload is a number as text
kind = "threshold"
above = 30
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from tidemq.errors import ConfigError
from tidemq.pipeline.alerts.states import Condition
from tidemq.pipeline.decode.named_tables import load_named
from tidemq.wire import topic_filter_fault, topic_name_fault
from tidemq.wire.filters import matches

MEASURED = ("threshold", "rate", "zscore")
KINDS = (*MEASURED, "absence")
WINDOW_MAX = 10_000  # readings, of each topic that a rule matches
_PLACEHOLDER = re.compile(r"\{(\w*)\}")
_CONDITIONS = {field.name for field in fields(Condition)}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Key:
    """What a key of a rule may have, and in rules of which kinds it stands."""

    accepted: str
    good: Callable[[Any], bool]
    kinds: tuple[str, ...] = KINDS


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _is_whole(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


_NUMBER = _Key(accepted="a number", good=_is_number, kinds=MEASURED)
_READINGS = _Key(
    accepted=f"a number of readings, 1 to {WINDOW_MAX}",
    good=lambda value: _is_whole(value, 1, WINDOW_MAX),
    kinds=MEASURED,
)
_SECONDS = "seconds, more than 0"
_KEYS = {
    "name": _Key(
        accepted="letters, digits, _ and -, at most 64",
        good=lambda value: isinstance(value, str) and bool(re.fullmatch(r"[A-Za-z0-9_-]{1,64}", value)),
    ),
    "filter": _Key(
        accepted="an MQTT topic filter",
        good=lambda value: isinstance(value, str) and not topic_filter_fault(value),
    ),
    "kind": _Key(accepted=", ".join(KINDS), good=lambda value: value in KINDS),
    "by": _Key(accepted="topic, client", good=lambda value: value in ("topic", "client")),
    "topic": _Key(
        accepted="a topic name, with {name} and {topic} or {client}",
        good=lambda value: isinstance(value, str),
    ),
    "retain": _Key(accepted="true, false", good=lambda value: isinstance(value, bool)),
    "value": _Key(
        accepted="a JSON field, or the way to it such as climate.celsius",
        good=lambda value: isinstance(value, str) and all(value.split(".")),
        kinds=MEASURED,
    ),
    "above": _NUMBER,
    "below": _NUMBER,
    "hysteresis": _Key(
        accepted="a number from 0", good=lambda value: _is_number(value) and value >= 0, kinds=MEASURED
    ),
    "for_s": _Key(accepted=_SECONDS, good=lambda value: _is_number(value) and value > 0, kinds=MEASURED),
    "count": _READINGS,
    "of": _READINGS,
    "window": _Key(
        accepted=f"a number of readings, 2 to {WINDOW_MAX}",
        good=lambda value: _is_whole(value, 2, WINDOW_MAX),
        kinds=("zscore",),
    ),
    "after_s": _Key(
        accepted=_SECONDS, good=lambda value: _is_number(value) and value > 0, kinds=("absence",)
    ),
    "forget_s": _Key(accepted=_SECONDS, good=lambda value: _is_number(value) and value > 0),
}
_NEEDED = {"zscore": ("name", "filter", "kind", "window"), "absence": ("name", "filter", "kind", "after_s")}


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRule:
    """What is watched for on a topic filter, and where it is said."""

    name: str
    filter: str
    condition: Condition
    value: str = ""  # a JSON field; empty: the payload is a number as text
    by: str = "topic"  # each topic is watched by itself, or each client
    topic: str  # of the alert, with placeholders
    retain: bool = False

    @classmethod
    def parse(cls, file: str, given: Any) -> Self:
        """ConfigError names the file, the key and what would be accepted."""
        if not isinstance(given, Mapping):
            raise ConfigError(f"{file}: alerts has {given!r}; accepted: tables [[alerts]]")
        kind = given.get("kind")
        for key in _NEEDED.get(str(kind), ("name", "filter", "kind")):
            if key not in given:
                raise ConfigError(f"{file}: alerts.{key} is missing; accepted: {_KEYS[key].accepted}")
        for key, value in given.items():
            if key in _KEYS and not _KEYS[key].good(value):
                raise ConfigError(f"{file}: alerts.{key} is {value!r}; accepted: {_KEYS[key].accepted}")
        if unknown := [key for key in given if key not in _KEYS or kind not in _KEYS[key].kinds]:
            accepted = ", ".join(key for key in _KEYS if kind in _KEYS[key].kinds)
            raise ConfigError(f"{file}: alerts.{unknown[0]} is unknown for {kind}; accepted: {accepted}")
        by = given.get("by", "topic")
        values = {"topic": f"alerts/{{name}}/{{{by}}}"} | dict(given)
        condition = {key: values.pop(key) for key in list(values) if key in _CONDITIONS}
        rule = cls(**values, condition=Condition(**condition))
        rule._check(file)
        return rule

    def _check(self, file: str) -> None:
        """What no key says by itself."""
        condition = self.condition
        above, below = condition.above, condition.below
        if condition.kind in MEASURED and above is None and below is None:
            raise ConfigError(f"{file}: the alert {self.name} has no limit; accepted: above, below, or both")
        if above is not None and below is not None and below > above:
            raise ConfigError(f"{file}: alerts.below is {below}; accepted: at most `above`, {above}")
        if condition.count > condition.of:
            raise ConfigError(f"{file}: alerts.count is {condition.count}; accepted: at most `of`")
        if condition.for_s and condition.of > 1:
            raise ConfigError(f"{file}: the alert {self.name} has for_s and of; accepted: one of them")
        if condition.forget_s <= condition.after_s:
            accepted = f"more than `after_s`, {condition.after_s:g}"
            raise ConfigError(f"{file}: alerts.forget_s is {condition.forget_s:g}; accepted: {accepted}")
        placeholders = _PLACEHOLDER.findall(self.topic)
        example = self.render(self.filter.replace("+", "x").replace("#", "x"))
        if set(placeholders) - {"name", self.by} or topic_name_fault(example):
            accepted = f"a topic name, with {{name}} and {{{self.by}}}"
            raise ConfigError(f"{file}: alerts.topic is {self.topic!r}; accepted: {accepted}")
        if matches(self.filter, example):
            raise ConfigError(
                f"{file}: alerts.topic is {self.topic!r}, which the alert's own filter {self.filter} matches"
            )

    def render(self, key: str) -> str:
        """The alert's topic for one topic, or one client, whose wildcard characters become `_`."""
        known = {"name": self.name, self.by: key.replace("+", "_").replace("#", "_")}
        return _PLACEHOLDER.sub(lambda found: known.get(found[1], found[0]), self.topic)


def load_alert_rules(path: Path) -> tuple[AlertRule, ...]:
    """The rules of a file, at least one; ConfigError, or OSError where it cannot be read."""
    return load_named(path, "alerts", AlertRule.parse, least=1)
