"""The outbox on disk: what a client has accepted survives the end of its process, at QoS 2 without coming
twice."""

from __future__ import annotations

import asyncio
import random
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from client.scripted import Peer, ScriptedServer
from client.servers import Server
from waiting import WAIT_S, until

from tidemq.client import Client, DisconnectedError, Properties
from tidemq.errors import StoreError
from tidemq.testing import Proxy
from tidemq.wire import Connack, Puback, Pubcomp, Publish, Pubrec, Pubrel

QUICK: dict[str, Any] = {"backoff_s_min": 0.01, "backoff_s_max": 0.05}

# publishes numbers under its name, prints each when it is on disk, and is killed some time
PUBLISHER = """
import asyncio, sys
from tidemq.client import Client

async def main(url, outbox, topic, qos, name):
    async with Client(url, outbox=outbox, retry_first=True, backoff_s_min=0.01, backoff_s_max=0.05) as client:
        for number in range(100_000):
            payload = f"{name} {number}"
            receipt = client.publish_nowait(topic, payload, qos=qos)
            await receipt.stored
            print(payload, flush=True)

url, outbox, topic, qos, name = sys.argv[1:]
asyncio.run(main(url, outbox, topic, int(qos), name))
"""


def rows(path: Path) -> int:
    with closing(sqlite3.connect(path)) as database:
        found: int = database.execute("SELECT count(*) FROM message").fetchone()[0]
        return found


async def run_and_kill(command: list[str], after: int) -> list[str]:
    """The lines that a process printed until it was killed, some time after so many."""
    process = await asyncio.create_subprocess_exec(*command, stdout=subprocess.PIPE)
    assert process.stdout is not None
    lines = [(await process.stdout.readline()).decode() for _ in range(after)]
    process.kill()
    rest, _ = await process.communicate()
    return [line.strip() for line in lines] + rest.decode().split("\n")[:-1]


@pytest.mark.parametrize("qos", [1, 2])
async def test_a_killed_publisher_loses_nothing_and_repeats_no_qos_2(
    server: Server, topic: str, tmp_path: Path, qos: int
) -> None:
    """kill -9 again and again, at any moment; at the end a last client delivers what is left."""
    outbox = tmp_path / "outbox"
    chosen = random.Random(7)
    stored: list[str] = []
    got: list[str] = []

    async def receive(client: Client) -> None:
        async for message in client.messages:
            got.append(message.payload.decode())

    async with Client(server.url) as watching:
        await watching.subscribe(topic, qos=qos)
        taking = asyncio.create_task(receive(watching))
        for name in "abc":
            command = [sys.executable, "-c", PUBLISHER, server.url, str(outbox), topic, str(qos), name]
            stored += await run_and_kill(command, chosen.randrange(10, 80))
        async with asyncio.timeout(WAIT_S), Client(server.url, outbox=outbox, close_timeout_s=WAIT_S):
            pass
        await until(lambda: set(stored) <= set(got))
        await asyncio.sleep(0.1)
        taking.cancel()
        await asyncio.wait([taking])
    assert len(stored) > 30
    assert len(set(got) - set(stored)) <= 3, "of each process the last may have been stored and not printed"
    assert rows(outbox) == 0
    if qos == 2:
        assert len(got) == len(set(got))


async def test_messages_wait_on_disk_for_the_next_process(
    tmp_path: Path, topic: str, running: dict[str, Server]
) -> None:
    """Also with the properties that they have, and in order."""
    outbox, server = tmp_path / "outbox", running["tidemq"]
    async with Proxy(server.port) as proxy, asyncio.timeout(WAIT_S):
        async with Client(proxy.url, outbox=outbox, close_timeout_s=0.05, **QUICK) as client:
            name = client.client_id
            proxy.stall()
            receipts = [
                client.publish_nowait(f"{topic}/{n}", str(n), qos=1, properties=Properties(content_type="t"))
                for n in range(5)
            ]
            await asyncio.gather(*(each.stored for each in receipts))
        assert rows(outbox) == 5
        for each in receipts:
            with pytest.raises(DisconnectedError):
                await each.acknowledged
        async with Client(server.url) as watching:
            await watching.subscribe(f"{topic}/#", qos=1)
            async with Client(server.url, outbox=outbox) as client:
                assert client.client_id == name
            got = [await anext(watching.messages) for _ in range(5)]
    assert [each.payload for each in got] == [b"0", b"1", b"2", b"3", b"4"]
    assert {each.content_type for each in got} == {"t"}
    assert rows(outbox) == 0


