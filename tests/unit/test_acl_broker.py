"""Rules in a running broker: its clients, Mosquitto's broker beside it, changes while messages flow."""

from __future__ import annotations

import asyncio
import socket
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import paho.mqtt.client as paho
import pytest
from paho.mqtt.enums import CallbackAPIVersion
from waiting import WAIT_S, until

from tidemq import Broker, Config
from tidemq.broker.access.file_formats import read_rules
from tidemq.broker.access.judging import Client as Who
from tidemq.broker.access.judging import decide
from tidemq.broker.acl_rules import AclRule
from tidemq.broker.host import watched_files
from tidemq.broker.providers import Access, Verdict
from tidemq.client import Client, PublishError, ServerRefusedError, SubscribeError, Will
from tidemq.errors import ConfigError

Install = Callable[[str, str], None]
CHANGES = 5  # of rules, and as many back


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watched_files, "CHECK_S", 0.02)


@asynccontextmanager
async def broker_with(file: Path, text: str, **settings: Any) -> AsyncIterator[Broker]:
    file.write_text(text)  # noqa: ASYNC240 (before there is a broker that would wait)
    options: dict[str, Any] = {
        "host": "127.0.0.1",
        "port": 0,
        "reactors": 2,
        "store": "memory",
        "sys_interval_s": 0,
    }
    parts: dict[str, Any] = {
        name: settings.pop(name) for name in ("authenticator", "authoriser") if name in settings
    }
    broker = Broker(Config(**({"acl_file": file} | options | settings)), **parts)
    async with broker:
        engine = broker._engine
        yield broker
    assert engine is not None
    assert not any(engine.live_objects().values()), engine.live_objects()


def client_of(broker: Broker, **settings: Any) -> Client:
    return Client(f"mqtt://127.0.0.1:{broker.port}", **settings)


async def publishes(client: Client, topic: str, **settings: Any) -> bool:
    try:
        await client.publish(topic, b"x", qos=1, **settings)
    except PublishError as error:
        if error.reason != 0x87:
            raise
        return False
    return True


# --- Mosquitto's format -----------------------------------------------------------------------------

MOSQUITTO_RULES = """\
# the first are for clients without a user
topic read news/#
topic write letters/+
topic deny news/secret
topic %c/literal

user ann
topic ann/#
topic read  spaced out/#
topic readwrite  shared/+/x
topic deny ann/private/#
topic write read

user ann lee
topic write lee/#
user bob
topic write bob/#
topic read bob/box
user ann
topic later/ann
pattern write dev/%c/out
pattern read dev/%c/in
pattern readwrite home/%u/#
pattern deny home/%u/locked
pattern %u-%c/mixed
pattern $SYS/%u/x
"""
PEOPLE = [
    (None, "c1"),
    (None, "c+1"),
    ("ann", "c1"),
    ("ann", "c#"),
    ("ann lee", "c1"),
    ("bob", "dev1"),
    ("eve", "c2"),
    ("+", "c3"),
    ("#", "c4"),
    ("home/ann", "c5"),
]
TOPICS = [
    "news/today",
    "news/secret",
    "news",
    "letters/a",
    "letters/a/b",
    "%c/literal",
    "c1/literal",
    "ann",
    "ann/x",
    "ann/private",
    "ann/private/x",
    "spaced out/x",
    "shared/1/x",
    "shared/1/y",
    "read",
    "later/ann",
    "lee/x",
    "bob/x",
    "bob/box",
    "dev/c1/out",
    "dev/c1/in",
    "dev/dev1/out",
    "dev/c2/out",
    "dev/c3/out",
    "home/ann/x",
    "home/ann/locked",
    "home/bob/x",
    "home/eve/locked",
    "home/eve",
    "home/x/y",
    "ann-c1/mixed",
    "ann-c2/mixed",
    "bob-dev1/mixed",
]


def mosquitto_takes(port: int, user: str | None, client_id: str) -> dict[str, bool]:
    """What Mosquitto says of a message to each topic: in 5.0 PUBACK has a reason."""
    client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=paho.MQTTv5)
    if user is not None:
        client.username_pw_set(user, "any")
    answers: dict[int, bool] = {}
    client.on_publish = lambda _c, _u, mid, reason, _p: answers.__setitem__(mid, not reason.is_failure)
    client.connect("127.0.0.1", port)
    client.loop_start()
    try:
        sent = {topic: client.publish(topic, b"x", qos=1) for topic in TOPICS}
        deadline = time.monotonic() + WAIT_S
        while len(answers) < len(TOPICS) and time.monotonic() < deadline:
            time.sleep(0.005)
        return {topic: answers[info.mid] for topic, info in sent.items()}
    finally:
        client.disconnect()
        client.loop_stop()


