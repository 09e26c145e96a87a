"""A stream with `last`, of a running broker, as programs meet it: over HTTP, from Python, over MQTT."""

from __future__ import annotations

import asyncio
import json
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from waiting import WAIT_S, until

from tidemq import Broker, Config
from tidemq.broker.durability import keeper
from tidemq.client import Client
from tidemq.client.stream_admin import declare_stream, list_streams
from tidemq.client.streams import ChangedEpochError, MissingMessagesError, StreamError, StreamReader
from tidemq.config import StreamConfig
from tidemq.errors import UsageError
from tidemq.stream import compaction, streams

LAST = StreamConfig(name="last", filters=("t/#",), last=True)


class Running:
    """A broker with a stream of everything and one with `last`."""

    def __init__(self, config: Config) -> None:
        self.config = config
        self.url = f"http://127.0.0.1:{config.admin_port}"
        self.reader = StreamReader(self.url, "last")

    async def start(self) -> None:
        self.broker = Broker(self.config)
        await self.broker.start()

    async def restart(self) -> None:
        await self.broker.stop()
        await self.start()

    async def publish(self, *messages: tuple[str, bytes]) -> None:
        async with Client(f"mqtt://127.0.0.1:{self.broker.port}") as client:
            for topic, payload in messages:
                await client.publish(topic, payload, qos=1)

    async def compact(self, count: int = 40) -> dict[str, bytes]:
        """Publishes until older messages have been removed, and no more are to be; gives the newest."""
        newest: dict[str, bytes] = {}
        counts = self.broker.counters
        before, number = counts()["stream_messages_compacted"], 0
        while number < count or counts()["stream_messages_compacted"] == before:
            messages = [(f"t/{(number + n) % 8}", b"%d" % (number + n)) for n in range(8)]
            await self.publish(*messages)
            newest.update(messages)
            number += 8
        await until(self.is_idle, "no compaction is due")
        return newest

    def is_idle(self) -> bool:
        kept = self.broker._streams
        assert kept is not None
        stream = kept.all["last"]
        return kept._rewriting is None and stream.judged_segment == stream.log.last_segment

    async def ask(self, path: str) -> tuple[int, dict[str, str], bytes]:
        def ask() -> tuple[int, dict[str, str], bytes]:
            try:
                with urllib.request.urlopen(f"{self.url}{path}", timeout=WAIT_S) as answer:
                    return answer.status, dict(answer.headers), answer.read()
            except urllib.error.HTTPError as error:
                return error.code, {}, error.read()

        return await asyncio.to_thread(ask)

    async def rows(self, *columns: str) -> list[dict[str, Any]]:
        """Of the table, from Python."""
        read = self.reader.read_last(columns=columns or ("offset", "topic", "payload"))
        return await asyncio.to_thread(lambda: [row for batch in read for row in batch.to_pylist()])


@pytest.fixture
async def running(
    tmp_path: Path, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Running]:
    monkeypatch.setattr(keeper, "SWEEP_S", 0.02)
    monkeypatch.setattr(streams, "LAST_SEGMENT_BYTES", 4000)
    running = Running(
        Config(
            host="127.0.0.1",
            port=0,
            reactors=2,
            data=tmp_path / "data",
            sys_interval_s=0,
            admin_port=unused_tcp_port,
            streams=(StreamConfig(name="all", filters=("#",)), LAST),
        )
    )
    await running.start()
    yield running
    await running.broker.stop()


async def test_one_request_gives_the_newest_of_each_topic(running: Running) -> None:
    newest = await running.compact()
    await running.publish(("t/gone", b"1"), ("t/0", b"last"), ("t/gone", b""))
    newest |= {"t/0": b"last"}
    for _ in range(2):
        rows = await running.rows()
        assert {row["topic"]: row["payload"] for row in rows} == newest
        offsets = [row["offset"] for row in rows]
        assert offsets == sorted(offsets)
        state = await asyncio.to_thread(running.reader.describe)
        assert state.last
        assert offsets[-1] == state.next_offset - 2  # behind it is what removes a topic
        await running.restart()
    status, headers, body = await running.ask("/streams/last/last?columns=payload,topic")
    assert (status, headers["X-Next-Offset"]) == (200, str(state.next_offset))
    table = pa.ipc.open_stream(body).read_all()
    assert table.schema.names == ["topic", "payload"]
    assert len(table) == int(headers["X-Messages"]) == 8
    assert await running.rows("payload", "topic") == table.select(["payload", "topic"]).to_pylist()


