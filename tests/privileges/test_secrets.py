"""Secrets are in nothing that a broker writes: logs at every level, errors of the configuration, reprs."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import pytest
from conformance import packets
from privileges.serving import Serving, Start
from pydantic import ValidationError
from waiting import WAIT_S, wait_until

from tidemq.broker import Broker
from tidemq.broker.authenticators.password_file import change_password_file
from tidemq.client.errors import ServerRefusedError
from tidemq.client.sync import Client
from tidemq.config import Config, load_config
from tidemq.engine.door.events import AuthRequest, ConnectRequest
from tidemq.errors import ConfigError

SECRET = "fj39-secret-of-somebody"  # begins every secret of this file


def come_in(broker: Serving, username: str, password: str) -> bool:
    try:
        with Client(
            f"mqtt://127.0.0.1:{broker.port}", username=username, password=password.encode()
        ) as client:
            client.publish("a", f"{SECRET}-payload", qos=1)
            return True
    except ServerRefusedError:
        return False


def garble(port: int, data: bytes) -> None:
    """Sends bytes, and takes what comes until the other side closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=WAIT_S) as connection:
        connection.sendall(data)
        connection.shutdown(socket.SHUT_WR)
        while connection.recv(4096):
            pass


def test_nothing_secret_is_logged_at_any_level(serving: Start, tmp_path: Path) -> None:
    token, users = tmp_path / "token", tmp_path / "users"
    token.write_text(f"{SECRET}-token")
    change_password_file(users, "ann", f"{SECRET}-password".encode())
    broker = serving(
        f'log_level = "debug"\ndata = "{tmp_path / "data"}"\nadmin_token_file = "{token}"\n'
        'authenticator = "password_file"\n[[streams]]\nname = "all"\nfilters = ["#"]\n'
        f'[authenticator_options]\nfile = "{users}"\n',
        admin=True,
    )
    assert come_in(broker, "ann", f"{SECRET}-password")
    assert not come_in(broker, "ann", f"{SECRET}-wrong")
    assert not come_in(broker, "bob", f"{SECRET}-other")
    # whose token is known has the path in the audit log, and nobody else
    for text, name in ((f"{SECRET}-token", "all"), (f"{SECRET}-wrong", SECRET)):
        broker.ask("/counters", headers={"Authorization": f"Bearer {text}"})
        broker.ask(f"/streams/{name}", "PUT", {"Authorization": f"Bearer {text}"}, f"{SECRET}-body".encode())
    for head in (f"Authorization : Bearer {SECRET}", f"Authorization: Bearer {SECRET}\0", SECRET * 2000):
        garble(broker.admin_port, f"GET /counters HTTP/1.1\r\nHost: localhost\r\n{head}\r\n\r\n".encode())
    connect = packets.connect("c", username="ann", password=SECRET.encode())
    for data in (connect[:-3], connect + connect, connect + b"\xff", f"\x10\x7f{SECRET}".encode()):
        garble(broker.port, data)
    token.write_text(SECRET[:8])  # too short
    users.write_text(f"ann:$7${SECRET}\n")
    broker.process.send_signal(signal.SIGHUP)
    wait_until(lambda: "it holds no token" in broker.log, "the reload is reported")
    assert broker.stop() == 0
    assert " DEBUG " in broker.log  # it was that level
    assert SECRET[:8] not in broker.log


@pytest.mark.parametrize(
    "text",
    [
        f'authenticator_options = "{SECRET}"',
        f'authenticator_options = ["{SECRET}"]',
        f'authoriser_options = "{SECRET}"',
        f'store_options = "{SECRET}"',
        f'[authenticator_options]\n"{SECRET[:0]}" = 1\nusers = "{SECRET}"\n[limits]\nreceive_max = "x"',
        f'authenticator = "static"\n[authenticator_options]\nusers = "{SECRET}"',
        f'authenticator = "static"\n[authenticator_options.users]\nann = ["{SECRET}"]',
        f'authenticator = "password_file"\nauthenticator_options = {{ file = ["{SECRET}"] }}',
        f'listeners = [{{ host = 5, port = "x", more = "{SECRET}" }}]',
        f'listeners = "{SECRET[:0]}"\nauthenticator_options = {{ users = "{SECRET}" }}',
        f'limits = {{ receive_max = {{ a = "{SECRET}" }} }}',
        f'[authenticator_options]\nusers = {{ ann = "{SECRET}" ',
        f'user = "no-such-user"\n[authenticator_options]\nusers = {{ ann = "{SECRET}" }}',
    ],
)
async def test_no_error_of_the_configuration_quotes_a_secret(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tidemq.toml"
    path.write_text(f'port = 0\nhost = "127.0.0.1"\nstore = "memory"\n{text}\n')
    with pytest.raises(ConfigError) as caught:
        await Broker(load_config(path)).start()
    assert SECRET not in str(caught.value)


@pytest.mark.parametrize("value", [f'"{SECRET}"', f'{{"users": {{"ann": "{SECRET}"}}', f'["{SECRET}"]'])
def test_no_error_of_the_environment_does(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("TIDEMQ_AUTHENTICATOR_OPTIONS", value)
    with pytest.raises(ConfigError, match="authenticator_options") as caught:
        load_config()
    assert SECRET not in str(caught.value)


def test_reprs_have_no_secrets() -> None:
    options = {"users": {"ann": SECRET}, "key": SECRET}
    config = Config(authenticator_options=options, authoriser_options=options, store_options=options)
    with pytest.raises(ValidationError) as caught:
        Config.model_validate({"authenticator_options": SECRET, "port": -1})
    connect = ConnectRequest(1, "c", "ann", SECRET.encode(), "p", 5, True, 0, None, "SCRAM", SECRET.encode())
    auth = AuthRequest(1, "c", 0, "SCRAM", SECRET.encode())
    for each in (config, connect, auth, caught.value):
        assert SECRET not in f"{each!r} {each}"
    assert "ann" in repr(connect)
