"""What an authenticator says of a client holds for its connection: name, groups, time; and what an authoriser
has answered is remembered as long.
"""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from conformance.kit import connected as enter
from unit.auth_kit import broker_with, request
from unit.test_broker_decisions import QUIET, answers
from unit.test_certificates import PLAIN
from waiting import LATE_S, until

from tidemq import Broker, Config, Limits, Listener, TideMQError
from tidemq.broker import Verdict, hookimpl
from tidemq.broker.access.connected_clients import WAIT_S, Clients
from tidemq.client import Client, PublishError
from tidemq.engine.door.events import AuthRequest, Connected, Disconnected, PublishRequest, SubscribeRequest


class Authenticator:
    """Answers by the client identifier; a method "again" as well."""

    def __init__(self, **verdicts: Verdict) -> None:
        self.verdicts = verdicts

    def authenticate(self, given: Any) -> Verdict:
        return self.verdicts[given.client_id]

    async def converse(self, given: Any, _: Any) -> Verdict:
        return self.verdicts[given.client_id]


class Authoriser:
    """Allows, and keeps what it was asked."""

    def __init__(self, *, allows: bool = True) -> None:
        self.seen: list[Any] = []
        self.allows = allows

    async def authorise(self, access: Any) -> bool:
        self.seen.append(access)
        return self.allows

    @property
    def who(self) -> Any:
        return self.seen[-1].username, self.seen[-1].groups


def come(client_id: str, peer: str = "p", **rest: Any) -> Any:
    return request(client_id, "claimed", peer=peer, **rest)


def connected(client_id: str, peer: str = "p") -> Connected:
    return Connected(9, client_id, peer, 5, False)  # another number: the connection has changed reactors


def publish(client_id: str, topic: str = "t", **rest: Any) -> PublishRequest:
    return PublishRequest(9, client_id, "claimed", topic, b"x", rest.get("qos", 0), rest.get("retain", False))


async def test_an_authoriser_is_told_the_name_and_groups_that_the_authenticator_gave(
    broker_on_fake: Any,
) -> None:
    authenticator = Authenticator(
        a=Verdict(username="ann", groups=("g",)), b=Verdict(), c=Verdict(client_id="a2")
    )
    authoriser = Authoriser()
    async with broker_on_fake(Config(**QUIET), authenticator=authenticator, authoriser=authoriser) as broker:
        engine = broker.engine
        assert engine.report_connections
        for client_id, real, who in (
            ("a", "a", ("ann", ("g",))),
            ("b", "b", ("claimed", ())),
            ("c", "a2", ("claimed", ())),
        ):
            engine.say(come(client_id, will_topic="will"))
            assert (await answers(broker, 1))[0][2:4] == (0, real)
            assert authoriser.who == who
            engine.say(connected(real), publish(real))
            assert await answers(broker, 1) == [("publish", 9, 0)]
            assert authoriser.who == who
            engine.say(SubscribeRequest(9, real, "claimed", (("f", 1),)))
            assert await answers(broker, 1) == [("subscribe", 9, (0,))]
            assert authoriser.who == who


async def test_who_is_not_known_has_no_say(broker_on_fake: Any) -> None:
    """Neither before the engine has reported the connection, nor where the report was lost."""
    authoriser = Authoriser()
    authenticator = Authenticator(a=Verdict(username="ann"))
    async with broker_on_fake(Config(**QUIET), authenticator=authenticator, authoriser=authoriser) as broker:
        engine = broker.engine
        engine.say(come("a"), publish("a"), SubscribeRequest(9, "a", "claimed", (("f", 1),)))
        assert sorted(await answers(broker, 3))[1:] == [("publish", 9, 0x87), ("subscribe", 9, (0x87,))]
        assert broker.counters()["decisions_client_unknown"] == 2
        assert not authoriser.seen
        engine.say(connected("a"), publish("a"))
        assert await answers(broker, 1) == [("publish", 9, 0)]
        engine.say(Disconnected(9, "a", "p", 0, 0), publish("a"))
        assert await answers(broker, 1) == [("publish", 9, 0x87)]


