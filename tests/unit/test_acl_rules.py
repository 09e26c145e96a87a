"""Rules of files: read, and judged as a plain model judges them, topic by topic."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from quick import examples
from typer.testing import CliRunner

from tidemq.broker.access.cuts import find_cuts
from tidemq.broker.access.file_formats import AclFormat, read_rules
from tidemq.broker.access.judging import Client, decide
from tidemq.broker.acl_rules import AclRule, rows_of
from tidemq.cli import make_app
from tidemq.engine.door.rule_book import judge_rows
from tidemq.engine.door.rule_row import PUBLISH, SUBSCRIBE
from tidemq.errors import ConfigError

LEVELS = ("", "a", "b", "$s", "zz")
TOPICS = [
    "/".join(levels)
    for depth in (1, 2, 3, 4)
    for levels in itertools.product(LEVELS, repeat=depth)
    if "/".join(levels)
]


def written(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "rules"
    file.write_text(text, encoding="utf-8")
    return file


# --- the plain model --------------------------------------------------------------------------------


def matches(topic_filter: str, topic: str) -> bool:
    if topic.startswith("$") and topic_filter[:1] in ("+", "#"):
        return False
    wanted, levels = topic_filter.split("/"), topic.split("/")
    for place, level in enumerate(wanted):
        if level == "#":
            return True
        if place == len(levels):
            return False
        if level not in ("+", levels[place]):
            return False
        if place + 1 == len(levels) and wanted[place + 1 :] == ["#"]:
            return True
    return len(wanted) == len(levels)


def allowed_message(rules: list[AclRule], topic: str, qos: int, retain: bool) -> bool:
    for rule in rules:
        about = (
            rule.action != "subscribe"
            and qos <= rule.qos_max
            and (rule.retain is None or rule.retain == retain)
        )
        if about and matches(rule.topic_filter, topic):
            return rule.allows
    return False


def allowed_delivery(rules: list[AclRule], topic: str) -> bool:
    """What a broker would say that asks the rules about each message it delivers."""
    for rule in rules:
        if rule.action != "publish" and matches(rule.topic_filter, topic):
            return rule.allows
    return False


# --- what is drawn ----------------------------------------------------------------------------------


@st.composite
def filters(draw: st.DrawFn) -> str:
    levels = draw(st.lists(st.sampled_from(("", "a", "b", "$s", "+", "+")), min_size=1, max_size=3))
    if draw(st.integers(0, 2)) == 0:
        levels.append("#")
    return "/".join(levels) or "#"


@st.composite
def rules(draw: st.DrawFn) -> AclRule:
    allows = draw(st.booleans())
    action = draw(st.sampled_from(("publish", "subscribe", "all")))
    return AclRule(
        allows=allows,
        action=action,  # type: ignore[arg-type]
        topic_filter=draw(filters()),
        qos_max=draw(st.sampled_from((0, 1, 2))) if allows else 2,
        retain=draw(st.sampled_from((None, True, False))) if action == "publish" else None,
    )


def judge(given_rules: list[AclRule], action: int, topic: str) -> int:
    rows = rows_of(given_rules)
    return judge_rows(rows, action, topic.encode(), user=None, client_id=b"c", groups=(), address=None)


@given(st.lists(rules(), max_size=5), st.sampled_from(TOPICS))
@settings(max_examples=examples(200), deadline=None)
def test_a_message_is_judged_as_by_the_plain_model(drawn: list[AclRule], topic: str) -> None:
    found = judge(drawn, PUBLISH, topic)
    for qos, retain in itertools.product((0, 1, 2), (False, True)):
        assert bool(found >> (qos + 3 * retain) & 1) == allowed_message(drawn, topic, qos, retain)


@given(st.lists(rules(), max_size=4), filters())
@settings(max_examples=examples(100), deadline=None)
def test_an_allowed_filter_holds_no_topic_that_the_rules_refuse(drawn: list[AclRule], wanted: str) -> None:
    found = judge(drawn, SUBSCRIBE, wanted)
    if found & 7:
        assert all(allowed_delivery(drawn, topic) for topic in TOPICS if matches(wanted, topic))


@given(filters(), filters())
@example("/#", "+")
@example("+", "/#")
@settings(max_examples=examples(150), deadline=None)
def test_a_filter_is_refused_only_for_a_topic_in_it(one: str, wanted: str) -> None:
    """Of one rule the judgement is exact, but for `#` and `/#`: no topic is empty, so `+/#` and `/+/#` are as
    wide, and are not known to be.
    """
    inside = [topic for topic in TOPICS if matches(wanted, topic)]
    covered = all(matches(one, topic) for topic in inside)
    if wanted not in ("#", "/#"):
        assert bool(judge([AclRule(True, "subscribe", one)], SUBSCRIBE, wanted)) == covered
    met = any(matches(one, topic) for topic in inside)
    rest = AclRule(True, "subscribe", wanted)
    assert bool(judge([AclRule(False, "subscribe", one), rest], SUBSCRIBE, wanted)) != met


@given(st.lists(rules(), max_size=6), st.sampled_from(TOPICS), st.sampled_from((0, 1, 2)), st.booleans())
@settings(max_examples=examples(80), deadline=None)
def test_the_rule_that_is_named_is_the_one_that_decides(
    drawn: list[AclRule], topic: str, qos: int, retain: bool
) -> None:
    numbered = [
        AclRule(r.allows, r.action, r.topic_filter, qos_max=r.qos_max, retain=r.retain, line=number)
        for number, r in enumerate(drawn)
    ]
    decision = decide(numbered, Client("c"), "publish", topic, qos=qos, retain=retain)
    assert decision.allowed == allowed_message(drawn, topic, qos, retain)
    if decision.rule is not None:
        assert decision.rule.allows == decision.allowed
        before = numbered[: decision.rule.line]
        assert all(allowed_message([rule], topic, qos, retain) is False for rule in before if rule.allows)


# --- who --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("who", "client", "about"),
    [
        ("", Client("c"), True),
        ("user ann", Client("c", "ann"), True),
        ("user ann", Client("c", "anna"), False),
        ("user ann", Client("ann"), False),
        ("anonymous", Client("c"), True),
        ("anonymous", Client("c", "ann"), False),
        ("group ops", Client("c", "ann", ("dev", "ops")), True),
        ("group ops", Client("c", "ann", ("dev", "ops2")), False),
        ("group ops", Client("c", "ops"), False),
        ("client c1", Client("c1"), True),
        ("client c1", Client("c12"), False),
        ("client dev-*", Client("dev-"), True),
        ("client dev-*-x", Client("dev-1-x-2-x"), True),
        ("client dev-*-x", Client("dev-1-x-2-y"), False),
        ("client *", Client("c"), True),
        ("network 10.0.0.0/8", Client("c", address=ip_address("10.1.2.3")), True),
        ("network 10.0.0.0/9", Client("c", address=ip_address("10.128.2.3")), False),
        ("network 10.0.0.0/8", Client("c", address=ip_address("::ffff:10.1.2.3")), True),
        ("network 10.0.0.0/8", Client("c"), False),
        ("network 192.0.2.7", Client("c", address=ip_address("192.0.2.7")), True),
        ("network 192.0.2.7", Client("c", address=ip_address("192.0.2.6")), False),
        ("network 2001:db8::/33", Client("c", address=ip_address("2001:db8:7fff::1")), True),
        ("network 2001:db8::/33", Client("c", address=ip_address("2001:db8:8000::1")), False),
        ("network 0.0.0.0/0", Client("c", address=ip_address("2001:db8::1")), False),
        ("user ann client c1 network ::1", Client("c1", "ann", address=ip_address("::1")), True),
        ("user ann client c1 network ::1", Client("c2", "ann", address=ip_address("::1")), False),
        ('user "ann lee"', Client("c", "ann lee"), True),
        ("user DOM\\bob", Client("c", "DOM\\bob"), True),
        ("user DOM\\bob", Client("c", "DOMbob"), False),
        ('user "DOM\\ann lee"', Client("c", "DOM\\ann lee"), True),
        ("""user "o'brien\\" """, Client("c", "o'brien\\"), True),
    ],
)
def test_whom_a_rule_is_about(tmp_path: Path, who: str, client: Client, about: bool) -> None:
    found = read_rules(written(tmp_path, f"allow {who} all t"), "tidemq")
    assert decide(found, client, "publish", "t").allowed is about
    assert decide(found, client, "subscribe", "t").allowed is about


@pytest.mark.parametrize(
    ("topic_filter", "topic", "fits"),
    [
        ("dev/%c/#", "dev/c1/x", True),
        ("dev/%c/#", "dev/c2/x", False),
        ("dev/%u-%c", "dev/ann-c1", True),
        ("dev/%u-%c", "dev/ann-c", False),
        ("%u", "ann", True),
        ("dev/%x", "dev/%x", True),
        ("dev/%c", "dev/%c", False),
    ],
)
def test_names_are_filled_in(tmp_path: Path, topic_filter: str, topic: str, fits: bool) -> None:
    found = read_rules(written(tmp_path, f"allow all {topic_filter}"), "tidemq")
    assert decide(found, Client("c1", "ann"), "publish", topic).allowed is fits


def test_an_editors_mark_and_line_feeds_of_any_system_change_nothing(tmp_path: Path) -> None:
    file = tmp_path / "rules"
    for text, acl_format in (
        ("allow user ann all a/#\r\nallow publish b\r\n", "tidemq"),
        ("user ann\r\ntopic a/#\r\npattern write b\r\n", "mosquitto"),
    ):
        file.write_bytes(b"\xef\xbb\xbf" + text.encode())
        found = read_rules(file, acl_format)  # type: ignore[arg-type]
        assert [(rule.user, rule.topic_filter) for rule in found] == [("ann", "a/#"), (None, "b")]


@pytest.mark.parametrize("name", ["+", "#", "a/b", "c1/#", "$SYS", "+/+"])
def test_a_name_never_widens_a_rule(tmp_path: Path, name: str) -> None:
    """An allowing rule is not about such a client, one that refuses is then about every topic."""
    allowing = read_rules(written(tmp_path, "allow all %c/#\nallow all x/%u/#"), "tidemq")
    refusing = read_rules(written(tmp_path, "deny all x/%u/#\nallow all open/#"), "tidemq")
    for topic in ("a", "a/b/c", "c1/x", "x/y", f"x/{name.strip('+#/')}/y"):
        for client in (Client(name, name), Client(name), Client("c", name)):
            assert not decide(allowing, client, "publish", topic).allowed or client.client_id == topic[:1]
    for wanted in ("#", "+/+", "$SYS/#", "a/b/#", f"x/{name}/#" if name != "#" else "x/#"):
        assert not decide(allowing, Client(name, name), "subscribe", wanted).allowed
    assert not decide(refusing, Client("c", name), "publish", "open/x").allowed
    assert decide(refusing, Client("c", "ann"), "publish", "open/x").allowed
    assert decide(refusing, Client("c"), "publish", "open/x").allowed, "without a user it is about nobody"


def test_a_granted_qos_is_no_higher_than_the_rule_says(tmp_path: Path) -> None:
    found = rows_of(read_rules(written(tmp_path, "allow subscribe a/# qos 1"), "tidemq"))
    names: dict[str, Any] = {"user": None, "client_id": b"c", "groups": (), "address": None}
    assert judge_rows(found, SUBSCRIBE, b"a/b", **names) & 7 == 0b011


# --- files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("permit all #", "'permit' is no effect; accepted: allow, deny"),
        ("allow", "action is missing"),
        ("allow user", "the name of the user is missing"),
        ("allow user ann user bob all #", "user is there twice"),
        ("allow user ann anonymous all #", "an anonymous client is no user"),
        ("allow write #", "'write' is no action; accepted: publish, subscribe, all"),
        ("allow all", "the topic filter is missing"),
        ("allow all a/#/b", "'a/#/b' is no topic filter"),
        ("allow all $share/g/a", "'$share/g/a' has a group"),
        ("allow publish $SYS/x", "no client publishes to topics with a $"),
        ("allow publish $SYS/broker/connections/x", "no client publishes to topics with a $"),
        ("allow all # qos 3", "'3' is no qos; accepted: 0, 1, 2"),
        ("deny all # qos 1", "a rule that refuses has no qos"),
        ("allow all # retain no", "retain is of messages that are published"),
        ("allow publish # retained", "'retained' is no option; accepted: qos, retain"),
        ("allow network 10.0.0.1/8 all #", "10.0.0.1/8 has host bits set"),
        ("allow user 'ann all #", "No closing quotation"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, line: str, said: str) -> None:
    file = written(tmp_path, f"# rules\n\nallow all fine\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        read_rules(file, "tidemq")
    assert str(caught.value).startswith(f"{file}: line 4: ")
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("topics a", "'topics' is unknown"),
        ("topic", "the topic is missing"),
        ("topic all a", "'all' is no access; accepted: read, write, readwrite, deny"),
        ("user", "the user has no name"),
        ("topic read a/#/b", "'a/#/b' is no topic filter"),
    ],
)
def test_a_wrong_line_of_mosquittos_is_named(tmp_path: Path, line: str, said: str) -> None:
    file = written(tmp_path, f"# rules\n{line}\n")
    with pytest.raises(ConfigError) as caught:
        read_rules(file, "mosquitto")
    assert str(caught.value).startswith(f"{file}: line 2: ")
    assert said in str(caught.value)


@pytest.mark.parametrize("acl_format", ["tidemq", "mosquitto"])
def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path, acl_format: AclFormat) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        read_rules(tmp_path / "none", acl_format)
    (tmp_path / "latin").write_bytes(b"allow all caf\xe9")
    with pytest.raises(ConfigError, match="not UTF-8"):
        read_rules(tmp_path / "latin", acl_format)


def run_check(*arguments: str) -> Iterator[object]:
    done = CliRunner().invoke(make_app(), ["acl", "check", *arguments])
    return iter((done.exit_code, done.output.strip()))


def test_the_command_says_what_is_decided_and_by_which_line(tmp_path: Path) -> None:
    file = str(written(tmp_path, "# who\ndeny client guest-* all secret/#\nallow user ann all # qos 1\n"))
    ann = (file, "--user", "ann", "--client")
    assert [*run_check(*ann, "c", "publish", "a")] == [0, "allowed by line 3: allow user ann all # qos 1"]
    assert [*run_check(*ann, "guest-1", "subscribe", "#")] == [
        3,
        "refused by line 2: deny client guest-* all secret/#",
    ]
    assert [*run_check(*ann, "c", "--qos", "2", "publish", "a")] == [3, "refused: no line speaks of it"]
    code, said = run_check(*ann, "c", "publish", "$SYS/x")
    assert code == 3
    assert "begin with $" in str(said)
    states = str(written(tmp_path, "allow publish $SYS/broker/connection/%c/state\n"))
    for client_id, expected in (("c", 0), ("d", 3)):  # as a bridge of this identifier does
        code, _ = run_check(states, "--client", client_id, "publish", "$SYS/broker/connection/c/state")
        assert code == expected
    code, said = run_check(*ann, "c", "publish", "a/+")
    assert code == 1
    assert "'a/+'" in str(said)
    code, said = run_check(*ann, "c", "write", "a")
    assert code == 1
    assert "'write' is not an action" in str(said)


MOVED = """\
user ann
topic read plant/#
topic deny plant/secret/#
topic read free/#
user bob
topic deny common/bob/#
pattern read common/#
pattern read own/%u/#
pattern deny own/%u/hidden
"""


def test_filters_that_are_refused_for_a_part_of_them_are_found(tmp_path: Path) -> None:
    cuts = find_cuts(read_rules(written(tmp_path, MOVED), "mosquitto"))
    assert [(cut.allowed.line, cut.refused.line) for cut in cuts] == [(2, 3), (7, 6), (8, 9)]
    assert str(cuts[0]) == (
        "line 2: a subscription to 'plant/#' is refused as a whole, for line 3 refuses 'plant/secret/#' "
        "of user 'ann', a part of it"
    )
    own = "deny client guest-* subscribe secret/#\nallow group staff all #\nallow client guest-* all #\n"
    found = find_cuts(read_rules(written(tmp_path, own), "tidemq"))
    assert [(cut.allowed.line, cut.refused.line) for cut in found] == [(3, 1)]


def test_the_command_lists_them_without_a_question(tmp_path: Path) -> None:
    code, said = run_check(str(written(tmp_path, MOVED)), "--mosquitto")
    assert code == 3
    assert [line.split(":")[0] for line in str(said).splitlines()] == ["line 2", "line 7", "line 8"]
    code, said = run_check(str(written(tmp_path, "allow all #\n")))
    assert (code, str(said).split(",")[0]) == (0, "1 rules")
