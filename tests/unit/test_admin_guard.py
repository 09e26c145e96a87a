"""Who may ask the admin listener: with a token whoever has it, without one programs on this machine."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import ssl
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trustme
from typer.testing import CliRunner
from waiting import WAIT_S

from tidemq import Broker, Config
from tidemq.broker.admin import door
from tidemq.cli.stream import app
from tidemq.client import Client
from tidemq.client.errors import ConnectError
from tidemq.client.stream_admin import list_streams
from tidemq.client.streams import StreamError, StreamReader, find_token, read_cafile
from tidemq.config import StreamConfig
from tidemq.errors import ConfigError, UsageError

TOKEN = "correct-horse-battery-staple"
BEARER = {"Authorization": f"Bearer {TOKEN}"}
JSON = {"Content-Type": "application/json"}


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text(f"{TOKEN}\n")
    return path


@pytest.fixture
def config(tmp_path: Path, unused_tcp_port: int) -> Config:
    return Config(
        host="127.0.0.1",
        port=0,
        reactors=1,
        sys_interval_s=0,
        data=tmp_path / "data",
        admin_port=unused_tcp_port,
        streams=(StreamConfig(name="all", filters=("#",)),),
    )


def with_token(config: Config, token_file: Path, **more: object) -> Config:
    return Config.model_validate(config.model_dump() | {"admin_token_file": str(token_file)} | more)


class Answer:
    def __init__(self, said: http.client.HTTPResponse) -> None:
        self.status = said.status
        self.headers = said.headers
        self.body = said.read()

    @property
    def error(self) -> str:
        return str(json.loads(self.body)["error"])


async def ask(broker: Broker, path: str, headers: Mapping[str, str] = {}, method: str = "GET") -> Answer:
    def work() -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", broker.admin_port, timeout=WAIT_S)
        connection.request(method, path, headers=dict(headers))
        return Answer(connection.getresponse())

    return await asyncio.to_thread(work)


async def test_the_token_is_asked_for_everywhere_but_for_health(config: Config, token_file: Path) -> None:
    async with Broker(with_token(config, token_file)) as broker:
        assert (await ask(broker, "/health")).status == 200
        for path in ("/counters", "/streams", "/streams/all/messages?start=0&end=1", "/nowhere"):
            for method in ("GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS"):
                answer = await ask(broker, path, method=method)
                assert answer.status == 401, (method, path)
                assert answer.headers["WWW-Authenticate"] == 'Bearer realm="tidemq"'
                assert b"paths" not in answer.body
        assert (await ask(broker, "/counters", BEARER)).status == 200
        assert (await ask(broker, "/counters", {"Authorization": f"bearer {TOKEN}"})).status == 200
        assert (await ask(broker, "/counters", BEARER | {"Host": "broker.example.com"})).status == 200


async def test_another_token_is_refused(config: Config, token_file: Path) -> None:
    async with Broker(with_token(config, token_file)) as broker:
        for token in ("", "Bearer", "Bearer ", f"Bearer {TOKEN}x", f"Bearer {TOKEN[:-1]}", "Bearer é"):
            answer = await ask(broker, "/counters", {"Authorization": token})
            assert (answer.status, TOKEN in answer.error) == (401, False), token
        for scheme in ("Basic ", "Token ", ""):
            answer = await ask(broker, "/counters", {"Authorization": scheme + TOKEN})
            assert (answer.status, TOKEN in answer.error) == (401, False), scheme


async def test_on_loopback_without_a_token_only_this_machine_s_names_are_answered(config: Config) -> None:
    async with Broker(config) as broker:
        port = broker.admin_port
        for host in (f"127.0.0.1:{port}", f"localhost:{port}", "LOCALHOST", f"[::1]:{port}", "127.8.9.1"):
            assert (await ask(broker, "/counters", {"Host": host})).status == 200, host
        # a page's own name, which its owner lets mean 127.0.0.1 a moment later
        for host in (
            "evil.example",
            f"evil.example:{port}",
            "127.0.0.1.evil.example",
            "10.0.0.1",
            "[",
            "a@b",
        ):
            for path in ("/counters", "/streams/all"):
                assert (await ask(broker, path, {"Host": host})).status in (400, 403), host
        assert (await ask(broker, "/health", {"Host": "evil.example"})).status == 200


async def test_a_page_of_another_origin_is_refused(config: Config, token_file: Path) -> None:
    for given, headers in ((config, {}), (with_token(config, token_file), BEARER)):
        async with Broker(given) as broker:
            own = f"127.0.0.1:{broker.admin_port}"
            for origin in (
                "http://evil.example",
                "null",
                "http://[",
                f"http://{own}.evil.example",
                "file://",
            ):
                for method in ("GET", "DELETE"):
                    answer = await ask(broker, "/streams/all", headers | {"Origin": origin}, method)
                    assert (answer.status, "origins" in answer.error) == (403, True), origin
            assert (await ask(broker, "/streams/all", headers | {"Origin": f"http://{own}"})).status == 200


async def test_nobody_else_comes_in_without_a_token(config: Config, token_file: Path) -> None:
    open_to_all = config.model_dump() | {"admin_host": "0.0.0.0"}
    with pytest.raises(ConfigError, match=r"admin_host: '0\.0\.0\.0' can be reached .* admin_token_file"):
        await Broker(Config.model_validate(open_to_all)).start()
    async with Broker(with_token(config, token_file, admin_host="0.0.0.0")) as broker:
        assert (await ask(broker, "/streams")).status == 401
        assert (await ask(broker, "/streams", BEARER)).status == 200


@pytest.mark.parametrize(
    "content", ["", "short", "two words that are long enough", "é" * 20, None, b"\xff" * 20]
)
async def test_a_file_without_a_token_is_refused_and_not_quoted(
    config: Config, tmp_path: Path, content: str | bytes | None
) -> None:
    path = tmp_path / "bad"
    if content is not None:
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError) as caught:
        await Broker(with_token(config, path)).start()
    assert str(path) in str(caught.value)
    if content:
        assert str(content) not in str(caught.value)


async def test_readers_bring_the_token(config: Config, token_file: Path) -> None:
    async with (
        Broker(with_token(config, token_file)) as broker,
        Client(f"mqtt://127.0.0.1:{broker.port}") as client,
    ):
        await client.publish("a", "x", qos=1)
        url = f"http://127.0.0.1:{broker.admin_port}"

        def read(token: str) -> Any:
            [state] = list_streams(url, token=token)
            [batch] = StreamReader(url, state.name, token=token).read(0)
            return batch.column("payload").to_pylist()

        assert await asyncio.to_thread(read, find_token(token_file)) == [b"x"]
        for wrong in ("", "wrong-wrong-wrong-wrong"):
            with pytest.raises(StreamError, match="token is missing or wrong"):
                await asyncio.to_thread(read, wrong)
            with pytest.raises(StreamError, match=r"401 .*token is missing or wrong"):
                await asyncio.to_thread(StreamReader(url, "all", token=wrong).describe)
        for given in ({"TIDEMQ_ADMIN_TOKEN_FILE": str(token_file)}, {"TIDEMQ_ADMIN_TOKEN": TOKEN}):
            words = ["list", "--url", url]
            done = await asyncio.to_thread(CliRunner().invoke, app, words, env=given)
            assert done.exit_code == 0, done.stderr
        words = ["tail", "all", "--url", url, "--token-file", str(token_file), "--start", "0", "--count", "1"]
        done = await asyncio.to_thread(CliRunner().invoke, app, words)
        assert json.loads(done.stdout)["payload"] == "x"


def test_a_token_file_that_cannot_be_is_said_and_never_its_token(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        find_token(tmp_path / "none")
    with pytest.raises(UsageError, match="one line") as caught:
        StreamReader("http://localhost:1", "all", token="secret\nsecret")
    assert "secret" not in str(caught.value)


def test_a_client_s_environment_does_not_trouble_the_broker(tmp_path: Path) -> None:
    """They are for `tidemq stream`; a shell that has them may start a broker, too."""
    code = "from tidemq.config import load_config; print(load_config().port)"
    environment = {"TIDEMQ_ADMIN_TOKEN": TOKEN, "TIDEMQ_ADMIN_URL": "http://a"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | environment, capture_output=True, text=True
    )
    assert done.stdout == "1883\n", done.stderr


def test_a_file_without_certificates_is_named(tmp_path: Path) -> None:
    assert read_cafile("") == ""
    for text in (None, "", "words", "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"):
        file = tmp_path / "authorities.pem"
        if text is not None:
            file.write_text(text)
        with pytest.raises(UsageError, match=r"no certificates can be read from .*authorities\.pem"):
            read_cafile(file)


async def test_https_with_a_certificate(
    config: Config, token_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    cert, key, trusted = tmp_path / "cert.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    cert.write_bytes(b"".join(each.bytes() for each in issued.cert_chain_pems))
    issued.private_key_pem.write_to_path(str(key))
    authority.cert_pem.write_to_path(str(trusted))
    tls = with_token(config, token_file, admin_cert=str(cert), admin_key=str(key))
    async with Broker(tls) as broker, Client(f"mqtt://127.0.0.1:{broker.port}") as client:
        await client.publish("a", bytes(1 << 19), qos=1)
        reader = StreamReader(f"https://localhost:{broker.admin_port}", "all", token=TOKEN)
        with pytest.raises(ConnectError, match="certificate verify failed"):
            await asyncio.to_thread(reader.describe)
        own = StreamReader(reader.url, "all", token=TOKEN, cadata=read_cafile(trusted))
        assert (await asyncio.to_thread(own.describe)).next_offset == 1
        monkeypatch.setenv("SSL_CERT_FILE", str(trusted))
        [batch] = await asyncio.to_thread(lambda: list(reader.read(0)))
        assert batch.column("payload").to_pylist() == [bytes(1 << 19)]
        with pytest.raises((ssl.SSLError, OSError, http.client.HTTPException)):
            await ask(broker, "/health")  # without TLS
    with pytest.raises(ConfigError, match=r"admin_cert: .*ca\.pem .*key\.pem"):
        await Broker(with_token(config, token_file, admin_cert=str(trusted), admin_key=str(key))).start()


async def test_who_opens_connections_and_asks_nothing_takes_no_descriptors(
    config: Config, token_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With and without half a request; whoever asks is answered once there is room, and between requests a
    connection stays for a time."""
    monkeypatch.setattr(door, "CONNECTIONS_MAX", 10)
    monkeypatch.setattr(door, "CHECK_S", 0.05)
    monkeypatch.setattr(door, "IDLE_S", 0.5)
    async with Broker(with_token(config, token_file)) as broker:
        before = len(os.listdir("/proc/self/fd"))
        idle = []
        for number in range(50):
            idle.append(await asyncio.open_connection("127.0.0.1", broker.admin_port))
            if number % 2:
                idle[-1][1].write(b"GET /counters HTTP/1.1\r\nHost: x\r\n")
        await asyncio.sleep(0.2)
        assert len(os.listdir("/proc/self/fd")) <= before + 50 + 10
        async with asyncio.timeout(WAIT_S):
            assert (await ask(broker, "/counters", BEARER)).status == 200
            for reader, writer in idle:
                assert await reader.read() == b""
                writer.close()

        def ask_twice() -> tuple[int, int]:
            connection = http.client.HTTPConnection("127.0.0.1", broker.admin_port, timeout=WAIT_S)
            statuses = []
            for _ in range(2):
                connection.request("GET", "/health")
                answer = connection.getresponse()
                answer.read()
                statuses.append(answer.status)
            connection.close()
            return statuses[0], statuses[1]

        assert await asyncio.to_thread(ask_twice) == (200, 200)


async def test_a_handshake_that_stops_takes_no_descriptor_for_long(
    config: Config, token_file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "IDLE_S", 0.3)
    issued = trustme.CA().issue_cert("localhost")
    pem = tmp_path / "admin.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(pem)
    async with Broker(with_token(config, token_file, admin_cert=str(pem))) as broker:
        reader, writer = await asyncio.open_connection("127.0.0.1", broker.admin_port)
        writer.write(b"\x16\x03\x01")
        async with asyncio.timeout(WAIT_S):
            assert await reader.read() == b""
        writer.close()
