"""Publishing and subscribing, of every QoS and version, against each broker."""

from __future__ import annotations

import asyncio
from typing import Any, Literal

import pytest
from client.servers import Server
from waiting import WAIT_S

from tidemq.client import (
    BufferFullError,
    Client,
    Message,
    Properties,
    PublishError,
    ReasonCode,
    SubscribeError,
    Will,
)
from tidemq.client.queue import MessageQueue
from tidemq.errors import UsageError

every_version = pytest.mark.parametrize("version", [3, 4, 5])


async def take(messages: MessageQueue, count: int) -> list[Message]:
    """The next `count` messages, and none beyond that is there already."""
    async with asyncio.timeout(WAIT_S):
        found = [await anext(messages) for _ in range(count)]
    assert not len(messages)
    return found


@every_version
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_what_is_published_arrives(
    server: Server, topic: str, version: Literal[3, 4, 5], qos: int
) -> None:
    async with Client(server.url, version=version) as client:
        subscription = await client.subscribe(f"{topic}/+/b", qos=qos)
        assert subscription.granted_qos == (qos,)
        for payload in (b"bytes", "teüxt", bytearray(b"array"), memoryview(b"view"), b"", b"x" * 300_000):
            reason = await client.publish(f"{topic}/a/b", payload, qos=qos)
            assert reason == ReasonCode.SUCCESS
        messages = await take(client.messages, 6)
    assert [each.payload for each in messages] == [
        b"bytes",
        "teüxt".encode(),
        b"array",
        b"view",
        b"",
        b"x" * 300_000,
    ]
    assert {(each.topic, each.qos, each.retain, each.dup) for each in messages} == {
        (f"{topic}/a/b", qos, False, False)
    }


@every_version
async def test_a_retained_message_waits_for_its_subscriber(
    server: Server, topic: str, version: Literal[3, 4, 5]
) -> None:
    async with Client(server.url, version=version) as client:
        await client.publish(topic, "kept", qos=1, retain=True)
        await client.subscribe(topic, qos=1)
        (message,) = await take(client.messages, 1)
        await client.publish(topic, b"", qos=1, retain=True)
    assert (message.payload, message.retain) == (b"kept", True)


async def test_every_property_of_a_message_arrives(server: Server, topic: str) -> None:
    properties = Properties(
        payload_format=1,
        message_expiry_s=100,
        content_type="text/plain",
        response_topic="answers",
        correlation_data=b"\x00\x01",
        user_properties=(("a", "1"), ("a", "2")),
    )
    async with Client(server.url) as client:
        await client.subscribe(topic, properties=Properties(subscription_ids=(7,)))
        await client.publish(topic, "text", properties=properties)
        (message,) = await take(client.messages, 1)
    assert message.payload_format == 1
    assert message.message_expiry_s in (99, 100)
    assert message.content_type == "text/plain"
    assert message.response_topic == "answers"
    assert message.correlation_data == b"\x00\x01"
    assert message.user_properties == (("a", "1"), ("a", "2"))
    assert message.subscription_ids == (7,)
    assert message.properties.content_type == "text/plain"


async def test_properties_need_5(server: Server, topic: str) -> None:
    async with Client(server.url, version=4) as client:
        with pytest.raises(UsageError, match=r"only MQTT 5\.0"):
            await client.publish(topic, properties=Properties(content_type="a"))
        with pytest.raises(UsageError, match=r"only MQTT 5\.0"):
            await client.request(topic)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("a/+",), "wildcard|\\+"),
        (("",), "empty"),
        (("a\0b",), "U\\+0000"),
        (("a" * 65_536,), "65,535"),
        ((7,), "accepted: a str"),
        (("a", [7]), r"payload is \[7\]"),
        (("a", True), "payload is True"),
        (("a", "\ud800"), "no UTF-8 form"),
    ],
)
async def test_a_wrong_message_is_refused_by_name(server: Server, arguments: Any, text: str) -> None:
    async with Client(server.url) as client:
        with pytest.raises(UsageError, match=text):
            client.publish_nowait(*arguments)
        with pytest.raises(UsageError, match="qos is 3"):
            client.publish_nowait("a", qos=3)
        with pytest.raises(UsageError, match="cannot have it"):
            client.publish_nowait("a", properties=Properties(session_expiry_s=1))
        assert client._outgoing.held_messages == 0


