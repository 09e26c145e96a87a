"""A mosquitto.conf becomes a configuration of TideMQ: each option, and nothing opens by accident."""

from __future__ import annotations

import re
import stat
import tomllib
from pathlib import Path
from typing import Any

import pytest
import trustme
from hypothesis import given
from hypothesis import strategies as st

from tidemq.config import Config, check_values
from tidemq.errors import ConfigError, UsageError
from tidemq.migration.importing import plan_import, write_import
from tidemq.migration.options import OPTIONS, option_name
from tidemq.migration.output import Output
from tidemq.migration.toml_writer import write_toml
from tidemq.store.mosquitto import MosquittoState
from tidemq.store.mosquitto import _Delivery as Delivery
from tidemq.store.mosquitto import _Message as Message

DOCS = Path(__file__).parents[2] / "docs"
HASH = (
    "$7$101$+06siSBFJLJ0e2at$"
    "k+SicCVBL50pQz2fuD02gQrG2s81BiiUE+M8qmgqFHnmWIhFznUCtKEEA4N++DXC35rnvlHJIUJAVxHv+un4gQ=="
)
# mosquitto.conf(5) of 2.0.11
OF_2_0 = (
    "acl_file allow_anonymous allow_duplicate_messages allow_zero_length_clientid auth_plugin "
    "auth_plugin_deny_special_chars auto_id_prefix autosave_interval autosave_on_changes "
    "check_retain_source clientid_prefixes connection_messages include_dir log_dest "
    "log_facility log_timestamp log_timestamp_format log_type max_inflight_bytes "
    "max_inflight_messages max_keepalive max_packet_size max_queued_bytes max_queued_messages "
    "memory_limit message_size_limit password_file per_listener_settings persistence "
    "persistence_file persistence_location persistent_client_expiration pid_file psk_file "
    "queue_qos0_messages retain_available set_tcp_nodelay sys_interval upgrade_outgoing_qos "
    "user bind_address bind_interface http_dir listener max_connections max_qos "
    "max_topic_alias mount_point port protocol socket_domain use_username_as_clientid "
    "websockets_log_level websockets_headers_size cafile capath certfile ciphers "
    "ciphers_tls1.3 crlfile dhparamfile keyfile require_certificate tls_engine "
    "tls_engine_kpass_sha1 tls_keyform tls_version use_identity_as_username "
    "use_subject_as_username psk_hint address addresses bridge_attempt_unsubscribe "
    "bridge_bind_address bridge_max_packet_size bridge_outgoing_retain bridge_protocol_version "
    "cleansession local_cleansession connection keepalive_interval idle_timeout local_clientid "
    "local_password local_username notifications notifications_local_only notification_topic "
    "remote_clientid remote_password remote_username restart_timeout round_robin start_type "
    "threshold topic try_private bridge_alpn bridge_cafile bridge_capath bridge_certfile "
    "bridge_identity bridge_insecure bridge_keyfile bridge_psk bridge_require_ocsp "
    "bridge_tls_version plugin plugin_opt_x auth_opt_x clientid username password "
    "bridge_reload_type maximum_qos retained_persistence "
)


@pytest.fixture
def conf(tmp_path: Path) -> Path:
    """Where a mosquitto.conf is, beside files that it may name."""
    (tmp_path / "users").write_text(f"ann:{HASH}\n")
    (tmp_path / "acl").write_text("user ann\ntopic readwrite a/#\n")
    return tmp_path / "mosquitto.conf"


def imported(conf: Path, text: str, **files: str) -> Output:
    conf.write_text(text.replace("HERE", str(conf.parent)))
    for name, content in files.items():
        (conf.parent / name).write_text(content)
    output = plan_import(conf, conf.parent / "out")
    assert check_values(output.config, conf)  # TideMQ takes it
    return output


def looked_up(config: dict[str, Any], key: str) -> Any:
    found: Any = config
    for part in key.split("."):
        found = found[int(part) if part.isdigit() else part]
    return found


def fates(output: Output, option: str) -> list[str]:
    return [each.fate for each in output.report.findings if each.what.split()[0] == option]


def test_every_option_of_mosquitto_is_known() -> None:
    assert not [name for name in OF_2_0.split() if option_name(name) not in OPTIONS]


