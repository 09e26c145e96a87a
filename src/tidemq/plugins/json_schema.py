"""Holds messages to JSON Schemas: what does not fit is refused, or goes elsewhere, with the reason.

The library is jsonschema-rs: all drafts, in Rust, whose regular expressions have a bound; with decoding two
microseconds for a small message.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal

import jsonschema_rs
from pydantic import BaseModel, ConfigDict, Field, StrictInt

from tidemq.broker import Decision, HeldMessage, Route, hookimpl
from tidemq.broker.providers import read_options
from tidemq.config import Config, refused
from tidemq.wire import topic_filter_fault, topic_name_fault
from tidemq.wire.filters import matches

PAYLOAD_FORMAT_INVALID = 0x99
REASON_CHARACTERS_MAX = 200  # of the user property
TOPICS_MAX = 10_000  # whose rules are remembered
SCHEMA_COUNTERS = ("schema_messages_valid", "schema_messages_invalid")

_LEVELS_MAX = 65_535
_TOPIC = "{topic}"  # in a topic for rejects: the message's own


class SchemaRule(BaseModel):
    """Messages on `filter` are to fit the schema in `file`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    filter: str
    file: Path  # JSON
    # of an invalid message: refused (0x99), acknowledged and passed to nobody, or passed all the same
    action: Literal["refuse", "drop", "pass"] = "refuse"
    reject_topic: str = ""  # where it goes instead or besides; `{topic}`: its own. Empty: nowhere


class SchemaOptions(BaseModel):
    """Of this plugin."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    rules: Annotated[tuple[SchemaRule, ...], Field(min_length=1, max_length=1000)]
    payload_bytes_max: Annotated[StrictInt, Field(ge=1, le=1 << 28)] = 262_144  # what is larger is invalid


@dataclass(frozen=True, slots=True)
class _Checked:
    """A rule and its schema."""

    rule: SchemaRule
    validate: Callable[[Any], None]


class JsonSchema:
    """The plugin. `counts`: of messages. ConfigError for a file that cannot be read, or is no schema."""

    def __init__(self, options: SchemaOptions) -> None:
        self._options = options
        self._rules = _load(options)
        self._known: dict[str, tuple[_Checked, ...]] = {}  # by topic
        self.filters = tuple(dict.fromkeys(rule.filter for rule in options.rules))
        self.counts: Counter[str] = Counter()

    def reload(self) -> None:
        """Reads the schemas again; where one is wrong, raises ConfigError, and the old ones stay."""
        self._rules = _load(self._options)
        self._known.clear()

    @hookimpl
    def publish(self, messages: list[HeldMessage]) -> list[Decision | None]:
        """Each for itself: what one holds is nothing to the others."""
        return [self._decide(message) for message in messages]

    def _decide(self, message: HeldMessage) -> Decision | None:
        for checked in self._about(message.topic):
            problem = self._problem(checked, message.payload)
            if problem:
                self.counts["schema_messages_invalid"] += 1
                return _reject(checked.rule, message, problem)
        self.counts["schema_messages_valid"] += 1
        return None

    def _about(self, topic: str) -> tuple[_Checked, ...]:
        """The rules that are about a topic: to go through all takes longer than to look at the message."""
        known = self._known.get(topic)
        if known is None:
            if len(self._known) >= TOPICS_MAX:
                self._known.clear()
            known = tuple(each for each in self._rules if matches(each.rule.filter, topic))
            self._known[topic] = known
        return known

    def _problem(self, checked: _Checked, payload: bytes) -> str:
        """Why it does not fit; empty: it does."""
        if len(payload) > self._options.payload_bytes_max:
            return f"{len(payload)} bytes are more than payload_bytes_max"
        try:
            # decoded here: json takes UTF-16 and UTF-32 as well, which who reads the message does not expect
            checked.validate(json.loads(payload.decode(), parse_constant=_refuse_constant))
        except jsonschema_rs.ValidationError as error:
            path = "/".join(str(part) for part in error.instance_path)
            return f"/{path}: {error.message}" if path else error.message
        except (ValueError, RecursionError) as error:  # what is no JSON, or nested too deep
            return f"it is no JSON: {error}"
        return ""


def make_json_schema(_: Config, options: Mapping[str, Any]) -> JsonSchema:
    """For `[[plugins]]`."""
    return JsonSchema(read_options("json_schema", SchemaOptions, options))


def _refuse_constant(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def _load(options: SchemaOptions) -> list[_Checked]:
    return [
        _Checked(rule, _validator(f"options of json_schema.rules.{number}", rule))
        for number, rule in enumerate(options.rules)
    ]


def _validator(key: str, rule: SchemaRule) -> Callable[[Any], None]:
    """A schema's check. Nothing is fetched for it: what it refers to has to be in the file."""
    if topic_filter_fault(rule.filter, _LEVELS_MAX) or rule.filter.startswith("$share/"):
        raise refused("configuration", f"{key}.filter", f"{rule.filter!r} is refused", ["a topic filter"])
    topic = rule.reject_topic.replace(_TOPIC, "t")
    if topic and topic_name_fault(topic, _LEVELS_MAX):
        problem = f"{rule.reject_topic!r} is refused"
        raise refused("configuration", f"{key}.reject_topic", problem, ["a topic name, with {topic} in it"])
    try:
        schema = json.loads(rule.file.read_bytes())
        validator = jsonschema_rs.validator_for(schema, retriever=_fetch_nothing)
    except OSError as error:
        problem = f"{rule.file}: {error.strerror}"
        raise refused("configuration", f"{key}.file", problem, ["a readable file"]) from error
    except (ValueError, RecursionError) as error:
        problem = f"{rule.file}: {str(error).splitlines()[0]}"
        raise refused("configuration", f"{key}.file", problem, ["a JSON Schema"]) from error
    check: Callable[[Any], None] = validator.validate
    return check


def _fetch_nothing(uri: str) -> None:
    raise ValueError(f"{uri} is not in the file, and nothing is fetched")


def _reject(rule: SchemaRule, message: HeldMessage, problem: str) -> Decision:
    routes: tuple[Route, ...] = ()
    if rule.reject_topic:
        told = problem[:REASON_CHARACTERS_MAX]  # of a large payload it may be as large
        shown = "".join(character if character.isprintable() else "?" for character in told)
        about = (
            ("reason", shown),
            ("topic", message.topic),
            ("client_id", message.client_id),
        )
        own = message.properties
        properties = replace(own, user_properties=(*own.user_properties, *about))
        topic = rule.reject_topic.replace(_TOPIC, message.topic)
        routes = (Route(topic, message.payload, message.qos, properties=properties),)
    reason = PAYLOAD_FORMAT_INVALID if rule.action == "refuse" else 0
    return Decision(reason=reason, drop=rule.action == "drop", routes=routes)
