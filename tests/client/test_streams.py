"""A stream is read over HTTP: exact ranges, times, waiting; what is not there is said, never skipped."""

from __future__ import annotations

import asyncio
import json
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from conftest import StartBroker
from waiting import LATE_S, WAIT_S

from tidemq.client import ConnectError
from tidemq.client import sync as blocking
from tidemq.client.stream_admin import declare_stream, list_streams
from tidemq.client.streams import ChangedEpochError, MissingMessagesError, StreamReader, UnknownStreamError
from tidemq.errors import UsageError
from tidemq.testing.ports import free_port
from tidemq.testing.proxy import Proxy

SETTINGS = 'store = "sqlite"\ndata = "{data}"\nadmin_port = {port}\n'


class Streaming:
    """A broker with a stream, and what publishes into it."""

    def __init__(self, start: Callable[..., Any], data: Path) -> None:
        self._start, self.data, self.admin_port = start, data, free_port()
        self.url = f"http://127.0.0.1:{self.admin_port}"
        self.name = ""
        self.start()

    def start(self) -> None:
        self.broker = self._start(SETTINGS.format(data=self.data, port=self.admin_port))

    def declare(self, name: str) -> Streaming:
        self.name = name
        self.ask("PUT", f"/streams/{name}", json.dumps({"filters": [f"{name}/#"]}).encode())
        return self

    def publish(self, count: int) -> None:
        with blocking.Client(f"mqtt://127.0.0.1:{self.broker.port}") as client:
            client.publish_many([(f"{self.name}/a", b"%d" % number) for number in range(count)], qos=1)

    def reader(self) -> StreamReader:
        return StreamReader(self.url, self.name)

    def ask(self, method: str, path: str, body: bytes | None = None) -> None:
        request = urllib.request.Request(f"{self.url}{path}", body, method=method)
        urllib.request.urlopen(request, timeout=WAIT_S).close()


@pytest.fixture(scope="module")
def shared(start_broker: StartBroker, tmp_path_factory: pytest.TempPathFactory) -> Streaming:
    return Streaming(start_broker, tmp_path_factory.mktemp("streams"))


@pytest.fixture
def streaming(shared: Streaming, request: pytest.FixtureRequest) -> Streaming:
    """A new stream, with the test's name."""
    return shared.declare(request.node.name[:64])


def offsets(batches: Iterator[Any]) -> list[int]:
    return [offset for batch in batches for offset in batch.column("offset").to_pylist()]


def test_ranges_are_exact_and_can_be_read_again(streaming: Streaming) -> None:
    for _ in range(3):
        streaming.publish(200)
    reader = streaming.reader()
    state = reader.describe()
    assert (state.name, state.first_offset, state.next_offset) == (streaming.name, 0, 600)
    assert state.filters == (f"{streaming.name}/#",)
    for start, end in ((0, 600), (7, 423), (199, 201), (5, 5), (599, 600)):
        assert offsets(reader.read(start, end)) == list(range(start, end))
    assert offsets(reader.read(590)) == list(range(590, 600))
    payloads = [payload for batch in reader.read(200, 400) for payload in batch.column("payload").to_pylist()]
    assert payloads == [b"%d" % number for number in range(200)]


def test_only_the_columns_that_are_wanted_come(streaming: Streaming) -> None:
    for _ in range(2):
        streaming.publish(100)
    reader = streaming.reader()
    found = list(reader.read(30, 170, columns=("payload", "topic")))
    assert {tuple(batch.schema.names) for batch in found} == {("payload", "topic")}
    rows = [row for batch in found for row in batch.to_pylist()]
    topic = f"{streaming.name}/a"
    assert rows == [{"payload": b"%d" % (at % 100), "topic": topic} for at in range(30, 170)]
    query = f"{streaming.url}/streams/{streaming.name}/messages?start=0&end=200"
    with urllib.request.urlopen(query) as whole, urllib.request.urlopen(f"{query}&columns=topic") as part:
        assert len(part.read()) < len(whole.read()) / 2
    with pytest.raises(UsageError, match="no column 'topics'; accepted: offset, topic, "):
        reader.read(0, columns=("topic", "topics"))  # at once, before anything is read


def test_a_time_is_an_offset(streaming: Streaming) -> None:
    streaming.publish(50)
    time.sleep(0.01)
    then = datetime.now(UTC)
    streaming.publish(50)
    reader = streaming.reader()
    assert reader.offset_at(then) == 50
    assert reader.offset_at(datetime(2000, 1, 1, tzinfo=UTC)) == 0
    assert reader.offset_at(datetime(2100, 1, 1, tzinfo=UTC)) == 100
    with pytest.raises(UsageError, match="no time zone"):
        reader.offset_at(datetime(2000, 1, 1))