@pytest.mark.skipif(not DOCS.is_dir(), reason="the source tree is hidden")
def test_the_page_says_of_every_option_what_becomes_of_it() -> None:
    page = (DOCS / "from-mosquitto.md").read_text()
    rows = re.findall(r"^\| `([^`]+)` \| (taken|changed|not taken) \| (.*) \|$", page, re.MULTILINE)
    told = {name: (fate, text) for name, fate, text in rows}
    assert told == {
        name: (option.fate, option.text.replace("|", "\\|")) for name, option in sorted(OPTIONS.items())
    }
    assert len(rows) == len(told)


TAKEN = {
    "max_inflight_messages 20": ("limits.inflight_max", 20),
    "max_inflight_messages 0": ("limits.inflight_max", 65_535),
    "max_keepalive 600": ("limits.keep_alive_s_max", 600),
    "max_keepalive 65535": ("limits.keep_alive_s_max", 0),
    "max_packet_size 5000": ("limits.packet_bytes_max", 5000),
    "max_queued_bytes 50000": ("limits.queued_bytes_max", 50_000),
    "max_queued_messages 7": ("limits.queued_messages_max", 7),
    "max_queued_messages 0": ("limits.queued_messages_max", 1_000_000_000),
    "memory_limit 1000000": ("limits.memory_bytes_max", 1_000_000),
    "message_size_limit 300": ("limits.payload_bytes_max", 300),
    "max_topic_alias_broker 3": ("limits.topic_alias_max", 3),
    "global_max_connections 9": ("limits.connections_max", 9),
    "global_max_clients 8": ("limits.sessions_max", 8),
    "persistent_client_expiration 2d": ("limits.session_expiry_s_max", 172_800),
    "retain_available false": ("retain_available", False),
    "sys_interval 20": ("sys_interval_s", 20.0),
    "persistence true": ("store", "rocksdb"),
    "persistence false": ("store", "memory"),
    "retained_persistence true": ("store", "rocksdb"),
    "user mosquitto": ("user", "mosquitto"),
    "log_type error\nlog_type debug": ("log_level", "debug"),
    "log_type warning": ("log_level", "warning"),
    "log_type none": ("log_level", "error"),
    "log_dest none": ("log_level", "error"),
    "connection_messages false": ("log_levels", {"clients": "warning"}),
    "allow_anonymous true": ("authenticator", "anonymous"),
    "allow_zero_length_clientid false": ("client_id_required", True),
    "listener 1883\npassword_file HERE/users": ("authenticator", "password_file"),
    "acl_file HERE/acl": ("acl_format", "mosquitto"),
    "listener 1884 127.0.0.1": ("listeners.0.port", 1884),
    "port 1885\nbind_address 127.0.0.1": ("listeners.0.host", "127.0.0.1"),
    "listener 0 /run/x.sock": ("listeners.0.path", "/run/x.sock"),
    "listener 1884\nsocket_domain ipv4": ("listeners.0.host", "0.0.0.0"),
    "listener 1884\nsocket_domain ipv6": ("listeners.0.host", "::"),
    "listener 1884\nmax_connections 5": ("listeners.0.connections_max", 5),
    "listener 1884\nmax_qos 1": ("listeners.0.qos_max", 1),
    "listener 1884\nmaximum_qos 0": ("listeners.0.qos_max", 0),
    "listener 1884\nmax_topic_alias 4\nlistener 1885\nmax_topic_alias 2": ("limits.topic_alias_max", 4),
    "listener 1884\nprotocol websockets": ("listeners.0.websocket.path", "*"),
    "listener 1884\nprotocol websockets\nwebsockets_origin https://a": (
        "listeners.0.websocket.origins", ["https://a"]
    ),
    "listener 1884\nenable_proxy_protocol 2": ("listeners.0.proxy_protocol", True),
    "listener 1884\naccept_protocol_versions 4,5": ("listeners.0.protocol_versions", ["3.1.1", "5.0"]),
    "listener 1884\nlistener_allow_anonymous true": ("listeners.0.authenticator", "anonymous"),
    "listener 1884\ncertfile a.pem": ("listeners.0.tls.cert", str(Path("a.pem").absolute())),
    "listener 1884\ncertfile /a\nkeyfile /b": ("listeners.0.tls.key", "/b"),
    "listener 1884\ncertfile /a\ntls_version tlsv1.3": ("listeners.0.tls.version_min", "1.3"),
    "listener 1884\ncertfile /a\ncafile /c\nrequire_certificate true": (
        "listeners.0.tls.client_cert", "required"
    ),
    "listener 1884\ncertfile /a\ncafile /c\nrequire_certificate true\ncrlfile /d": (
        "listeners.0.tls.crl", "/d"
    ),
    "listener 1884\ncertfile /a\ncafile /c\nrequire_certificate true\nuse_identity_as_username true": (
        "listeners.0.authenticator_options.identity", "cn"
    ),
    "listener 1884\ncertfile /a\ncafile /c\nrequire_certificate true\nuse_subject_as_username true": (
        "listeners.0.authenticator_options.identity", "subject"
    ),
}  # fmt: skip


