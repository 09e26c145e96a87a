"""Configurations of Mosquitto's as they are found: comments behind values, options in odd places, files that
include files; and what would open something if it were left out.
"""

from __future__ import annotations

import random
import time
from pathlib import Path
from typing import Any

import pytest
from unit.test_migration import HASH, fates, imported

from tidemq.broker.access.cuts import find_cuts
from tidemq.broker.access.file_formats import read_rules
from tidemq.errors import ConfigError, TideMQError, UsageError
from tidemq.migration.importing import CONFIG, plan_import, write_import
from tidemq.migration.lines import read_lines
from tidemq.migration.options import OPTIONS
from tidemq.migration.stored import refused_subscriptions
from tidemq.store.mosquitto import MosquittoState

NOBODY = {"authenticator": "static", "authenticator_options": {"users": {}}}
MANY = 5000


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    (tmp_path / "users").write_text(f"ann:{HASH}\n")
    return tmp_path / "mosquitto.conf"


def places(config: dict[str, Any]) -> list[tuple[str, int]]:
    return [(each["host"], each["port"]) for each in config["listeners"]]


def test_behind_flags_numbers_and_words_may_stand_a_comment(conf: Path) -> None:
    output = imported(conf, (
        "listener 1883 127.0.0.1 # for this machine\r\nlistener 1884 # for all\r\n"
        "max_connections 7  # a few\nallow_anonymous true # x \nmax_queued_messages 5 # x\n"
        "persistent_client_expiration 2d # x\nlog_type error # x\nprotocol websockets # x\n"
        "accept_protocol_versions 4,5 # not 3.1\nupgrade_outgoing_qos false # x\nsocket_domain ipv4 # x\n"
    ))  # fmt: skip
    assert places(output.config) == [("127.0.0.1", 1883), ("0.0.0.0", 1884)]
    second = output.config["listeners"][1]
    assert (second["connections_max"], second["websocket"]["path"]) == (7, "*")
    assert second["protocol_versions"] == ["3.1.1", "5.0"]
    assert output.config["authenticator"] == "anonymous"
    limits = output.config["limits"]
    assert (limits["queued_messages_max"], limits["session_expiry_s_max"]) == (5, 172_800)
    assert output.config["log_level"] == "error"
    assert not output.report.of("not taken")


def test_behind_what_a_bridge_says_too(conf: Path) -> None:
    output = imported(conf, (
        "connection up # to the cloud\naddress b.example:1 # one\ntopic a IN 1 # x\ntopic # Both # x\n"
        "topic b out 2 l/ r/ what Mosquitto does not read\nrestart_timeout 3 # s\nkeepalive_interval 9 # s\n"
        "connection u.p\naddress c.example\ntopic #\nconnection u-p\naddress d.example\ntopic #\n"
    ))  # fmt: skip
    bridges = output.config["bridges"]
    first = bridges[0]
    assert [each["name"] for each in bridges] == ["up", "u-p", "u-p-2"]
    assert (first["addresses"], first["reconnect_s"], first["keep_alive_s"]) == (["mqtt://b.example:1"], 3, 9)
    assert [(each["direction"], each["qos"], each["local_prefix"]) for each in first["topics"]] == [
        ("in", 1, ""), ("both", 0, ""), ("out", 2, "l/")
    ]  # fmt: skip
    assert [each["client_id"].partition(".")[2] for each in bridges] == ["up", "u.p", "u-p"]


ODD = [
    "true", "false", "0", "-1", "1 # x", "99999999999999999999", "", "x", "a b c d e f", "HERE/users", "HERE",
    "mosquitto_dynamic_security.so", "websockets", "mqttv50", "1883", "1883 ::1", "0 s", "2d", "#", "tlsv1.3",
    "\u2028", "$SYS/#", 'a/# both 1 "" ""', "ipv6", "4,9",
]  # fmt: skip