def test_bytes_bound_how_far_one_reads(streaming: Streaming) -> None:
    for _ in range(4):
        streaming.publish(1)
    reader = streaming.reader()
    size = reader.describe().bytes // 4
    assert reader.end_within(0, 4, 1) == 1
    assert reader.end_within(1, 4, 2 * size + size // 2) == 3
    assert reader.end_within(0, 3, 1 << 30) == 3


def test_waiting_ends_with_the_message_or_with_the_time(streaming: Streaming) -> None:
    reader = streaming.reader()
    assert reader.wait(0, 0.1).next_offset == 0
    late = threading.Timer(0.3, streaming.publish, [1])
    late.start()
    began = time.monotonic()
    assert reader.wait(0, 100).next_offset == 1
    assert time.monotonic() - began < LATE_S
    late.join()


def test_another_epoch_and_an_unknown_stream_are_refused(streaming: Streaming) -> None:
    streaming.publish(3)
    reader = streaming.reader()
    epoch = reader.describe().epoch
    streaming.ask("DELETE", f"/streams/{streaming.name}")
    with pytest.raises(UnknownStreamError, match="there is no stream 'test_another_epoch"):
        reader.describe()
    streaming.declare(streaming.name)
    streaming.publish(3)
    with pytest.raises(ChangedEpochError, match=f"not {epoch}"):
        list(reader.read(0, 3, epoch=epoch))
    assert offsets(reader.read(0, 3)) == [0, 1, 2]


def test_what_was_damaged_is_missed_and_named(start_broker: StartBroker, tmp_path: Path) -> None:
    streaming = Streaming(start_broker, tmp_path).declare("all")
    for _ in range(3):
        streaming.publish(100)
    assert streaming.broker.stop() == 0
    [segment] = (streaming.data / "streams").glob("all.*/*.arrow")
    with segment.open("r+b") as file:  # a byte in the middle of all: of the second hundred, or thereabouts
        file.seek(segment.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, 1)
        file.write(bytes([byte ^ 1]))
    streaming.start()
    reader = streaming.reader()
    with pytest.raises(MissingMessagesError) as raised:
        list(reader.read(0, 300))
    gap = raised.value
    assert 0 <= gap.start < gap.end <= 300
    assert f"offsets {gap.start} to {gap.end - 1}" in str(gap)
    missing: list[tuple[int, int]] = []
    found = offsets(reader.read(0, 300, on_missing=lambda start, end: missing.append((start, end))))
    assert missing == [(gap.start, gap.end)]
    assert found == [*range(gap.start), *range(gap.end, 300)]
    inside = (gap.start + gap.end) // 2
    missing.clear()
    assert (
        offsets(reader.read(inside, 300, on_missing=lambda *gone: missing.append(gone))) == found[gap.start :]
    )
    assert missing == [(inside, gap.end)]
    with pytest.raises(MissingMessagesError, match="offsets 300 to 309"):  # not yet there is not there
        list(reader.read(299, 310))


async def test_a_connection_that_breaks_is_made_again_where_it_broke(streaming: Streaming) -> None:
    for _ in range(5):
        await asyncio.to_thread(streaming.publish, 500)

    async with Proxy(streaming.admin_port) as proxy:
        url = f"http://127.0.0.1:{proxy.port}"
        proxy.cut_after_bytes = streaming.reader().describe().bytes // 2
        with pytest.raises(ConnectError, match="the connection"):
            await asyncio.to_thread(lambda: list(StreamReader(url, streaming.name).read(0, 2500)))

        def stop_to_cut() -> list[int]:
            batches = StreamReader(url, streaming.name, retry_s=5).read(0, 2500)
            first = next(batches)
            proxy.cut_after_bytes = None
            return offsets(iter([first, *batches]))

        assert await asyncio.to_thread(stop_to_cut) == list(range(2500))


STATE = {"name": "all", "filters": ["#"], "epoch": 1, "first_offset": 0, "next_offset": 5, "bytes": 9}


@pytest.mark.parametrize(
    "said", [{"ok": True}, [], None, "text", STATE | {"next_offset": "many"}, STATE | {"filters": None}]
)
def test_an_answer_of_something_else_is_named(answering: Callable[[object], str], said: Any) -> None:
    url = answering(said)
    reader = StreamReader(url, "all")
    calls: list[Callable[[], object]] = [
        reader.describe,
        lambda: reader.wait(1, 0),
        lambda: list(reader.read(0, 5)),
        lambda: list(reader.read(0, 5, epoch=1)),
        lambda: reader.end_within(0, 5, 1),
        lambda: reader.offset_at(datetime.now(UTC)),
        lambda: declare_stream(url, "all", ["#"]),
        lambda: list_streams(url),
    ]
    for call in calls[:-1] if said == [] else calls:
        with pytest.raises(ConnectError, match=rf"^{url}: "):
            call()


@pytest.fixture
def answering() -> Iterator[Callable[[object], str]]:
    """`answering(said)`: the URL of a server that answers everything with 200 and that, as JSON."""
    servers = []

    def start(said: object) -> str:
        body = json.dumps(said).encode()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                self.send_response(200)
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            do_PUT = do_GET  # noqa: N815

            def log_message(self, *_: object) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever).start()
        return f"http://127.0.0.1:{servers[-1].server_port}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def test_who_is_no_broker_with_streams_is_named(streaming: Streaming) -> None:
    nobody = f"http://127.0.0.1:{free_port()}"
    with pytest.raises(ConnectError, match=rf"^{nobody}: .*refused"):
        StreamReader(nobody, "all", retry_s=0.3).describe()
    with pytest.raises(ConnectError, match=r"404 /x/streams/all is unknown"):
        StreamReader(f"{streaming.url}/x", "all").describe()
    for url in (
        "localhost:8883",
        "mqtt://localhost",
        "http://localhost:x",
        "http://[::1",
        f"http://{'x' * 64}.example",
    ):
        with pytest.raises(UsageError, match=r"URL|name of a host"):
            StreamReader(url, "all")