@pytest.mark.parametrize("text", TAKEN)
def test_an_option_that_is_taken_has_its_key(conf: Path, text: str) -> None:
    key, value = TAKEN[text]
    output = imported(conf, text)
    assert looked_up(output.config, key) == value
    assert not output.report.of("not taken")


def test_every_option_that_is_taken_is_tried() -> None:
    """By the tests above and the bridges', unless nothing has to be done for it."""
    tried = {option_name(line.split()[0]) for text in TAKEN for line in text.split("\n")}
    nothing = {"set_tcp_nodelay", "include_dir", "per_listener_settings", "capath"}
    left = {
        name
        for name, option in OPTIONS.items()
        if option.fate == "taken" and option.scope != "bridge" and name not in tried | nothing
    }
    assert not left


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option.fate == "not taken"])
def test_what_is_not_taken_is_said_with_its_line(conf: Path, name: str) -> None:
    bridge = OPTIONS[name].scope == "bridge"
    before = "connection a\naddress b\ntopic #\n" if bridge else "listener 1883\n"
    option = name.replace("*", "x")
    output = imported(conf, f"{before}{option} true\n")
    place = f"{conf}:{before.count(chr(10)) + 1}"
    assert any(each.place == place and each.what.startswith(option) for each in output.report.of("not taken"))


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option.same])
def test_a_value_that_is_tidemqs_own_way_needs_nothing(conf: Path, name: str) -> None:
    for value in OPTIONS[name].same:
        assert fates(imported(conf, f"{name} {value}\n"), name) == ["taken"]


def test_what_nobody_knows_is_listed_without_its_value(conf: Path) -> None:
    output = imported(conf, "listener 1883\n\n# x\nremote_pasword hidden-secret\n")
    assert [str(each) for each in output.report.of("not taken")] == [
        f"{conf}:4: remote_pasword …: TideMQ knows no such option of Mosquitto's"
    ]


def test_without_a_listener_only_this_machine_is_served(conf: Path) -> None:
    output = imported(conf, "persistence false\n")
    hosts = {each["host"] for each in output.config["listeners"]}
    assert hosts <= {"127.0.0.1", "::1"}
    assert output.config["authenticator"] == "anonymous"  # and there is no listener for others


def test_with_a_listener_nobody_comes_in_unless_somebody_says_so(conf: Path) -> None:
    config = imported(conf, "listener 1883\n").config
    assert (config["authenticator"], config["authenticator_options"]) == ("static", {"users": {}})
    assert config["plain"] is False


def test_anonymous_beside_users_is_for_clients_without_a_name(conf: Path) -> None:
    config = imported(conf, "listener 1883\nallow_anonymous true\npassword_file HERE/users\n").config
    members = config["authenticator_options"]["of"]
    assert [each["authenticator"] for each in members] == ["password_file", "anonymous"]
    assert members[1] == {"authenticator": "anonymous", "remote": True, "named": False}


def test_files_are_included_as_mosquitto_does(conf: Path) -> None:
    for folder, names in {"one.d": "b.conf A.conf 01.conf a.conf B.conf x.txt", "two.d": "0.conf"}.items():
        (conf.parent / folder).mkdir()
        for name in names.split():
            (conf.parent / folder / name).write_text(f"# {name}\nmax_queued_messages 1{name[:1] == 'b':d}\n")
    output = imported(conf, "include_dir HERE/one.d\ninclude_dir HERE/two.d\nmax_keepalive 5\n")
    lines = [each.place for each in output.report.findings if each.what.startswith("max_queued_messages")]
    seen = [f"{Path(place).parent.name}/{Path(place).name}" for place in lines]
    assert seen == [f"one.d/{name}.conf:2" for name in ("01", "A", "a", "B", "b")] + ["two.d/0.conf:2"]
    assert output.config["limits"]["queued_messages_max"] == 10  # the last one's
    assert output.config["limits"]["keep_alive_s_max"] == 5