@pytest.fixture
def mosquitto(tmp_path: Path, install: Install, admin_port: int) -> Iterator[tuple[Path, int]]:
    """Mosquitto's broker with these rules: their file, and its port."""
    port = admin_port  # a free one
    install("mosquitto", "mosquitto")
    rules, settings = tmp_path / "mosquitto.acl", tmp_path / "mosquitto.conf"
    rules.write_text(MOSQUITTO_RULES)
    lines = (f"listener {port} 127.0.0.1", "allow_anonymous true", f"acl_file {rules}", "user root")
    settings.write_text("\n".join(lines))
    process = subprocess.Popen(["mosquitto", "-c", str(settings)], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.02)
        yield rules, port
    finally:
        process.kill()
        process.wait()


def test_mosquittos_file_is_read_as_mosquitto_reads_it(mosquitto: tuple[Path, int]) -> None:
    """Every decision on a message. A name with `+`, `#` or `/` is the exception: Mosquitto asks no pattern
    then, TideMQ those that do not name it. It never gives more than to a client with another name.
    """
    file, port = mosquitto
    found = read_rules(file, "mosquitto")
    allowed = 0
    for user, client_id in PEOPLE:
        odd_user, odd_id = (any(mark in (name or "") for mark in "+#/") for name in (user, client_id))
        plain = Who("zz" if odd_id else client_id, "zz" if odd_user else user)
        for topic, taken in mosquitto_takes(port, user, client_id).items():
            ours = decide(found, Who(client_id, user), "publish", topic).allowed
            if odd_user or odd_id:
                assert ours <= decide(found, plain, "publish", topic).allowed, (user, client_id, topic)
            else:
                assert ours == taken, (user, client_id, topic)
            allowed += taken
    assert allowed > 20


# --- clients ----------------------------------------------------------------------------------------


async def test_mosquittos_and_pahos_clients(tmp_path: Path, install: Install) -> None:
    """What mosquitto_pub may not say does not come to mosquitto_sub, and what it may comes."""
    install("mosquitto_pub", "mosquitto-clients")
    text = "user ann\ntopic write a/#\ntopic deny a/secret\nuser bob\ntopic read a/#\npattern read own/%u\n"
    async with broker_with(tmp_path / "acl", text, acl_format="mosquitto") as broker:
        common = ["-p", str(broker.port), "-V", "5"]
        sub = await asyncio.create_subprocess_exec(
            *(
                "mosquitto_sub",
                *common,
                "-u",
                "bob",
                "-t",
                "a/#",
                "-C",
                "2",
                "-W",
                "10",
                "-F",
                "%t %p",
                "-q",
                "1",
            ),
            stdout=asyncio.subprocess.PIPE,
        )
        await until(lambda: broker.counters()["subscriptions"] == 1, "the subscription")
        for user, topic, text in (
            ("ann", "a/1", "first"),
            ("bob", "a/1", "no"),
            ("ann", "a/secret", "no"),
            ("ann", "b", "no"),
            ("ann", "a/2", "second"),
        ):
            pub = await asyncio.create_subprocess_exec(
                *("mosquitto_pub", *common, "-u", user, "-t", topic, "-m", text, "-q", "1"),
                stderr=asyncio.subprocess.DEVNULL,
            )
            await pub.wait()
        out, _ = await sub.communicate()
        assert out.decode().splitlines() == ["a/1 first", "a/2 second"]
        assert broker.counters()["refused_not_authorised"] == 3
        granted: list[Any] = []
        client = paho.Client(CallbackAPIVersion.VERSION2, "p", protocol=paho.MQTTv5)
        client.username_pw_set("bob", "any")
        client.on_subscribe = lambda _c, _u, _m, reasons, _p: granted.extend(reasons)
        await asyncio.to_thread(client.connect, "127.0.0.1", broker.port)
        client.loop_start()
        client.subscribe([("a/x", 1), ("own/bob", 2), ("own/ann", 2), ("#", 0)])
        await until(lambda: len(granted) == 4, "SUBACK")
        await asyncio.to_thread(client.disconnect)
        client.loop_stop()
        assert [reason.value for reason in granted] == [1, 2, 0x87, 0x87]


class Groups:
    """Says who a client is by its user name: "NAME:GROUP,GROUP"."""

    def authenticate(self, request: Any) -> Verdict:
        name, _, groups = (request.username or "").partition(":")
        return Verdict(username=name, groups=tuple(groups.replace("NUL", "a\0ops").split(",")))


