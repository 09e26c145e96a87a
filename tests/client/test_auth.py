"""AUTH: SCRAM with a real broker, servers that only pretend to know the user, and methods of one's own."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import forks
import pytest
import pytest_asyncio
from client.scripted import Peer, ScriptedServer
from scramp import ScramMechanism
from waiting import WAIT_S, until

from tidemq import Broker, Config
from tidemq.broker.authenticators.password_file import change_password_file
from tidemq.broker.authenticators.scram import ITERATIONS_MIN
from tidemq.client import (
    AnswerTimeoutError,
    Client,
    ConnectError,
    FalseServerError,
    ReasonCode,
    Scram,
    ServerRefusedError,
    sync,
)
from tidemq.client.authentication import Steps
from tidemq.client.greeting import make_connect
from tidemq.errors import UsageError
from tidemq.wire import Auth, Connack, Connect, Disconnect, Properties, Puback, Publish

METHOD = "SCRAM-SHA-256"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "passwd"
    change_password_file(path, "ann", "sécret".encode(), ITERATIONS_MIN)
    return path


@pytest_asyncio.fixture
async def broker(file: Path) -> AsyncIterator[Broker]:
    config = Config(
        host="127.0.0.1",
        port=0,
        reactors=1,
        store="memory",
        authenticator="password_file",
        authenticator_options={"file": str(file), "plain": False},
        failed_login_delay_s=0,
    )
    async with Broker(config) as broker:
        yield broker


def url(broker: Broker) -> str:
    return f"mqtt://127.0.0.1:{broker.port}"


# --- with a broker


@pytest.mark.parametrize("password", ["sécret", "sécret".encode(), "se\u0301cret"])
async def test_scram_logs_in_and_the_password_does_not_go_over_the_network(
    broker: Broker, topic: str, password: str | bytes
) -> None:
    """The broker takes no password as it is; the last one is the first in another normal form."""
    async with asyncio.timeout(WAIT_S), Client(url(broker), auth=Scram("ann", password)) as client:
        await client.subscribe(topic, qos=1)
        await client.publish(topic, "x", qos=1)
        assert (await anext(client.messages)).payload == b"x"


@pytest.mark.parametrize(("name", "password"), [("ann", "secret"), ("eve", "sécret")])
async def test_a_wrong_password_is_refused(broker: Broker, name: str, password: str) -> None:
    async with asyncio.timeout(WAIT_S):
        with pytest.raises(ServerRefusedError) as caught:
            await Client(url(broker), auth=Scram(name, password)).connect()
    assert caught.value.reason == ReasonCode.BAD_USER_NAME_OR_PASSWORD
    assert password not in str(caught.value)


async def test_a_client_authenticates_again_while_messages_flow(
    broker: Broker, file: Path, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemq.broker.host.watched_files.CHECK_S", 0.0)
    async with asyncio.timeout(WAIT_S):
        async with Client(url(broker), auth=Scram("ann", "sécret")) as client:
            await client.subscribe(topic, qos=1)
            receipts = [client.publish_nowait(topic, str(number), qos=1) for number in range(100)]
            await client.reauthenticate()
            await client.reauthenticate()
            for receipt in receipts:
                await receipt.acknowledged
            assert {(await anext(client.messages)).payload for _ in range(100)} == {
                str(number).encode() for number in range(100)
            }
            both = await asyncio.gather(
                client.reauthenticate(), client.reauthenticate(), return_exceptions=True
            )
            assert [type(each) for each in both] == [type(None), UsageError]
            change_password_file(file, "ann", b"another", ITERATIONS_MIN)
            with pytest.raises(ServerRefusedError, match="not authorized"):
                await client.reauthenticate()


async def test_it_comes_back_by_scram(broker: Broker, topic: str) -> None:
    async with asyncio.timeout(WAIT_S):
        options: dict[str, Any] = {"backoff_s_min": 0.01, "backoff_s_max": 0.05}
        async with Client(url(broker), auth=Scram("ann", "sécret"), **options) as client:
            client._connection._link.abort()  # type: ignore[union-attr]
            await until(lambda: broker.counters()["connections_accepted"] >= 2)
            await client.wait_connected()
            await client.publish(topic, qos=1)


async def test_threads_authenticate_too(broker: Broker, topic: str) -> None:
    def work() -> None:
        with sync.Client(url(broker), auth=Scram("ann", "sécret")) as client:
            client.publish(topic, qos=1, timeout_s=5)
            client.reauthenticate()
            client.publish(topic, qos=1, timeout_s=5)

    await asyncio.to_thread(work)


async def test_the_commands_log_in_by_scram(broker: Broker, topic: str) -> None:
    def run(*arguments: str) -> subprocess.CompletedProcess[Any]:
        return forks.run(*arguments, text=True)

    where = ["-h", "127.0.0.1", "-p", str(broker.port), "-t", topic]
    ann = ["-u", "ann", "-P", "sécret", "-V", "mqttv5", "--scram"]
    pub = ["pub", *where, "-m", "x", "-r", "-q", "1"]
    outcomes = await asyncio.gather(
        asyncio.to_thread(run, *pub, *ann),
        asyncio.to_thread(run, *pub, "-u", "ann", "-P", "wrong", "-V", "mqttv5", "--scram"),
        asyncio.to_thread(run, *pub, "-u", "ann", "-P", "sécret", "--scram"),
    )
    assert [each.returncode for each in outcomes] == [0, 0x86, 1]
    assert "Bad user name or password" in outcomes[1].stderr
    assert "--scram needs -V mqttv5" in outcomes[2].stderr
    printed = await asyncio.to_thread(run, "sub", *where, "-C", "1", "-W", "10", *ann)
    assert (printed.returncode, printed.stdout) == (0, "x\n")


# --- false servers


def auth(data: bytes | None, reason: int = ReasonCode.CONTINUE_AUTHENTICATION, method: str = METHOD) -> Auth:
    return Auth(reason=reason, properties=Properties(auth_method=method, auth_data=data))


def connack(data: bytes | None, method: str = METHOD) -> Connack:
    return Connack(properties=Properties(auth_method=method, auth_data=data))


class Scene:
    """A server that has the keys of a user whose password is not the client's, or does something worse."""

    def __init__(self, play: Callable[[Scene, Peer], AsyncIterator[None]] | None = None) -> None:
        self.connect: Connect | None = None
        info = ScramMechanism(METHOD).make_auth_info("guessed", 4096)
        self.server = ScramMechanism(METHOD).make_server(lambda _: info)

    async def first(self, peer: Peer) -> bytes:
        self.connect = await peer.receive()
        first = self.connect.properties.auth_data
        assert first is not None
        self.server.set_client_first(first.decode())
        found: bytes = self.server.get_server_first().encode()
        return found