@every_version
@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_many_messages_arrive_in_order(
    server: Server, topic: str, version: Literal[3, 4, 5], qos: int
) -> None:
    count = 1500
    async with Client(server.url, version=version) as client:
        await client.subscribe(topic, qos=qos)
        sent = await client.publish_many(((topic, b"%d" % n) for n in range(count)), qos=qos)
        messages = await take(client.messages, count)
    assert sent == count
    assert [int(each.payload) for each in messages] == list(range(count))


async def test_messages_are_published_as_they_are(server: Server, topic: str) -> None:
    originals = [
        Message(topic, "one", 2, properties=Properties(content_type="t")),
        Message(f"{topic}/two", b"2", qos=0),
    ]
    async with Client(server.url) as client:
        await client.subscribe(f"{topic}/#", qos=2)
        await client.publish_many(originals)
        received = await take(client.messages, 2)
    assert sorted(map(repr, received)) == sorted(map(repr, originals))


@pytest.mark.parametrize("qos", [0, 1, 2])
async def test_a_receipt_says_when_it_left_and_was_acknowledged(server: Server, topic: str, qos: int) -> None:
    async with Client(server.url) as client:
        receipt = client.publish_nowait(topic, "x", qos=qos)
        assert receipt.done == (qos == 0)
        await receipt.sent
        reason = await receipt.acknowledged
        assert reason == receipt.reason
        assert reason in (ReasonCode.SUCCESS, ReasonCode.NO_MATCHING_SUBSCRIBERS)
        assert receipt.done
        await receipt.sent
        await asyncio.gather(receipt.acknowledged, receipt.acknowledged, receipt.sent)
        with pytest.raises(UsageError, match="no outbox"):
            await receipt.stored


async def test_each_iterator_gets_its_filters_messages(server: Server, topic: str) -> None:
    async with Client(server.url) as client:
        first = await client.subscribe(f"{topic}/1/+", qos=1)
        second = await client.subscribe(f"{topic}/2/#", f"{topic}/3", qos=1)
        await client.subscribe(f"{topic}/rest")
        await client.publish(f"{topic}/1/a", "before", qos=1)
        for name in ("2", "2/a/b", "3", "rest", "1/a"):
            await client.publish(f"{topic}/{name}", name, qos=1)
        async with asyncio.timeout(WAIT_S):
            assert [await anext(first.messages) for _ in range(2)]
            async for message in second:
                if message.payload == b"3":
                    break
            assert (await anext(client.messages)).payload == b"rest"
            await client.unsubscribe(second)
            with pytest.raises(StopAsyncIteration):
                await anext(second.messages)


async def test_callbacks_get_messages_in_order_and_may_fail(server: Server, topic: str) -> None:
    got: list[str] = []
    failures: list[dict[str, Any]] = []
    done = asyncio.Event()
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context))

    def plain(message: Message) -> None:
        got.append(message.payload.decode())
        if message.payload == b"3":
            raise ValueError("a callback's own fault")

    async def slow(message: Message) -> None:
        await asyncio.sleep(0.001)
        got.append(message.payload.decode().upper())
        if message.payload == b"end":
            done.set()

    async with Client(server.url) as client:
        await client.subscribe(f"{topic}/plain", callback=plain, qos=1)
        await client.subscribe(f"{topic}/slow", callback=slow, qos=1)
        for n in range(5):
            await client.publish(f"{topic}/plain", str(n), qos=1)
        for word in ("a", "b", "end"):
            await client.publish(f"{topic}/slow", word, qos=1)
        async with asyncio.timeout(WAIT_S):
            await done.wait()
    assert got == ["0", "1", "2", "3", "4", "A", "B", "END"]
    assert [str(each["exception"]) for each in failures] == ["a callback's own fault"]


async def test_unsubscribed_is_quiet(server: Server, topic: str) -> None:
    async with Client(server.url) as client:
        await client.subscribe(f"{topic}/a", f"{topic}/b")
        assert await client.unsubscribe(f"{topic}/a", f"{topic}/none") == (
            ReasonCode.SUCCESS,
            ReasonCode.NO_SUBSCRIPTION_EXISTED,
        )
        await client.publish(f"{topic}/a", "no", qos=1)
        await client.publish(f"{topic}/b", "yes", qos=1)
        (message,) = await take(client.messages, 1)
    assert message.payload == b"yes"