def test_each_listener_may_have_its_own_users(conf: Path) -> None:
    text = (
        "per_listener_settings true\nlistener 1883\nallow_anonymous true\n"
        "listener 1884\npassword_file HERE/users\nallow_zero_length_clientid false\nlistener 1885\n"
    )
    output = imported(conf, text)
    open_one, users, closed = output.config["listeners"]
    assert "authenticator" not in output.config
    assert (open_one["authenticator"], users["authenticator"]) == ("anonymous", "password_file")
    assert users["client_id_required"]
    assert closed["authenticator_options"] == {"users": {}}


def test_rules_that_differ_by_listener_close_all(conf: Path) -> None:
    text = (
        "per_listener_settings true\nlistener 1883\nallow_anonymous true\nacl_file HERE/acl\n"
        "listener 1884\nallow_anonymous true\n"
    )
    output = imported(conf, text)
    assert (fates(output, "acl_file")[-1], output.files["rules.acl"]) == ("not taken", b"deny all #\n")
    same = text + "acl_file HERE/acl\n"
    output = imported(conf, same)
    assert output.files["rules.acl"].startswith(b"user ann")
    assert not output.report.of("not taken")


@pytest.mark.parametrize("line", [
    "plugin /usr/lib/somebodys_own.so", "auth_plugin /usr/lib/somebodys_own.so",
    "plugin /usr/lib/mosquitto_dynamic_security.so",
    "password_file HERE/broken", "password_file HERE/missing",
])  # fmt: skip
def test_where_it_is_not_known_who_was_let_in_nobody_is(conf: Path, line: str) -> None:
    text = f"listener 1883\nallow_anonymous true\n{line}\n"
    output = imported(conf, text, broken="ann:plain text\n")
    assert output.config["authenticator_options"] == {"users": {}}


@pytest.mark.parametrize("line", ["acl_file HERE/broken", "acl_file HERE/missing", "acl_file HERE/empty"])
def test_where_it_is_not_known_what_was_allowed_nothing_is(conf: Path, line: str) -> None:
    output = imported(conf, f"listener 1883\n{line}\n", broken="topic read\nwhatever\n", empty="\n")
    assert output.files["rules.acl"] == b"deny all #\n"
    assert fates(output, "acl_file") == ["not taken"]


def test_a_certificate_that_nobody_asks_for_lets_nobody_in(conf: Path) -> None:
    text = "listener 1883\nallow_anonymous true\ncertfile /a\nuse_identity_as_username true\n"
    assert imported(conf, text).config["listeners"][0]["authenticator"] == "static"


def test_a_filter_of_which_a_part_is_refused_is_named(conf: Path) -> None:
    rules = "user ann\ntopic read a/#\ntopic deny a/secret\n"
    output = imported(conf, "listener 1883\nacl_file HERE/cut\n", cut=rules)
    (found,) = [each for each in output.report.of("changed") if each.what == "a/#"]
    assert found.place == f"{conf.parent}/cut:2"


def test_a_directory_of_authorities_becomes_one_file(conf: Path) -> None:
    folder = conf.parent / "authorities"
    folder.mkdir()
    for name in ("0123abcd.0", "0123abcd.1", "89abcdef.0", "nobody-trusts-it.pem"):
        trustme.CA().cert_pem.write_to_path(str(folder / name))
    (folder / "fedcba98.0").write_bytes((folder / "0123abcd.0").read_bytes())
    text = "listener 1883\ncertfile /a\ncapath HERE/authorities\nrequire_certificate true\n"
    output = imported(conf, text)
    assert output.files["clients-ca.pem"].count(b"BEGIN CERTIFICATE") == 3
    assert output.config["listeners"][0]["tls"]["client_ca"].endswith("out/clients-ca.pem")