async def accepts_at_once(peer: Peer) -> None:
    await peer.accept()
    await peer.receive()


async def accepts_without_proof(peer: Peer) -> None:
    peer.send(auth(await Scene().first(peer)))
    await peer.receive()
    peer.send(connack(None))
    await peer.receive()


async def accepts_with_a_false_proof(peer: Peer) -> None:
    peer.send(auth(await Scene().first(peer)))
    await peer.receive()
    peer.send(connack(b"v=" + b"A" * 43 + b"="))
    await peer.receive()


async def accepts_instead_of_asking(peer: Peer) -> None:
    peer.send(connack(await Scene().first(peer)))
    await peer.receive()


async def asks_for_too_few_iterations(peer: Peer) -> None:
    peer.send(auth((await Scene().first(peer)).replace(b"i=4096", b"i=1")))
    await peer.receive()


async def answers_another_client(peer: Peer) -> None:
    await peer.receive()
    peer.send(auth(b"r=somebody,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"))
    await peer.receive()


async def asks_for_ever(peer: Peer) -> None:
    peer.send(auth(await Scene().first(peer)))
    await peer.receive()
    peer.send(auth(b"v=" + b"A" * 43 + b"="))
    await peer.receive()


async def says_too_much(peer: Peer) -> None:
    await peer.receive()
    peer.send(auth(b"r=" + b"x" * 5000))
    await peer.receive()


