"""Files of rules: TideMQ's own, a rule a line, and Mosquitto's `acl_file`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator
from ipaddress import ip_network
from pathlib import Path
from typing import Literal

from tidemq.broker.acl_rules import AclRule
from tidemq.config import refused
from tidemq.errors import ConfigError
from tidemq.wire.topics import topic_filter_fault

AclFormat = Literal["tidemq", "mosquitto"]

_RULE = "allow|deny [user U] [group G] [client C] [network N] [anonymous] publish|subscribe|all FILTER"
BRIDGE_STATES = "$SYS/broker/connection/"  # below it bridges say whether they are connected
_MOSQUITTO_RULE = "topic|pattern [read|write|readwrite|deny] FILTER, or user NAME"
_WORD = re.compile(r"[^ \t\r\n]+")
_ACCESS: dict[str, Literal["publish", "subscribe", "all"]] = {
    "read": "subscribe",
    "write": "publish",
    "readwrite": "all",
}


class _Line:
    """The words of one line, taken from the left; what is wrong with it names file and line."""

    def __init__(self, path: Path, number: int, words: list[str]) -> None:
        self._path = path
        self.number = number
        self._words = words

    def wrong(self, problem: str, *accepted: str) -> ConfigError:
        return refused(str(self._path), f"line {self.number}", problem, accepted)

    def take(self, what: str) -> str:
        """The next word."""
        if not self._words:
            raise self.wrong(f"{what} is missing", _RULE)
        return self._words.pop(0)

    def take_one(self, what: str, accepted: tuple[str, ...]) -> str:
        word = self.take(what)
        if word not in accepted:
            raise self.wrong(f"{word!r} is no {what}", *accepted)
        return word

    def __bool__(self) -> bool:
        return bool(self._words)

    def starts_with(self, *accepted: str) -> bool:
        return bool(self._words) and self._words[0] in accepted


def read_rules(path: Path, acl_format: AclFormat) -> tuple[AclRule, ...]:
    """The rules in the order in which they are asked, one at least. ConfigError names the line that is
    wrong."""
    try:
        text = path.read_text(encoding="utf-8-sig")  # some editors put a mark in front
    except OSError as error:
        raise refused(str(path), "the file", str(error.strerror), ["a readable file"]) from error
    except UnicodeDecodeError as error:
        raise refused(str(path), "the file", "it is not UTF-8", ["lines of rules"]) from error
    reader: Callable[[Path, str], Iterator[AclRule]] = (
        _own_rules if acl_format == "tidemq" else _mosquitto_rules
    )
    rules = tuple(reader(path, text))
    if not rules:  # mostly a file that is about to be written; it would end all subscriptions
        nothing = "deny all #" if acl_format == "tidemq" else "topic deny #"
        raise refused(str(path), "the file", "it has no rules", [f"one at least; {nothing!r} refuses all"])
    if acl_format == "mosquitto":
        # its own order: a user's before patterns, and of each the ones that refuse first
        return tuple(sorted(rules, key=lambda rule: (rule.fills_in, rule.allows)))
    return rules


def _checked_filter(line: _Line, topic_filter: str) -> str:
    if topic_filter.startswith("$share/"):
        raise line.wrong(f"{topic_filter!r} has a group", "the filter behind $share/GROUP/")
    if topic_filter_fault(topic_filter):
        raise line.wrong(f"{topic_filter!r} is no topic filter", "a topic filter, as plant/+/state or a/#")
    return topic_filter


def _own_rules(path: Path, text: str) -> Iterator[AclRule]:
    for number, content in enumerate(text.split("\n"), 1):
        if not content.strip() or content.lstrip().startswith("#"):
            continue
        try:
            words = _words(content)
        except ValueError as error:
            raise _Line(path, number, []).wrong(str(error), "quotes in pairs") from error
        yield _own_rule(_Line(path, number, words))


def _words(content: str) -> list[str]:
    """Parted by spaces, but for those in quotes. A backslash is one: names of Windows' domains have it."""
    if '"' not in content and "'" not in content:
        return _WORD.findall(content)
    lexer = shlex.shlex(content, posix=True)
    lexer.whitespace_split = True
    lexer.commenters = lexer.escape = ""
    return list(lexer)


