"""What a client sends and gets is shown to who traces it: whole conversations, bounded, without secrets."""

from __future__ import annotations

import asyncio
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from conformance.kit import Client, connected, kept, unique
from conformance.packets import CONNACK, connect
from typer.testing import CliRunner
from waiting import WAIT_S, wait_until

from tidemq import Broker, Config, Limits
from tidemq.cli import make_app

LARGE = 300_000  # bytes of a payload that is sent from the message itself


@pytest.fixture
def config(tmp_path: Path, unused_tcp_port: int) -> Config:
    return Config(
        host="127.0.0.1", port=0, reactors=2, sys_interval_s=0, data=tmp_path, admin_port=unused_tcp_port
    )


class Tracer:
    """Reads a trace."""

    def __init__(self, broker: Broker, **query: Any) -> None:
        self.connection = http.client.HTTPConnection("127.0.0.1", broker.admin_port, timeout=WAIT_S)
        self.connection.request("GET", f"/api/v1/trace?{urlencode(query)}")
        self.answer = self.connection.getresponse()
        self.status = self.answer.status

    def line(self) -> Any:
        """The next; None: it has ended."""
        while line := self.answer.readline():
            if line.startswith(b"data: "):
                return json.loads(line[6:])
        return None

    def take(self, count: int) -> list[str]:
        """Direction and packet of so many lines."""
        found = (self.line() for _ in range(count))
        return [f"{each['direction']} {each['packet']}" for each in found]

    def leave(self) -> None:
        self.connection.close()
        self.answer.close()


@contextmanager
def tracing(broker: Broker, **query: Any) -> Iterator[Tracer]:
    tracer = Tracer(broker, **query)
    assert tracer.status == 200, tracer.answer.read()
    yield tracer
    tracer.leave()


async def test_a_client_is_traced_from_its_connect_to_its_end(config: Config) -> None:
    name, other = unique("pump"), unique("pump")

    def act() -> None:
        with tracing(broker, client_id=name) as tracer:
            quiet = connected(broker, client_id=other)
            client = connected(broker, client_id=name, username="ann", password=b"secret")
            client.subscribe("plant/#", qos=1)
            quiet.publish("plant/1", b"hidden", qos=1)
            client.acknowledge(client.receive())
            client.publish("office/2", b"hidden")  # and a ping
            client.disconnect()
            lines = tracer.take(11)
        shown = "\n".join(lines)
        kinds = [" ".join(line.split(",")[0].split()[:2]) for line in lines]
        assert kinds == [
            *("in CONNECT", "out CONNACK", "in SUBSCRIBE", "out SUBACK", "out PUBLISH", "in PUBACK"),
            *("in PUBLISH", "in PINGREQ", "out PINGRESP", "in DISCONNECT", "end the"),
        ]
        assert f"client_id {name}" in lines[0]
        assert "username ann" in lines[0]
        assert "password (not shown)" in lines[0]
        assert "filter plant/#" in lines[2]
        assert "topic plant/1" in lines[4]
        assert "secret" not in shown
        assert "hidden" not in shown
        assert other not in shown

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_one_that_is_connected_and_large_payloads(config: Config) -> None:
    name = unique("pump")
    payloads = [bytes([65 + number]) * size for number, size in enumerate((LARGE, 10, LARGE, LARGE, 10))]

    def act() -> None:
        client, publisher = connected(broker, client_id=name), connected(broker)
        client.subscribe("plant/#")
        with tracing(broker, client_id=name, payload=True) as tracer:
            for payload in payloads:
                publisher.publish("plant/1", payload)
            for payload in payloads:
                client.expect_message("plant/1", payload)
            lines = tracer.take(5)
            assert all(line.startswith("out PUBLISH") and "topic plant/1" in line for line in lines)
            assert "payload b'BBBBBBBBBB'" in lines[1]
            assert f"{LARGE + 2 + 7 + 1} bytes" in lines[0]
            client.publish("office/2", b"mine")
            assert "payload b'mine'" in tracer.take(1)[0]
        client.ping()  # and nobody looks any more

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_all_of_an_address_and_why_they_are_refused(config: Config) -> None:
    config = config.model_copy(
        update={"authenticator": "static", "authenticator_options": {"users": {"ann": "right"}}}
    )

    def act() -> None:
        there = connected(broker, username="ann", password=b"right")
        with tracing(broker, address="127.0.0.1") as tracer:
            there.ping()
            assert [each.split(",")[0] for each in tracer.take(2)] == ["in PINGREQ", "out PINGRESP"]
            client = Client(broker.port, 5)
            client.send(connect("x", 5, username="ann", password=b"wrong-secret"))
            assert client.expect(CONNACK).reason == 0x86
            lines = tracer.take(3)
            assert lines[0].startswith("in CONNECT")
            assert "wrong-secret" not in lines[0]
            assert lines[1].startswith("out CONNACK")
            assert "134" in lines[1] or "0x86" in lines[1]
            assert lines[2].startswith("end the connection ends")
            there.socket.sendall(b"\xf0\x00")  # an AUTH without a method
            while (line := tracer.take(1)[0]).startswith(("in", "out")):
                pass
            assert "0x82 protocol error" in line

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_it_ends_in_time_and_lines_and_there_is_one(config: Config) -> None:
    name = unique("c")

    def act() -> None:
        client = connected(broker, client_id=name)
        with tracing(broker, client_id=name, lines_max=2) as tracer:
            assert Tracer(broker, client_id=name).status == 409
            for _ in range(3):
                client.ping()
            assert len(tracer.take(2)) == 2
            assert tracer.line() is None
        with tracing(broker, client_id=name, seconds=0.3) as tracer:
            assert tracer.line() is None
        first = Tracer(broker, client_id=name)
        first.leave()
        wait_until(lambda: Tracer(broker, client_id=name, seconds=0.1).status == 200)

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_a_flood_is_not_held_up_and_what_is_not_shown_is_counted(config: Config) -> None:
    name, messages = unique("flood"), 20_000
    config = config.model_copy(update={"limits": Limits(queued_messages_max=50_000)})

    def act() -> None:
        receiver, publisher = connected(broker, client_id=name), connected(broker)
        receiver.subscribe("a")

        def receive() -> None:
            for number in range(messages):
                receiver.expect_message("a", b"%d" % number)

        with tracing(broker, client_id=name, lines_max=100_000) as tracer:
            thread = threading.Thread(target=receive)
            thread.start()
            for number in range(messages):
                publisher.publish("a", b"%d" % number)
            thread.join()
            publisher.ping()
            lines = tracer.take(500)
        assert all(line.startswith("out PUBLISH") for line in lines)
        assert broker.counters()["trace_packets_left_out"] > 0

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