BRIDGE = """
connection to-the_cloud
addresses one.example:8883 two.example [::1]:1884 ::2
topic sensors/# out 1 site/ plant/
topic # in 2 "" commands/
topic "" both 0 a b
topic plain
bridge_protocol_version mqttv50
remote_clientid me
remote_username joe
remote_password hidden-secret
cleansession true
keepalive_interval 30
restart_timeout 10 60
round_robin true
try_private false
notifications false
notification_topic n/t
notifications_local_only true
bridge_outgoing_retain false
bridge_max_packet_size 100000
bridge_cafile /ca
bridge_certfile /cert
bridge_keyfile /key
bridge_insecure true
bridge_alpn mqtt
start_type lazy
local_username x
local_password hidden-too
"""


def test_a_bridge_has_all_that_it_had(conf: Path) -> None:
    conf.write_text("listener 1883\n" + BRIDGE)
    output = plan_import(conf, conf.parent / "out")
    (bridge,) = output.config["bridges"]
    topics, tls = bridge.pop("topics"), bridge.pop("tls")
    assert bridge == {
        "name": "to-the_cloud",
        "addresses": [
            "mqtts://one.example:8883", "mqtts://two.example:1883", "mqtts://[::1]:1884", "mqtts://[::2]:1883"
        ],
        "protocol_version": "5.0", "client_id": "me", "username": "joe", "clean_session": True,
        "password_file": str(conf.parent / "out/bridges/to-the_cloud.password"),
        "keep_alive_s": 30, "reconnect_s": 10, "reconnect_max_s": 60, "round_robin": True,
        "try_private": False, "notifications": False, "notification_topic": "n/t",
        "notifications_local_only": True, "outgoing_retain": False, "packet_bytes_max": 100_000,
    }  # fmt: skip
    assert tls == {"ca": "/ca", "certificate": "/cert", "key": "/key", "insecure": True, "alpn": "mqtt"}
    names = ("filter", "direction", "qos", "local_prefix", "remote_prefix")
    assert [tuple(each[name] for name in names) for each in topics] == [
        ("sensors/#", "out", 1, "site/", "plant/"), ("#", "in", 2, "", "commands/"),
        ("", "both", 0, "a", "b"), ("plain", "out", 0, "", ""),
    ]  # fmt: skip
    assert output.files["bridges/to-the_cloud.password"] == b"hidden-secret\n"
    assert "hidden-" not in "\n".join(output.report.lines())
    assert fates(output, "start_type") == ["changed"]


def test_a_bridge_of_mosquittos_defaults(conf: Path) -> None:
    conf.write_text("connection up\naddress b.example\ntopic # out\n")
    (bridge,) = plan_import(conf, conf.parent / "out").config["bridges"]
    assert bridge["client_id"].endswith(".up")
    assert (bridge["protocol_version"], bridge["clean_session"], bridge["try_private"]) == (
        "3.1.1",
        False,
        True,
    )
    assert (bridge["keep_alive_s"], bridge["reconnect_s"], bridge["reconnect_max_s"]) == (60, 5, 30)
    assert "tls" not in bridge


@pytest.mark.parametrize(("lines", "own"), [
    ("remote_clientid me", b"local.me"), ("local_clientid here", b"here"),
    ("clientid me\nlocal_clientid x", b"x"),
])  # fmt: skip
@pytest.mark.parametrize("waiting", [0, 2])
def test_a_bridges_own_session_is_not_left_without_an_owner(
    conf: Path, lines: str, own: bytes, waiting: int
) -> None:
    state = MosquittoState(
        messages={1: Message(b"t", b"x", b"", 1, 0, 0)},
        clients={own: (0xFFFFFFFF, 0), b"other": (0xFFFFFFFF, 0)},
        subscriptions=[(own, b"#", 1, 0), (b"other", b"#", 1, 0)],
        deliveries=[Delivery(own, 1, 0, 1, 0, 0, ())] * waiting + [Delivery(b"other", 1, 0, 1, 0, 0, ())],
    )
    conf.write_text(f"connection up\naddress b.example\ntopic # out\n{lines}\n")
    output = plan_import(conf, conf.parent / "out", state)
    assert list(state.clients) == [b"other"]
    assert [each[0] for each in state.subscriptions] == [b"other"]
    assert [each.client_id for each in state.deliveries] == [b"other"]
    assert fates(output, "session") == ["not taken" if waiting else "taken"]