async def test_an_earlier_connection_lends_its_name_to_nobody_and_takes_nothing_with_it(
    broker_on_fake: Any,
) -> None:
    authenticator, authoriser = Authenticator(a=Verdict(username="first")), Authoriser()
    async with broker_on_fake(Config(**QUIET), authenticator=authenticator, authoriser=authoriser) as broker:
        engine = broker.engine
        engine.say(come("a", "p1"))
        await answers(broker, 1)
        engine.say(connected("a", "p1"))
        authenticator.verdicts["a"] = Verdict(username="second")
        engine.say(come("a", "p2"))
        await answers(broker, 1)
        engine.say(publish("a", "one"))  # of which connection? the report of the second may have been lost
        assert await answers(broker, 1) == [("publish", 9, 0x87)]
        assert not authoriser.seen
        engine.say(connected("a", "p2"), Disconnected(9, "a", "p1", 0x8E, 0), publish("a", "two"))
        await answers(broker, 1)
        assert authoriser.who == ("second", ())


async def test_an_answer_is_remembered_by_client_and_topic_until_it_goes(broker_on_fake: Any) -> None:
    authoriser = Authoriser()
    async with broker_on_fake(Config(**QUIET, decision_cache_s=60), authoriser=authoriser) as broker:
        engine = broker.engine

        async def asked(*events: Any) -> int:
            before = len(authoriser.seen)
            engine.say(*events)
            await answers(broker, 1)
            return len(authoriser.seen) - before

        assert await asked(publish("a")) == 1
        assert await asked(publish("a")) == 0
        for other in (publish("b"), publish("a", "u"), publish("a", qos=1), publish("a", retain=True)):
            assert await asked(other) == 1
            assert await asked(other) == 0
        assert broker.counters()["decisions_remembered"] == 5
        authoriser.allows = False
        assert await asked(connected("a"), publish("a")) == 1
        engine.say(publish("a"))
        assert await answers(broker, 1) == [("publish", 9, 0x87)]
        assert await asked(Disconnected(9, "a", "p", 0, 0), publish("a")) == 1
        assert await asked(publish("b")) == 0


async def test_what_is_remembered_ends_and_is_bounded(broker_on_fake: Any) -> None:
    authoriser = Authoriser()
    config = Config(**QUIET, decision_cache_s=0.1, decision_cache_max=2)
    async with broker_on_fake(config, authoriser=authoriser) as broker:
        for topic in "abcabc":
            broker.engine.say(publish("a", topic))
            await answers(broker, 1)
        assert len(authoriser.seen) == 6
        broker.engine.say(publish("a", "c"))
        await answers(broker, 1)
        assert len(authoriser.seen) == 6
        await asyncio.sleep(0.15)
        broker.engine.say(publish("a", "c"))
        await answers(broker, 1)
        assert len(authoriser.seen) == 7


async def test_the_engine_is_told_what_is_left_of_an_answer(broker_on_fake: Any) -> None:
    authoriser = Authoriser()
    config = Config(**QUIET, decision_cache_s=60)
    async with broker_on_fake(config, authoriser=authoriser) as broker:
        for _ in range(3):
            broker.engine.say(publish("a"))
            await answers(broker, 1)
            await asyncio.sleep(0.05)
        assert len(authoriser.seen) == 1
        first, second, third = broker.engine.ttls_s
        assert 60 >= first >= second + 0.04 >= third + 0.08 > 0
        broker.engine.say(publish("a", "another"))
        await answers(broker, 1)
        assert broker.engine.ttls_s[3] > third
    others: list[dict[str, Any]] = [{"decision_cache_s": 0}, {"decision_cache_max": 0}]
    for other in others:
        async with broker_on_fake(Config(**QUIET, **other), authoriser=authoriser) as broker:
            broker.engine.say(publish("a"))
            await answers(broker, 1)
            assert broker.engine.ttls_s == [0.0]