async def test_users_and_groups_are_those_of_the_authenticator(tmp_path: Path) -> None:
    text = "allow group ops all ops/#\nallow user ann all ann/#"
    async with broker_with(tmp_path / "acl", text, authenticator=Groups()) as broker:
        async with (
            client_of(broker, username="ann:dev,ops") as ann,
            client_of(broker, username="bob:dev") as bob,
        ):
            assert await publishes(ann, "ops/x")
            assert await publishes(ann, "ann/x")
            assert not await publishes(bob, "ops/x")
            assert not await publishes(bob, "ann/x")
        async with client_of(broker, username="ann") as user:
            assert await publishes(user, "ann/x")
        with pytest.raises(ServerRefusedError):
            await client_of(broker, username="x:NUL").connect()


class Tokens:
    """Gives the user "own" rules of its own."""

    def authenticate(self, request: Any) -> Verdict:
        if request.username != "own":
            return Verdict()
        return Verdict(rules=(AclRule(True, "all", "own/%c/#"), AclRule(False, "publish", "open/x")))


@pytest.mark.parametrize("with_file", [True, False])
async def test_a_client_may_have_rules_of_its_own(tmp_path: Path, with_file: bool) -> None:
    """They are asked first; of others they change nothing."""
    text, more = "allow all open/#\ndeny all own/c1/shut\n", {} if with_file else {"acl_file": None}
    broker_of = broker_with(tmp_path / "acl", text, authenticator=Tokens(), **more)
    async with (
        broker_of as broker,
        client_of(broker, username="own", client_id="c1") as own,
        client_of(broker) as other,
    ):
        for _ in range(2):
            assert await publishes(own, "own/c1/shut")
            assert not await publishes(own, "own/c2/x")
            assert not await publishes(own, "open/x")
            assert await publishes(own, "open/y") == with_file
            assert await publishes(other, "open/x")
            assert await publishes(other, "own/c1/x") != with_file
            await own.subscribe("own/c1/+")
            with pytest.raises(SubscribeError):
                await own.subscribe("own/#")
            if not with_file:
                return
            await reloaded(broker, tmp_path / "acl", text + "# more", broker.counters()["acl_reloads"] + 1)


# --- changes ----------------------------------------------------------------------------------------


async def reloaded(broker: Broker, file: Path, text: str, count: int) -> None:
    """Waits until all reactors have the new rules: each has answered a client since."""
    await asyncio.to_thread(file.write_text, text)
    await until(lambda: broker.counters()["acl_reloads"] == count, "the new rules")


async def test_who_is_still_allowed_loses_nothing_while_rules_change(tmp_path: Path) -> None:
    """Messages flow at QoS 1; each change takes from another client what it had, or gives it back."""
    file: Path = tmp_path / "acl"
    rules = "allow user good all good/#\n"
    bad = "allow user bad all bad/#\n"
    async with broker_with(file, rules + bad) as broker:
        sender, receiver = client_of(broker, username="good"), client_of(broker, username="good")
        async with sender, receiver:
            await receiver.subscribe("good/#", qos=1)
            sent = 0

            async def flow(until_done: asyncio.Event) -> None:
                nonlocal sent
                while not until_done.is_set():
                    many = [(f"good/{each % 7}", b"%d" % (sent + each)) for each in range(100)]
                    await sender.publish_many(many, qos=1)
                    sent += len(many)
                    await asyncio.sleep(0.01)

            done = asyncio.Event()
            flowing = asyncio.create_task(flow(done))
            for change in range(CHANGES):
                async with client_of(broker, username="bad") as other:
                    await other.subscribe("bad/#")
                    assert await publishes(other, "bad/x")
                    revoked = broker.counters()["subscriptions_revoked"]
                    await reloaded(broker, file, rules + f"# {change}", 2 * change + 1)
                    await until(
                        lambda: broker.counters()["subscriptions_revoked"] == revoked + 1,  # noqa: B023 (called at once)
                        "the end",
                    )
                    assert not await publishes(other, "bad/x")
                    with pytest.raises(SubscribeError):
                        await other.subscribe("bad/#")
                await reloaded(broker, file, rules + bad, 2 * change + 2)
            done.set()
            await flowing
            # all others are as they were
            await until(lambda: broker.counters()["connections_closed"] == CHANGES, "the end of the others")
            seen = [
                int((await asyncio.wait_for(anext(receiver.messages), WAIT_S)).payload) for _ in range(sent)
            ]
        assert seen == list(range(sent))
        assert sent > 500