async def test_an_empty_stream_is_an_empty_table(running: Running) -> None:
    assert await running.rows() == []


async def test_what_was_compacted_is_not_missing_and_what_was_damaged_is(running: Running) -> None:
    newest = await running.compact()

    def read() -> tuple[list[int], dict[str, bytes]]:
        rows = [row for batch in running.reader.read(0) for row in batch.to_pylist()]
        return [row["offset"] for row in rows], {row["topic"]: row["payload"] for row in rows}

    offsets, found = await asyncio.to_thread(read)
    assert found == newest
    assert offsets == sorted(set(offsets))
    assert len(offsets) < offsets[-1]
    state = await asyncio.to_thread(running.reader.describe)
    assert state.first_offset == 0
    for start, end in ((1, 3), (5, state.next_offset), (offsets[-1], state.next_offset)):
        part = await asyncio.to_thread(lambda: list(running.reader.read(start, end)))  # noqa: B023
        assert [row for batch in part for row in batch.column("offset").to_pylist()] == [
            offset for offset in offsets if start <= offset < end
        ]
    await running.broker.stop()
    extents = running.broker._streams.all["last"].log.extents if running.broker._streams else []
    [folder] = (running.config.data / "streams").glob("last.*")
    harmed = extents[-2]
    with (folder / f"{harmed.segment:020}.arrow").open("r+b") as file:
        file.seek(harmed.position + harmed.length // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    await running.start()
    assert running.broker.counters()["stream_messages_damaged"] == harmed.rows
    missing: list[tuple[int, int]] = []
    read_on = running.reader.read(0, on_missing=lambda *gone: missing.append(gone))
    left = await asyncio.to_thread(
        lambda: [row for batch in read_on for row in batch.column("offset").to_pylist()]
    )
    assert missing == [(harmed.first, harmed.end)]
    assert left == [offset for offset in offsets if not harmed.first <= offset < harmed.end]
    with pytest.raises(MissingMessagesError, match=f"offsets {harmed.first} to {harmed.end - 1}"):
        await asyncio.to_thread(lambda: list(running.reader.read(0)))


async def test_a_replay_over_mqtt_passes_over_what_was_compacted(running: Running) -> None:
    newest = await running.compact()
    for qos in (0, 1):
        async with Client(f"mqtt://127.0.0.1:{running.broker.port}") as client:
            await client.subscribe("$stream/last/first/#", qos=qos)
            found: dict[str, bytes] = {}
            properties = []
            while found != newest:
                message = await asyncio.wait_for(anext(client.messages), WAIT_S)
                found[message.topic.removeprefix("$stream/last/first/")] = message.payload
                properties += [name for name, _ in message.properties.user_properties]
            assert "stream-offset" in properties
            assert "stream-gap" not in properties
    assert running.broker.counters()["replays_offsets_missing"] == 0


async def test_it_is_declared_shown_and_changed(running: Running) -> None:
    def declare(**more: Any) -> bool:
        return declare_stream(running.url, "some", ["some/#"], **more).last

    assert await asyncio.to_thread(declare, last=True)
    status, _, body = await running.ask("/streams/some")
    said = json.loads(body)
    assert (status, said["last"], said["retention_s"], said["retention_bytes"]) == (200, True, 0, 0)
    states = await asyncio.to_thread(list_streams, running.url)
    assert {each.name: each.last for each in states} == {"all": False, "last": True, "some": True}
    await running.restart()
    assert json.loads((await running.ask("/streams/some"))[2])["last"]
    assert not await asyncio.to_thread(declare)  # as every setting that is not named
    said = json.loads((await running.ask("/streams/some"))[2])
    assert (said["last"], said["retention_s"]) == (False, 604_800)


async def test_what_is_no_table_is_refused(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    await running.publish(*((f"t/{n}", b"x") for n in range(8)))
    for path, status, text in (
        ("all/last", 400, "the stream all is not one with last = true"),
        ("none/last", 404, "there is no stream 'none'"),
        ("last/last?epoch=1", 409, "its epoch is"),
        ("last/last?columns=topics", 400, "a stream has no column 'topics'"),
    ):
        found, _, body = await running.ask(f"/streams/{path}")
        assert (found, path) == (status, path)
        assert text in json.loads(body)["error"]
    with pytest.raises(StreamError, match="not one with last = true"):
        await asyncio.to_thread(lambda: list(StreamReader(running.url, "all").read_last()))
    with pytest.raises(ChangedEpochError):
        await asyncio.to_thread(lambda: list(running.reader.read_last(epoch=1)))
    with pytest.raises(UsageError, match="wanted twice"):
        running.reader.read_last(columns=("topic", "topic"))
    assert running.broker._streams is not None
    running.broker._streams.topics_bytes_max = 1
    monkeypatch.setattr(compaction, "ROWS", 1)
    with pytest.raises(StreamError, match="take more than compaction_bytes_max: 1"):
        await asyncio.to_thread(lambda: list(running.reader.read_last()))


async def test_a_table_that_damage_might_have_made_wrong_is_refused(running: Running) -> None:
    await running.publish(("t/0", b"1"))
    kept = running.broker._streams
    assert kept is not None
    log = kept.all["last"].log
    [extent] = log.extents
    with log.segment_path(extent.segment).open("r+b") as file:
        file.seek(extent.position + extent.length // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    status, _, body = await running.ask("/streams/last/last")
    assert status == 500
    assert "offsets 0 to 0 are not as they were written" in json.loads(body)["error"]
    with pytest.raises(StreamError, match="are not as they were written"):
        await running.rows()


async def test_readers_over_http_meanwhile_get_every_topic(running: Running) -> None:
    """Segments are replaced between what they find and what they open, and while they are sent."""
    done = asyncio.Event()

    async def follow() -> list[int]:
        at = 0
        offsets: list[int] = []
        while True:
            ended = done.is_set()
            end = (await asyncio.to_thread(running.reader.describe)).next_offset
            if ended and at == end:
                return offsets
            read = running.reader.read(at, end, columns=("offset",))
            found = await asyncio.to_thread(list, read)
            offsets += [offset for batch in found for offset in batch.column("offset").to_pylist()]
            at = end

    async def look() -> int:
        tables = 0
        while not done.is_set():
            rows = await running.rows("topic")
            topics = [row["topic"] for row in rows]
            assert len(set(topics)) == len(topics)
            tables += 1
        return tables

    following = [asyncio.create_task(follow()) for _ in range(2)]
    looking = asyncio.create_task(look())
    newest = await running.compact(96)
    done.set()
    assert await looking
    found = [await task for task in following]
    rows = await running.rows()
    assert {row["topic"]: row["payload"] for row in rows} == newest
    for offsets in found:
        assert offsets == sorted(set(offsets))
        assert {row["offset"] for row in rows} <= set(offsets)


async def test_a_stream_that_is_deleted_while_it_is_compacted_leaves_nothing(
    running: Running, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    kept = running.broker._streams
    assert kept is not None
    really = compaction.Newest.add
    deleted = asyncio.Event()
    loop = asyncio.get_running_loop()

    def delete(newest: Any, *what: Any) -> None:
        really(newest, *what)
        if not deleted.is_set():
            request = urllib.request.Request(f"{running.url}/streams/last", method="DELETE")
            urllib.request.urlopen(request, timeout=WAIT_S).close()
            loop.call_soon_threadsafe(deleted.set)

    monkeypatch.setattr(compaction.Newest, "add", delete)
    number = 0
    while not deleted.is_set():
        await running.publish(("t/0", b"%d" % number))
        number += 1
    await until(lambda: kept._rewriting is None)
    assert list((running.config.data / "streams").glob("last.*")) == []
    assert running.broker.counters()["stream_compactions_failed"] == 0
    assert "cannot be compacted" not in caplog.text
