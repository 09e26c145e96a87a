"""Who waits for a session is answered: by whoever brings it, or with a refusal when that is late."""

from __future__ import annotations

import asyncio

import pytest
from unit.conftest import BrokerOnFake
from waiting import until

from tidemq.broker.access.decisions import Decisions
from tidemq.config import Config
from tidemq.engine import SessionRequest


def config(**settings: float) -> Config:
    return Config(host="127.0.0.1", port=0, sys_interval_s=0, **settings)  # type: ignore[arg-type]


def request(connection: int = 1) -> SessionRequest:
    return SessionRequest(connection, f"c{connection}", 5, False, 60)


def decisions_of(broker: BrokerOnFake) -> Decisions:
    assert broker._decisions is not None
    return broker._decisions


async def test_what_was_found_is_the_answer(broker_on_fake: type[BrokerOnFake]) -> None:
    ready: list[tuple[int, int]] = []
    asked: list[SessionRequest] = []

    async def find(request: SessionRequest) -> int:
        asked.append(request)
        return 0 if request.connection == 1 else 0x9C

    async with broker_on_fake(config()) as broker:
        decisions_of(broker).find_sessions(find, lambda *answer: ready.append(answer))
        broker.engine.say(request(1), request(2))
        await until(lambda: len(ready) == 2, "both are answered")
    assert asked == [request(1), request(2)]
    assert ready == [(1, 0), (2, 0x9C)]


async def test_what_is_late_is_refused_and_counted(broker_on_fake: type[BrokerOnFake]) -> None:
    ready: list[tuple[int, int]] = []

    async def find(_: SessionRequest) -> int:
        await asyncio.Event().wait()
        return 0

    async with broker_on_fake(config(decision_s=0.05)) as broker:
        decisions_of(broker).find_sessions(find, lambda *answer: ready.append(answer))
        broker.engine.say(request())
        await until(lambda: ready, "it is answered")
        assert broker.counters()["decisions_late"] == 1
    assert ready == [(1, 0x88)]


async def test_what_fails_is_refused_and_counted(
    broker_on_fake: type[BrokerOnFake], caplog: pytest.LogCaptureFixture
) -> None:
    ready: list[tuple[int, int]] = []

    async def find(_: SessionRequest) -> int:
        raise ConnectionError("no such node")

    async with broker_on_fake(config()) as broker:
        decisions_of(broker).find_sessions(find, lambda *answer: ready.append(answer))
        broker.engine.say(request())
        await until(lambda: ready, "it is answered")
        assert broker.counters()["decisions_failed"] == 1
    assert ready == [(1, 0x83)]
    assert "no such node" in caplog.text


async def test_a_broker_that_closes_waits_for_nobody(broker_on_fake: type[BrokerOnFake]) -> None:
    ready: list[tuple[int, int]] = []
    begun = asyncio.Event()

    async def find(_: SessionRequest) -> int:
        begun.set()
        await asyncio.Event().wait()
        return 0

    async with broker_on_fake(config()) as broker:
        decisions_of(broker).find_sessions(find, lambda *answer: ready.append(answer))
        broker.engine.say(request())
        await begun.wait()
    assert ready == []