@pytest.mark.parametrize(
    "query",
    [{}, {"client_id": "a", "address": "::1"}, {"topic_filter": "a#"}, {"client_id": "a", "seconds": 0}],
)
async def test_a_wrong_trace_is_refused(config: Config, query: dict[str, Any]) -> None:
    def act() -> None:
        assert Tracer(broker, **query).status == 400
        with tracing(broker, client_id="a", seconds=0.1):
            pass  # it holds up no other

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


async def test_the_command_shows_it(config: Config) -> None:
    name = unique("pump")

    def act() -> None:
        environment = {"TIDEMQ_ADMIN_URL": f"http://127.0.0.1:{broker.admin_port}"}

        def run(*words: str) -> str:
            done = CliRunner().invoke(make_app("trace"), ["trace", *words], env=environment)
            assert done.exit_code == 0, done.output
            return done.output

        client = connected(broker, client_id=name, **kept(5))
        found: list[str] = []
        thread = threading.Thread(target=lambda: found.append(run("--client", name, "--max-lines", "2")))
        thread.start()
        while thread.is_alive():
            client.ping()
        lines = found[0].splitlines()
        assert len(lines) == 2
        assert f"{name} (127.0.0.1:" in lines[0]
        assert {line.split(") ")[1].split(",")[0] for line in lines} == {"-> PINGREQ", "<- PINGRESP"}
        words = ("--topic", "plant/+", "--max-lines", "1", "--payload", "--json")
        thread = threading.Thread(target=lambda: found.append(run(*words)))
        thread.start()
        while thread.is_alive():
            client.publish("plant/\x1b1", b"x\x1b", qos=1)
        assert "payload b'x\\\\x1b'" in found[1]
        assert "\x1b" not in found[1]
        done = CliRunner().invoke(make_app("trace"), ["trace"], env=environment)
        assert done.exit_code == 1
        assert "give one of" in done.output

    async with Broker(config) as broker:
        await asyncio.to_thread(act)
