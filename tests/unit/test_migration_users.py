"""Dynamic security as users and rules: what a role allowed is allowed, what it refused is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from unit.test_migration import HASH

from tidemq.broker.access.file_formats import read_rules
from tidemq.broker.access.judging import Client, decide
from tidemq.broker.authenticators.password_file import read_password_file
from tidemq.errors import ConfigError
from tidemq.migration.dynamic_security import DynamicSecurity, covers, read_dynamic_security
from tidemq.migration.importing import plan_import
from tidemq.migration.report import Report
from tidemq.wire.filters import matches

_, _, ROUNDS, SALT, DIGEST = HASH.split("$")
PASSWORD = {"password": DIGEST, "salt": SALT, "iterations": int(ROUNDS)}
SEND, RECEIVE, SUBSCRIBE, LITERAL = (
    "publishClientSend", "publishClientReceive", "subscribePattern", "subscribeLiteral"
)  # fmt: skip


def acl(kind: str, topic: str, priority: int = 0, *, allow: bool = True) -> dict[str, Any]:
    return {"acltype": kind, "topic": topic, "priority": priority, "allow": allow}


def client(name: str, *roles: str, **more: Any) -> dict[str, Any]:
    return {"username": name, "roles": [{"rolename": role} for role in roles]} | PASSWORD | more


class Read:
    """What becomes of such a document, and what its rules say."""

    def __init__(self, folder: Path, document: dict[str, Any]) -> None:
        self.report = Report()
        text = json.dumps(document).encode()
        self.found: DynamicSecurity = read_dynamic_security(text, "ds.json", self.report)
        (folder / "rules").write_text(self.found.rules)
        (folder / "users").write_text(self.found.users)
        self.rules = read_rules(folder / "rules", "tidemq")
        self.users = set(read_password_file(folder / "users").hashes)

    def may(
        self, user: str | None, action: Literal["publish", "subscribe"], topic: str, client_id: str = "c"
    ) -> bool:
        return decide(self.rules, Client(client_id, user), action, topic).allowed

    def fates(self, word: str) -> set[str]:
        return {each.fate for each in self.report.findings if word in each.what}


def document(*clients: dict[str, Any], roles: dict[str, list[dict[str, Any]]], **more: Any) -> dict[str, Any]:
    made = [{"rolename": name, "acls": acls} for name, acls in roles.items()]
    return {"clients": list(clients), "roles": made} | more


def test_users_keep_their_passwords_and_only_those_who_could_log_in_are_there(tmp_path: Path) -> None:
    read = Read(tmp_path, document(
        client("ann"), client("bob", disabled=True), client("a:b"), client("weak", iterations=0),
        {"username": "nobody"}, client("new", password="", encoded_password=HASH), roles={},
    ))  # fmt: skip
    assert read.users == {"ann", "new"}
    assert read.found.users.splitlines()[0] == f"ann:{HASH}"
    assert (read.fates("'bob'"), read.fates("'nobody'")) == ({"taken"}, {"taken"})
    assert (read.fates("'a:b'"), read.fates("'weak'")) == ({"not taken"}, {"not taken"})


def test_what_no_role_speaks_of_is_as_the_defaults_say(tmp_path: Path) -> None:
    closed = Read(tmp_path, document(client("ann"), roles={}))
    assert not closed.may("ann", "publish", "t")
    assert not closed.may("ann", "subscribe", "t")
    defaults = {SEND: True, RECEIVE: True, "subscribe": True}
    opened = Read(tmp_path, document(client("ann"), roles={}, defaultACLAccess=defaults))
    assert opened.may("ann", "publish", "t")
    assert opened.may("ann", "subscribe", "#")
    assert opened.may("ann", "subscribe", "$SYS/#")
    assert opened.may(None, "publish", "t")  # who has no name, too
    assert not opened.may("bob", "publish", "t")  # nor who is not there
    silent = Read(tmp_path, document(client("ann"), roles={}, defaultACLAccess={"subscribe": True}))
    assert not silent.may("ann", "subscribe", "t")  # nothing may be received


def test_priorities_decide_first_of_roles_then_of_permissions(tmp_path: Path) -> None:
    roles = {
        "low": [acl(SEND, "a/#", allow=False), acl(SEND, "b/#")],
        "high": [acl(SEND, "a/#", 1, allow=False), acl(SEND, "a/x", 5)],
    }
    ann = client("ann") | {"roles": [
        {"rolename": "low", "priority": 1}, {"rolename": "high", "priority": 2}
    ]}  # fmt: skip
    read = Read(tmp_path, document(ann, roles=roles))
    assert read.may("ann", "publish", "a/x")
    assert not read.may("ann", "publish", "a/y")
    assert read.may("ann", "publish", "b/y")


def test_of_a_role_what_is_literal_comes_first_and_equal_roles_go_by_name(tmp_path: Path) -> None:
    roles = {
        "one": [acl(SUBSCRIBE, "a/#", 5), acl(LITERAL, "a/b", -5, allow=False)],
        "z": [acl(SEND, "x")], "b": [acl(SEND, "x", allow=False)],
        "unsaid": [{"acltype": SEND, "topic": "y", "allow": True}, acl(SEND, "y", -1, allow=False)],
    }  # fmt: skip
    read = Read(tmp_path, document(
        client("ann", "one", "unsaid"), client("bob", "z", "b"), roles=roles,
        defaultACLAccess={RECEIVE: True},
    ))  # fmt: skip
    assert [read.may("ann", "subscribe", each) for each in ("a/b", "a/c")] == [False, True]
    assert not read.may("bob", "publish", "x")
    defaults = {"defaultACLAccess": {RECEIVE: True, "subscribe": True}}
    all_but = {"none": [acl(SUBSCRIBE, "#", allow=False)], "some": [acl(SUBSCRIBE, "+/x", allow=False)]}
    system = Read(tmp_path, document(client("ann", "none"), client("bob", "some"), roles=all_but, **defaults))
    assert not system.may("ann", "subscribe", "$SYS/#")  # a wildcard is a $ there, too
    assert [system.may("bob", "subscribe", each) for each in ("$SYS/x", "$SYS/y")] == [False, True]
    assert read.may("ann", "publish", "y")  # without a priority it is 0


def test_groups_come_after_a_clients_own_roles(tmp_path: Path) -> None:
    roles = {"own": [acl(SEND, "a", allow=False)], "shared": [acl(SEND, "a"), acl(SEND, "b")]}
    groups = [
        {"groupname": "g", "roles": [{"rolename": "shared"}], "clients": [{"username": "bob"}]},
        {"groupname": "guests", "roles": [{"rolename": "own"}, {"rolename": "shared"}]},
    ]
    read = Read(tmp_path, document(
        client("ann", "own", groups=[{"groupname": "g"}]), client("bob"), client("eve"),
        roles=roles, groups=groups, anonymousGroup="guests",
    ))  # fmt: skip
    assert [read.may("ann", "publish", topic) for topic in "ab"] == [False, True]
    assert [read.may("bob", "publish", topic) for topic in "ab"] == [True, True]
    assert [read.may("eve", "publish", topic) for topic in "ab"] == [False, False]
    assert [read.may(None, "publish", topic) for topic in "ab"] == [False, True]


def test_subscriptions_are_bounded_by_what_may_be_received(tmp_path: Path) -> None:
    roles = {
        "reader": [acl(SUBSCRIBE, "a/#"), acl(SUBSCRIBE, "b/#"), acl(LITERAL, "c/x"), acl(SUBSCRIBE, "d/#"),
                   acl(RECEIVE, "b/secret", allow=False)],
        "narrow": [acl(SUBSCRIBE, "a/#"), acl(SUBSCRIBE, "b"), acl(RECEIVE, "a/1"), acl(RECEIVE, "a/+/x")],
    }  # fmt: skip
    receiving = {"defaultACLAccess": {RECEIVE: True}}
    read = Read(tmp_path, document(client("ann", "reader"), roles=roles, **receiving))
    wanted = ["a/#", "a/1", "b/#", "b/1", "b/secret", "c/x", "c/#"]
    assert [read.may("ann", "subscribe", each) for each in wanted] == [
        True, True, False, True, False, True, False
    ]  # fmt: skip
    defaults = {SEND: False, RECEIVE: False, "subscribe": False}
    read = Read(tmp_path, document(client("bob", "narrow"), roles=roles, defaultACLAccess=defaults))
    wanted = ["a/#", "a/1", "a/2", "a/2/x", "b"]
    assert [read.may("bob", "subscribe", each) for each in wanted] == [False, True, False, True, False]
    assert read.fates(f"{SUBSCRIBE} 'a/#'") == {"changed"}
    assert read.fates(f"{SUBSCRIBE} 'b'") == {"not taken"}


def test_a_client_that_has_one_identifier_may_do_nothing_with_another(tmp_path: Path) -> None:
    roles = {"r": [acl(SEND, "%c/#")]}
    read = Read(tmp_path, document(client("ann", "r", clientid="one"), roles=roles))
    assert read.may("ann", "publish", "one/x", "one")
    assert not read.may("ann", "publish", "two/x", "two")
    assert read.fates("client 'ann'") == {"changed"}


@pytest.mark.parametrize("name", ["a b", "a'b", 'a"b', "a\\b", "#a b", "ünï"])
def test_names_are_written_so_that_they_are_read_as_they_were(tmp_path: Path, name: str) -> None:
    roles = {"r": [acl(SEND, "to the/#")]}
    read = Read(tmp_path, document(client(name, "r"), roles=roles))
    if name.startswith("#"):
        assert not read.users
    else:
        assert read.users == {name}
        assert read.may(name, "publish", "to the/x")
    assert not read.may("a", "publish", "to the/x")


def test_what_the_broker_keeps_for_itself_is_said(tmp_path: Path) -> None:
    roles = {"admin": [acl(SEND, "$CONTROL/dynamic-security/#"), acl(SUBSCRIBE, "$CONTROL/#"),
                       acl(SEND, "$x/y"), acl(SUBSCRIBE, "$SYS/#"), acl("unsubscribePattern", "#"),
                       acl("unsubscribeLiteral", "#", allow=False), acl(SEND, "a/#/b")]}  # fmt: skip
    receiving = {"defaultACLAccess": {RECEIVE: True}}
    read = Read(tmp_path, document(client("ann", "admin"), roles=roles, **receiving))
    assert read.fates("$CONTROL") == {"changed"}
    assert read.fates("$x/y") == {"not taken"}
    assert read.fates("a/#/b") == {"not taken"}
    assert read.fates("unsubscribeLiteral") == {"changed"}
    assert read.may("ann", "subscribe", "$SYS/#")


@pytest.mark.parametrize(
    "text", ["", "[]", '{"clients": [{}]}', '{"roles": [{"rolename": "r", "acls": [{}]}]}']
)
def test_what_is_no_such_file_is_refused_without_its_content(text: str) -> None:
    with pytest.raises(ConfigError, match=r"ds\.json"):
        read_dynamic_security(text.encode(), "ds.json", Report())


def test_it_comes_in_by_the_plugin_of_a_configuration(tmp_path: Path) -> None:
    roles = {"r": [acl(SEND, "a/#"), acl(SUBSCRIBE, "a/#")]}
    receiving = {"defaultACLAccess": {RECEIVE: True}}
    (tmp_path / "ds.json").write_text(json.dumps(document(client("ann", "r"), roles=roles, **receiving)))
    conf = tmp_path / "mosquitto.conf"
    conf.write_text(
        "listener 1883\nallow_anonymous false\nplugin /usr/lib/mosquitto_dynamic_security.so\n"
        f"plugin_opt_config_file {tmp_path}/ds.json\n"
    )
    output = plan_import(conf, tmp_path / "out")
    assert output.config["authenticator"] == "password_file"
    assert output.config["acl_format"] == "tidemq"
    assert output.files["dynamic-security-users"].startswith(b"ann:$7$")
    assert b"allow user ann publish a/#" in output.files["rules.acl"]
    assert not output.report.of("not taken")


levels = st.sampled_from(["a", "b", "", "$x"])
topics = st.lists(levels, min_size=1, max_size=4).map("/".join).filter(bool)
wild = st.lists(st.sampled_from(["a", "b", "", "+"]), min_size=1, max_size=4)
filters = st.builds(lambda parts, end: "/".join([*parts, *end]), wild, st.sampled_from([[], ["#"]])).filter(
    bool
)


@given(filters | topics, filters | topics, topics)
def test_a_filter_that_covers_another_matches_all_that_it_matches(wide: str, narrow: str, topic: str) -> None:
    if covers(wide, narrow) and matches(narrow, topic):
        assert matches(wide, topic)
    assert covers(narrow, narrow)
