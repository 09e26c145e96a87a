"""Configuration: flag over environment over file over default, and a wrong key or value refused by name."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from tidemq.bridge_config import Bridge, BridgeTls, BridgeTopic
from tidemq.broker.authenticators.builtin import AnonymousOptions
from tidemq.broker.authenticators.password_file import PasswordFileOptions
from tidemq.broker.providers import read_options
from tidemq.config import LIMIT_RANGES, Config, Listener, StreamConfig, load_config
from tidemq.errors import ConfigError
from tidemq.limits import Limits


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith("TIDEMQ_"):
            monkeypatch.delenv(name)


@pytest.fixture
def write(tmp_path: Path) -> Callable[[str], Path]:
    def write(text: str) -> Path:
        path = tmp_path / "tidemq.toml"
        path.write_text(text)
        return path

    return write


def test_defaults_are_those_of_the_models() -> None:
    config = load_config()
    assert config == Config()
    assert (config.port, config.reactors, config.store, config.limits) == (1883, 0, "rocksdb", Limits())


def test_every_limit_has_a_range_that_holds_its_default() -> None:
    assert LIMIT_RANGES.keys() == {field.name for field in dataclasses.fields(Limits)}
    for name, (low, high) in LIMIT_RANGES.items():
        assert low <= getattr(Limits(), name) <= high, name


def test_flag_goes_before_environment_before_file_before_default(
    monkeypatch: pytest.MonkeyPatch, write: Callable[[str], Path]
) -> None:
    path = write('port = 1\nreactors = 1\nhost = "file"\n[limits]\ninflight_max = 1\nreceive_max = 1\n')
    monkeypatch.setenv("TIDEMQ_PORT", "2")
    monkeypatch.setenv("TIDEMQ_REACTORS", "2")
    monkeypatch.setenv("TIDEMQ_LIMITS__INFLIGHT_MAX", "2")
    config = load_config(path, {"port": 3, "reactors": None})
    assert (config.port, config.reactors, config.host, config.log_level) == (3, 2, "file", "info")
    assert (config.limits.inflight_max, config.limits.receive_max) == (2, 1)
    assert config.limits.packet_bytes_max == Limits().packet_bytes_max


def test_tables_come_from_the_file_and_as_json_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, write: Callable[[str], Path]
) -> None:
    path = write('authenticator = "static"\n[authenticator_options.users]\nann = "secret"\n')
    monkeypatch.setenv("TIDEMQ_LISTENERS", '[{"host": "::1", "port": 5}]')
    config = load_config(path)
    assert config.authenticator_options == {"users": {"ann": "secret"}}
    assert config.listeners == (Listener(host="::1", port=5),)


SCALARS = {int: (True, "1", 1.5, None), float: (True, "1", None), bool: (1, "true", None)}


def options_of(name: str) -> type[Any]:
    """Of a provider of the broker's, which may need `tidemq[auth]`."""
    module, _, model = name.partition(".")
    found: type[Any] = getattr(
        pytest.importorskip(f"tidemq.broker.authenticators.{module}", exc_type=ImportError), model
    )
    return found


@pytest.mark.parametrize(
    ("model", "given"),
    [
        (Config, {}),
        (Listener, {}),
        (StreamConfig, {"name": "s", "filters": ("#",)}),
        (Bridge, {"name": "b", "addresses": ("mqtt://h",), "topics": ({"filter": "#"},)}),
        (BridgeTls, {}),
        (BridgeTopic, {"filter": "#"}),
        ("webhook.WebhookOptions", {"url": "http://localhost"}),
        ("jwt.JwtOptions", {"algorithms": ("HS256",), "secret_file": Path("s")}),
        ("certificate.CertificateOptions", {}),
        (PasswordFileOptions, {"file": Path("f")}),
        (AnonymousOptions, {}),
    ],
)
def test_a_number_is_a_number_and_a_bool_a_bool(model: Any, given: Any) -> None:
    """For every key of every table; text and bools pass for numbers nowhere."""
    if isinstance(model, str):
        model = options_of(model)
    model.model_validate(given)
    for name, field in model.model_fields.items():
        kinds = [kind for kind in (field.annotation, *get_args(field.annotation)) if kind in SCALARS]
        for value in SCALARS[kinds[0]] if kinds else ():
            if value is None and field.default is None:
                continue
            with pytest.raises(ValidationError):
                model.model_validate({**given, name: value})


