"""Of each value of a configuration it is known where it came from, and no secret is shown."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tidemq.cli.serving import _warn_of_other_data as warn_of_other_data
from tidemq.config import load_config
from tidemq.origins import HIDDEN, find_lines, list_values

FILE = """\
# a comment
port = 1884
authenticator = "chain"

[[authenticator_options.of]]
authenticator = "password_file"
file = "users"

[[authenticator_options.of]]
authenticator = "static"
[authenticator_options.of.users]
file = "secret-1"
ann = "secret-2"

[[listeners]]
name = "a"
protocol_versions = [
  "3.1.1",  # a comment
  "5.0",
]

[[listeners]]
name = "b"
port = 8884
websocket = { path = "/x" }

[listeners.tls]
cert = '''a
file = "x"'''

[limits]
inflight_max = 3
receive_max = 4
"""


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("TIDEMQ_")]:
        monkeypatch.delenv(name)


def found(path: Path | None, **flags: object) -> dict[str, tuple[str, str]]:
    values = list_values(load_config(path, flags), path, flags)
    assert len({value.key for value in values}) == len(values)
    return {value.key: (value.text, value.origin) for value in values}


def test_lines_are_those_on_which_values_begin() -> None:
    lines = find_lines(FILE)
    assert lines["port",] == 2
    assert lines["authenticator_options", "of", 0, "file"] == 7
    assert lines["authenticator_options", "of", 1, "users", "ann"] == 13
    assert lines["listeners", 0, "protocol_versions"] == 17
    assert lines["listeners", 1] == 22
    assert lines["listeners", 1, "websocket", "path"] == 25
    assert lines["listeners", 1, "tls", "cert"] == 28
    assert lines["limits", "receive_max"] == 33
    assert ("listeners", 1, "tls", "file") not in lines


def test_a_statement_that_is_too_long_is_not_looked_at_for_ever() -> None:
    long = "streams = [\n" + "\n" * 1000 + "]\nport = 1\n"
    assert find_lines("host = 'x'\n" + long) == {("host",): 1}


def test_flag_environment_file_and_default(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tidemq.toml"
    path.write_text(FILE)
    monkeypatch.setenv("TIDEMQ_REACTORS", "2")
    monkeypatch.setenv("TIDEMQ_LIMITS", '{"inflight_max": 7}')
    monkeypatch.setenv("TIDEMQ_LIMITS__TOPIC_ALIAS_MAX", "5")
    values = found(path, log_level="debug", host=None)
    assert values["log_level"] == ('"debug"', "flag --log-level")
    assert values["reactors"] == ("2", "environment TIDEMQ_REACTORS")
    assert values["limits.inflight_max"] == ("7", "environment TIDEMQ_LIMITS")
    assert values["limits.topic_alias_max"] == ("5", "environment TIDEMQ_LIMITS__TOPIC_ALIAS_MAX")
    assert values["limits.receive_max"] == ("4", f"{path}:33")
    assert values["port"] == ("1884", f"{path}:2")
    assert values["host"] == ('"0.0.0.0"', "default")
    assert values["listeners.0.protocol_versions"] == ('["3.1.1", "5.0"]', f"{path}:17")
    assert values["listeners.1.websocket.path"] == ('"/x"', f"{path}:25")
    assert values["listeners.1.websocket.origins"] == ("[]", "default")
    assert values["acl_file"] == ("none", "default")


def test_a_list_of_the_environment_hides_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "tidemq.toml"
    path.write_text("[[listeners]]\nport = 1\nconnections_max = 5\n")
    monkeypatch.setenv("TIDEMQ_LISTENERS", '[{"port": 2}]')
    values = found(path)
    assert values["listeners.0.port"] == ("2", "environment TIDEMQ_LISTENERS")
    assert values["listeners.0.connections_max"] == ("0", "default")


def test_of_options_only_what_is_no_secret_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "tidemq.toml"
    path.write_text(FILE)
    values = found(path)
    assert values["authenticator_options.of.0.file"][0] == '"users"'
    assert values["authenticator_options.of.1.authenticator"][0] == '"static"'
    assert values["authenticator_options.of.1.users.file"][0] == HIDDEN
    assert values["authenticator_options.of.1.users.ann"][0] == HIDDEN
    assert "secret-" not in str(values)


def test_a_plugins_options_are_not_shown(tmp_path: Path) -> None:
    path = tmp_path / "tidemq.toml"
    path.write_text(
        "[[plugins]]\nname = 'json_schema'\n[plugins.options]\npassword = 'secret-1'\ntries = 3\non = true\n"
    )
    values = found(path)
    assert values["plugins.0.name"][0] == '"json_schema"'
    assert values["plugins.0.options.password"] == (HIDDEN, f"{path}:4")
    assert values["plugins.0.options.tries"][0] == HIDDEN
    assert values["plugins.0.options.on"][0] == "true"
    assert "secret-" not in str(values)


def test_without_a_file_all_is_default() -> None:
    assert {origin for _, origin in found(None).values()} == {"default"}


def test_a_directory_of_the_file_that_is_not_the_one_in_use_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else a service's unit would start a broker without the messages that were imported."""
    path = tmp_path / "tidemq.toml"
    path.write_text("data = '/moved/data'\n")
    warn_of_other_data(path, {"data": None})
    monkeypatch.setenv("TIDEMQ_DATA", "/moved/data/")
    warn_of_other_data(path, {})
    assert not caplog.records
    monkeypatch.setenv("TIDEMQ_DATA", "/var/lib/tidemq")
    warn_of_other_data(path, {})
    assert "/var/lib/tidemq, and not in /moved/data" in caplog.text
    warn_of_other_data(None, {})
    assert len(caplog.records) == 1