async def test_nothing_is_remembered_with_0_nor_what_failed_nor_what_a_plugin_says(
    broker_on_fake: Any,
) -> None:
    class Plugin:
        seen = 0

        @hookimpl
        def authorise(self) -> bool:
            self.seen += 1
            return self.seen < 3

    class Broken(Authoriser):
        async def authorise(self, access: Any) -> bool:
            self.seen.append(access)
            raise RuntimeError("no database")

    authoriser, plugin, broken = Authoriser(), Plugin(), Broken()
    async with broker_on_fake(Config(**QUIET, decision_cache_s=0), authoriser=authoriser) as broker:
        assert not broker.engine.report_connections
        for _ in range(2):
            broker.engine.say(publish("a"))
            await answers(broker, 1)
        assert len(authoriser.seen) == 2
    async with broker_on_fake(Config(**QUIET), authoriser=authoriser, plugins=[plugin]) as broker:
        for reason in (0, 0, 0x87):
            broker.engine.say(publish("a"))
            assert await answers(broker, 1) == [("publish", 9, reason)]
        assert len(authoriser.seen) == 3
    async with broker_on_fake(Config(**QUIET), authoriser=broken) as broker:
        for _ in range(2):
            broker.engine.say(publish("a"))
            assert await answers(broker, 1) == [("publish", 9, 0x83)]
        assert len(broken.seen) == 2


async def test_authenticating_again_renews_what_was_said(broker_on_fake: Any) -> None:
    authenticator, authoriser = Authenticator(a=Verdict(username="ann", groups=("g",))), Authoriser()
    again = AuthRequest(9, "a", 0x19, "M", b"", peer="p")
    async with broker_on_fake(Config(**QUIET), authenticator=authenticator, authoriser=authoriser) as broker:
        engine = broker.engine
        engine.say(come("a", auth_method="M"))
        await answers(broker, 1)
        engine.say(connected("a"), publish("a"))
        await answers(broker, 1)
        authenticator.verdicts["a"] = Verdict(username="ann", groups=("h",))
        engine.say(again)
        assert await answers(broker, 1) == [("auth", 9, 0, None)]
        engine.say(publish("a"))
        await answers(broker, 1)
        assert authoriser.who == ("ann", ("h",))
        engine.say(again)
        await answers(broker, 1)
        asked = len(authoriser.seen)
        engine.say(publish("a"))  # the same question, and yet it is asked again
        await answers(broker, 1)
        assert len(authoriser.seen) == asked + 1
        for other in (Verdict(username="bob"), Verdict(username="ann", client_id="b")):
            authenticator.verdicts["a"] = other
            engine.say(again)
            assert await answers(broker, 1) == [("auth", 9, 0x87, None)]


async def test_an_identifier_that_comes_after_a_challenge_is_too_late(broker_on_fake: Any) -> None:
    class Asks(Authenticator):
        async def converse(self, given: Any, challenge: Any) -> Verdict:
            await challenge(b"?")
            return self.verdicts[given.client_id]

    authenticator = Asks(a=Verdict(client_id="other"), b=Verdict(client_id="b"))
    async with broker_on_fake(Config(**QUIET), authenticator=authenticator) as broker:
        for client_id, reason in (("a", 0x87), ("b", 0)):
            broker.engine.say(come(client_id, auth_method="M"))
            await answers(broker, 1)
            broker.engine.say(AuthRequest(1, "", 0x18, "M", b"!"))
            assert await answers(broker, 1) == [("auth", 1, reason, None)]


async def test_a_time_that_ends_disconnects_that_client(broker_on_fake: Any) -> None:
    authenticator = Authenticator(
        a=Verdict(expires_s=0.05),
        b=Verdict(expires_s=0.05),
        c=Verdict(expires_s=0.05),
        d=Verdict(expires_s=60),
    )
    async with broker_on_fake(Config(**QUIET), authenticator=authenticator) as broker:
        engine = broker.engine
        for client_id in "abcd":
            engine.say(come(client_id, f"peer of {client_id}"))
            await answers(broker, 1)
        for client_id in "abd":  # c has gone before the engine let it in
            engine.say(connected(client_id, f"peer of {client_id}"))
        engine.say(Disconnected(9, "b", "peer of b", 0, 0))
        await asyncio.sleep(0.15)
        assert engine.disconnected == [("a", 0xA0)]
        assert broker.counters()["clients_expired"] == 1


