"""Every public coroutine of the broker and its keeper: cancelled, repeated, called twice at once; and what
becomes of a broker whose keeper has died.
"""

from __future__ import annotations

import asyncio
import json
import logging
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from unit.conftest import BrokerOnFake
from unit.keeper_double import Store
from waiting import WAIT_S, until

from tidemq.broker import Broker
from tidemq.config import Config
from tidemq.errors import StoreError, UsageError

QUIET = Config(host="127.0.0.1", port=0, sys_interval_s=0)


class SlowStore(Store):
    """Its opening, and its closing, wait until the test lets them go."""

    def __init__(self) -> None:
        super().__init__()
        self.let_open = threading.Event()
        self.let_close = threading.Event()
        self.let_close.set()
        self.calls: list[Any] = []

    def open(self) -> list[str]:
        self.calls.append("open")
        assert self.let_open.wait(WAIT_S)
        self.calls.append("opened")
        return super().open()

    def close(self) -> None:
        self.calls.append("close")
        assert self.let_close.wait(WAIT_S)
        self.calls.append("closed")
        super().close()


@pytest.fixture
def store() -> SlowStore:
    return SlowStore()


@pytest.fixture
def broker(store: Any) -> Broker:
    return Broker(Config(host="127.0.0.1", port=0, sys_interval_s=0, reactors=1), store=store)


async def started(broker: Broker, store: Any) -> Broker:
    store.let_open.set()
    await broker.start()
    return broker


def soon(loop: asyncio.AbstractEventLoop, event: threading.Event) -> None:
    """Lets the store go on from the event loop: it can only be so if the loop goes on meanwhile."""
    loop.call_later(0.02, event.set)


async def test_the_loop_goes_on_while_the_store_is_loaded_and_closed(broker: Broker, store: Any) -> None:
    loop = asyncio.get_running_loop()
    soon(loop, store.let_open)
    await broker.start()
    store.let_close.clear()
    soon(loop, store.let_close)
    await broker.stop()
    assert store.calls == ["open", "opened", "close", "closed"]


async def test_a_start_that_is_cancelled_leaves_nothing_behind(broker: Broker, store: Any) -> None:
    starting = asyncio.create_task(broker.start())
    await until(lambda: store.calls)
    starting.cancel()
    await asyncio.sleep(0.01)
    starting.cancel()  # once more: the store is not closed while it is still being opened
    assert store.calls == ["open"]
    store.let_open.set()
    with pytest.raises(asyncio.CancelledError):
        await starting
    assert store.calls == ["open", "opened", "close", "closed"]
    await broker.stop()
    with pytest.raises(UsageError, match="not running"):
        await broker.publish("a")
    with pytest.raises(UsageError, match="once"):
        await broker.start()


async def test_nothing_can_be_asked_of_a_broker_that_is_starting(broker: Broker, store: Any) -> None:
    starting = asyncio.create_task(broker.start())
    await until(lambda: store.calls)
    for call in (broker.publish("a"), broker.disconnect("c"), broker.start()):
        with pytest.raises(UsageError):
            await call
    with pytest.raises(UsageError, match="not running"):
        broker.counters()
    with pytest.raises(UsageError, match="not running"):
        await broker.subscribe("a").__aenter__()
    store.let_open.set()
    await starting
    await broker.stop()


async def test_a_stop_while_it_starts_stops_what_was_started(broker: Broker, store: Any) -> None:
    starting = asyncio.create_task(broker.start())
    await until(lambda: store.calls)
    stopping = asyncio.create_task(broker.stop())
    await asyncio.sleep(0.01)
    assert not stopping.done()
    store.let_open.set()
    await starting
    await stopping
    assert store.calls[-1] == "closed"


async def test_a_stop_that_is_cancelled_goes_on_and_can_be_awaited_again(broker: Broker, store: Any) -> None:
    await started(broker, store)
    store.let_close.clear()
    stopping = asyncio.create_task(broker.stop())
    await until(lambda: "close" in store.calls)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    again = [asyncio.create_task(broker.stop()) for _ in range(2)]
    await asyncio.sleep(0.02)
    assert not any(each.done() for each in again)  # none returns before it has stopped
    store.let_close.set()
    await asyncio.gather(*again)
    await broker.stop()
    assert store.calls == ["open", "opened", "close", "closed"]


@pytest.mark.parametrize("pauses", range(6))
async def test_a_stop_that_is_cancelled_anywhere_can_be_done_again(
    broker: Broker, store: Any, pauses: int
) -> None:
    await started(broker, store)
    async with broker.subscribe("a") as messages:
        stopping = asyncio.create_task(broker.stop())
        for _ in range(pauses):
            await asyncio.sleep(0)
        stopping.cancel()
        with suppress(asyncio.CancelledError):
            await stopping
        await broker.stop()
        with pytest.raises(StopAsyncIteration):
            await anext(messages)
    assert store.calls[-1] == "closed"


