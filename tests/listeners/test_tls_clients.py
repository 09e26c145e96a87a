"""Others' clients at a broker's listeners: TLS with clients' certificates, WebSocket, Unix sockets."""

from __future__ import annotations

import asyncio
import os
import queue
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from clients.test_gmqtt import Client as GmqttClient
from clients.test_mosquitto_clients import Sub, pub
from clients.test_mqttjs import run as run_mqttjs
from clients.test_paho import Client as PahoClient
from gmqtt.mqtt.constants import MQTTv50, MQTTv311  # type: ignore[import-untyped]
from listeners.conftest import Authority, BrokerAt, Files
from listeners.test_listeners import exchange
from listeners.test_tls import trusting
from paho.mqtt.enums import MQTTProtocolVersion
from waiting import WAIT_S, until

from tidemq.client import ServerRefusedError

LARGE = os.urandom(300_000)


@pytest.fixture(scope="session")
def device(authority: Authority) -> Files:
    """A client's certificate."""
    return authority.issue("device-1.example", common_name="device-1")


@pytest.fixture
def tls(authority: Authority, server_files: Files) -> dict[str, Any]:
    """Of a listener that lets in who has a certificate."""
    return server_files.tls | {"client_ca": authority.ca, "client_cert": "required"}


def shown_by_paho(authority: Authority, files: Files) -> dict[str, str]:
    return {"ca_certs": str(authority.ca), "certfile": str(files.cert), "keyfile": str(files.key)}


def converse(topic: str, receiver: PahoClient, sender: PahoClient) -> None:
    """Small and large messages of every QoS, in order."""
    try:
        for qos in (0, 1, 2):
            receiver.subscribe(f"{topic}/{qos}", qos)
            payloads = [*(b"%d" % number for number in range(50)), LARGE, b"last"]
            for payload in payloads:
                sender.publish(f"{topic}/{qos}", payload, qos)
            got = [receiver.message() for _ in payloads]
            assert [(message.payload, message.qos) for message in got] == [(each, qos) for each in payloads]
    finally:
        receiver.close()
        sender.close()


@pytest.mark.parametrize("version", [paho.MQTTv311, paho.MQTTv5], ids=["3.1.1", "5.0"])
@pytest.mark.parametrize("transport", ["tls", "ws", "wss", "unix"])
async def test_paho(
    broker_at: BrokerAt,
    authority: Authority,
    device: Files,
    tls: dict[str, Any],
    transport: str,
    version: MQTTProtocolVersion,
    topic: str,
    tmp_path: Path,
) -> None:
    path = tmp_path / "mqtt.sock"
    listener: dict[str, Any] = {"path": path} if transport == "unix" else {}
    listener |= {"websocket": {}} if transport in ("ws", "wss") else {}
    listener |= {"tls": tls} if transport in ("tls", "wss") else {}
    settings: dict[str, Any] = {
        "host": str(path) if transport == "unix" else "localhost",
        "transport": {"tls": "tcp", "unix": "unix"}.get(transport, "websockets"),
        "tls": shown_by_paho(authority, device) if "tls" in listener else None,
    }
    async with broker_at(listener, {}) as broker:
        clients = [
            await asyncio.to_thread(PahoClient, broker, version, name, **settings) for name in ("r", "s")
        ]
        await asyncio.to_thread(converse, topic, *clients)


@pytest.mark.usefixtures("mosquitto_clients")
@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
@pytest.mark.parametrize("transport", ["tls", "unix"])
async def test_mosquittos_commands(
    broker_at: BrokerAt,
    authority: Authority,
    device: Files,
    tls: dict[str, Any],
    transport: str,
    version: str,
    topic: str,
    tmp_path: Path,
) -> None:
    path, payload = tmp_path / "mqtt.sock", tmp_path / "payload"
    payload.write_bytes(b"0123456789" * 30_000)
    listener = {"tls": tls} if transport == "tls" else {"path": path}
    options = ["--cafile", str(authority.ca), "--cert", str(device.cert), "--key", str(device.key)]
    if transport == "unix":
        options = ["--unix", str(path)]

    def scenario() -> None:
        for qos in ("0", "1", "2"):
            sub = Sub(broker, version, *options, "-t", topic, "-q", qos, "-C", "3", "-F", "%q %p")
            pub(broker, version, *options, "-t", topic, "-q", qos, "-l", stdin=b"one\ntwo\n")
            pub(broker, version, *options, "-t", topic, "-q", qos, "-f", str(payload))
            assert sub.lines() == [f"{qos} one", f"{qos} two", f"{qos} {payload.read_text()}"]
        if transport == "tls":
            with pytest.raises(AssertionError, match="Error"):  # without a certificate
                pub(broker, version, *options[:2], "-t", topic, "-m", "x")

    async with broker_at(listener, {}) as broker:
        await asyncio.to_thread(scenario)


@pytest.mark.parametrize(
    ("scheme", "version", "scenario"),
    [
        *(("mqtts", 4, "publish"), ("mqtts", 5, "publish"), ("mqtts", 5, "large")),
        *(("ws", 3, "publish"), ("ws", 5, "publish"), ("ws", 4, "large")),
        *(("wss", 4, "publish"), ("wss", 5, "publish"), ("wss", 5, "large")),
    ],
)
async def test_mqttjs(
    broker_at: BrokerAt,
    authority: Authority,
    server_files: Files,
    node_modules: Path,
    scheme: str,
    version: int,
    scenario: str,
    topic: str,
) -> None:
    listener: dict[Any, Any] = {} if scheme == "mqtts" else {"websocket": {}}
    listener |= {} if scheme == "ws" else {"tls": server_files.tls}
    async with broker_at(listener) as broker:
        url = f"{scheme}://localhost:{broker.port}" + ("/mqtt" if "websocket" in listener else "")
        await asyncio.to_thread(run_mqttjs, url, node_modules, scenario, version, topic, authority.ca)