async def test_a_client_that_never_comes_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    clients = Clients(lambda _: None, 10)
    now = 1000.0
    monkeypatch.setattr("tidemq.broker.access.connected_clients.time.monotonic", lambda: now)
    for number in range(100):
        clients.accept(come(str(number)), Verdict())
    now += WAIT_S + 1
    clients.accept(come("last"), Verdict())
    assert len(clients._coming) == 1


async def test_who_comes_where_nobody_is_asked_has_no_name_of_anothers(broker_on_fake: Any) -> None:
    """One listener asks an authenticator, another lets in everybody: the identifier of a client of the first
    gives one of the second nothing; what it may it is asked about by itself."""
    config = Config(
        **QUIET,
        listeners=(
            Listener(name="open", port=0, authenticator="anonymous", authenticator_options={"remote": True}),
        ),
    )
    authoriser = Authoriser()
    authenticator = Authenticator(a=Verdict(username="admin"))
    async with broker_on_fake(config, authenticator=authenticator, authoriser=authoriser) as broker:
        engine = broker.engine
        engine.say(come("a", "p1"))
        await answers(broker, 1)
        engine.say(connected("a", "p1"), publish("a"))
        await answers(broker, 1)
        assert authoriser.who == ("admin", ())
        engine.say(come("a", "p2", listener="open"))
        await answers(broker, 1)
        engine.say(connected("a", "p2"), publish("a"))  # the report of the first one's end was lost
        await answers(broker, 1)
        assert authoriser.who == ("claimed", ())