async def test_the_handshake_of_qos_2_goes_on_where_it_stood(tmp_path: Path) -> None:
    """A process that ended after PUBREC sends PUBREL; one that ended before sends PUBLISH again as
    duplicate."""
    seen: list[Any] = []

    async def script(peer: Peer) -> None:
        connect = await peer.accept(Connack(session_present=server.connections > 1))
        assert not connect.clean_start
        if server.connections == 1:
            for _ in range(2):
                seen.append(await peer.receive())
            peer.send(Pubrec(packet_id=seen[0].packet_id))
            seen.append(await peer.receive())
            await peer.receive()
            return
        for _ in range(2):
            seen.append(await peer.receive())
        peer.send(Pubcomp(packet_id=seen[0].packet_id), Pubrec(packet_id=seen[1].packet_id))
        seen.append(await peer.receive())
        peer.send(Pubcomp(packet_id=seen[1].packet_id))
        await peer.receive()

    outbox = tmp_path / "outbox"
    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server:
        async with Client(server.url, outbox=outbox, close_timeout_s=0.05) as client:
            for n in range(2):
                client.publish_nowait(f"t/{n}", qos=2)
            await until(lambda: len(seen) >= 3)
        async with Client(server.url, outbox=outbox) as client:
            await until(lambda: len(seen) >= 6)
    assert [type(each) for each in seen] == [Publish, Publish, Pubrel, Pubrel, Publish, Pubrel]
    assert [each.packet_id for each in seen] == [seen[n].packet_id for n in (0, 1, 0, 0, 1, 1)]
    assert (seen[1].dup, seen[4].dup) == (False, True)
    assert rows(outbox) == 0


async def test_one_client_at_a_time_and_by_its_name(server: Server, tmp_path: Path) -> None:
    outbox = tmp_path / "outbox"
    async with Client(server.url, outbox=outbox, client_id=f"device-{tmp_path.name}"):
        with pytest.raises(StoreError, match="locked"):
            await Client(server.url, outbox=outbox).connect()
    with pytest.raises(StoreError, match="belongs to the client 'device-"):
        await Client(server.url, outbox=outbox, client_id="other").connect()


async def test_a_file_that_is_no_outbox(server: Server, tmp_path: Path) -> None:
    path = tmp_path / "outbox"
    path.write_bytes(b"something else " * 100)
    with pytest.raises(StoreError, match="not a database"):
        await Client(server.url, outbox=path).connect()
    with closing(sqlite3.connect(tmp_path / "newer")) as database:
        database.execute("PRAGMA user_version = 99")
    with pytest.raises(StoreError, match="format 99"):
        await Client(server.url, outbox=tmp_path / "newer").connect()


async def test_a_disk_that_fails_ends_the_client(tmp_path: Path) -> None:
    """Nothing is sent that is not on disk, and the program is told."""
    seen: list[Any] = []

    async def script(peer: Peer) -> None:
        await peer.accept()
        while (packet := await peer.receive()) is not None:
            if isinstance(packet, Publish):
                seen.append(packet.topic)
                peer.send(Puback(packet_id=packet.packet_id))

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server:
        client = Client(server.url, outbox=tmp_path / "outbox")
        await client.connect()
        await client.publish("good", qos=1)
        await client._outbox._work(client._outbox._database.execute, "DROP TABLE message")  # type: ignore[union-attr]
        with pytest.raises(StoreError, match="no such table"):
            await client.publish("bad", qos=1)
        with pytest.raises(StoreError):
            await anext(client.messages)
        await client.disconnect()
    assert seen == ["good"]
