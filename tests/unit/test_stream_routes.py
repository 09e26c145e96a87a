"""Streams over HTTP, as a reader in another program meets them."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pytest
from waiting import WAIT_S, until

from tidemq import Broker, Config
from tidemq.broker.admin import stream_routes
from tidemq.broker.durability import keeper
from tidemq.client import Client
from tidemq.config import StreamConfig
from tidemq.errors import ConfigError
from tidemq.store import MemoryStore
from tidemq.stream import streams


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def table(self) -> pa.Table:
        assert self.status == 200, self.body
        if "Transfer-Encoding" not in self.headers:
            assert int(self.headers["Content-Length"]) == len(self.body)
        return pa.ipc.open_stream(self.body).read_all()


class Running:
    """A broker with a stream of everything, asked by HTTP."""

    def __init__(self, broker: Broker, client: Client) -> None:
        self.broker = broker
        self.client = client

    async def ask(self, method: str, path: str, body: object = None) -> Answer:
        return await asyncio.to_thread(self._ask, method, path, body)

    def _ask(self, method: str, path: str, body: object) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.broker.admin_port, timeout=WAIT_S)
        connection.request(method, path, body if isinstance(body, bytes | None) else json.dumps(body))
        answer = connection.getresponse()
        return Answer(answer.status, dict(answer.getheaders()), answer.read())

    async def read(self, start: int, end: int, more: str = "") -> Answer:
        return await self.ask("GET", f"/streams/all/messages?start={start}&end={end}{more}")


@pytest.fixture
async def running(tmp_path: Path, unused_tcp_port: int) -> AsyncIterator[Running]:
    config = Config(
        host="127.0.0.1",
        port=0,
        reactors=2,
        data=tmp_path / "data",
        sys_interval_s=0,
        admin_port=unused_tcp_port,
        streams=(StreamConfig(name="all", filters=("#",)),),
    )
    async with Broker(config) as broker, Client(f"mqtt://127.0.0.1:{broker.port}") as client:
        yield Running(broker, client)


async def test_some_columns_come_in_pieces(running: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(20):
        await running.client.publish(f"some/{number % 2}", b"%d" % number, qos=1)
    whole = (await running.read(0, 20)).table
    for extents, size in ((1, 1 << 20), (3, 1 << 20), (256, 1), (256, 1 << 20)):
        monkeypatch.setattr(stream_routes, "PIECE_EXTENTS", extents)
        monkeypatch.setattr(stream_routes, "PIECE_BYTES", size)
        some = (await running.read(0, 20, "&columns=payload,topic")).table
        assert some == whole.select(["topic", "payload"])
    refused = await running.read(0, 20, "&columns=topic,topics")
    assert (refused.status, refused.json["error"].split(";")[0]) == (400, "a stream has no column 'topics'")
    assert (await running.read(0, 20, "&columns=")).status == 400


async def test_ranges_are_whole_batches_that_cover_them(running: Running) -> None:
    for number in range(20):
        await running.client.publish("t", b"%d" % number, qos=1)
    assert (await running.read(0, 20)).table["offset"].to_pylist() == list(range(20))
    some = await running.read(5, 9)
    assert some.table["offset"].to_pylist() == list(
        range(int(some.headers["X-First-Offset"]), int(some.headers["X-Next-Offset"]))
    )
    assert set(range(5, 9)) <= set(some.table["offset"].to_pylist())
    assert len((await running.read(0, 20, "&bytes_max=1")).table) < 20  # but a batch
    assert len((await running.read(20, 100)).table) == 0
    assert (await running.read(20, 100)).headers["X-Next-Offset"] == "20"


async def test_large_messages_come_whole_from_several_segments(running: Running) -> None:
    path = "/streams/large"
    assert (await running.ask("PUT", path, {"filters": ["l"], "retention_bytes": 8 << 20})).status == 201
    payloads = [os.urandom(900_000) for _ in range(5)]
    for payload in payloads:
        await running.client.publish("l", payload, qos=1)
    table = (await running.ask("GET", path + "/messages?start=0&end=5")).table
    assert table["payload"].to_pylist() == payloads
    data = running.broker.config.data / "streams"
    assert len(list(next(data.glob("large.*")).iterdir())) > 1


async def test_a_reader_waits_for_the_next_message(running: Running) -> None:
    asked = asyncio.create_task(running.ask("GET", "/streams/all?beyond=0&wait_s=5"))
    await asyncio.sleep(0.1)
    assert not asked.done()
    await running.client.publish("t", b"0", qos=1)
    assert (await asked).json["next_offset"] == 1
    began = time.monotonic()
    assert (await running.ask("GET", "/streams/all?beyond=1&wait_s=0.2")).json["next_offset"] == 1
    assert time.monotonic() - began >= 0.2


async def test_offsets_are_found_by_time(running: Running) -> None:
    await running.client.publish("t", b"0", qos=1)
    await asyncio.sleep(0.05)
    between = time.time_ns() // 1000
    await asyncio.sleep(0.05)
    await running.client.publish("t", b"1", qos=1)

    async def offset(time_us: int) -> int:
        found: int = (await running.ask("GET", f"/streams/all/offset?time_us={time_us}")).json["offset"]
        return found

    assert [await offset(0), await offset(between), await offset(time.time_ns() // 1000)] == [0, 1, 2]


async def test_streams_are_declared_changed_listed_and_deleted(running: Running) -> None:
    made = await running.ask("PUT", "/streams/some", {"filters": ["a/+"], "retention_s": 60})
    assert made.status == 201
    assert made.json["filters"] == ["a/+"]
    changed = await running.ask("PUT", "/streams/some", {"filters": ["b"]})
    assert changed.status == 200
    assert (changed.json["filters"], changed.json["epoch"]) == (["b"], made.json["epoch"])
    listed = (await running.ask("GET", "/streams")).json
    assert [each["name"] for each in listed] == ["all", "some"]
    assert (await running.ask("DELETE", "/streams/some")).status == 204
    assert (await running.ask("GET", "/streams/some")).status == 404
    again = await running.ask("PUT", "/streams/some", {"filters": ["b"]})
    old = made.json["epoch"]
    gone = await running.ask("GET", f"/streams/some/messages?start=0&end=1&epoch={old}")
    assert gone.status == 409
    assert str(again.json["epoch"]) in gone.json["error"]


async def test_the_compression_of_a_stream_may_change(running: Running) -> None:
    payloads = []
    for compression in ("none", "zstd", "lz4"):
        changed = await running.ask("PUT", "/streams/all", {"filters": ["#"], "compression": compression})
        assert (changed.status, changed.json["compression"]) == (200, compression)
        new = [compression.encode() * 50] * 40
        await asyncio.gather(*(running.client.publish("a", each, qos=1) for each in new))
        payloads += new
    for columns in ("", "&columns=payload"):
        table = (await running.read(0, len(payloads), columns)).table
        assert table.column("payload").to_pylist() == payloads
    refused = await running.ask("PUT", "/streams/all", {"filters": ["#"], "compression": "gzip"})
    assert refused.status == 400
    assert refused.json["error"].startswith("compression: Input should be 'none', 'lz4' or 'zstd'")


async def test_a_stream_that_is_deleted_and_made_at_once_has_its_files(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its folder is there, and it is none yet, when the files of the one before are removed."""
    path, body = "/streams/some", {"filters": ["some"]}
    await running.ask("PUT", path, body)
    kept = running.broker._streams
    assert kept is not None
    made, removed = threading.Event(), threading.Event()
    really_make, really_remove = streams._make_folder, kept.remove_files

    def make(folder: Path) -> None:
        really_make(folder)
        made.set()
        assert removed.wait(WAIT_S)

    def remove(*what: Any) -> None:
        assert made.wait(WAIT_S)
        really_remove(*what)
        removed.set()

    monkeypatch.setattr(streams, "_make_folder", make)
    monkeypatch.setattr(kept, "remove_files", remove)
    deleting = asyncio.create_task(running.ask("DELETE", path))
    await until(lambda: "some" not in kept.all)
    assert (await running.ask("PUT", path, body)).status == 201
    assert (await deleting).status == 204
    assert kept.all["some"].log.folder.is_dir()
    assert len(list((running.broker.config.data / "streams").glob("some.*"))) == 1
    await running.client.publish("some", b"", qos=1)


