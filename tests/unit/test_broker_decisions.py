"""Providers and hooks decide connect, publish and subscribe; a slow, failing or missing answer refuses."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from unit.conftest import BrokerOnFake
from waiting import LATE_S, until

from tidemq import Access
from tidemq.broker import Verdict, hookimpl
from tidemq.config import Config
from tidemq.engine.door.events import (
    AuthRequest,
    Connected,
    ConnectRequest,
    Disconnected,
    PublishRequest,
    SubscribeRequest,
)
from tidemq.errors import ConfigError, UsageError

QUIET: dict[str, Any] = {"host": "127.0.0.1", "port": 0, "sys_interval_s": 0}


def connect(
    connection: int = 1,
    *,
    username: str | None = None,
    password: bytes | None = None,
    will: Any = None,
    method: str | None = None,
    data: bytes | None = None,
) -> ConnectRequest:
    return ConnectRequest(
        connection, f"c{connection}", username, password, "p", 5, True, 60, will, method, data
    )


def subscribe(*filters: str, connection: int = 1) -> SubscribeRequest:
    return SubscribeRequest(connection, "c1", "ann", tuple((topic_filter, 1) for topic_filter in filters))


def publish(topic: str, connection: int = 1) -> PublishRequest:
    return PublishRequest(connection, "c1", "ann", topic, b"x", 1, True)


async def answers(broker: Any, count: int) -> list[tuple[Any, ...]]:
    """Waits for so many answers and takes them."""
    await until(lambda: len(broker.engine.answers) >= count, f"{count} answers")
    taken: list[tuple[Any, ...]]
    taken, broker.engine.answers = broker.engine.answers, []
    assert len(taken) == count, taken
    return taken


class Authoriser:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    def authorise(self, access: Access) -> bool:
        self.seen.append(access)
        return not access.topic.startswith("secret")


STATIC = Config(**QUIET, authenticator="static", authenticator_options={"users": {"ann": "pw", "none": ""}})


@pytest.mark.parametrize(
    ("username", "password", "reason"),
    [
        ("ann", b"pw", 0),
        ("ann", b"pv", 0x86),
        ("ann", None, 0x86),
        ("bob", b"", 0x86),
        (None, None, 0x86),
        ("none", b"", 0),
    ],
)
async def test_static_users_and_passwords(
    broker_on_fake: type[BrokerOnFake], username: str | None, password: bytes | None, reason: int
) -> None:
    async with broker_on_fake(STATIC) as broker:
        assert broker.engine.listeners[0].asks
        assert not broker.engine.ask_publish
        broker.engine.say(connect(username=username, password=password))
        assert await answers(broker, 1) == [("connect", 1, reason, "c1", None, "")]


@pytest.mark.parametrize("options", [{}, {"users": 3}, {"users": {"a": 1}}, {"users": {}, "usrs": {}}])
async def test_wrong_options_of_static_are_refused(broker_on_fake: type[BrokerOnFake], options: Any) -> None:
    with pytest.raises(ConfigError, match="options of static"):
        await broker_on_fake(Config(authenticator="static", authenticator_options=options)).start()


async def test_a_slow_authenticator_delays_no_other_client(broker_on_fake: type[BrokerOnFake]) -> None:
    release = asyncio.Event()

    class Slow:
        async def authenticate(self, request: ConnectRequest) -> Verdict:
            if request.connection == 1:
                await release.wait()
            return Verdict(client_id=f"as-{request.client_id}", reason_string="welcome")

    async with broker_on_fake(Config(**QUIET), authenticator=Slow()) as broker:
        broker.engine.say(connect(1), connect(2))
        assert await answers(broker, 1) == [("connect", 2, 0, "as-c2", None, "welcome")]
        release.set()
        assert (await answers(broker, 1))[0][:3] == ("connect", 1, 0)


async def test_what_is_late_is_refused_and_counted(broker_on_fake: type[BrokerOnFake]) -> None:
    class Never:
        async def authenticate(self, request: ConnectRequest) -> None:
            await asyncio.Event().wait()

        async def authorise(self, access: Access) -> None:
            await asyncio.Event().wait()

    config = Config(**QUIET, decision_s=0.05)
    async with broker_on_fake(config, authenticator=Never()) as broker:
        broker.engine.say(connect(1))
        assert await answers(broker, 1) == [("connect", 1, 0x88, "c1", None, "")]
        assert broker.counters()["decisions_late"] == 1
    async with broker_on_fake(config, authoriser=Never()) as broker:
        broker.engine.say(subscribe("a", "b", connection=2), publish("a", connection=3))
        assert sorted(await answers(broker, 2)) == [("publish", 3, 0x97), ("subscribe", 2, (0x97, 0x97))]
        assert broker.counters()["decisions_late"] == 2


async def test_what_fails_is_refused_and_logged(
    broker_on_fake: type[BrokerOnFake], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def authorise(self, access: Access) -> None:
            raise RuntimeError("no database")

    async with broker_on_fake(Config(**QUIET), authoriser=Broken()) as broker:
        broker.engine.say(connect(1, will="w"), subscribe("a", connection=2), publish("a", connection=3))
        assert sorted(await answers(broker, 3)) == [
            ("connect", 1, 0x83, "c1", None, ""),
            ("publish", 3, 0x83),
            ("subscribe", 2, (0x83,)),
        ]
    assert caplog.text.count("no database") >= 3


async def test_what_fails_again_and_again_does_not_fill_the_log(
    broker_on_fake: type[BrokerOnFake], caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def authenticate(self, request: ConnectRequest) -> None:
            raise RuntimeError("no database")

    async with broker_on_fake(Config(**QUIET, fault_lines_max=3), authenticator=Broken()) as broker:
        begun_s = time.monotonic()
        for number in range(100):
            broker.engine.say(connect(number))
        assert {answer[2] for answer in await answers(broker, 100)} == {0x83}
        seconds = int(time.monotonic() - begun_s) + 2
        assert 3 <= caplog.text.count("a decision failed") <= 3 * seconds
        assert broker.counters()["decisions_failed"] == 100


async def test_decisions_at_a_time_and_waiting_are_bounded(broker_on_fake: type[BrokerOnFake]) -> None:
    release = asyncio.Event()
    running = []

    class Counting:
        async def authenticate(self, request: ConnectRequest) -> Verdict:
            running.append(request.connection)
            await release.wait()
            return Verdict()

    config = Config(**QUIET, decisions_max=2, decisions_waiting_max=1)
    async with broker_on_fake(config, authenticator=Counting()) as broker:
        broker.engine.say(*[connect(number) for number in (1, 2, 3, 4)])
        assert (await answers(broker, 1))[0][:3] == ("connect", 4, 0x97)
        assert running == [1, 2]
        assert broker.counters()["decisions_over_quota"] == 1
        release.set()
        assert sorted(answer[1] for answer in await answers(broker, 3)) == [1, 2, 3]


async def test_stopping_cancels_what_is_undecided(broker_on_fake: type[BrokerOnFake]) -> None:
    cancelled = []

    class Never:
        async def authenticate(self, request: ConnectRequest) -> None:
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.append(request.connection)
                raise

    async with broker_on_fake(Config(**QUIET), authenticator=Never()) as broker:
        broker.engine.say(connect(1))
        await asyncio.sleep(0.02)
        began = time.monotonic()
    assert time.monotonic() - began < LATE_S
    assert cancelled == [1]


async def test_an_authoriser_decides_filter_by_filter_topic_and_will(
    broker_on_fake: type[BrokerOnFake],
) -> None:
    authoriser = Authoriser()
    async with broker_on_fake(Config(**QUIET), authoriser=authoriser) as broker:
        engine = broker.engine
        assert engine.ask_connect
        assert engine.ask_subscribe
        assert engine.ask_publish
        engine.say(subscribe("a", "secret/#", "$share/g/secret/x", "$share/g/a"))
        assert await answers(broker, 1) == [("subscribe", 1, (0, 0x87, 0x87, 0))]
        assert [(a.topic, a.share_name, a.qos) for a in authoriser.seen[2:]] == [
            ("secret/x", "g", 1),
            ("a", "g", 1),
        ]
        engine.say(publish("a"))
        assert await answers(broker, 1) == [("publish", 1, 0)]
        engine.say(publish("secret"))
        assert await answers(broker, 1) == [("publish", 1, 0x87)]
        engine.say(connect(will="a"))
        assert (await answers(broker, 1))[0][2] == 0
        engine.say(connect(will="secret"))
        assert (await answers(broker, 1))[0][2] == 0x87
        last = authoriser.seen[-1]
        assert (last.action, last.client_id, last.topic) == ("publish", "c1", "secret")


class ChallengeResponse:
    """Two rounds: hello, then the sum."""

    def __init__(self) -> None:
        self.began: list[Any] = []

    def authenticate(self, request: ConnectRequest) -> Verdict:
        return Verdict()

    async def converse(self, request: Any, challenge: Any) -> Verdict:
        self.began.append(request)
        if request.auth_method != "SUM":
            return Verdict(0x8C)
        hello = await challenge(b"hello")
        if await challenge(b"sum of " + (hello or b"")) != b"3":
            return Verdict(0x87, reason_string="wrong sum")
        return Verdict(auth_data=b"done")


def auth(data: bytes | None, reason: int = 0x18) -> AuthRequest:
    return AuthRequest(1, "c1", reason, "SUM", data)


@pytest.mark.parametrize(
    ("reply", "last"), [(b"3", ("auth", 1, 0, b"done")), (b"4", ("auth", 1, 0x87, None))]
)
async def test_enhanced_authentication_goes_to_and_fro(
    broker_on_fake: type[BrokerOnFake], reply: bytes, last: tuple[Any, ...]
) -> None:
    async with broker_on_fake(Config(**QUIET), authenticator=ChallengeResponse()) as broker:
        broker.engine.say(connect(method="SUM", data=b"x"))
        assert await answers(broker, 1) == [("connect", 1, 0x18, "c1", b"hello", "")]
        broker.engine.say(auth(b"1+2"))
        assert await answers(broker, 1) == [("auth", 1, 0x18, b"sum of 1+2")]
        broker.engine.say(auth(reply))
        assert await answers(broker, 1) == [last]


async def test_a_client_may_authenticate_again(broker_on_fake: type[BrokerOnFake]) -> None:
    authenticator = ChallengeResponse()
    async with broker_on_fake(Config(**QUIET), authenticator=authenticator) as broker:
        broker.engine.say(auth(b"", reason=0x19))
        assert await answers(broker, 1) == [("auth", 1, 0x18, b"hello")]
        broker.engine.say(auth(b""))
        await answers(broker, 1)
        broker.engine.say(auth(b"3"))
        assert await answers(broker, 1) == [("auth", 1, 0, b"done")]
        assert authenticator.began == [auth(b"", reason=0x19)]


async def test_an_unknown_method_and_an_auth_that_nobody_waits_for_are_refused(
    broker_on_fake: type[BrokerOnFake],
) -> None:
    async with broker_on_fake(Config(**QUIET), authenticator=ChallengeResponse()) as broker:
        broker.engine.say(connect(method="OTHER"))
        assert (await answers(broker, 1))[0][2] == 0x8C
        broker.engine.say(auth(b"x"))
        assert await answers(broker, 1) == [("auth", 1, 0x82, None)]
    async with broker_on_fake(STATIC) as broker:
        broker.engine.say(connect(method="SUM"))
        assert (await answers(broker, 1))[0][2] == 0x8C


async def test_a_client_that_does_not_answer_a_challenge_holds_no_slot(
    broker_on_fake: type[BrokerOnFake],
) -> None:
    config = Config(**QUIET, decisions_max=1, decision_s=0.3)
    async with broker_on_fake(config, authenticator=ChallengeResponse()) as broker:
        broker.engine.say(connect(1, method="SUM"))
        await answers(broker, 1)
        broker.engine.say(connect(2))
        assert (await answers(broker, 1))[0][:3] == ("connect", 2, 0)
        assert await answers(broker, 1) == [("auth", 1, 0x88, None)]


async def test_an_exchange_ends_when_its_client_goes(broker_on_fake: type[BrokerOnFake]) -> None:
    async with broker_on_fake(Config(**QUIET), authenticator=ChallengeResponse()) as broker:
        broker.engine.say(connect(1, method="SUM"))
        await answers(broker, 1)
        broker.engine.say(Disconnected(1, "c1", "p", 0, 0))
        await asyncio.sleep(0.02)
        broker.engine.say(auth(b"x"))
        assert await answers(broker, 1) == [("auth", 1, 0x82, None)]


class Plugin:
    def __init__(self) -> None:
        self.seen: list[Any] = []

    @hookimpl
    def connect(self, event: Any) -> None:
        self.seen.append(("connect", event.client_id))

    @hookimpl
    async def authorise(self, access: Access) -> bool:
        await asyncio.sleep(0)
        return not access.topic.startswith("hidden")

    @hookimpl
    async def subscribe(self, request: Any) -> None:
        self.seen.append(("subscribe", request.filters))

    @hookimpl
    async def disconnect(self, event: Any) -> None:
        self.seen.append(("disconnect", event.client_id))


async def test_hooks_are_told_and_may_veto(broker_on_fake: type[BrokerOnFake]) -> None:
    plugin = Plugin()
    async with broker_on_fake(Config(**QUIET), plugins=[plugin], authoriser=Authoriser()) as broker:
        engine = broker.engine
        assert engine.report_connections
        engine.say(Connected(1, "c1", "p", 5, False))
        await asyncio.sleep(0.02)
        engine.say(subscribe("a", "hidden/#", "secret"))
        assert await answers(broker, 1) == [("subscribe", 1, (0, 0x87, 0x87))]
        engine.say(publish("a"))
        engine.say(publish("hidden", connection=2))
        assert sorted(await answers(broker, 2)) == [("publish", 1, 0), ("publish", 2, 0x87)]
        engine.say(Disconnected(1, "c1", "p", 0, 0))
        await asyncio.sleep(0.02)
    assert plugin.seen == [
        ("connect", "c1"), ("subscribe", (("a", 1),)), ("disconnect", "c1")
    ]  # fmt: skip


async def test_the_engine_is_asked_only_what_a_plugin_wants(broker_on_fake: type[BrokerOnFake]) -> None:
    class OnSubscribe:
        @hookimpl
        def subscribe(self, request: Any) -> None:
            raise RuntimeError("hook broke")

    async with broker_on_fake(Config(**QUIET), plugins=[OnSubscribe()]) as broker:
        engine = broker.engine
        asked = (engine.ask_connect, engine.ask_subscribe, engine.ask_publish, engine.report_connections)
        assert asked == (False, True, False, False)
        engine.say(subscribe("a"))
        assert await answers(broker, 1) == [("subscribe", 1, (0,))]  # a hook that is only told can't refuse


async def test_a_plugin_that_fails_hides_nothing_from_the_others(
    broker_on_fake: type[BrokerOnFake], caplog: pytest.LogCaptureFixture
) -> None:
    class Fails(Plugin):
        @hookimpl
        def connect(self, event: Any) -> None:
            raise RuntimeError("connect broke")

        @hookimpl
        async def disconnect(self, event: Any) -> None:
            raise RuntimeError("disconnect broke")

        @hookimpl
        def subscribe(self) -> None:  # type: ignore[override]
            raise RuntimeError("subscribe broke")

    first, last = Plugin(), Plugin()
    async with broker_on_fake(Config(**QUIET), plugins=[first, Fails(), last]) as broker:
        broker.engine.say(Connected(1, "c1", "p", 5, False))
        await asyncio.sleep(0.02)
        broker.engine.say(subscribe("a"))
        assert await answers(broker, 1) == [("subscribe", 1, (0,))]
        broker.engine.say(Disconnected(1, "c1", "p", 0, 0))
        await asyncio.sleep(0.02)
    seen = [("connect", "c1"), ("subscribe", (("a", 1),)), ("disconnect", "c1")]
    assert first.seen == last.seen == seen
    assert len([each for each in caplog.messages if "failed" in each]) == 3


@pytest.mark.parametrize("veto", [0, "", "no", 1, Verdict(0x87)])
async def test_an_answer_that_is_none_allows_nothing(
    broker_on_fake: type[BrokerOnFake], veto: Verdict | int | str
) -> None:
    class Odd:
        @hookimpl
        def authorise(self, access: Access) -> Any:
            return veto

    class OddAuthoriser:
        def authorise(self, access: Access) -> Any:
            return veto

    for settings in ({"plugins": [Odd()]}, {"authoriser": OddAuthoriser()}):
        async with broker_on_fake(Config(**QUIET), **settings) as broker:
            broker.engine.say(publish("a"))
            assert await answers(broker, 1) == [("publish", 1, 0x83)]


async def test_who_has_no_opinion_vetoes_nothing(broker_on_fake: type[BrokerOnFake]) -> None:
    class Silent:
        @hookimpl
        def authorise(self) -> Any:
            return None

    async with broker_on_fake(Config(**QUIET), plugins=[Silent()]) as broker:
        broker.engine.say(publish("a"))
        assert await answers(broker, 1) == [("publish", 1, 0)]


async def test_a_wrapper_is_refused(broker_on_fake: type[BrokerOnFake]) -> None:
    class Wraps:
        @hookimpl(wrapper=True)
        def publish(self, messages: Any) -> Any:
            return (yield)

    with pytest.raises(UsageError, match="wrapper"):
        broker_on_fake(Config(), plugins=[Wraps()])


async def test_a_plugin_with_an_unknown_hook_is_refused(broker_on_fake: type[BrokerOnFake]) -> None:
    class Misspelt:
        @hookimpl
        def conect(self, event: Any) -> None: ...

    with pytest.raises(UsageError, match="conect"):
        broker_on_fake(Config(), plugins=[Misspelt()])