@pytest.mark.parametrize("name", LIMIT_RANGES)
def test_a_limit_is_a_number(name: str) -> None:
    for value in (True, str(LIMIT_RANGES[name][1]), float(LIMIT_RANGES[name][1]), None):
        with pytest.raises(ValidationError):
            Config.model_validate({"limits": {name: value}})


def test_what_the_environment_says_is_text_and_read_as_its_key_wants(
    monkeypatch: pytest.MonkeyPatch, write: Callable[[str], Path]
) -> None:
    monkeypatch.setenv("TIDEMQ_PORT", "25901")
    monkeypatch.setenv("TIDEMQ_PLAIN", "false")
    monkeypatch.setenv("TIDEMQ_DECISION_S", "2.5")
    monkeypatch.setenv("TIDEMQ_LIMITS__RECEIVE_MAX", "7")
    monkeypatch.setenv("TIDEMQ_AUTHENTICATOR", "webhook")
    monkeypatch.setenv("TIDEMQ_AUTHENTICATOR_OPTIONS__URL", "http://localhost")
    monkeypatch.setenv("TIDEMQ_AUTHENTICATOR_OPTIONS__TIMEOUT_S", "1.5")
    config = load_config(write("port = 1\n[limits]\ninflight_max = 3\n"))
    assert (config.port, config.plain, config.decision_s) == (25901, False, 2.5)
    assert (config.limits.receive_max, config.limits.inflight_max) == (7, 3)
    webhook = options_of("webhook.WebhookOptions")
    options = read_options("webhook", webhook, config.authenticator_options)
    assert options.timeout_s == 1.5
    monkeypatch.setenv("TIDEMQ_AUTHENTICATOR_OPTIONS__TIMEOUT_S", "soon")
    with pytest.raises(ConfigError, match="timeout_s"):
        read_options("webhook", webhook, load_config().authenticator_options)


def test_keys_of_a_table_in_the_environment_go_before_its_json_and_that_before_the_file(
    write: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIDEMQ_LIMITS", '{"inflight_max": 2, "receive_max": 2}')
    monkeypatch.setenv("TIDEMQ_LIMITS__RECEIVE_MAX", "3")
    monkeypatch.setenv("TIDEMQ_STORE_OPTIONS", '{"cache": {"bytes": 1, "files": 1}}')
    monkeypatch.setenv("TIDEMQ_STORE_OPTIONS__CACHE__BYTES", "2")
    monkeypatch.setenv("TIDEMQ_STORE_OPTIONS__PASSWORD", "123")
    config = load_config(write("[limits]\ninflight_max = 1\nreceive_max = 1\nshutdown_s = 1\n"))
    limits = config.limits
    assert (limits.inflight_max, limits.receive_max, limits.shutdown_s) == (2, 3, 1)
    assert config.store_options == {"cache": {"bytes": "2", "files": 1}, "password": "123"}


def test_a_program_s_config_reads_no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMQ_PORT", "2")
    assert Config(limits=Limits(inflight_max=5)).port == 1883
    with pytest.raises(ValidationError):
        Config(limits=Limits(inflight_max=0))


@pytest.mark.parametrize(
    ("text", "key", "parts"),
    [
        ("prot = 1", "prot", ["'prot' is unknown, did you mean port?", "authenticator"]),
        ("port = 70000", "port", ["70000 is refused", "accepted: less than or equal to 65535"]),
        ("port = true", "port", ["True is refused; accepted: a valid integer"]),
        ("port = '25901'", "port", ["'25901' is refused; accepted: a valid integer"]),
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
def test_a_wrong_file_is_refused_with_file_key_and_accepted_values(
    write: Callable[[str], Path], text: str, key: str, parts: list[str]
) -> None:
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
def test_a_wrong_environment_is_refused(
    monkeypatch: pytest.MonkeyPatch, name: str, value: str, parts: list[str]
) -> None:
    monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError) as caught:
        load_config()
    for part in parts:
        assert part in str(caught.value)


def test_a_wrong_flag_is_refused_as_a_flag(write: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="flag --admin-port: admin_port: -1 is refused"):
        load_config(write("admin_port = 5"), {"admin_port": -1})


def test_variables_of_build_and_tests_are_not_the_broker_s(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIDEMQ_BUILD", "thread")
    monkeypatch.setenv("TIDEMQ_TEST_SEED", "1")
    assert load_config() == Config()


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        load_config(tmp_path / "none.toml")