async def test_a_stream_that_is_deleted_while_it_is_made_was_made(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = running.broker._streams
    assert kept is not None
    really = kept.declare

    def declare_and_delete(config: StreamConfig) -> Any:
        made = really(config)
        kept.delete("some")
        return made

    monkeypatch.setattr(kept, "declare", declare_and_delete)
    made = await running.ask("PUT", "/streams/some", {"filters": ["some"]})
    assert (made.status, made.json["name"]) == (201, "some")


async def test_what_is_wrong_is_said(running: Running) -> None:
    for method, path, body, status, text in (
        ("GET", "/nothing", None, 404, "/streams/{name}"),
        ("GET", "/streams/no", None, 404, "there is no stream 'no'"),
        ("DELETE", "/streams/no", None, 404, "there is no stream 'no'"),
        ("PUT", "/streams/x", b"{", 400, "JSON object"),
        ("PUT", "/streams/x", [], 400, "JSON object"),
        ("PUT", "/streams/x", {}, 400, "filters"),
        ("PUT", "/streams/x", {"filters": ["a/#/b"]}, 400, "malformed"),
        ("PUT", "/streams/x", {"filters": ["$share/g/a"]}, 400, "shared"),
        ("PUT", "/streams/x", {"filters": ["a"], "retention": 5}, 400, "retention"),
        ("PUT", "/streams/..%2Fx", {"filters": ["a"]}, 400, "name"),
        ("GET", "/streams/all/messages?start=0", None, 400, "end has to be given"),
        ("GET", "/streams/all/messages?start=-1&end=5", None, 400, "start has to be given"),
        ("GET", "/streams/all?wait_s=x", None, 400, "wait_s has to be seconds"),
        ("PATCH", "/streams", None, 405, "Method Not Allowed"),
    ):
        answer = await running.ask(method, path, body)
        assert (answer.status, path) == (status, path)
        assert text in answer.json["error"] or text in answer.json.get("paths", [])


async def test_offsets_that_are_kept_no_more_are_gone(
    running: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "SWEEP_S", 0.02)
    path = "/streams/brief"
    await running.ask("PUT", path, {"filters": ["b"], "retention_s": 0.01})
    await running.client.publish("b", b"0", qos=1)
    await asyncio.sleep(0.2)  # the retention ends the segment
    for number in (1, 2):
        await running.client.publish("b", b"%d" % number, qos=1)
        await asyncio.sleep(0.2)
    first = (await running.ask("GET", path)).json["first_offset"]
    assert first > 0
    answer = await running.ask("GET", path + "/messages?start=0&end=9")
    assert answer.status == 410
    assert f"its first is {first}" in answer.json["error"]


@pytest.mark.parametrize("store", [None, MemoryStore()], ids=["configured", "given"])
async def test_streams_need_a_store_on_disk(store: MemoryStore | None) -> None:
    config = Config(port=0, store="memory", streams=(StreamConfig(name="all", filters=("#",)),))
    with pytest.raises(ConfigError, match="need a store on disk"):
        async with Broker(config, store=store):
            pass