async def test_the_task_that_stops_it_may_be_ended_from_outside_and_the_next_stop_finishes(
    broker: Broker, store: Any
) -> None:
    """As asyncio.run does with all tasks."""
    await started(broker, store)
    stopping = asyncio.create_task(broker.stop())
    await until(lambda: broker._stopping is not None)
    broker._stopping.cancel()  # type: ignore[union-attr]
    with suppress(asyncio.CancelledError):
        await stopping
    await broker.stop()
    assert store.calls[-1] == "closed"


async def test_a_reload_that_is_cancelled_or_asked_for_twice_at_once_leaves_the_next_one_whole(
    broker_on_fake: type[BrokerOnFake],
) -> None:
    reads = []
    let_go = asyncio.Event()

    async def act() -> None:
        reads.append("begun")
        await let_go.wait()
        reads.append("done")

    async with broker_on_fake(QUIET) as broker:
        broker.on_reload("slow", act)
        cancelled, second, third = (asyncio.create_task(broker.reload()) for _ in range(3))
        await until(lambda: reads)
        cancelled.cancel()
        with pytest.raises(asyncio.CancelledError):
            await cancelled
        let_go.set()
        assert await second == await third
        assert (await broker.reload())["slow"] == ""
        assert reads == ["begun", *["begun", "done"] * 3]


async def test_publish_disconnect_and_subscribe_have_no_half_way(broker_on_fake: type[BrokerOnFake]) -> None:
    """They have no place to be cancelled at: the engine has all of it, or the caller has the error."""
    async with broker_on_fake(QUIET) as broker:
        calls = (broker.publish("a"), broker.disconnect("c"))
        for call in calls:
            task = asyncio.create_task(call)
            await asyncio.sleep(0)
            assert task.done()
        async with broker.subscribe("a") as messages:
            waiting = asyncio.create_task(anext(messages))
            await asyncio.sleep(0)
            waiting.cancel()
            with suppress(asyncio.CancelledError):
                await waiting
            await broker.publish("a", b"1")
            assert (await anext(messages)).payload == b"1"


async def ask(broker: Broker, path: bytes) -> tuple[int, dict[str, Any]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", broker.admin_port)
    writer.write(b"GET /" + path + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
    head, _, body = (await reader.read()).partition(b"\r\n\r\n")
    writer.close()
    return int(head.split()[1]), json.loads(body)


@pytest.fixture
def watched(store: Any, unused_tcp_port: int) -> Broker:
    store.let_open.set()
    config = Config(host="127.0.0.1", port=0, sys_interval_s=0, reactors=1, admin_port=unused_tcp_port)
    return Broker(config, store=store)


async def test_a_broker_whose_store_refuses_is_alive_and_not_ready_until_it_takes_writes_again(
    watched: Broker, store: Any
) -> None:
    async with watched as broker:
        status, body = await ask(broker, b"ready")  # the alarm may go on
        assert (status, body["status"]) == (200, "ok")
        store.failures = [StoreError("no room")] * 1_000_000
        await broker.publish("a", b"1", qos=1, retain=True)
        await until(lambda: broker._keeper.failure)  # type: ignore[union-attr]
        status, body = await ask(broker, b"ready")
        assert status == 503
        assert body["problems"] == ["nothing can be stored"]
        assert await ask(broker, b"health") == (200, {"status": "ok"})
        store.failures = []
        await until(lambda: not broker._keeper.failure)  # type: ignore[union-attr]
        status, body = await ask(broker, b"ready")  # the alarm may go on
        assert (status, body["status"]) == (200, "ok")


async def test_a_keeper_that_dies_says_why_ends_the_wait_for_it_and_fails_the_health(
    watched: Broker, store: Any, caplog: pytest.LogCaptureFixture
) -> None:
    async with watched as broker:
        waiting = asyncio.create_task(broker.wait_failed())
        await asyncio.sleep(0)
        assert not waiting.done()
        broker._keeper._tend = fail  # type: ignore[method-assign, union-attr]
        async with asyncio.timeout(WAIT_S):
            reason = await waiting
        assert "MemoryError" in reason
        assert await broker.wait_failed() == reason
        status, body = await ask(broker, b"health")
        assert status == 503
        assert body["problems"] == ["the keeper has died"]
        with pytest.raises(StoreError, match="keeper"):
            await asyncio.wrap_future(broker._keeper.ask(int))  # type: ignore[union-attr]
    assert any(each.levelno == logging.CRITICAL and "keeper" in each.message for each in caplog.records)
    assert store.calls[-1] == "closed"


def fail() -> None:
    raise MemoryError("no memory")


DYING = """
from pathlib import Path
from tidemq.broker.durability.keeper import Keeper
from tidemq.cli.serving import run_broker

def die(keeper):
    raise MemoryError("no memory")

Keeper._tend = die
raise SystemExit(run_broker(None, {"port": 0, "data": Path("data"), "reactors": 1}))
"""


def test_a_process_whose_keeper_dies_ends_with_the_reason(tmp_path: Path) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", DYING], cwd=tmp_path, capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == 1
    assert ended.stderr.splitlines()[-1] == (
        "tidemq: the keeper, which stores what is acknowledged, has died: MemoryError: no memory"
    )
