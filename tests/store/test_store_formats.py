"""Today's broker starts on a store of every format and engine, as a killed broker left it, and has all of it.

`formats/make.py` says how the archives are made.
"""

from __future__ import annotations

import asyncio
import tarfile
from pathlib import Path

import pytest
from conformance.kit import Client, connected
from conformance.packets import PUBCOMP, PUBREC, PUBREL, Packet, acknowledge, publish
from store.formats.make import FOR_EVER, SETTINGS

from tidemq import Broker
from tidemq.config import load_config
from tidemq.store import FORMAT
from tidemq.store.engines import open_existing
from tidemq.store.inspection import check_store
from tidemq.store.interface import OLDER
from tidemq.store.migration import migrate_store

FORMATS = Path(__file__).with_name("formats")
ARCHIVES = sorted(FORMATS.glob("*.tar.xz"))  # FORMAT-NAME-ENGINE
ENGINES = ("rocksdb", "sqlite")


def test_there_is_one_of_each_format_and_engine() -> None:
    found = {tuple(path.name.removesuffix(".tar.xz").split("-")[::2]) for path in ARCHIVES}
    assert found == {(each.decode(), engine) for each in (*OLDER, FORMAT) for engine in ENGINES}


@pytest.fixture(params=ARCHIVES, ids=lambda path: path.name.removesuffix(".tar.xz"))
def data(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """The data directory, of this version's format."""
    with tarfile.open(request.param) as file:
        file.extractall(tmp_path, filter="data")
    if request.param.name.split("-")[0].encode() == FORMAT:
        return tmp_path / "data"
    migrate_store(tmp_path / "data", tmp_path / "new", "", print)
    return tmp_path / "new"


def test_every_row_can_be_read(data: Path) -> None:
    store = open_existing(data)
    findings = check_store(store)
    store.close()
    assert (findings.corrupt, dict(findings.leftovers)) == ([], {})
    assert findings.rows > 20


def receive(broker: Broker, client_id: str, count: int) -> list[Packet]:
    """The session of this client is there; so many messages come, in order, and then none."""
    client = Client(broker.port)
    assert client.connect(client_id, **FOR_EVER).session_present
    messages = [client.receive() for _ in range(count)]
    for each in messages:
        client.acknowledge(each)
    assert client.rest() == []
    client.disconnect()
    return messages


async def test_a_broker_has_all_of_it(data: Path, tmp_path: Path) -> None:
    (tmp_path / "tidemq.toml").write_text(SETTINGS)
    flags = {"host": "127.0.0.1", "port": 0, "data": data, "store": (data / "engine").read_text()}
    config = load_config(tmp_path / "tidemq.toml", flags | {"store_strict": True})
    async with Broker(config) as broker:
        await asyncio.to_thread(look, broker)


def look(broker: Broker) -> None:
    sender = connected(broker, client_id="sender", **FOR_EVER)
    sender.send(publish("a/3", b"once", 2, 77, dup=True))  # again: the broker has its packet identifier
    sender.expect(PUBREC, packet_id=77)
    sender.send(acknowledge(PUBREL, 77))
    sender.expect(PUBCOMP, packet_id=77)
    queued = receive(broker, "reader", 3)
    assert [(each.topic, each.payload, each.qos) for each in queued] == [
        ("a/1", b"one", 1),
        ("a/2", b"two", 2),
        ("a/3", b"once", 2),
    ]
    assert all(each.get("subscription_id") == 7 for each in queued)
    assert 3_000_000_000 < queued[1].get("message_expiry") < 4_000_000_000
    [in_flight] = receive(broker, "holder", 1)
    assert (in_flight.payload, in_flight.dup) == (b"in flight", True)
    [shared] = receive(broker, "member", 1)
    assert shared.payload == b"shared"
    sender.publish("b", b"new", qos=1)
    assert [each.payload for each in receive(broker, "holder", 1)] == [b"new"]  # the subscription is there
    sender.subscribe("r/#", qos=1)
    sender.expect_message("r/1", b"retained", qos=1, retain=True)
    sender.replay("$stream/s/first/#")
    assert [sender.receive().payload for _ in range(3)] == [b"kept 0", b"kept 1", b"kept 2"]
    sender.drop()