async def says_no_text(peer: Peer) -> None:
    await peer.receive()
    peer.send(auth(b"\xff"))
    await peer.receive()


@pytest.mark.parametrize(
    ("play", "said"),
    [
        (accepts_at_once, "without a message of SCRAM"),
        (accepts_without_proof, "without a message of SCRAM"),
        (accepts_with_a_false_proof, "did not prove that it knows the user 'ann'"),
        (accepts_instead_of_asking, "before it had proved"),
        (asks_for_too_few_iterations, "did not prove"),
        (answers_another_client, "did not prove"),
        (asks_for_ever, "did not prove"),
        (says_too_much, "5002 bytes"),
        (says_no_text, "not UTF-8"),
    ],
)
async def test_a_false_server_is_refused_and_told_nothing(
    play: Callable[[Peer], Awaitable[None]], said: str
) -> None:
    """Neither what waits to be published nor a second attempt comes to it."""
    async with asyncio.timeout(WAIT_S), ScriptedServer(play) as server:
        client = Client(server.url, auth=Scram("ann", "secret"), retry_first=True, backoff_s_min=0.01)
        client.publish_nowait("private", "x")
        with pytest.raises(FalseServerError, match=said) as caught:
            await client.connect()
        assert server.connections == 1
        assert not client.is_connected
    assert "secret" not in str(caught.value)


async def test_a_server_that_is_false_when_asked_again_loses_the_client() -> None:
    info = ScramMechanism(METHOD).make_auth_info("secret", 4096)

    async def play(peer: Peer) -> None:
        for reason in (None, ReasonCode.SUCCESS):
            packet = await peer.receive()
            server = ScramMechanism(METHOD).make_server(lambda _: info)
            server.set_client_first(packet.properties.auth_data.decode())
            peer.send(auth(server.get_server_first().encode()))
            server.set_client_final((await peer.receive()).properties.auth_data.decode())
            final = server.get_server_final().encode()
            peer.send(connack(final) if reason is None else auth(b"v=AAAA", reason))
        await peer.receive()

    async with asyncio.timeout(WAIT_S), ScriptedServer(play) as server:
        client = Client(server.url, auth=Scram("ann", "secret"), backoff_s_min=0.01)
        await client.connect()
        with pytest.raises(FalseServerError):
            await client.reauthenticate()
        with pytest.raises(FalseServerError):
            await anext(client.messages)
        assert server.connections == 1
        await client.disconnect()


@pytest.mark.parametrize(("name", "password"), [("", "x"), ("ann", "se\x07cret"), ("ann", b"\xff")])
def test_what_scram_cannot_take_is_refused(name: str, password: str | bytes) -> None:
    with pytest.raises(UsageError):
        Scram(name, password)


def test_a_password_in_the_url_is_not_sent_beside_scram() -> None:
    with pytest.raises(UsageError, match="would send the password as it is"):
        Client("mqtt://ann:secret@host", auth=Scram("ann", "secret"))
    assert "secret" not in repr(Scram("ann", "secret"))
    client = Client("mqtt://ann:secret@host")
    assert "secret" not in repr(
        (
            client.settings,
            client._address,
            make_connect(client.settings, client._address, "me", clean_start=True),
        )
    )
    assert "secret" not in repr(Client("mqtt://host", password="secret").settings)


# --- a method of one's own


class Echo:
    """Says what it is told in capitals, until the server has had enough."""

    method = "ECHO"
    username = None

    def __init__(self) -> None:
        self.heard: list[bytes | None] = []

    def exchange(self) -> Steps:
        data: bytes | None = b"initial"
        while True:
            received = yield data
            self.heard.append(received)
            if received == b"done":
                return
            assert received is not None
            data = received.upper()