@pytest.mark.parametrize("seed", range(3))
def test_of_any_lines_each_is_in_the_report_or_one_is_refused_by_name(conf: Path, seed: int) -> None:
    chance = random.Random(seed)
    names = [name.replace("*", "x") for name in OPTIONS]
    refused: list[str] = []
    for _ in range(100):
        lines = [f"{chance.choice(names)} {chance.choice(ODD)}" for _ in range(chance.randrange(1, 10))]
        conf.write_text("\n".join(["connection c", *lines]).replace("HERE", str(conf.parent)))
        try:
            output = plan_import(conf, conf.parent / "out")
        except TideMQError as error:
            refused.append(str(error))
            continue
        said = {each.place for each in output.report.findings}
        assert not [line.place for line in read_lines(conf) if line.place not in said]
    assert refused
    assert all(str(conf) in text for text in refused)


def test_a_port_is_of_the_listener_that_no_line_begins_wherever_it_stands(conf: Path) -> None:
    output = imported(conf, "listener 8883 127.0.0.1\nport 1883\nbind_address 127.0.0.2\nmax_connections 5\n")
    assert places(output.config) == [("127.0.0.2", 1883), ("127.0.0.1", 8883)]
    assert [each.get("connections_max") for each in output.config["listeners"]] == [None, 5]


@pytest.mark.parametrize("line", [
    "max_connections 10", "max_qos 1", "protocol websockets", "socket_domain ipv4", "certfile /a",
    "use_username_as_clientid true", "require_certificate true",
])  # fmt: skip
def test_some_options_before_the_first_listener_open_one_on_port_1883(conf: Path, line: str) -> None:
    host, port = places(imported(conf, f"{line}\nlistener 8883\n").config)[0]
    assert (host in ("::", "0.0.0.0"), port) == (True, 1883)


@pytest.mark.parametrize("line", [
    "max_connections -1", "max_qos 2", "protocol mqtt", "require_certificate false", "tls_version tlsv1.2",
])  # fmt: skip
def test_others_open_none(conf: Path, line: str) -> None:
    output = imported(conf, f"{line}\nlistener 8883\n")
    assert [port for _, port in places(output.config)] == [8883]
    assert fates(output, line.split()[0]) == ["not taken"]


def test_without_a_listener_only_this_machine_is_served_whatever_else_is_said(conf: Path) -> None:
    """Mosquitto serves everybody for some options, and asks nobody who he is."""
    output = imported(conf, "protocol websockets\nmax_connections 5\n")
    assert {host for host, _ in places(output.config)} <= {"127.0.0.1", "::1"}
    assert all(each["websocket"]["path"] == "*" for each in output.config["listeners"])
    assert "lets everybody in from everywhere" in str(output.report.of("changed")[0])


def test_where_mosquitto_lets_everybody_in_by_mistake_that_is_said(conf: Path) -> None:
    output = imported(conf, "per_listener_settings true\nport 1883\n")
    assert output.config["listeners"][0].items() >= NOBODY.items()
    assert "lets everybody in at this listener" in str(output.report.of("changed")[0])


def test_what_a_file_says_of_its_listener_ends_with_it(conf: Path) -> None:
    """Else the second file would let everybody in at the first one's listener."""
    folder = conf.parent / "conf.d"
    folder.mkdir()
    (folder / "1.conf").write_text("listener 1884 127.0.0.1\npassword_file HERE/users\n".replace(
        "HERE", str(conf.parent)))  # fmt: skip
    (folder / "2.conf").write_text(f"allow_anonymous true\nconnection b\ninclude_dir {folder}\n")
    (folder / "3.conf").write_text("address b.example\n")
    output = imported(conf, (
        "per_listener_settings true\nlistener 1883 127.0.0.1\ninclude_dir HERE/conf.d\nmax_connections 3\n"
    ))  # fmt: skip
    first, second = output.config["listeners"]
    assert (first["connections_max"], second["authenticator"]) == (3, "password_file")
    assert "connections_max" not in second
    assert any(each.what.startswith("max_connections") for each in output.report.of("changed"))
    refused = {each.place: each.what.split()[0] for each in output.report.of("not taken")}
    assert refused[f"{folder}/2.conf:1"] == "allow_anonymous"
    assert refused[f"{folder}/2.conf:3"] == "include_dir"
    assert refused[f"{folder}/3.conf:1"] == "address"


def test_included_files_come_in_the_order_of_capital_letters(conf: Path) -> None:
    (conf.parent / "d").mkdir()
    for name in ("a_b.conf", "ab.conf", "aB.conf"):
        (conf.parent / "d" / name).write_text("# x\nmax_keepalive 5\n")
    output = imported(conf, "include_dir HERE/d\n")
    found = [each.place for each in output.report.findings if each.what.startswith("max_keepalive")]
    assert [Path(each).name for each in found] == ["aB.conf:2", "ab.conf:2", "a_b.conf:2"]


