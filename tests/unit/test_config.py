"""Configuration: flag over environment over file over default, and a wrong key or value refused by name."""

from __future__ import annotations

import dataclasses
import os

import pytest
from pydantic import ValidationError

from tidemq.config import LIMIT_RANGES, Config, Listener, load_config
from tidemq.errors import ConfigError
from tidemq.limits import Limits


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch):
    for name in list(os.environ):
        if name.startswith("TIDEMQ_"):
            monkeypatch.delenv(name)


@pytest.fixture
def write(tmp_path):
    def write(text):
        path = tmp_path / "tidemq.toml"
        path.write_text(text)
        return path

    return write


def test_defaults_are_those_of_the_models():
    config = load_config()
    assert config == Config()
    assert (config.port, config.reactors, config.store, config.limits) == (1883, 0, "rocksdb", Limits())


def test_every_limit_has_a_range_that_holds_its_default():
    assert LIMIT_RANGES.keys() == {field.name for field in dataclasses.fields(Limits)}
    for name, (low, high) in LIMIT_RANGES.items():
        assert low <= getattr(Limits(), name) <= high, name


def test_flag_goes_before_environment_before_file_before_default(monkeypatch, write):
    path = write('port = 1\nreactors = 1\nhost = "file"\n[limits]\ninflight_max = 1\nreceive_max = 1\n')
    monkeypatch.setenv("TIDEMQ_PORT", "2")
    monkeypatch.setenv("TIDEMQ_REACTORS", "2")
    monkeypatch.setenv("TIDEMQ_LIMITS__INFLIGHT_MAX", "2")
    config = load_config(path, {"port": 3, "reactors": None})
    assert (config.port, config.reactors, config.host, config.log_level) == (3, 2, "file", "info")
    assert (config.limits.inflight_max, config.limits.receive_max) == (2, 1)
    assert config.limits.packet_bytes_max == Limits().packet_bytes_max


def test_tables_come_from_the_file_and_as_json_from_the_environment(monkeypatch, write):
    path = write('authenticator = "static"\n[authenticator_options.users]\nann = "secret"\n')
    monkeypatch.setenv("TIDEMQ_LISTENERS", '[{"host": "::1", "port": 5}]')
    config = load_config(path)
    assert config.authenticator_options == {"users": {"ann": "secret"}}
    assert config.listeners == (Listener(host="::1", port=5),)


def test_a_program_s_config_reads_no_environment(monkeypatch):
    monkeypatch.setenv("TIDEMQ_PORT", "2")
    assert Config(limits=Limits(inflight_max=5)).port == 1883
    with pytest.raises(ValidationError):
        Config(limits=Limits(inflight_max=0))


@pytest.mark.parametrize(
    ("text", "key", "parts"),
    [
        ("prot = 1", "prot", ["'prot' is unknown, did you mean port?", "authenticator"]),
        ("port = 70000", "port", ["70000 is refused", "accepted: less than or equal to 65535"]),
        ("port = 'x'", "port", ["'x' is refused", "accepted: a valid integer"]),
        ("log_level = 'loud'", "log_level", ["'loud'", "'debug', 'info', 'warning' or 'error'"]),
        ("[limits]\nreceive_max = 0", "limits.receive_max", ["0 is refused", "accepted: 1 to 65535"]),
        ("[limits]\nreceive_maxx = 1", "limits.receive_maxx", ["did you mean receive_max?"]),
        ("[[listeners]]\nprot = 1", "listeners.0.prot", ["did you mean port?", "accepted: authenticator, "]),
        ("port = ", "the file", ["accepted: TOML"]),
        ("[limits]\noutput_high_bytes = 20_000_000", "limits", ["no larger than output_bytes_max"]),
        ("limits = 3", "limits", ["3 is refused"]),
        (
            "[[listeners]]\nname = 'web'\nwebsocket = true",
            "listeners.0.websocket",
            ["True is refused; accepted: a table, which may be empty: {}"],
        ),
    ],
)
def test_a_wrong_file_is_refused_with_file_key_and_accepted_values(write, text, key, parts):
    path = write(text)
    with pytest.raises(ConfigError) as caught:
        load_config(path)
    assert str(caught.value).startswith(f"{path}: {key}: ")
    for part in parts:
        assert part in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "parts"),
    [
        ("TIDEMQ_PROT", "1", ["TIDEMQ_PROT", "did you mean port?"]),
        ("TIDEMQ_PORT", "x", ["environment TIDEMQ_PORT: port: 'x' is refused"]),
        (
            "TIDEMQ_LIMITS__RECEIVE_MAX",
            "0",
            ["environment TIDEMQ_LIMITS__RECEIVE_MAX", "accepted: 1 to 65535"],
        ),
        ("TIDEMQ_LIMITS__RECEIVE", "0", ["TIDEMQ_LIMITS__RECEIVE", "did you mean receive_max?"]),
        ("TIDEMQ_PORT__X", "0", ["TIDEMQ_PORT__X"]),
        ("TIDEMQ_LISTENERS", "[{", ["listeners", "accepted: JSON"]),
    ],
)
def test_a_wrong_environment_is_refused(monkeypatch, name, value, parts):
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        load_config()
    for part in parts:
        assert part in str(caught.value)


def test_a_wrong_flag_is_refused_as_a_flag(write):
    with pytest.raises(ConfigError, match="flag --admin-port: admin_port: -1 is refused"):
        load_config(write("admin_port = 5"), {"admin_port": -1})


def test_variables_of_build_and_tests_are_not_the_broker_s(monkeypatch):
    monkeypatch.setenv("TIDEMQ_BUILD", "thread")
    monkeypatch.setenv("TIDEMQ_TEST_SEED", "1")
    assert load_config() == Config()


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "none.toml")