async def test_subscription_options_of_5(server: Server, topic: str) -> None:
    async with Client(server.url) as client, Client(server.url) as other:
        await client.subscribe((f"{topic}/own", 1), no_local=True, retain_as_published=True)
        await client.publish(f"{topic}/own", "mine", qos=1)
        await other.publish(f"{topic}/own", "theirs", qos=1, retain=True)
        (message,) = await take(client.messages, 1)
        await other.publish(f"{topic}/own", b"", retain=True)
    assert (message.payload, message.retain, message.qos) == (b"theirs", True, 1)


async def test_a_filter_that_is_no_filter_is_refused(server: Server) -> None:
    async with Client(server.url) as client:
        with pytest.raises(UsageError, match=r"wildcard|filter"):
            await client.subscribe("a/#/b")
        with pytest.raises(UsageError, match="at least one"):
            await client.subscribe()


async def test_request_and_response(server: Server, topic: str) -> None:
    async with Client(server.url) as asking, Client(server.url) as answering:

        async def answer_loudly(asked: Message) -> None:
            await answering.respond(asked, asked.payload.upper())

        await answering.subscribe(topic, callback=answer_loudly)
        answers = await asyncio.gather(*(asking.request(topic, f"q{n}", qos=1) for n in range(20)))
        assert [each.payload for each in answers] == [b"Q%d" % n for n in range(20)]
        with pytest.raises(TimeoutError, match="no answer"):
            await asking.request(f"{topic}/nobody", timeout_s=0.1)
        with pytest.raises(UsageError, match="no response topic"):
            await answering.respond(Message(topic))


@every_version
async def test_the_will_of_a_client_that_vanishes(
    server: Server, topic: str, version: Literal[3, 4, 5]
) -> None:
    will = Will(topic=topic, payload=b"gone", qos=1)
    async with Client(server.url) as watching:
        await watching.subscribe(topic, qos=1)
        client = Client(server.url, version=version, will=will, reconnect=False)
        await client.connect()
        client._connection._link.abort()  # type: ignore[union-attr]
        (message,) = await take(watching.messages, 1)
        await client.disconnect()
        if version == 5:
            async with Client(server.url, will=will) as leaving:
                await leaving.disconnect(reason=ReasonCode.DISCONNECT_WITH_WILL)
            await take(watching.messages, 1)
    assert message.payload == b"gone"


async def test_topic_aliases_both_ways(server: Server, topic: str) -> None:
    names = [f"{topic}/{n}/" + "long" * 20 for n in range(6)]
    async with Client(server.url, topic_aliases_max=3) as client:
        await client.subscribe(f"{topic}/#", qos=1)
        sent = client._outgoing.progress.written
        for _ in range(3):
            await client.publish_many((name, name) for name in names)
        messages = await take(client.messages, 18)
        sent = client._outgoing.progress.written - sent
    assert [each.topic for each in messages] == [each.payload.decode() for each in messages] == names * 3
    assert sent < 18 * (len(names[0]) * 2), "topics that have an alias are not sent again"


async def test_shared_subscriptions(server: Server, topic: str) -> None:
    filter_ = f"$share/group/{topic}"
    async with Client(server.url) as one, Client(server.url) as two:
        mine = [await each.subscribe(filter_, qos=1) for each in (one, two)]
        await one.publish_many(((topic, str(n)) for n in range(20)), qos=1)
        got: set[bytes] = set()
        async with asyncio.timeout(WAIT_S):
            while len(got) < 20:
                for each in mine:
                    got |= {message.payload for message in each.messages.take_nowait()}
                await asyncio.sleep(0.01)
    assert got == {b"%d" % n for n in range(20)}


async def test_manual_acknowledgement(server: Server, topic: str) -> None:
    async with Client(server.url, acknowledge="manual", receive_max=2, keep_alive_s=0) as client:
        await client.subscribe(topic, qos=1)
        await client.publish_many(((topic, str(n)) for n in range(4)), qos=1)
        async with asyncio.timeout(WAIT_S):
            first, second = [await anext(client.messages) for _ in range(2)]
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(anext(client.messages), 0.1)
            client.acknowledge(second)
            client.acknowledge(second)
            third = await anext(client.messages)
            client.acknowledge(first)
            client.acknowledge(third)
            assert (await anext(client.messages)).payload == b"3"


async def test_errors_have_one_root() -> None:
    from tidemq.errors import TideMQError

    assert issubclass(PublishError, TideMQError)
    assert issubclass(SubscribeError, TideMQError)
    assert issubclass(BufferFullError, TideMQError)