def _own_rule(line: _Line) -> AclRule:
    allows = line.take_one("effect", ("allow", "deny")) == "allow"
    who: dict[str, str] = {}
    anonymous = False
    while line.starts_with("user", "group", "client", "network", "anonymous"):
        word = line.take("word")
        if word == "anonymous":
            anonymous = True
        elif word in who:
            raise line.wrong(f"{word} is there twice", "one; for another write another line")
        else:
            who[word] = line.take(f"the name of the {word}")
    if anonymous and "user" in who:
        raise line.wrong("an anonymous client is no user", "one of the two")
    actions = ("publish", "subscribe", "all")
    action = line.take_one("action", actions)
    topic_filter = _checked_filter(line, line.take("the topic filter"))
    if action == "publish" and topic_filter.startswith("$") and not topic_filter.startswith(BRIDGE_STATES):
        raise line.wrong(f"{topic_filter!r}: no client publishes to topics with a $", "subscribe")
    options = _options(line, allows, action)
    try:
        network = ip_network(who["network"]) if "network" in who else None
    except ValueError as error:
        raise line.wrong(str(error), "a network, as 10.0.0.0/8, or an address") from error
    return AclRule(
        allows=allows,
        action=action,  # type: ignore[arg-type]  # it is one of them
        topic_filter=topic_filter,
        user=who.get("user"),
        anonymous=anonymous,
        group=who.get("group"),
        client=who.get("client"),
        network=network,
        qos_max=int(options.get("qos", "2")),
        retain={"yes": True, "no": False}.get(options.get("retain", "")),
        line=line.number,
    )


def _options(line: _Line, allows: bool, action: str) -> dict[str, str]:
    """What stands behind the filter: `qos N` and `retain yes|no`."""
    values = {"qos": ("0", "1", "2"), "retain": ("yes", "no")}
    options: dict[str, str] = {}
    while line:
        option = line.take_one("option", tuple(values))
        options[option] = line.take_one(option, values[option])
    if "qos" in options and not allows:
        raise line.wrong("a rule that refuses has no qos", "allow ... qos N: at most N")
    if "retain" in options and action != "publish":
        raise line.wrong(f"retain is of messages that are published, not of {action}", "publish")
    return options


def _mosquitto_rules(path: Path, text: str) -> Iterator[AclRule]:
    """As mosquitto.conf(5) and Mosquitto's reader have it: no quotes, words are parted by spaces."""
    user: str | None = None
    for number, content in enumerate(text.split("\n"), 1):
        line = _Line(path, number, [])
        word, _, rest = content.strip(" \t\r\n\f\v").partition(" ")
        rest = rest.strip()
        if content.startswith("#") or not word:
            continue
        if word == "user":
            if not rest:
                raise line.wrong("the user has no name", _MOSQUITTO_RULE)
            user = rest
        elif word in ("topic", "pattern"):
            yield _mosquitto_rule(line, user, word == "pattern", rest)
        else:
            raise line.wrong(f"{word!r} is unknown", _MOSQUITTO_RULE)


def _mosquitto_rule(line: _Line, user: str | None, is_pattern: bool, rest: str) -> AclRule:
    access, space, topic_filter = rest.partition(" ")
    if not space:
        access, topic_filter = "readwrite", rest
    if access not in (*_ACCESS, "deny"):
        raise line.wrong(f"{access!r} is no access", *_ACCESS, "deny")
    if not topic_filter:
        raise line.wrong("the topic is missing", _MOSQUITTO_RULE)
    return AclRule(
        allows=access != "deny",
        action=_ACCESS.get(access, "all"),
        topic_filter=_checked_filter(line, topic_filter.strip()),
        user=None if is_pattern else user,
        anonymous=not is_pattern and user is None,
        fills_in=is_pattern,
        line=line.number,
    )