@pytest.mark.parametrize("version", [MQTTv311, MQTTv50], ids=["3.1.1", "5.0"])
async def test_gmqtt(
    broker_at: BrokerAt, authority: Authority, device: Files, tls: dict[str, Any], version: int, topic: str
) -> None:
    context = ssl.create_default_context(cafile=str(authority.ca))
    context.load_cert_chain(device.cert, device.key)
    async with broker_at({"tls": tls}) as broker:
        receiver = await GmqttClient("r").connect(broker, version, "localhost", context)
        sender = await GmqttClient("s").connect(broker, version, "localhost", context)
        for qos in (0, 1, 2):
            await receiver.subscribe(f"{topic}/{qos}", qos)
            for payload in (b"small", LARGE):
                sender.client.publish(f"{topic}/{qos}", payload, qos=qos)
                name, got, granted, _ = await receiver.message()
                assert (name, got, granted) == (f"{topic}/{qos}", payload, qos)
        for client in (sender, receiver):
            # asyncio fails on what comes after its close_notify; PUBREL and PUBCOMP come before the second
            # SUBACK
            await client.subscribe(f"{topic}/end", 0)
            await client.subscribe(f"{topic}/end", 0)
            await client.close()


async def test_the_name_in_the_certificate_is_the_user_of_the_rules(
    broker_at: BrokerAt, authority: Authority, server_files: Files, tls: dict[str, Any], tmp_path: Path
) -> None:
    """Whatever the clients call themselves: here each says that it is the other."""
    rules = tmp_path / "rules.acl"
    rules.write_text("allow all devices/%u/#\n")
    listener = {"tls": tls | {"client_cert": "optional"}, "authenticator": "certificate"}
    lies = {"pump": "valve", "valve": "pump"}

    def connect(name: str, reasons: queue.Queue[Any]) -> PahoClient:
        shown = shown_by_paho(authority, authority.issue(common_name=name))
        client = PahoClient(broker, paho.MQTTv5, lies[name], host="localhost", tls=shown, username=lies[name])
        client.client.on_publish = lambda client, data, mid, reason, properties: reasons.put(str(reason))
        client.subscribe(f"devices/{name}/#", 1)
        return client

    def scenario() -> None:
        reasons: queue.Queue[Any] = queue.Queue()
        clients = {name: connect(name, reasons) for name in lies}
        for name, client in clients.items():
            client.client.subscribe(f"devices/{lies[name]}/#", 1)
            assert str(client.subacks.get(timeout=WAIT_S)[0]) == "Not authorized"
            for of, expected in ((lies[name], "Not authorized"), (name, "Success")):
                client.publish(f"devices/{of}/state", name.encode(), 1)
                assert reasons.get(timeout=WAIT_S) == expected
        for name, client in clients.items():
            message = client.message()
            assert (message.topic, message.payload) == (f"devices/{name}/state", name.encode())
            client.close()
            assert client.messages.empty()

    async with broker_at(listener, acl_file=rules) as broker:
        await asyncio.to_thread(scenario)
        assert broker.counters()["refused_not_authorised"] == 4
        url = f"mqtts://localhost:{broker.port}"
        with pytest.raises(ServerRefusedError, match="bad user name or password"):  # no certificate
            await exchange(url, tls=trusting(authority), username="pump", password="pump")


@pytest.mark.parametrize("version", ["mqttv311", "mqttv5"])
async def test_our_own_commands(
    broker_at: BrokerAt, authority: Authority, server_files: Files, version: str
) -> None:
    """`tidemq sub` and `pub`, with a client certificate; a large payload comes in many records."""
    device = authority.issue("device.example")
    tls = server_files.tls | {"client_ca": authority.ca, "client_cert": "required"}
    program = [sys.executable, "-c", "from tidemq.cli import main; main()"]
    async with broker_at({"tls": tls}) as broker:
        there = ["-h", "localhost", "-p", str(broker.port), "-V", version, "-t", "own/commands", "-q", "1"]
        shown = ["--cert", str(device.cert), "--key", str(device.key)]
        secure = ["--cafile", str(authority.ca), *shown]
        taking = await asyncio.create_subprocess_exec(
            *program, "sub", *there, *secure, "-C", "2", stdout=subprocess.PIPE
        )
        await until(lambda: broker.counters()["subscriptions"])
        for payload in (b"short", b"x" * 300_000):
            giving = await asyncio.create_subprocess_exec(
                *program, "pub", *there, *secure, "-s", stdin=subprocess.PIPE
            )
            await giving.communicate(payload)
            assert giving.returncode == 0
        async with asyncio.timeout(WAIT_S):
            taken, _ = await taking.communicate()
        assert taken == b"short\n" + b"x" * 300_000 + b"\n"
        for options, said in (
            (["--cafile", str(authority.ca)], "certificate required"),
            (["--tls-use-os-certs", *shown], "certificate verify failed"),
            (shown, "--cafile"),
        ):
            refused = await asyncio.create_subprocess_exec(
                *program, "pub", *there, *options, "-m", "x", stderr=subprocess.PIPE
            )
            _, error = await refused.communicate()
            assert refused.returncode == 1
            assert said in error.decode(), options
