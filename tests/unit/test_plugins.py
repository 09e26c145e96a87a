"""Plugins on a double of the engine: batches, decisions, failures, and settings that are wrong."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from unit.conftest import BrokerOnFake
from waiting import until

from tidemq import Decision, HeldMessage, Plugin, Properties, Route, SessionForked, hookimpl
from tidemq.broker.plugins.batches import FORKS_MAX, REPORTS_MAX
from tidemq.config import Config, PluginConfig, load_config
from tidemq.engine.door.events import Acknowledged
from tidemq.errors import ConfigError, TideMQError, UsageError
from tidemq.wire import Publish, decode, encode_properties

QUIET = Config(host="127.0.0.1", port=0, sys_interval_s=0)

Answer = Callable[[list[HeldMessage]], Any]


def held(
    topic: str, number: int = 0, *, connection: int = 7, payload: bytes = b"x", qos: int = 1
) -> HeldMessage:
    return HeldMessage(connection, number, "c1", "ann", topic, payload, qos, False)


class Decides:
    """Answers as it is told, and keeps what it was asked."""

    def __init__(self, answer: Answer | None = None, *filters: str) -> None:
        self.filters = filters or ("a/#",)
        self.answer = answer or (lambda _: None)
        self.batches: list[list[str]] = []

    @hookimpl
    async def publish(self, messages: list[HeldMessage]) -> Any:
        self.batches.append([each.topic for each in messages])
        answer = self.answer(messages)
        return await answer if asyncio.iscoroutine(answer) else answer


def each(decision: object) -> Answer:
    """The same for every message."""
    return lambda messages: [decision] * len(messages)


async def answers(broker: BrokerOnFake, count: int) -> list[tuple[int, int, int, bytes | None]]:
    await until(lambda: len(broker.access.answers) >= count, f"{count} answers")
    taken = broker.access.answers
    broker.access.batches.clear()
    assert len(taken) == count, taken
    return taken


def packet_of(answer: tuple[int, int, int, bytes | None]) -> Publish:
    assert answer[3] is not None
    found = decode(answer[3], 5)
    assert found is not None
    assert isinstance(found[0], Publish)
    return found[0]


async def test_messages_that_come_together_are_one_batch_with_one_answer(
    broker_on_fake: type[BrokerOnFake],
) -> None:
    plugin = Decides()
    async with broker_on_fake(QUIET, plugins=[plugin]) as broker:
        assert broker.access.filters == (["a/#"], [])
        assert not broker.engine.ask_publish
        broker.engine.say(*(held("a/b", number) for number in range(5)))
        await until(lambda: broker.access.batches)
        assert broker.access.batches == [[(7, number, 0, None) for number in range(5)]]
        assert plugin.batches == [["a/b"] * 5]
        counters = broker.counters()
        assert (counters["plugin_messages"], counters["plugin_batches"]) == (5, 1)


async def test_what_comes_while_a_plugin_is_busy_is_its_next_batch_up_to_a_bound(
    broker_on_fake: type[BrokerOnFake],
) -> None:
    release = asyncio.Event()

    async def wait() -> None:
        await release.wait()

    plugin = Decides(lambda _: wait())
    async with broker_on_fake(QUIET, plugins=[Plugin(plugin, batch_max=3)]) as broker:
        broker.engine.say(held("a/0"))
        await until(lambda: plugin.batches)
        broker.engine.say(*(held("a/b", number) for number in range(1, 6)))
        await until(lambda: broker.counters()["plugin_messages"] == 6)
        release.set()
        assert [number for _, number, _, _ in await answers(broker, 6)] == list(range(6))
        assert [len(batch) for batch in plugin.batches] == [1, 3, 2]


async def test_a_message_passes_is_refused_dropped_or_changed(broker_on_fake: type[BrokerOnFake]) -> None:
    properties = Properties(user_properties=(("k", "v"),), message_expiry_s=9)
    decisions = [
        None,
        Decision(),
        Decision(reason=0x99),
        Decision(drop=True),
        Decision(topic="z", payload=b"new", properties=properties, retain=True),
        Decision(payload=b""),
    ]
    async with broker_on_fake(QUIET, plugins=[Decides(lambda _: decisions)]) as broker:
        broker.engine.say(*(held("a", number, qos=number % 3) for number in range(6)))
        found = await answers(broker, 6)
        assert [reason for _, _, reason, _ in found] == [0, 0, 0x99, 0x10, 0, 0]
        assert [packet for *_, packet in found[:4]] == [None] * 4
        assert packet_of(found[4]) == Publish(
            topic="z", payload=b"new", qos=1, retain=True, packet_id=1, properties=properties
        )
        assert packet_of(found[5]) == Publish(topic="a", qos=2, packet_id=1)
        counters = broker.counters()
        assert (counters["plugin_messages_changed"], counters["plugin_messages_dropped"]) == (2, 1)


async def test_a_changed_message_keeps_its_properties_but_for_the_alias(
    broker_on_fake: type[BrokerOnFake],
) -> None:
    own = Properties(message_expiry_s=5, content_type="t", topic_alias=3)
    message = held("a")
    message.property_block = encode_properties(own)
    async with broker_on_fake(QUIET, plugins=[Decides(each(Decision(payload=b"y")))]) as broker:
        broker.engine.say(message)
        [answer] = await answers(broker, 1)
        assert packet_of(answer).properties == Properties(message_expiry_s=5, content_type="t")


async def test_routes_are_published_besides_and_instead(broker_on_fake: type[BrokerOnFake]) -> None:
    routes = (Route("$other/a", b"1", 2, True), Route("b", b"2"), Route("wrong/#"), Route("c", b"3"))
    async with broker_on_fake(QUIET, plugins=[Decides(each(Decision(drop=True, routes=routes)))]) as broker:
        broker.engine.say(held("a"))
        assert [reason for _, _, reason, _ in await answers(broker, 1)] == [0x10]
        assert broker.engine.published == [
            ("$other/a", b"1", 2, True),
            ("b", b"2", 0, False),
            ("c", b"3", 0, False),
        ]
        counters = broker.counters()
        assert (counters["plugin_messages_routed"], counters["plugin_routes_failed"]) == (3, 1)


@pytest.mark.parametrize(("policy", "reason"), [("refuse", 0x83), ("pass", 0)])
async def test_who_fails_is_late_or_talks_nonsense_decides_nothing(
    broker_on_fake: type[BrokerOnFake], policy: str, reason: int
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("broken")

    wrong: list[Answer] = [
        fail,
        lambda _: asyncio.sleep(60),
        lambda _: [None],
        lambda _: "no",
        lambda messages: {each.topic: None for each in messages},
    ]
    for answer in wrong:
        plugin = Plugin(Decides(answer), on_failure=policy, timeout_s=0.1)
        async with broker_on_fake(QUIET, plugins=[plugin]) as broker:
            broker.engine.say(held("a", 0), held("a", 1))
            assert await answers(broker, 2) == [(7, 0, reason, None), (7, 1, reason, None)]
            assert broker.counters()["plugin_messages_undecided"] == 2


async def test_one_wrong_decision_is_nothing_to_the_other_messages(
    broker_on_fake: type[BrokerOnFake], caplog: pytest.LogCaptureFixture
) -> None:
    wrong = [
        "yes",
        Decision(topic="a/#"),
        Decision(topic="t" * 70_000),
        Decision(topic=7),  # type: ignore[arg-type]
        Decision(payload="text"),  # type: ignore[arg-type]
    ]
    async with broker_on_fake(QUIET, plugins=[Decides(lambda _: [*wrong, Decision(payload=b"y")])]) as broker:
        broker.engine.say(*(held("a", number) for number in range(6)))
        found = await answers(broker, 6)
        assert [reason for _, _, reason, _ in found] == [0x83] * 5 + [0]
        assert packet_of(found[5]).payload == b"y"
        assert broker.counters()["plugin_messages_undecided"] == 5
    assert len([line for line in caplog.messages if "a decision of plugin Decides" in line]) == 5


async def test_lines_on_failures_are_bounded(
    broker_on_fake: type[BrokerOnFake], caplog: pytest.LogCaptureFixture
) -> None:
    config = QUIET.model_copy(update={"fault_lines_max": 2})
    async with broker_on_fake(config, plugins=[Decides(each("no"))]) as broker:
        broker.engine.say(*(held("a", number) for number in range(100)))
        await answers(broker, 100)
    assert 2 <= len([line for line in caplog.messages if "a decision of plugin" in line]) <= 4  # two seconds
    assert any("failures of plugins were not logged" in line for line in caplog.messages)


async def test_who_keeps_failing_is_left_alone_for_a_while(
    broker_on_fake: type[BrokerOnFake], caplog: pytest.LogCaptureFixture
) -> None:
    works = False

    def answer(_: object) -> None:
        if not works:
            raise RuntimeError("broken")

    decides = Decides(answer)
    plugin = Plugin(decides, failures_max=2, open_s=0.2, on_failure="pass")
    async with broker_on_fake(QUIET, plugins=[plugin]) as broker:
        for _ in range(2):
            broker.engine.say(held("a"))
            await answers(broker, 1)
        assert broker.counters()["plugin_circuit_opened"] == 1
        called = len(decides.batches)
        works = True

        async def is_asked() -> bool:
            broker.engine.say(held("a"))
            assert await answers(broker, 1) == [(7, 0, 0, None)]
            return len(decides.batches) > called

        await until(is_asked, "the plugin is asked again")
        counters = broker.counters()
        assert counters["plugin_calls_failed"] == 2
        assert counters["plugin_messages_undecided"] == counters["plugin_messages"] - 1
    assert any("keeps failing" in line for line in caplog.messages)


async def test_plugins_get_a_message_one_after_the_other(broker_on_fake: type[BrokerOnFake]) -> None:
    """In the order in which they were given, each as the one before has left it; a refusal ends it."""
    first = Decides(
        lambda messages: [
            Decision(reason=0x87) if each.topic == "a/no" else Decision(topic="b/1") for each in messages
        ]
    )
    second, third, fourth = (
        Decides(None, "a/#"),
        Decides(each(Decision(payload=b"z")), "b/#"),
        Decides(None, "#"),
    )
    async with broker_on_fake(QUIET, plugins=[first, second, third, fourth]) as broker:
        broker.engine.say(held("a/yes", 0), held("a/no", 1))
        found = sorted(await answers(broker, 2))
        assert [reason for _, _, reason, _ in found] == [0, 0x87]
        assert (packet_of(found[0]).topic, packet_of(found[0]).payload) == ("b/1", b"z")
    assert [first.batches, second.batches, third.batches, fourth.batches] == [
        [["a/yes", "a/no"]], [], [["b/1"]], [["b/1"]]
    ]  # fmt: skip


async def test_a_slow_plugin_delays_no_message_that_it_does_not_want(
    broker_on_fake: type[BrokerOnFake],
) -> None:
    slow, quick = Decides(lambda _: asyncio.sleep(60), "slow"), Decides(None, "quick")
    async with broker_on_fake(QUIET, plugins=[slow, quick]) as broker:
        broker.engine.say(held("slow", 0), held("quick", 1))
        assert await answers(broker, 1) == [(7, 1, 0, None)]


async def test_a_will_that_passes_is_published_by_the_broker(broker_on_fake: type[BrokerOnFake]) -> None:
    decide = {"a/pass": None, "a/drop": Decision(reason=0x87), "a/new": Decision(payload=b"n")}
    wills = [HeldMessage(0, 0, "c", None, topic, b"gone", 1, True, expiry_s=5) for topic in decide]
    async with broker_on_fake(QUIET, plugins=[Decides(lambda _: list(decide.values()))]) as broker:
        broker.engine.say(*wills)
        await until(lambda: len(broker.engine.published) == 2)
        assert broker.engine.published == [("a/pass", b"gone", 1, True), ("a/new", b"n", 1, True)]
        assert broker.engine.message_expiries_s == [5, 5]
        assert broker.counters()["plugin_wills_dropped"] == 1
        assert broker.access.answers == []


async def test_a_will_that_cannot_be_published_stops_nothing(
    broker_on_fake: type[BrokerOnFake], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise UsageError("too large")

    async with broker_on_fake(QUIET, plugins=[Decides()]) as broker:
        monkeypatch.setattr(broker.engine, "publish", refuse)
        broker.engine.say(HeldMessage(0, 0, "c", None, "a/will", b"gone", 1, False))
        await until(lambda: broker.counters().get("plugin_wills_dropped") == 1)
        broker.engine.say(held("a/next"))
        assert await answers(broker, 1) == [(7, 0, 0, None)]


class Hears:
    delivered_filters = ("a/#",)

    def __init__(self, hold: asyncio.Event | None = None) -> None:
        self.heard: list[list[str]] = []
        self._hold = hold

    @hookimpl
    async def delivered(self, messages: list[Acknowledged]) -> None:
        self.heard.append([each.topic for each in messages])
        if self._hold is not None:
            await self._hold.wait()


async def test_acknowledgements_come_in_batches_and_what_is_too_much_is_dropped(
    broker_on_fake: type[BrokerOnFake],
) -> None:
    release = asyncio.Event()
    plugin = Hears(release)
    async with broker_on_fake(QUIET, plugins=[plugin]) as broker:
        assert broker.access.filters == ([], ["a/#"])
        broker.engine.say(Acknowledged("c", "a/1", b"", 1), Acknowledged("c", "a/2", b"", 2))
        await until(lambda: plugin.heard)
        assert plugin.heard == [["a/1", "a/2"]]
        broker.engine.say(*[Acknowledged("c", "a/3", b"", 1)] * (REPORTS_MAX + 7))
        await until(lambda: broker.counters().get("plugin_acknowledgements_dropped") == 7)
        release.set()
        await until(lambda: sum(map(len, plugin.heard)) == REPORTS_MAX + 2)


class HearsOfForks:
    def __init__(self, hold: asyncio.Event) -> None:
        self.batches: list[list[SessionForked]] = []
        self._hold = hold

    @hookimpl
    async def session_forked(self, sessions: list[SessionForked]) -> None:
        self.batches.append(sessions)
        await self._hold.wait()


def forks(count: int) -> list[SessionForked]:
    return [SessionForked(f"c{each}", "one", "1" * 16, is_here=True) for each in range(count)]


async def test_forked_sessions_come_in_batches_and_what_is_too_much_is_dropped(
    broker_on_fake: type[BrokerOnFake],
) -> None:
    """From a thread that waits for nobody; fifty thousand at once are all told."""
    release = asyncio.Event()
    slow = Plugin(HearsOfForks(release), timeout_s=60.0, batch_max=20_000)
    quick: list[SessionForked] = []
    listens = plain_hook("session_forked", quick.extend)
    async with broker_on_fake(QUIET, plugins=[slow, listens]) as broker:
        tell = broker._plugins.forks()
        await asyncio.to_thread(tell, forks(50_000))
        await until(lambda: len(quick) == 50_000, "the other one need not wait")
        [first] = slow.implementation.batches  # type: ignore[attr-defined]
        assert first == forks(20_000)
        await asyncio.to_thread(tell, forks(FORKS_MAX))
        await until(lambda: broker.counters().get("plugin_forks_dropped") == 30_000)
        release.set()
        batches = slow.implementation.batches  # type: ignore[attr-defined]
        await until(lambda: sum(map(len, batches)) == 20_000 + FORKS_MAX, "all the others come")
        assert max(map(len, batches)) == 20_000


async def test_who_fails_to_hear_of_forks_is_left_alone_for_a_while(
    broker_on_fake: type[BrokerOnFake],
) -> None:
    """Late, then by an exception; the next batch is not even tried."""
    calls: list[int] = []

    async def fail(sessions: list[SessionForked]) -> None:
        calls.append(len(sessions))
        if len(calls) == 1:
            await asyncio.sleep(60)
        raise RuntimeError

    plugin = Plugin(plain_hook("session_forked", fail), timeout_s=0.05, failures_max=2, open_s=60.0)
    async with broker_on_fake(QUIET, plugins=[plugin]) as broker:
        for dropped in (3, 6, 9):
            broker._plugins.forks()(forks(3))
            await until(lambda: broker.counters().get("plugin_forks_dropped") == dropped)  # noqa: B023
        assert calls == [3, 3]
        assert broker.counters()["plugin_circuit_opened"] == 1


def plain_hook(name: str, act: Callable[[Any], Any]) -> object:
    """A plugin with one hook, which does this."""

    def method(self: object, sessions: Any) -> Any:
        return act(sessions)

    method.__name__ = name
    return type("Bare", (), {name: hookimpl(method)})()


async def test_a_tick_comes_again_and_again_and_its_messages_are_published(
    broker_on_fake: type[BrokerOnFake],
) -> None:
    class Ticks:
        ticked = 0

        @hookimpl
        def tick(self) -> Sequence[Route] | None:
            self.ticked += 1
            if self.ticked == 2:
                raise RuntimeError("broken")
            return [Route("now", b"%d" % self.ticked)] if self.ticked != 3 else None

    async with broker_on_fake(QUIET, plugins=[Plugin(Ticks(), tick_s=0.01)]) as broker:
        await until(lambda: len(broker.engine.published) >= 2)
        assert broker.engine.published[:2] == [("now", b"1", 0, False), ("now", b"4", 0, False)]
        assert broker.counters()["plugin_calls_failed"] == 1


def plain(name: str) -> object:
    """A plugin with one hook and no settings."""

    def method(self: object) -> None: ...

    return type("Bare", (), {name: hookimpl(method)})()


@pytest.mark.parametrize(
    ("plugin", "words"),
    [
        (lambda: plain("publish"), "Bare: filters"),
        (lambda: plain("delivered"), "Bare: delivered_filters"),
        (lambda: plain("tick"), "Bare: tick_s"),
        (lambda: Plugin(plain("connect"), filters=["a"]), "filters: it has no hook publish"),
        (lambda: Plugin(plain("publish"), filters=["a/#/b"]), "filters: 'a/#/b'"),
        (lambda: Plugin(plain("publish"), filters=["$share/g/a"]), "filters: '\\$share/g/a'"),
        (lambda: Plugin(plain("tick"), tick_s=0), "tick_s"),
        (lambda: Plugin(plain("publish"), filters=["a"], timeout_s=0), "timeout_s"),
        (lambda: Plugin(plain("publish"), filters=["a"], on_failure="ignore"), "on_failure"),
        (lambda: Plugin(plain("publish"), filters=["a"], batchmax=1), "batchmax"),
    ],
)
def test_a_plugin_with_wrong_settings_is_refused(
    broker_on_fake: type[BrokerOnFake], plugin: Callable[[], object], words: str
) -> None:
    with pytest.raises(UsageError, match=words):
        broker_on_fake(QUIET, plugins=[plugin()])


@pytest.mark.parametrize("reason", [0x10, 0x81, 0x100, -1])
def test_a_reason_that_no_puback_has_is_refused(reason: int) -> None:
    with pytest.raises(UsageError, match="0x99"):
        Decision(reason=reason)


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ('name = "sparkplog"', "plugins.0.name: 'sparkplog' is unknown, did you mean sparkplug"),
        ('name = "sparkplug"\ntimeout_s = 0', "plugins.0.timeout_s"),
        (
            'name = "sparkplug"\ntimeout = 1',
            "plugins.0.timeout: 'timeout' is unknown, did you mean timeout_s",
        ),
        ('name = "sparkplug"\noptions = 3', "plugins.0.options: what it is is refused"),
        (
            'name = "sparkplug"\n[plugins.options]\ndeath = 3',
            "options of sparkplug.death: 'death' is unknown",
        ),
        (
            'name = "sparkplug"\n[plugins.options]\nndeath_timestamp = 3',
            "options of sparkplug.ndeath_timestamp",
        ),
        ('name = "sparkplug"\nfilters = ["a/#/b"]', "plugins: plugin sparkplug: filters: 'a/#/b'"),
        ('name = "sparkplug"\ntick_s = 1', "plugins: plugin sparkplug: tick_s: it has no hook tick"),
    ],
)
async def test_a_wrong_plugin_in_the_file_keeps_the_broker_from_starting(
    broker_on_fake: type[BrokerOnFake], tmp_path: Path, table: str, words: str
) -> None:
    path = tmp_path / "tidemq.toml"
    path.write_text(f'host = "127.0.0.1"\nport = 0\n[[plugins]]\n{table}\n')
    with pytest.raises(ConfigError) as caught:
        await broker_on_fake(load_config(path)).start()
    assert words in str(caught.value)
    assert isinstance(caught.value, TideMQError)


async def test_plugins_of_the_file_come_after_those_of_the_program(
    broker_on_fake: type[BrokerOnFake], tmp_path: Path
) -> None:
    path = tmp_path / "tidemq.toml"
    plugin = '[[plugins]]\nname = "sparkplug"\nfilters = ["spBv1.0/g/NBIRTH/+"]\n'
    path.write_text(f'host = "127.0.0.1"\nport = 0\nsys_interval_s = 0\n{plugin}')
    async with broker_on_fake(load_config(path), plugins=[Decides()]) as broker:
        assert broker.access.filters == (["a/#", "spBv1.0/g/NBIRTH/+"], [])
        broker.engine.say(held("spBv1.0/g/NBIRTH/e", payload=b"birth"))
        await answers(broker, 1)
        assert broker.counters()["sparkplug_births_kept"] == 1
        topic = "$sparkplug/certificates/spBv1.0/g/NBIRTH/e"
        assert broker.engine.published == [(topic, b"birth", 1, True)]


SPARKPLUG = PluginConfig(name="sparkplug")


async def test_plugins_of_the_file_change_alive(broker_on_fake: type[BrokerOnFake]) -> None:
    """Those whose settings are the same go on; messages that are with the others are decided by them."""
    narrow = PluginConfig(name="sparkplug", filters=("spBv1.0/g/NBIRTH/+",))
    found = QUIET.model_copy(update={"plugins": (narrow,)})
    config, given = found, Decides()
    async with broker_on_fake(config, plugins=[given], reread=lambda: found) as broker:
        assert broker.access.filters[0] == ["a/#", "spBv1.0/g/NBIRTH/+"]
        broker.engine.say(held("spBv1.0/g/NBIRTH/e", 0))
        await answers(broker, 1)
        found = QUIET.model_copy(update={"plugins": (narrow, SPARKPLUG)})
        assert (await broker.reload())["plugins"] == ""
        assert len(broker.access.filters[0]) == 5
        assert broker.counters()["sparkplug_births_kept"] == 1  # the first one is still the same
        broker.engine.say(held("spBv1.0/g/NBIRTH/e", 1))
        await answers(broker, 1)
        assert broker.counters()["sparkplug_births_kept"] == 3
        found = QUIET
        assert (await broker.reload())["plugins"] == ""
        assert broker.access.filters[0] == ["a/#"]
        broker.engine.say(held("spBv1.0/g/NBIRTH/e", 2), held("a/b", 3))  # the first was on its way
        assert sorted(await answers(broker, 2)) == [(7, 2, 0, None), (7, 3, 0, None)]
        assert given.batches == [["a/b"]]


async def test_what_is_with_a_plugin_that_goes_is_decided_by_it(
    broker_on_fake: type[BrokerOnFake], monkeypatch: pytest.MonkeyPatch
) -> None:
    release = asyncio.Event()

    async def wait(messages: list[HeldMessage]) -> list[Decision]:
        await release.wait()
        return [Decision(reason=0x87)] * len(messages)

    closed: list[object] = []

    class Slow(Decides):
        async def close(self) -> None:
            closed.append(self)

    slow = Slow(wait)
    monkeypatch.setattr("tidemq.broker.own_plugins.find_provider", lambda *_: slow)
    found = QUIET.model_copy(update={"plugins": (PluginConfig(name="slow"),)})
    async with broker_on_fake(found, reread=lambda: found) as broker:
        broker.engine.say(held("a/b", 0))
        await until(lambda: slow.batches)
        broker.engine.say(held("a/b", 1))
        await until(lambda: broker.counters()["plugin_messages"] == 2)
        found = QUIET
        assert (await broker.reload())["plugins"] == ""
        assert broker.access.filters == ([], [])
        assert not closed
        release.set()
        assert await answers(broker, 2) == [(7, 0, 0x87, None), (7, 1, 0x87, None)]
        await until(lambda: closed == [slow])


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (PluginConfig(name="sparkplug", filters=("spBv1.0/" + "+/" * 64 + "#",)), "topic_levels_max"),
        (PluginConfig(name="sparkplug", filters=(5000 * "x",)), "topic_bytes_max"),
        (PluginConfig(name="sparkplog"), "plugins.1.name"),
        (PluginConfig(name="sparkplug", options={"death": 1}), "options of sparkplug.death"),
        (PluginConfig(name="sparkplug", filters=("a/#/b",)), "filters"),
    ],
)
async def test_a_wrong_plugin_leaves_all_as_they_were(
    broker_on_fake: type[BrokerOnFake], wrong: PluginConfig, words: str
) -> None:
    found = QUIET.model_copy(update={"plugins": (SPARKPLUG,)})
    config = found
    async with broker_on_fake(config, reread=lambda: found) as broker:
        before = broker.access.filters
        found = QUIET.model_copy(update={"plugins": (SPARKPLUG, wrong)})
        assert words in (await broker.reload())["plugins"]
        assert broker.access.filters == before
        broker.engine.say(held("spBv1.0/g/NBIRTH/e"))
        await answers(broker, 1)
        assert broker.counters()["sparkplug_births_kept"] == 1
        found = config
        assert (await broker.reload())["plugins"] == ""


async def test_a_hook_that_the_engine_is_told_of_at_the_start_needs_a_restart(
    broker_on_fake: type[BrokerOnFake], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemq.broker.own_plugins.find_provider", lambda *_: plain("authorise"))
    found = QUIET
    async with broker_on_fake(QUIET, reread=lambda: found) as broker:
        found = QUIET.model_copy(update={"plugins": (PluginConfig(name="guard"),)})
        answer = (await broker.reload())["plugins"]
        assert "hook authorise" in answer
        assert "a restart" in answer
        assert not broker.engine.ask_publish
