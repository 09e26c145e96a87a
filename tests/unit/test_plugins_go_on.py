"""Whatever plugins answer, and however they change meanwhile: each message is decided, and the next too."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from unit.conftest import BrokerOnFake
from unit.test_plugins import QUIET, Decides, answers, held
from waiting import until

from tidemq import Access, Decision, HeldMessage, Properties, hookimpl
from tidemq.config import PluginConfig
from tidemq.engine.door.events import Acknowledged, PublishRequest


class Strange:
    """Fails in its own way when anybody looks at it."""

    def __init__(self, error: BaseException) -> None:
        self.error = error

    def __iter__(self) -> Any:
        raise self.error


@pytest.mark.parametrize(
    "decision",
    [
        Decision(routes=Strange(RuntimeError())),  # type: ignore[arg-type]
        Decision(routes=Strange(OverflowError()), payload=b"y"),  # type: ignore[arg-type]
        Decision(payload=10**12),  # type: ignore[arg-type]
        Decision(payload=7),  # type: ignore[arg-type]
        Decision(properties=Properties(message_expiry_s=2**40)),
        Decision(properties=Properties(content_type=5)),  # type: ignore[arg-type]
        Decision(topic=5),  # type: ignore[arg-type]
        Decision(topic="\ud800"),
    ],
)
async def test_whatever_a_decision_is_made_of_the_plugin_is_asked_again(
    broker_on_fake: type[BrokerOnFake], decision: Decision
) -> None:
    plugin = Decides(lambda messages: [decision if each.payload == b"wrong" else None for each in messages])
    async with broker_on_fake(QUIET, plugins=[plugin]) as broker:
        broker.engine.say(held("a", 0, payload=b"wrong"), held("a", 1))
        assert [reason for _, _, reason, _ in await answers(broker, 2)] == [0x83, 0]
        broker.engine.say(held("a", 2))
        assert await answers(broker, 1) == [(7, 2, 0, None)]
        assert broker.counters()["plugin_messages_undecided"] == 1


async def test_who_gives_up_what_it_waits_for_has_failed_and_is_asked_again(
    broker_on_fake: type[BrokerOnFake],
) -> None:
    async def give_up(messages: list[HeldMessage]) -> None:
        if messages[0].payload == b"wrong":
            inner = asyncio.ensure_future(asyncio.sleep(60))
            asyncio.get_running_loop().call_soon(inner.cancel)
            await inner

    async with broker_on_fake(QUIET, plugins=[Decides(give_up)]) as broker:
        broker.engine.say(held("a", 0, payload=b"wrong"))
        assert await answers(broker, 1) == [(7, 0, 0x83, None)]
        broker.engine.say(held("a", 1))
        assert await answers(broker, 1) == [(7, 1, 0, None)]
        assert broker.counters()["plugin_calls_failed"] == 1


async def test_who_gives_up_a_question_has_answered_it(broker_on_fake: type[BrokerOnFake]) -> None:
    class GivesUp:
        @hookimpl
        async def authorise(self, access: Access) -> bool:
            raise asyncio.CancelledError

    async with broker_on_fake(QUIET, plugins=[GivesUp()]) as broker:
        broker.engine.say(PublishRequest(1, "c1", "ann", "a", b"x", 1, False))
        await until(lambda: broker.engine.answers == [("publish", 1, 0x83)])
        assert broker.counters()["decisions_failed"] == 1


async def test_a_changed_message_is_within_the_limits(broker_on_fake: type[BrokerOnFake]) -> None:
    config = QUIET.model_copy(update={"limits": replace(QUIET.limits, payload_bytes_max=10)})
    plugin = Decides(lambda messages: [Decision(payload=int(each.payload) * b"x") for each in messages])
    async with broker_on_fake(config, plugins=[plugin]) as broker:
        broker.engine.say(held("a", 0, payload=b"10"), held("a", 1, payload=b"11"))
        assert [reason for _, _, reason, _ in await answers(broker, 2)] == [0, 0x83]


async def test_a_plugin_that_stays_has_one_batch_at_a_time_while_others_come_and_go(
    broker_on_fake: type[BrokerOnFake], monkeypatch: pytest.MonkeyPatch
) -> None:
    """And none goes before all is decided, however often the plugins change meanwhile; nor is one forgotten
    when the broker ends."""
    release, busy, most, closed = asyncio.Event(), 0, 0, list[object]()

    class Slow(Decides):
        async def close(self) -> None:
            closed.append(self)

    async def wait(messages: list[HeldMessage]) -> None:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await release.wait()
        busy -= 1

    def make(_: str, name: str, *__: object) -> Slow:
        return Slow(wait, f"{name}/#")

    monkeypatch.setattr("tidemq.broker.own_plugins.find_provider", make)
    a, b = PluginConfig(name="a"), PluginConfig(name="b")
    found = QUIET.model_copy(update={"plugins": (a,)})
    async with broker_on_fake(found, reread=lambda: found) as broker:
        for number, plugins in enumerate([(a, b), (a,), (a, b), (b,), ()]):
            broker.engine.say(held("a/x", number))
            await until(lambda: broker.counters().get("plugin_messages") == number + 1)  # noqa: B023
            found = QUIET.model_copy(update={"plugins": plugins})
            assert (await broker.reload())["plugins"] == ""
        await until(lambda: busy, "the first is asked")
        await asyncio.sleep(0.01)
        assert (busy, closed) == (1, [])
        assert [number for _, number, _, _ in await answers(broker, 1)] == [4]  # nobody wants it any more
        release.set()
        assert [number for _, number, _, _ in await answers(broker, 4)] == [0, 1, 2, 3]
        assert most == 1
        await until(lambda: len(closed) == 3)
        release.clear()
        found = QUIET.model_copy(update={"plugins": (a,)})
        assert (await broker.reload())["plugins"] == ""
        broker.engine.say(held("a/x", 5))
        await until(lambda: busy)
        found = QUIET
        assert (await broker.reload())["plugins"] == ""
    assert len(closed) == 4
    names = [task.get_coro().__qualname__ for task in asyncio.all_tasks()]  # type: ignore[union-attr]
    assert not [name for name in names if name.startswith("Batches")]


async def test_acknowledgements_that_nobody_is_told_of_at_a_reload_are_counted(
    broker_on_fake: type[BrokerOnFake], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Told:
        delivered_filters = ("a/#",)

        @hookimpl
        async def delivered(self, messages: list[Acknowledged]) -> None:
            await asyncio.sleep(60)

    monkeypatch.setattr("tidemq.broker.own_plugins.find_provider", lambda *_: Told())
    found = QUIET.model_copy(update={"plugins": (PluginConfig(name="told"),)})
    async with broker_on_fake(found, reread=lambda: found) as broker:
        broker.engine.say(Acknowledged("c", "a/b", b"x", 1))
        await until(lambda: broker.counters().get("plugin_calls") == 1)
        broker.engine.say(*(Acknowledged("c", "a/b", b"x", 1) for _ in range(4)))
        await until(lambda: not broker.engine._events)
        found = QUIET
        assert (await broker.reload())["plugins"] == ""
        await until(lambda: broker.counters().get("plugin_acknowledgements_dropped") == 5)
