"""`[[bridges]]`: what is accepted, and that what is wrong is refused by its key."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidemq.bridge_config import Bridge, BridgeTopic
from tidemq.config import Config, load_config
from tidemq.errors import ConfigError

LEAST: dict[str, Any] = {
    "name": "cloud",
    "addresses": ["mqtt://127.0.0.1:1883"],
    "topics": [{"filter": "sensors/#"}],
}
FILE = """
[[bridges]]
name = "cloud"
addresses = ["mqtt://127.0.0.1:1883"]
{bridge}
[[bridges.topics]]
filter = "a/#"
{topic}
"""


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "tidemq.toml"
        path.write_text(text)
        return path

    return write


def test_the_least_bridge_has_the_defaults() -> None:
    bridge = Bridge.model_validate(LEAST)
    assert bridge.protocol_version == "5.0"
    assert bridge.topics == (BridgeTopic(filter="sensors/#", direction="out", qos=0),)


def test_a_topic_has_a_filter_on_each_side() -> None:
    topic = BridgeTopic(filter="#", direction="both", local_prefix="plant/", remote_prefix="seven/")
    assert (topic.local_filter, topic.remote_filter) == ("plant/#", "seven/#")
    assert topic.is_outward
    assert topic.is_inward


def test_an_empty_filter_is_a_topic_of_another_name() -> None:
    topic = BridgeTopic(filter="", local_prefix="here", remote_prefix="there")
    assert (topic.local_filter, topic.remote_filter) == ("here", "there")


@pytest.mark.parametrize(
    ("bridge", "topic", "key", "text"),
    [
        ('protocol_version = "3.1"', "", "bridges.0.protocol_version", "'3.1.1' or '5.0'"),
        ("keep_alive_s = 4", "", "bridges.0.keep_alive_s", "greater than or equal to 5"),
        ("reconnect_s = 60.0", "", "bridges.0", "reconnect_max_s of at least reconnect_s"),
        ('notification_topic = "a/+"', "", "bridges.0.notification_topic", "without '+'"),
        ("try_privat = true", "", "bridges.0.try_privat", "did you mean try_private?"),
        ('bridge_psk = "00"', "", "bridges.0", "pre-shared keys are not taken"),
        ('tls = { psk_identity = "x" }', "", "bridges.0.tls", "take out psk_identity"),
        ('tls = { ca = "x.pem" }', "", "bridges.0", "tls only with an address of mqtts://"),
        ('tls = { key = "x.pem" }', "", "bridges.0.tls", "certificate, to which the key belongs"),
        ('tls = { cert = "x.pem" }', "", "bridges.0.tls.cert", "accepted: alpn, ca, certificate"),
        ('password_file = "x"\nprotocol_version = "3.1.1"', "", "bridges.0", "username with password_file"),
        ("", "qos = 3", "bridges.0.topics.0.qos", "less than or equal to 2"),
        ("", 'direction = "up"', "bridges.0.topics.0.direction", "'out', 'in' or 'both'"),
        ("", 'local_prefix = "a#"', "bridges.0.topics.0.local_prefix", "without '+'"),
        ("", 'prefix = "a/"', "bridges.0.topics.0.prefix", "local_prefix"),
        ("", 'local_prefix = "$SYS/"\ndirection = "in"', "bridges.0.topics.0", "nobody may publish there"),
        ("", 'remote_prefix = "$share/g/"', "bridges.0.topics.0", "none that begins with $share/"),
        ("", 'remote_prefix = "$exclusive/"\ndirection = "in"', "bridges.0.topics.0", "$exclusive/"),
        ("packet_bytes_max = -1", "", "bridges.0.packet_bytes_max", "greater than or equal to 0"),
        ("refused_retry_s = -1.0", "", "bridges.0.refused_retry_s", "greater than or equal to 0"),
    ],
)
def test_a_wrong_bridge_is_refused_by_its_key(
    write: Callable[[str], Path], bridge: str, topic: str, key: str, text: str
) -> None:
    path = write(FILE.format(bridge=bridge, topic=topic))
    with pytest.raises(ConfigError) as refused:
        load_config(path)
    assert str(refused.value).startswith(f"{path}: {key}: ")
    assert text in str(refused.value)


@pytest.mark.parametrize("filter", ["a#", "#/a", "a/+b", "a/#/b", "", "a\x00"])
def test_a_malformed_filter_is_refused(filter: str) -> None:
    with pytest.raises(ValueError, match="filter"):
        BridgeTopic(filter=filter)


@pytest.mark.parametrize(
    "address",
    ["127.0.0.1:1883", "tcp://h", "mqtt://h:0", "mqtt://h:65536", "mqtt://h/mqtt", "mqtt://", "mqtt://a b"],
)
def test_an_address_that_is_none_is_refused(address: str) -> None:
    with pytest.raises(ValueError, match="addresses"):
        Bridge.model_validate(LEAST | {"addresses": [address]})


def test_a_password_in_an_address_is_refused_and_not_repeated(write: Callable[[str], Path]) -> None:
    text = FILE.format(bridge="", topic="").replace("127.0.0.1", "ann:hunter2@h")
    with pytest.raises(ConfigError, match=r"bridges\.0\.addresses\.0") as refused:
        load_config(write(text))
    assert "hunter2" not in str(refused.value)


def test_two_bridges_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="'cloud' is there twice"):
        Config.model_validate({"bridges": [LEAST, LEAST]})