@pytest.mark.parametrize("line", ["psk_hint x", "mount_point a/"])
def test_a_listener_that_loses_a_bound_lets_nobody_in(conf: Path, line: str) -> None:
    output = imported(conf, f"listener 1883\nallow_anonymous true\nlistener 1884\n{line}\n")
    first, second = output.config["listeners"]
    assert "authenticator" not in first
    assert second.items() >= NOBODY.items()
    assert fates(output, line.split()[0]) == ["not taken"]


def test_a_bound_of_all_clients_that_is_lost_lets_nobody_in(conf: Path) -> None:
    output = imported(conf, "listener 1883\nallow_anonymous true\nclientid_prefixes secure-\nlistener 1884\n")
    assert all(each.items() >= NOBODY.items() for each in output.config["listeners"])


def test_an_interface_that_is_not_taken_opens_no_other(conf: Path) -> None:
    output = imported(
        conf, "listener 1883\nbind_interface eth1\nlistener 1884 10.0.0.1\nbind_interface eth1\n"
    )
    assert places(output.config) == [("127.0.0.1", 1883), ("10.0.0.1", 1884)]


def test_a_socket_without_a_slash_is_a_path_and_port_0_without_one_is_refused(conf: Path) -> None:
    output = imported(conf, "listener 0 x.sock\n")
    assert output.config["listeners"] == [{"path": str(Path("x.sock").absolute())}]
    with pytest.raises(ConfigError, match="a port, 1 to 65535"):
        imported(conf, "listener 0\n")


@pytest.mark.parametrize("text", [
    "remote_password\thidden\n", "connection a\nremote_password\thidden x\n", "remote_password=hidden\n",
    "remote_password:hidden x\n",
])  # fmt: skip
def test_what_is_secret_is_not_in_the_report_where_no_space_stands_in_front(conf: Path, text: str) -> None:
    output = imported(conf, text)
    assert "remote_password …" in "\n".join(output.report.lines())
    assert "hidden" not in "\n".join(output.report.lines())


@pytest.mark.parametrize("line", ["password_file /dev/zero", "acl_file /dev/zero", "password_file HERE"])
def test_what_is_no_file_is_not_read(conf: Path, line: str) -> None:
    output = imported(conf, f"listener 1883\nallow_anonymous true\n{line}\n")
    assert "is no file" in str(output.report.of("not taken")[0])


def test_a_nul_is_refused_by_name(conf: Path) -> None:
    with pytest.raises(ConfigError, match="NUL"):
        imported(conf, "password_file /a\0b\n")


def test_a_killed_import_leaves_no_configuration(conf: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    output = imported(conf, "listener 1883\npassword_file HERE/users\n")
    seen: list[bool] = []
    folder = conf.parent / "out"
    monkeypatch.setattr(
        "tidemq.migration.importing._give", lambda *_: seen.append((folder / CONFIG).exists())
    )
    write_import(output)
    assert seen == [False]  # all else is there, and whose it is, before
    (folder / CONFIG).unlink()
    with pytest.raises(UsageError, match="an import that was killed"):
        write_import(output)


def test_many_rules_are_compared_in_a_time_that_grows_with_their_number(conf: Path) -> None:
    lines = [
        f"user u{n}\ntopic readwrite {n}/#\ntopic deny {n}/secret\ntopic read all/{n}" for n in range(MANY)
    ]
    file = conf.parent / "rules"
    file.write_text("\n".join(lines) + "\n")
    state = MosquittoState(
        clients={b"c%d" % n: (1, 0) for n in range(MANY)},
        subscriptions=[
            (b"c%d" % n, b"%d/%s" % (n, b"#" if n % 1000 == 0 else b"x"), 0, 0) for n in range(MANY)
        ],
        users={b"c%d" % n: f"u{n}" for n in range(MANY)},
    )
    before = time.process_time()
    rules = read_rules(file, "mosquitto")
    assert len(find_cuts(rules)) == MANY
    assert len(list(refused_subscriptions(state, rules))) == MANY // 1000
    assert time.process_time() - before < 60  # it was hours