async def test_a_will_that_is_not_allowed_any_more_is_not_published(tmp_path: Path) -> None:
    file: Path = tmp_path / "acl"
    text = "allow publish w\nallow subscribe w"
    async with broker_with(file, text) as broker, client_of(broker) as watcher:
        await watcher.subscribe("w")
        for allowed in (True, False):
            mortal = client_of(broker, will=Will(topic="w", payload=b"gone", qos=1))
            await mortal.connect()
            if not allowed:
                refused = broker.counters()["refused_not_authorised"]
                await reloaded(broker, file, "allow subscribe w", 1)
                await until(
                    lambda: broker.counters()["refused_not_authorised"] == refused + 1,  # noqa: B023 (called at once)
                    "the will",
                )
            closed = broker.counters()["connections_closed"]
            await broker.disconnect(mortal.client_id)
            await until(
                lambda: broker.counters()["connections_closed"] > closed,  # noqa: B023 (called at once)
                "the end without a goodbye",
            )
            await mortal.disconnect()
        await broker.publish("w", b"last")
        async with asyncio.timeout(WAIT_S):
            assert [(await anext(watcher.messages)).payload for _ in range(2)] == [b"gone", b"last"]


async def test_a_wrong_file_changes_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    file: Path = tmp_path / "acl"
    async with broker_with(file, "allow all a") as broker, client_of(broker) as client:
        await asyncio.to_thread(file.write_text, "allow everything")
        await until(lambda: broker.counters()["acl_reloads_failed"] == 1, "the look at the file")
        assert await publishes(client, "a")
        assert not await publishes(client, "b")
        assert "line 1: 'everything' is no action" in caplog.text
        await asyncio.to_thread(file.unlink)
        await until(lambda: broker.counters()["acl_reloads_failed"] == 2, "the look at the file")
        assert not await publishes(client, "b")
        await reloaded(broker, file, "allow all b", 1)
        await until(lambda: publishes(client, "b"), "the rule")


async def test_a_file_that_was_emptied_ends_no_subscriptions(tmp_path: Path) -> None:
    """A program that writes the rules begins with an empty file: what it ended would not come back."""
    file: Path = tmp_path / "acl"
    async with broker_with(file, "allow all a") as broker, client_of(broker) as client:
        messages = (await client.subscribe("a", qos=1)).messages
        for number, nothing in enumerate(("", "# rules of today\n\n"), 1):
            await asyncio.to_thread(file.write_text, nothing)
            await until(lambda: broker.counters()["acl_reloads_failed"] == number, "the look")  # noqa: B023
        await asyncio.to_thread(file.write_text, "allow all a\nallow all b")
        await until(lambda: publishes(client, "b"), "the rule")
        await client.publish("a", b"still", qos=1)
        assert (await anext(messages)).payload == b"still"
        assert broker.counters()["subscriptions_revoked"] == 0


async def test_a_wrong_file_at_the_start_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="line 1"):
        async with broker_with(tmp_path / "acl", "allow"):
            raise AssertionError


async def test_publishers_that_move_to_another_reactor_take_their_rules_along(tmp_path: Path) -> None:
    """And those that came before the rules of now have them where they arrive."""
    file: Path = tmp_path / "acl"
    text = "allow subscribe t/#\nallow client sender-* publish t/%c\n"
    async with broker_with(file, text) as broker:
        receivers = [client_of(broker, client_id=f"receiver-{number}") for number in range(8)]
        senders = [client_of(broker, client_id=f"sender-{number}") for number in range(8)]
        for client in (*receivers, *senders):
            await client.connect()
        for number, receiver in enumerate(receivers):
            await receiver.subscribe(f"t/sender-{number}")
        for number, sender in enumerate(senders):
            await sender.publish_many([(f"t/sender-{number}", b"x")] * 2000)
            await sender.publish_many([("t/sender-99", b"x")] * 10)
        await until(lambda: broker.counters()["publishers_moved"] > 0, "a move")
        for number, sender in enumerate(senders):
            assert await publishes(sender, f"t/sender-{number}")
            assert not await publishes(sender, f"t/sender-{number - 1}")
        await reloaded(broker, file, text.replace("t/%c", "other"), 1)
        for number, sender in enumerate(senders):
            topic = f"t/sender-{number}"

            async def refused(sender: Client = sender, topic: str = topic) -> bool:
                return not await publishes(sender, topic)

            await until(refused, "the new rules")
        assert broker.counters()["refused_not_authorised"] >= 80 + 16
        for client in (*receivers, *senders):
            await client.disconnect()


# --- authorisers ------------------------------------------------------------------------------------