async def test_a_method_of_ones_own() -> None:
    async def play(peer: Peer) -> None:
        connect = await peer.receive()
        assert (connect.properties.auth_method, connect.properties.auth_data) == ("ECHO", b"initial")
        assert (connect.username, connect.password) == (None, None)
        for word in (b"one", b"two"):
            peer.send(auth(word, method="ECHO"))
            answer = await peer.receive()
            assert (answer.reason, answer.properties.auth_data) == (0x18, word.upper())
        peer.send(connack(b"done", "ECHO"))
        again = await peer.receive()
        assert (again.reason, again.properties.auth_data) == (0x19, b"initial")
        peer.send(auth(b"three", method="ECHO"))
        assert (await peer.receive()).properties.auth_data == b"THREE"
        peer.send(auth(b"done", ReasonCode.SUCCESS, "ECHO"))
        packet = await peer.receive()
        peer.send(Puback(packet_id=packet.packet_id))
        await peer.receive()

    echo = Echo()
    async with asyncio.timeout(WAIT_S), ScriptedServer(play) as server:
        async with Client(server.url, auth=echo) as client:
            await client.reauthenticate()
            await client.publish("t", qos=1)
    assert echo.heard == [b"one", b"two", b"done", b"three", b"done"]


class Failing:
    """Fails at the given step."""

    method = "ECHO"
    username = "ann"

    def __init__(self, step: int) -> None:
        self._step = step

    def exchange(self) -> Steps:
        if self._step == 0:
            raise ValueError("no key at all")
        yield b"initial"
        raise ValueError("no such key")


async def test_a_method_that_fails(topic: str) -> None:
    async def play(peer: Peer) -> None:
        await peer.receive()
        peer.send(auth(b"?", method="ECHO"))
        await peer.receive()

    async with asyncio.timeout(WAIT_S), ScriptedServer(play) as server:
        with pytest.raises(ValueError, match="no key at all"):
            await Client(server.url, auth=Failing(0)).connect()
        with pytest.raises(ConnectError, match="no such key"):
            await Client(server.url, auth=Failing(1)).connect()


async def test_auth_out_of_turn_ends_the_connection() -> None:
    async def accepts_then_asks(peer: Peer) -> None:
        await peer.receive()
        peer.send(connack(b"done", "ECHO"), auth(b"?", method="ECHO"))
        await peer.receive()

    async def asks_by_another_method(peer: Peer) -> None:
        await peer.receive()
        peer.send(auth(b"?"))
        await peer.receive()

    async def says_yes_by_auth(peer: Peer) -> None:
        await peer.receive()
        peer.send(auth(b"done", ReasonCode.SUCCESS, "ECHO"))
        await peer.receive()

    async with asyncio.timeout(WAIT_S), ScriptedServer(accepts_then_asks) as server:
        client = Client(server.url, auth=Echo(), reconnect=False)
        await client.connect()
        with pytest.raises(ConnectError, match="which nobody asked for"):
            await anext(client.messages)
        await client.disconnect()
    async with asyncio.timeout(WAIT_S), ScriptedServer(asks_by_another_method) as server:
        with pytest.raises(ConnectError, match="of another method"):
            await Client(server.url, auth=Echo()).connect()
    async with asyncio.timeout(WAIT_S), ScriptedServer(says_yes_by_auth) as server:
        with pytest.raises(ConnectError, match="out of turn"):
            await Client(server.url, auth=Echo()).connect()


async def test_authenticating_again_ends_with_the_connection_or_its_time() -> None:
    async def play(peer: Peer) -> None:
        await peer.receive()
        peer.send(connack(b"done", "ECHO"))
        await peer.receive()
        while not isinstance(await peer.receive(), Publish):
            pass
        peer.send(Disconnect(reason=ReasonCode.NOT_AUTHORIZED))

    async with asyncio.timeout(WAIT_S), ScriptedServer(play) as server:
        client = Client(server.url, auth=Echo(), connect_timeout_s=0.1)
        with pytest.raises(UsageError, match="no connection"):
            await client.reauthenticate()
        await client.connect()
        with pytest.raises(AnswerTimeoutError, match=r"no answer to AUTH within 0\.1 s"):
            await client.reauthenticate()
        await client.publish("t")
        with pytest.raises(ServerRefusedError, match="not authorized"):
            await anext(client.messages)
        await client.disconnect()
