"""Mosquitto's dynamic security: its JSON file as users and rules in files.

    clients      users with hashes of their passwords -> lines NAME:HASH
    roles        lists of permissions, by priority     -> rules of each user who has the role
    groups       users and their roles                 -> the same
    defaults     what holds where no role speaks       -> rules behind the others

Mosquitto asks the roles of a client, the higher priority first and of equal ones by name, then those of its
groups; of a role the literal permissions to subscribe, then the others by priority. The first permission that
speaks of a case decides it. So do rules in their order. But Mosquitto has permissions to subscribe and to
receive: here a filter may be subscribed to if all of it may be received.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from tidemq.broker.authenticators.password_hashes import check_form
from tidemq.config import refused
from tidemq.errors import UsageError
from tidemq.migration.report import Report
from tidemq.wire.topics import topic_filter_fault

SEND = "publishClientSend"
RECEIVE = "publishClientReceive"
PATTERN: Literal["subscribePattern"] = "subscribePattern"
LITERAL = "subscribeLiteral"
Kind = Literal[
    "publishClientSend",
    "publishClientReceive",
    "subscribePattern",
    "subscribeLiteral",
    "unsubscribePattern",
    "unsubscribeLiteral",
]
_PRIORITY = -1  # of a role or group where none is given


class _Model(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class Permission(_Model):
    """One line of a role."""

    acltype: Kind
    topic: str
    priority: int = 0
    allow: bool = False


class _Role(_Model):
    rolename: str
    acls: tuple[Permission, ...] = ()


class _OfRole(_Model):
    rolename: str
    priority: int = _PRIORITY


class _OfGroup(_Model):
    groupname: str
    priority: int = _PRIORITY


class _OfClient(_Model):
    username: str
    priority: int = _PRIORITY


class _Group(_Model):
    groupname: str
    roles: tuple[_OfRole, ...] = ()
    clients: tuple[_OfClient, ...] = ()


class _Client(_Model):
    username: str
    clientid: str | None = None
    password: str = ""
    salt: str = ""
    iterations: int = 0
    encoded_password: str = ""  # of Mosquitto 2.1: hash, salt and all
    disabled: bool = False
    roles: tuple[_OfRole, ...] = ()
    groups: tuple[_OfGroup, ...] = ()


class _Defaults(_Model):
    send: Annotated[bool, Field(alias=SEND)] = False
    receive: Annotated[bool, Field(alias=RECEIVE)] = False
    subscribe: bool = False


class _Document(_Model):
    defaults: Annotated[_Defaults, Field(alias="defaultACLAccess")] = _Defaults()
    clients: tuple[_Client, ...] = ()
    groups: tuple[_Group, ...] = ()
    roles: tuple[_Role, ...] = ()
    anonymous_group: Annotated[str | None, Field(alias="anonymousGroup")] = None


@dataclass(frozen=True, slots=True)
class DynamicSecurity:
    """What the file says, as files of TideMQ."""

    users: str
    rules: str


def read_dynamic_security(text: bytes, file: str, report: Report) -> DynamicSecurity:
    """Raises ConfigError where it is no such file. What cannot be taken is noted, and left out."""
    try:
        document = _Document.model_validate_json(text)
    except ValidationError as error:
        detail = error.errors(include_input=False, include_url=False)[0]
        key = ".".join(map(str, detail["loc"])) or "the file"
        raise refused(file, key, "it cannot be read", [detail["msg"]]) from error
    return _Reading(document, file, report).run()


def _roles_in_order(roles: Sequence[_OfRole]) -> list[_OfRole]:
    """The higher priority first; among equals by name."""
    return sorted(roles, key=lambda role: (-role.priority, role.rolename))


def _permissions_in_order(permissions: Sequence[Permission]) -> list[Permission]:
    """Literal ones first, whatever their priority; then the higher priority; among equals as they stand."""
    return sorted(permissions, key=lambda each: (each.acltype != LITERAL, -each.priority))


class _Reading:
    def __init__(self, document: _Document, file: str, report: Report) -> None:
        self._document = document
        self._file = file
        self._report = report
        self._roles = {role.rolename: role for role in document.roles}
        self._groups = {group.groupname: group for group in document.groups}
        self._noted: set[tuple[str, str]] = set()

    def run(self) -> DynamicSecurity:
        users, rules = [], ["# from Mosquitto's dynamic security: each user's own rules, from all roles"]
        for client in self._document.clients:
            hashed = self._hash_of(client)
            if not hashed:
                continue
            users.append(f"{client.username}:{hashed}")
            who = f"user {_quoted(client.username)}"
            if client.clientid:
                who += f" client {_quoted(client.clientid)}"
                self._note("changed", f"client {client.username!r}", "with another client identifier it may "
                           "connect by now, but neither publish nor subscribe")  # fmt: skip
            rules += self._rules_of(who, self._permissions(self._roles_of(client)))
        anonymous = self._groups.get(self._document.anonymous_group or "")
        roles = _roles_in_order(anonymous.roles) if anonymous is not None else []
        rules += self._rules_of("anonymous", self._permissions(roles))
        rules.append("deny all #")
        self._note("taken", "users", f"{len(users)} of {len(self._document.clients)}, with their hashes")
        self._note("taken", "roles", f"{len(rules) - 2} rules, each user's written out")
        return DynamicSecurity("".join(f"{line}\n" for line in users), "".join(f"{line}\n" for line in rules))

    def _note(self, fate: Literal["taken", "changed", "not taken"], what: str, text: str) -> None:
        """Once each."""
        if (what, text) not in self._noted:
            self._noted.add((what, text))
            self._report.add(fate, self._file, what, text)

    def _hash_of(self, client: _Client) -> str:
        """As it stands in a password file; empty, and noted, where this user cannot log in."""
        what = f"client {client.username!r}"
        hashed = client.encoded_password or f"$7${client.iterations}${client.salt}${client.password}"
        if client.disabled:
            self._note("taken", what, "it is disabled: left out, so that it cannot log in")
        elif not client.encoded_password and not client.password:
            self._note("taken", what, "it has no password: left out, so that it cannot log in")
        elif not _is_writable(client.username) or not _is_writable(client.clientid or "x"):
            self._note("not taken", what, "no file can hold a name with a line feed, a colon, # in front, or "
                       "quotes of both kinds")  # fmt: skip
        else:
            try:
                check_form(hashed)
            except UsageError as error:
                self._note("not taken", what, f"the hash of its password: {error}")
            else:
                return hashed
        return ""

    def _roles_of(self, client: _Client) -> list[_OfRole]:
        """In the order in which they are asked: its own, then those of its groups."""
        groups = list(client.groups)
        known = {each.groupname for each in groups}
        for group in self._document.groups:
            groups += [
                _OfGroup(groupname=group.groupname, priority=each.priority)
                for each in group.clients
                if each.username == client.username and group.groupname not in known
            ]
        roles = _roles_in_order(client.roles)
        for each in sorted(groups, key=lambda group: (-group.priority, group.groupname)):
            if each.groupname in self._groups:
                roles += _roles_in_order(self._groups[each.groupname].roles)
        return roles

    def _permissions(self, roles: Sequence[_OfRole]) -> list[Permission]:
        found: list[Permission] = []
        for each in roles:
            if (role := self._roles.get(each.rolename)) is not None:
                found += [each for each in _permissions_in_order(role.acls) if self._is_good(role, each)]
        return found

    def _is_good(self, role: _Role, permission: Permission) -> bool:
        what = f"role {role.rolename!r}, {permission.acltype} {permission.topic!r}"
        if topic_filter_fault(permission.topic) or any(c in permission.topic for c in "\r\n"):
            self._note("not taken", what, "it is no topic filter")
            return False
        if "%c" in permission.topic or "%u" in permission.topic:
            self._note("changed", what, "%c and %u stand for the client's identifier and user, as in "
                       "Mosquitto 2.1; 2.0 took them as they are")  # fmt: skip
        if permission.topic.startswith("$CONTROL/"):
            self._note("changed", what, "there is no $CONTROL: users and rules are files, which are read "
                       "again when they change")  # fmt: skip
            return False
        if permission.topic.startswith("$") and permission.acltype == SEND:
            if permission.allow:
                self._note("not taken", what, "no client publishes to topics that begin with $")
            return False
        if permission.acltype.startswith("unsubscribe"):
            if not permission.allow:
                self._note("changed", what, "every client may unsubscribe")
            return False
        return True

    def _rules_of(self, who: str, permissions: Sequence[Permission]) -> Iterator[str]:
        for each in permissions:
            if each.acltype == SEND:
                yield f"{_effect(each.allow)} {who} publish {_quoted(each.topic)}"
        if self._document.defaults.send:
            yield f"allow {who} publish #"
        received = [each for each in permissions if each.acltype == RECEIVE]
        yield from self._refused_to_receive(who, received)
        subscribed = [each for each in permissions if each.acltype in (PATTERN, LITERAL)]
        if self._document.defaults.subscribe:
            subscribed += [Permission(acltype=PATTERN, topic=topic, allow=True) for topic in ("#", "$SYS/#")]
        for each in subscribed:
            yield from self._subscribing(who, each, received)

    def _refused_to_receive(self, who: str, received: Sequence[Permission]) -> Iterator[str]:
        """What may not be received may not be subscribed to."""
        allowed: list[str] = []
        for each in received:
            if each.allow:
                allowed.append(each.topic)
            elif not any(covers(topic, each.topic) for topic in allowed):
                what = f"{who}, {RECEIVE} {each.topic!r}"
                self._note("changed", what, "a subscription of which this is a part is refused as a whole")
                yield f"deny {who} subscribe {_quoted(each.topic)}"

    def _subscribing(self, who: str, permission: Permission, received: Sequence[Permission]) -> Iterator[str]:
        topic, what = permission.topic, f"{who}, {permission.acltype} {permission.topic!r}"
        if permission.acltype == LITERAL and ("+" in topic or "#" in topic):
            self._note("changed", what, "it holds for narrower filters, too")
        if not permission.allow:
            yield f"deny {who} subscribe {_quoted(topic)}"
            first, slash, rest = topic.partition("/")
            if first in ("#", "+"):  # which for Mosquitto are $SYS here, too
                system = "$SYS/#" if first == "#" else f"$SYS{slash}{rest}"
                yield f"deny {who} subscribe {_quoted(system)}"
            return
        allowed = [each.topic for each in received if each.allow]
        if self._document.defaults.receive or any(covers(wide, topic) for wide in allowed):
            yield f"allow {who} subscribe {_quoted(topic)}"
            return
        narrower = [each for each in allowed if covers(topic, each)]
        if narrower:
            self._note("changed", what, f"only as far as it may be received: {', '.join(narrower)}")
        else:
            self._note("not taken", what, "nothing of it may be received")
        for each in narrower:
            yield f"allow {who} subscribe {_quoted(each)}"


def _effect(allows: bool) -> str:
    return "allow" if allows else "deny"


def _is_writable(name: str) -> bool:
    broken = any(letter in name for letter in ":\r\n") or name != name.strip() or not name
    return not broken and not name.startswith("#") and not ('"' in name and "'" in name)


def _quoted(word: str) -> str:
    """As a word of a rule."""
    if not any(letter in word for letter in " \t\"'"):
        return word
    quote = "'" if '"' in word else '"'
    return f"{quote}{word}{quote}"


def covers(wide: str, narrow: str) -> bool:
    """Whether each topic that the narrow filter matches is matched by the wide one."""
    ours, theirs = wide.split("/"), narrow.split("/")
    if narrow.startswith("$") and ours[0] in ("+", "#"):
        return False  # [MQTT-4.7.2-1]
    for place, level in enumerate(ours):
        if level == "#":
            return True
        if place == len(theirs) or theirs[place] == "#":
            return False
        if level not in ("+", theirs[place]):
            return False
    return len(ours) == len(theirs)