class Asked:
    """Allows what does not begin with "shut", and keeps what it was asked."""

    def __init__(self) -> None:
        self.seen: list[Access] = []
        self.asked_at: dict[str, float] = {}  # by client, the last time

    def authorise(self, access: Access) -> bool:
        self.seen.append(access)
        self.asked_at[access.client_id] = time.monotonic()
        return not access.topic.startswith("shut")


@pytest.mark.parametrize("cache_s", [0.0, 30.0])
async def test_an_authorisers_answers_count_for_a_time(tmp_path: Path, cache_s: float) -> None:
    asked = Asked()
    text = "allow all #"
    settings: dict[str, Any] = {"authoriser": asked, "decision_cache_s": cache_s}
    broker_of = broker_with(tmp_path / "acl", text, **settings)
    async with broker_of as broker, client_of(broker) as one, client_of(broker) as two:
        for _ in range(20):
            assert await publishes(one, "open")
            assert not await publishes(one, "shut")
        assert len(asked.seen) == (2 if cache_s else 40)
        asked.seen.clear()
        assert await publishes(two, "open")
        assert len(asked.seen) == 1, "the answer was for the other client"
        await one.publish("open", b"x", qos=2)
        await one.publish("open", b"x", qos=1, retain=True)
        assert [(each.qos, each.retain) for each in asked.seen[1:]] == [(2, False), (1, True)]


async def test_an_authoriser_is_asked_again_when_its_time_is_over(tmp_path: Path) -> None:
    asked = Asked()
    settings: dict[str, Any] = {"authoriser": asked, "decision_cache_s": 0.2}
    broker_of = broker_with(tmp_path / "acl", "allow all #", **settings)
    async with broker_of as broker, client_of(broker) as client:
        assert await publishes(client, "open")
        answered = time.monotonic()
        while len(asked.seen) == 1:
            assert await publishes(client, "open")
            assert time.monotonic() < answered + WAIT_S
        assert time.monotonic() > answered + 0.15  # less what the first answer took to come here


async def test_an_answer_counts_once_wherever_it_is_remembered(tmp_path: Path) -> None:
    """The engine has forgotten it, and is told it again when its time is almost over."""
    asked, cache_s = Asked(), 1.0
    settings: dict[str, Any] = {"authoriser": asked, "decision_cache_s": cache_s, "reactors": 1}
    broker_of = broker_with(tmp_path / "acl", "allow all #", **settings)
    async with broker_of as broker, AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(client_of(broker, client_id=f"c{number}")) for number in range(5)
        ]

        async def publish_while_it_counts() -> None:
            sent = time.monotonic()
            assert await publishes(clients[0], "open")
            age = sent - asked.asked_at["c0"]
            assert age < cache_s + 0.3, f"an answer has counted for {age:.2f} s"

        until = time.monotonic() + WAIT_S
        while not broker.counters().get("decisions_remembered"):
            assert time.monotonic() < until
            await publish_while_it_counts()
            await asyncio.sleep(max(0.0, asked.asked_at["c0"] + 0.7 * cache_s - time.monotonic()))
            for other in clients[1:]:  # these take the places beside the topic
                assert await publishes(other, "open")
            await publish_while_it_counts()
        taken = time.monotonic()
        while time.monotonic() < taken + 1.2 * cache_s:
            await publish_while_it_counts()


async def test_what_a_moved_client_will_not_get_is_said_and_what_was_queued_comes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Mosquitto's rules with a part that is refused: the subscription ends, the queue does not."""
    text = "topic read plant/#\ntopic write plant/#\n"
    async with broker_with(tmp_path / "acl", text, acl_format="mosquitto") as broker:
        async with client_of(broker, client_id="moved", clean_start=False, session_expiry_s=1000) as client:
            await client.subscribe("plant/#", qos=1)
        async with client_of(broker) as publisher:  # acknowledged: it is in the queue
            await publisher.publish("plant/a", b"queued", qos=1)
        (tmp_path / "acl").write_text(text + "topic deny plant/secret/#\n")
        await until(lambda: broker.counters()["acl_reloads"] == 1, "other rules")
        said = [each for each in caplog.messages if "Mosquitto would leave out" in each]
        assert len(said) == 1
        assert "line 1: a subscription to 'plant/#' is refused as a whole, for line 3" in said[0]
        async with client_of(broker) as publisher:
            await publisher.publish("plant/a", b"queued too", qos=1)
        async with client_of(broker, client_id="moved", clean_start=False, session_expiry_s=1000) as client:
            found = [(await asyncio.wait_for(anext(client.messages), WAIT_S)).payload for _ in range(2)]
            assert found == [b"queued", b"queued too"]
            await until(lambda: broker.counters()["subscriptions_revoked"] == 1, "the end of it")