@pytest.mark.parametrize(("lines", "option", "fate"), [
    ("topic # in 0 $local/ remote/", "topic", "not taken"), ("topic a/#/b out", "topic", "not taken"),
    ("keepalive_interval 1", "keepalive_interval", "changed"), ("topic t in", "topic", "taken"),
    ("remote_password hidden", "connection", "not taken"),  # without a user
])  # fmt: skip
def test_of_a_bridge_what_tidemq_does_not_take_is_said(
    conf: Path, lines: str, option: str, fate: str
) -> None:
    output = imported(conf, f"connection my.house\naddress b.example\ntopic # out\n{lines}\n")
    assert fate in fates(output, option)
    for bridge in output.config.get("bridges", []):
        assert bridge["name"] == "my-house"
        assert bridge["client_id"].endswith(".my.house")
        assert bridge["topics"][0]["filter"] == "#"


@pytest.mark.parametrize("lines", ["bridge_psk 00ff\nbridge_identity x\n", ""])
def test_a_bridge_that_would_speak_in_clear_or_to_nobody_is_left_out(conf: Path, lines: str) -> None:
    address = "address b.example\n" if lines else ""
    conf.write_text(f"listener 1883\nconnection up\n{address}topic # out\n{lines}")
    output = plan_import(conf, conf.parent / "out")
    assert "bridges" not in output.config
    assert fates(output, "connection") == ["not taken"]
    assert "00ff" not in "\n".join(output.report.lines())


@pytest.mark.parametrize(("text", "words"), [
    ("listener nowhere\n", "nowhere"), ("max_queued_messages many\n", "many"), ("persistence yes\n", "yes"),
    ("persistent_client_expiration 5x\n", "5x"), ("listener 1883\nmax_qos 3\n", "qos_max"),
    ("connection a\naddress b\ntopic # sideways\n", "sideways"), ("include_dir HERE/nowhere\n", "nowhere"),
    ("connection a\naddress b\ntopic #\nbridge_protocol_version 7\n", "7"), ("\udcff\n", "UTF-8"),
])  # fmt: skip
def test_what_cannot_be_meant_is_an_error_that_names_its_place(conf: Path, text: str, words: str) -> None:
    conf.write_bytes(text.replace("HERE", str(conf.parent)).encode(errors="surrogateescape"))
    with pytest.raises(ConfigError, match=re.escape(str(conf))) as error:
        plan_import(conf, conf.parent / "out")
    assert words in str(error.value)


def test_what_is_written_is_its_owners_alone_and_whole_or_not_at_all(conf: Path) -> None:
    output = imported(conf, "listener 1883\npassword_file HERE/users\nacl_file HERE/acl\n")
    write_import(output)
    folder = conf.parent / "out"
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (folder, *folder.iterdir())}
    assert modes == {"out": 0o700} | dict.fromkeys(("tidemq.toml", "users", "rules.acl", "report.txt"), 0o600)
    assert Config.model_validate(tomllib.loads((folder / "tidemq.toml").read_text()))
    with pytest.raises(UsageError, match="is there already"):
        write_import(output)
    output.folder = conf.parent / "empty"
    output.folder.mkdir()
    output.files["a\0b"] = b""
    with pytest.raises(ValueError, match="null"):
        write_import(output)
    assert list(output.folder.iterdir()) == []


plain_values = st.one_of(
    st.booleans(), st.integers(-(2**63), 2**63 - 1), st.text(st.characters(codec="utf-8")),
    st.floats(allow_nan=False, allow_infinity=False),
    st.lists(st.text(st.characters(codec="utf-8")), max_size=3),
)  # fmt: skip
tables = st.recursive(
    st.dictionaries(st.text(st.characters(codec="utf-8")), plain_values, max_size=4),
    lambda inner: st.dictionaries(
        st.text(st.characters(codec="utf-8")),
        st.one_of(plain_values, inner, st.lists(inner, min_size=1, max_size=3)),
        max_size=4,
    ),
    max_leaves=8,
)


@given(tables)
def test_what_is_written_as_toml_is_read_as_it_was(table: dict[str, Any]) -> None:
    assert tomllib.loads(write_toml(table)) == table