async def test_a_lost_report_lets_nobody_stay_beyond_the_time(
    broker_on_fake: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tidemq.broker.access.connected_clients.WAIT_S", 0.2)
    authenticator = Authenticator(
        lost=Verdict(expires_s=3600), known=Verdict(expires_s=3600), always=Verdict()
    )
    async with broker_on_fake(Config(**QUIET), authenticator=authenticator) as broker:
        engine = broker.engine
        for client_id in authenticator.verdicts:
            engine.say(come(client_id, f"peer of {client_id}"))
            await answers(broker, 1)
        engine.say(connected("known", "peer of known"))
        await until(lambda: engine.disconnected)
        assert engine.disconnected == [("lost", 0xA0)]
        assert broker.counters()["clients_expired"] == 1


async def test_who_is_not_known_prolongs_nothing(broker_on_fake: Any) -> None:
    """An end that nobody would see to is not promised."""
    authenticator = Authenticator(a=Verdict())
    async with broker_on_fake(Config(**QUIET), authenticator=authenticator) as broker:
        for verdict, reason in ((Verdict(), 0), (Verdict(expires_s=60), 0x87)):
            authenticator.verdicts["a"] = verdict
            broker.engine.say(AuthRequest(9, "a", 0x19, "M", b""))
            assert await answers(broker, 1) == [("auth", 9, reason, None)]


async def test_clients_whose_end_was_not_reported_are_bounded() -> None:
    ended: list[str] = []
    clients = Clients(ended.append, 3)
    for number in range(10):
        clients.accept(come(str(number), str(number)), Verdict(expires_s=60 if number == 2 else None))
        clients.on_connected(connected(str(number), str(number)))
    assert list(clients._connected) == ["7", "8", "9"]
    assert ended == ["2"]
    clients.close()


async def test_on_a_real_broker_a_lost_report_lets_nobody_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """Strangers fill the queue of events by connections that are no MQTT, so that the report of a client that
    may stay for half a second finds no room in it."""
    monkeypatch.setattr("tidemq.broker.access.connected_clients.WAIT_S", 1.0)

    class Deaf(Broker):
        deaf = False

        def _take_events(self) -> None:
            if not self.deaf:
                super()._take_events()

    class HalfASecond:
        async def authenticate(self, given: Any) -> Verdict:
            broker.deaf = True
            while "events_dropped" not in (counters := broker.counters()) or not counters["events_dropped"]:
                _, writer = await asyncio.open_connection("127.0.0.1", broker.port)
                writer.write(b"GET / HTTP/1.1\r\n\r\n")
                await writer.drain()
                writer.close()
            return Verdict(expires_s=0.5)

    config = broker_with("anonymous", {}, limits=Limits(event_queue_max=16)).config
    broker = Deaf(config, authenticator=HalfASecond())
    async with broker:
        url = f"mqtt://127.0.0.1:{broker.port}"
        async with Client(url, client_id="c1", reconnect=False) as client:
            broker.deaf = False
            begun_s = asyncio.get_running_loop().time()
            with pytest.raises(TideMQError):
                async for _ in client.messages:
                    pass
            assert asyncio.get_running_loop().time() - begun_s < LATE_S


async def test_a_certificate_names_a_client_of_the_broker(broker_on_fake: Any) -> None:
    config = Config(**QUIET, authenticator="certificate", authenticator_options={"client_id": "replace"})
    authoriser = Authoriser()
    async with broker_on_fake(config, authoriser=authoriser) as broker:
        broker.engine.say(come("own", certificate=PLAIN), come("other"))
        assert sorted(answer[2:4] for answer in await answers(broker, 2)) == [(0, "pump-7"), (0x86, "other")]
        broker.engine.say(connected("pump-7"), publish("pump-7"))
        await answers(broker, 1)
        assert authoriser.who == ("pump-7", ())


async def test_one_that_bounds_itself_takes_no_turn_from_others(broker_on_fake: Any) -> None:
    class Slow(Authoriser):
        bounds_itself = True

        async def authorise(self, access: Any) -> bool:
            await asyncio.sleep(60 if access.client_id == "slow" else 0)
            return True

    authenticator = Authenticator(a=Verdict())
    config = Config(**QUIET, decisions_max=1)
    async with broker_on_fake(config, authenticator=authenticator, authoriser=Slow()) as broker:
        authenticator.verdicts["slow"] = Verdict()
        broker.engine.say(come("slow", will_topic="w"), come("a"))
        assert (await answers(broker, 1))[0][3] == "a"


async def test_on_a_real_broker_over_two_reactors() -> None:
    """Clients change reactors when they come back; who they are comes along."""

    class Owner:
        def authorise(self, access: Any) -> bool:
            found: bool = access.topic == f"of/{access.username}" and access.groups == (access.client_id,)
            return found

    class Names:
        def authenticate(self, given: Any) -> Verdict:
            return Verdict(username=f"user-{given.client_id}", groups=(given.client_id,), expires_s=1000)

    config = broker_with("anonymous", {}, reactors=2).config
    async with Broker(config, authenticator=Names(), authoriser=Owner()) as broker:
        for _ in range(8):
            url = f"mqtt://127.0.0.1:{broker.port}"
            clients = [Client(url, client_id=f"c{n}", username="c0", clean_start=False) for n in range(4)]
            for number, client in enumerate(clients):
                async with client:
                    await client.publish(f"of/user-c{number}", b"x", qos=1)
                    with pytest.raises(PublishError):
                        await client.publish("of/c0", b"x", qos=1)
        assert broker.counters()["connections_moved"] > 0
        assert "decisions_client_unknown" not in broker.counters()
        await asyncio.sleep(0.05)
        assert broker._decisions is not None
        assert not broker._decisions._clients._connected
        assert len(broker._decisions._remembered) == 0


@pytest.mark.parametrize("reactors", [1, 2])
async def test_who_is_given_an_identifier_for_an_empty_one_is_told(reactors: int) -> None:
    """Also by the reactor that has its session."""

    class Names:
        def authenticate(self, given: Any) -> Verdict:
            return Verdict(client_id=given.username or "")

    def connect_all() -> None:
        for _ in range(6):
            for name in ("a", "b", "c"):
                client = enter(broker, client_id="", username=name, clean=False, session_expiry=60)
                assert client.client_id == name
                client.disconnect()

    config = broker_with("anonymous", {}, reactors=reactors).config
    async with Broker(config, authenticator=Names()) as broker:
        await asyncio.to_thread(connect_all)
        assert (broker.counters()["connections_moved"] > 0) == (reactors > 1)
