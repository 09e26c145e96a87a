"""Who may connect, and do what: users, passwords, certificates, rules.

Whatever cannot be taken closes: where it is not known who was let in or what was allowed, nobody is, or
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from tidemq.broker.access.cuts import find_cuts
from tidemq.broker.access.file_formats import read_rules
from tidemq.broker.authenticators.password_file import read_password_file
from tidemq.errors import ConfigError
from tidemq.migration.dynamic_security import DynamicSecurity, read_dynamic_security
from tidemq.migration.lines import Line
from tidemq.migration.output import Output, read_file
from tidemq.migration.sections import Section

_DYNAMIC_SECURITY = "mosquitto_dynamic_security"
_PLUGINS = ("plugin", "auth_plugin", "global_plugin")
_PLUGIN_FILES = ("plugin_opt_config_file", "auth_opt_config_file")
_CUTS_MAX = 1000  # lines of the report
NOTHING = b"deny all #\n"
NOBODY: dict[str, Any] = {"authenticator": "static", "authenticator_options": {"users": {}}}


@dataclass
class Rules:
    """A file of rules. None as the content: everything is allowed."""

    content: bytes | None = None
    form: Literal["tidemq", "mosquitto"] = "mosquitto"


@dataclass
class Access:
    """Of the broker or a listener: who may connect, and rules."""

    files: list[Path] | None = None  # of users; None: nobody is let in
    anonymous: bool = False
    rules: Rules = field(default_factory=Rules)

    def authenticator(self, anonymous: bool | None = None) -> dict[str, Any]:
        """The keys of an authenticator. Mosquitto lets in without a password who gives no user name; but who
        gives one has to be known, if there are users. `anonymous`: a listener's own word on the former.
        """
        if self.files is None:
            return NOBODY
        members: list[dict[str, Any]] = [
            {"authenticator": "password_file", "file": str(file)} for file in self.files
        ]
        if self.anonymous if anonymous is None else anonymous:
            named = {"named": False} if self.files else {}
            members.append({"authenticator": "anonymous", "remote": True} | named)
        if not members:
            return NOBODY
        if len(members) > 1:
            return {"authenticator": "chain", "authenticator_options": {"of": members}}
        name = members[0].pop("authenticator")
        return {"authenticator": name, "authenticator_options": members[0]}


def plan_access(section: Section, output: Output, *, local_only: bool) -> Access:
    """`local_only`: no line says where to listen; then everybody may connect who can."""
    anonymous = section.flag("allow_anonymous", local_only)
    plugins = [line for option in _PLUGINS for line in section.all(option)]
    others = [line for line in plugins if _DYNAMIC_SECURITY not in line.value]
    for line in others:
        section.refuse(line, "TideMQ cannot run it: nobody is let in. An authenticator or a webhook may do "
                       "what it did")  # fmt: skip
    security = _plan_dynamic_security(section, output) if len(others) < len(plugins) else None
    files = _user_files(section, output, security)
    is_known = not others and (security is not None or not plugins)
    return Access(files if is_known else None, anonymous, _plan_rules(section, security))


def _user_files(section: Section, output: Output, security: DynamicSecurity | None) -> list[Path] | None:
    """None: one cannot be taken."""
    files: list[Path] = []
    if (line := section.get("password_file")) is not None:
        try:
            content = read_file(line)
            read_password_file(Path(line.value))
        except ConfigError as error:
            section.refuse(line, f"nobody is let in: {error}")
            return None
        section.note(line)
        files.append(output.keep("users", content))
    if security is not None:
        files.append(output.keep("dynamic-security-users", security.users.encode()))
    return files


def _plan_dynamic_security(section: Section, output: Output) -> DynamicSecurity | None:
    """None: it cannot be taken, and nobody is let in."""
    for line in (each for option in _PLUGINS for each in section.all(option)):
        if _DYNAMIC_SECURITY in line.value:
            section.change(line, "`mosquitto_ctrl` changes nothing any more: users are in a password file, "
                           "rules in a file")  # fmt: skip
    file = section.get(*_PLUGIN_FILES)
    if file is None:
        return None
    try:
        found = read_dynamic_security(read_file(file), file.value, output.report)
    except ConfigError as error:
        section.refuse(file, f"nobody is let in: {error}")
        return None
    section.note(file)
    return found


def _plan_rules(section: Section, security: DynamicSecurity | None) -> Rules:
    line = section.get("acl_file")
    if security is not None:
        if line is not None:
            section.refuse(line, "beside dynamic security: nothing is allowed. Join both in `rules`")
            return Rules(NOTHING, "tidemq")
        return Rules(security.rules.encode(), "tidemq")
    if line is None:
        return Rules()
    try:
        content = read_file(line)
        rules = read_rules(Path(line.value), "mosquitto")
    except ConfigError as error:
        section.refuse(line, f"nothing is allowed: {error}")
        return Rules(NOTHING, "tidemq")
    section.note(line)
    for cut in find_cuts(rules)[:_CUTS_MAX]:
        place = f"{line.value}:{cut.allowed.line}"
        section.report.add("changed", place, cut.allowed.topic_filter, f"{cut}; Mosquitto leaves out such "
                           "messages at delivery")  # fmt: skip
    return Rules(content)


def plan_certificate_users(section: Section) -> dict[str, Any]:
    """The authenticator of a listener whose clients are who their certificates say; empty: they are not."""
    identity = None
    for option, name in (("use_subject_as_username", "subject"), ("use_identity_as_username", "cn")):
        if section.flag(option, False):
            identity = name
    if identity is None:
        return {}
    options = {"identity": identity, "ends_with_certificate": False}
    return {"authenticator": "certificate", "authenticator_options": options}


def plan_client_ids(section: Section) -> bool:
    """Whether a client has to bring an identifier."""
    return not section.flag("allow_zero_length_clientid", True)


def same_rules(found: list[tuple[Rules, Line | None]], output: Output) -> Rules:
    """The rules of all listeners, which have to be the same: TideMQ has one file for all. Where they are not,
    nothing is allowed.
    """
    first = found[0][0]
    if all(each == first for each, _ in found):
        return first
    for _, line in found:
        if line is not None:
            output.report.add("not taken", line.place, f"acl_file {line.value}", "listeners have different "
                              "rules, and TideMQ has one file for all: nothing is allowed. Put all into it, "
                              "by user")  # fmt: skip
    return Rules(NOTHING, "tidemq")
