"""Records that come damaged, over real `nats-server`s: set aside, said, and had from somebody else."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
from cluster.test_host import Cluster, client, publish, receive
from waiting import until

from tidemq.cluster.exchange import RECORDS

MESSAGES = 30


@pytest.fixture
async def cluster(tmp_path: Path) -> AsyncIterator[Cluster]:
    async with AsyncExitStack() as stack:
        yield Cluster(tmp_path, stack)


def flipped(text: bytes) -> bytes:
    """With another bit in the middle."""
    middle = len(text) // 2
    return text[:middle] + bytes([text[middle] ^ 4]) + text[middle + 1 :]


def lines(cluster: Cluster, name: str) -> list[str]:
    keeper = cluster.hosts[name].keeper
    assert keeper is not None
    found: list[str] = keeper.ask(lambda: list(keeper.rows.lines())).result()
    return found


async def test_a_damaged_record_is_had_from_another_holder(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What its own node sends has a wrong bit, and so have the first copies that are fetched."""
    caplog.set_level(logging.WARNING, "tidemq.cluster")
    one, two = await cluster.meet("one", "two")
    keeper = cluster.hosts["two"].keeper
    assert keeper is not None
    inbox = keeper.inbox
    take_in, take_fetched = inbox.take_in, inbox.take_fetched
    damaged = [0, 0]

    def sent(kind: str, source: int, body: bytes) -> None:
        damaged[0] += kind == RECORDS
        take_in(kind, source, flipped(body) if kind == RECORDS else body)

    def fetched(holder: int, records: Sequence[bytes]) -> None:
        damaged[1] += 1
        take_fetched(holder, [flipped(each) for each in records] if damaged[1] <= 2 else records)

    async with client(one, "ann") as ann:
        await ann.subscribe("a/#", qos=1)
    await until(lambda: lines(cluster, "one") == lines(cluster, "two"))
    monkeypatch.setattr(inbox, "take_in", sent)
    monkeypatch.setattr(inbox, "take_fetched", fetched)
    async with client(one, "bob") as bob:
        for number in range(MESSAGES):
            await publish(bob, b"%d" % number)
    await until(lambda: lines(cluster, "one") == lines(cluster, "two"))
    counts = cluster.hosts["two"].counts()
    assert damaged[0] > 0
    assert damaged[1] > 2
    assert counts["cluster_records_damaged"] > 2
    assert counts["cluster_records_fetched"] > 2
    said = [each.getMessage() for each in caplog.records]
    assert any("is set aside, and asked for elsewhere: a record's checksum is wrong" in each for each in said)
    monkeypatch.setattr(inbox, "take_in", take_in)  # or a CONNECT would wait for the last holder asked
    async with client(two, "ann") as ann:
        assert [await receive(ann) for _ in range(MESSAGES)] == [b"%d" % each for each in range(MESSAGES)]
