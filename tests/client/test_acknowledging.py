"""A message is acknowledged when the program is done with it: callback, turn of a loop, batch."""

from __future__ import annotations

import asyncio
import gc
import subprocess
import sys
import threading
from typing import Any, Literal

import pytest
from client.scripted import Peer, ScriptedServer
from client.servers import Server
from waiting import WAIT_S, until

from tidemq.client import Client, Message, ReasonCode, Subscription, sync
from tidemq.client.queue import MessageQueue
from tidemq.errors import UsageError
from tidemq.wire import (
    Connack,
    Packet,
    Puback,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Unsuback,
    Unsubscribe,
)

COUNT = 10

# each receives ten messages of a session that was there before, and dies at the first
_PROGRAM = """
import asyncio, os, sys, time
from tidemq.client import Client, sync

kind, url, client_id, topic = sys.argv[1:]
options = dict(client_id=client_id, clean_start=False, session_expiry_s=300)

def die(*_):
    os._exit(7)

async def callback(client):
    async def handle(message):
        await asyncio.sleep(0.2)  # whatever was acknowledged has gone
        die()
    await client.subscribe(topic, qos=1, callback=handle)
    await asyncio.sleep(30)

async def iterate(client):
    async for message in client.messages:
        await asyncio.sleep(0.2)
        die()

async def take(client):
    while len(batch := await client.messages.take()) < 1:
        pass
    await asyncio.sleep(0.2)
    die()

async def main(work):
    async with Client(url, **options) as client:
        await work(client)

def sleep_and_die(message=None):
    time.sleep(0.2)
    die()

if kind.startswith("sync"):
    with sync.Client(url, **options) as client:
        if kind == "sync callback":
            client.subscribe(topic, qos=1, callback=sleep_and_die)
            time.sleep(30)
        for message in client.messages:
            sleep_and_die()
else:
    asyncio.run(main({"callback": callback, "iterate": iterate, "take": take}[kind]))
"""


@pytest.mark.parametrize("kind", ["callback", "iterate", "take", "sync callback", "sync iterate"])
async def test_nothing_is_lost_with_a_process_that_dies_at_its_first_message(
    server: Server, topic: str, kind: str
) -> None:
    client_id = f"dies-{topic.replace('/', '-')}"
    options: dict[str, Any] = {"client_id": client_id, "clean_start": False, "session_expiry_s": 300}
    async with Client(server.url, **options) as client:
        await client.subscribe(topic, qos=1)
    async with Client(server.url) as publisher:
        for n in range(COUNT):
            await publisher.publish(topic, n, qos=1)
    program = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", _PROGRAM, kind, server.url, client_id, topic], timeout=WAIT_S
    )
    assert program.returncode == 7
    async with asyncio.timeout(WAIT_S), Client(server.url, **options) as client:
        got: list[Message] = []
        while len(got) < COUNT:
            got += await client.messages.take()
    assert [int(each.payload) for each in got] == list(range(COUNT))


class Sent:
    """A server that sends messages 1 to `count` and keeps what the client acknowledges."""

    def __init__(self, count: int, qos: int = 1) -> None:
        self.count, self.qos = count, qos
        self.answers: list[tuple[int, int]] = []

    async def __call__(self, peer: Peer) -> None:
        await peer.accept()
        peer.send(*(Publish(topic="t", qos=self.qos, packet_id=n) for n in range(1, self.count + 1)))
        while (packet := await peer.receive()) is not None:
            if isinstance(packet, Puback | Pubrec):
                self.answers.append((packet.packet_id, packet.reason))
            if isinstance(packet, Pubrec) and packet.reason < 0x80:
                peer.send(Pubrel(packet_id=packet.packet_id))

    async def acknowledged(self, *expected: int) -> list[int]:
        """What has come, a moment after all of `expected` has."""
        await until(lambda: set(expected) <= {packet_id for packet_id, _ in self.answers})
        await asyncio.sleep(0.05)
        return [packet_id for packet_id, _ in self.answers]


@pytest.mark.parametrize("qos", [1, 2])
async def test_each_way_of_taking_acknowledges_when_the_next_is_asked_for(qos: int) -> None:
    sent = Sent(6, qos)
    async with asyncio.timeout(WAIT_S), ScriptedServer(sent) as server:
        async with Client(server.url) as client:
            await anext(client.messages)
            assert await sent.acknowledged() == []
            await client.messages.take(2)
            assert await sent.acknowledged(1) == [1]
            async for _ in client.messages:
                assert await sent.acknowledged(1) == [1]  # what `take` gave may be at work elsewhere
                break
            assert len(client.messages.take_nowait(1)) == 1
            assert sorted(await sent.acknowledged(1, 2, 3, 4)) == [1, 2, 3, 4]
            assert len(client.messages.take_nowait()) == 1
            assert client.messages.take_nowait() == []
            assert sorted(await sent.acknowledged(1, 2, 3, 4, 5, 6)) == [1, 2, 3, 4, 5, 6]


async def test_a_callback_acknowledges_when_it_has_ended_and_says_that_it_failed() -> None:
    sent, may_end, seen = Sent(3), asyncio.Event(), []

    async def handle(message: Message) -> None:
        seen.append(message)
        if len(seen) == 2:
            raise ValueError("the second")
        await may_end.wait()

    failures: list[object] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: failures.append(context["exception"]))
    async with asyncio.timeout(WAIT_S), ScriptedServer(sent) as server:
        async with Client(server.url, clean_start=False) as client:
            # the server answers no SUBSCRIBE: the callback has the messages all the same
            waiting = asyncio.create_task(client.subscribe("t", qos=1, callback=handle))
            await until(lambda: seen)
            assert await sent.acknowledged() == []
            may_end.set()
            await until(lambda: len(sent.answers) >= 3)
            waiting.cancel()
    assert sent.answers == [(1, 0), (2, ReasonCode.UNSPECIFIED_ERROR), (3, 0)]
    assert [str(each) for each in failures] == ["the second"]


async def test_loops_of_several_tasks_acknowledge_each_its_own() -> None:
    sent = Sent(4)
    busy = asyncio.Event()
    async with asyncio.timeout(WAIT_S), ScriptedServer(sent) as server:
        async with Client(server.url) as client:

            async def slow() -> None:
                async for _ in client.messages:
                    await busy.wait()

            async def quick() -> None:
                async for _ in client.messages:
                    await asyncio.sleep(0)

            await client.messages.wait()
            tasks = [asyncio.create_task(slow()), asyncio.create_task(quick())]
            await until(lambda: len(sent.answers) >= 3)
            assert await sent.acknowledged(2, 3, 4) == [2, 3, 4]
        # somebody else's end of the client does not acknowledge what is at work
        assert await sent.acknowledged(2, 3, 4) == [2, 3, 4]
        busy.set()
        await asyncio.gather(*tasks)


@pytest.mark.parametrize("connected", [True, False])
async def test_work_of_a_forgotten_session_does_not_acknowledge_the_new_ones_message(connected: bool) -> None:
    """Both are of QoS 2 and have the same identifier. It may end while there is a connection, or while there
    is none."""
    taken, done = asyncio.Event(), asyncio.Event()
    answers: list[Packet] = []

    async def script(peer: Peer) -> None:
        if server.connections == 3:
            await done.wait()
        await peer.accept(Connack(session_present=server.connections == 3))
        which = b"old" if server.connections == 1 else b"new"
        peer.send(Publish(topic="t", payload=which, qos=2, packet_id=1, dup=server.connections == 3))
        if server.connections == 1 or (server.connections == 2 and not connected):
            await taken.wait()
            taken.clear()
            return
        while (packet := await peer.receive()) is not None:
            answers.append(packet)

    async with asyncio.timeout(WAIT_S), ScriptedServer(script) as server:
        async with Client(server.url, acknowledge="manual", backoff_s_min=0.01, backoff_s_max=0.05) as client:
            (old,) = await client.messages.take()
            taken.set()
            (new,) = await client.messages.take()
            if not connected:
                taken.set()
                await until(lambda: not client.is_connected)
            client.acknowledge(old)
            done.set()
            await client.wait_connected()
            client.publish_nowait("behind it")
            await until(lambda: answers)
            assert isinstance(answers[0], Publish)
            client.acknowledge(new)
            await until(lambda: len(answers) >= 2)
            assert isinstance(answers[1], Pubrec)


@pytest.mark.parametrize("clean", [True, False])
async def test_a_clean_end_acknowledges_what_its_task_has_taken(clean: bool) -> None:
    sent = Sent(3)
    async with asyncio.timeout(WAIT_S), ScriptedServer(sent) as server:
        try:
            async with Client(server.url) as client:
                await client.messages.wait()
                async for _ in client.messages:
                    break
                await client.messages.take(1)
                if not clean:
                    raise ValueError("the work failed")
        except ValueError:
            pass
        expected = [1, 2] if clean else [1]
        assert await sent.acknowledged(*expected) == expected


async def test_a_callback_that_ends_its_client_has_done_its_work() -> None:
    sent = Sent(2)
    ended = asyncio.Event()
    async with asyncio.timeout(WAIT_S), ScriptedServer(sent) as server:
        client = Client(server.url)
        await client.connect()

        async def handle(_: Message) -> None:
            await client.disconnect()
            ended.set()

        waiting = asyncio.create_task(client.subscribe("t", callback=handle))
        await ended.wait()
        await asyncio.gather(waiting, return_exceptions=True)
        assert await sent.acknowledged(1) == [1]


@pytest.mark.parametrize("qos", [1, 2])
@pytest.mark.parametrize("mode", ["auto", "manual"])
async def test_a_program_says_it_itself_with_a_reason_code(mode: Literal["auto", "manual"], qos: int) -> None:
    sent = Sent(3, qos)
    async with asyncio.timeout(WAIT_S), ScriptedServer(sent) as server:
        async with Client(server.url, acknowledge=mode) as client:
            await client.messages.wait()
            first, second, third = await client.messages.take(3)
            client.acknowledge(second, reason_code=ReasonCode.QUOTA_EXCEEDED)
            client.acknowledge(second)
            with pytest.raises(UsageError, match="0x82"):
                client.acknowledge(first, reason_code=ReasonCode.PROTOCOL_ERROR)
            client.acknowledge(first)
            assert await sent.acknowledged(2, 1) == [2, 1]
            client.acknowledge(third)
    assert sent.answers == [(2, ReasonCode.QUOTA_EXCEEDED), (1, 0), (3, 0)]


async def shared_message(client: Client, topic: str) -> tuple[Subscription, list[MessageQueue]]:
    """One message that two subscriptions have: the first of them, and the queues of both."""
    one, two = [await client.subscribe(f"{topic}/{each}", qos=1) for each in ("a", "+")]
    queues = [one.messages, two.messages]
    await client.publish(f"{topic}/a", qos=1)
    await asyncio.gather(*(each.wait() for each in queues))
    return one, queues


async def test_a_message_of_two_subscriptions_is_acknowledged_when_both_are_done(
    server: Server, topic: str
) -> None:
    async with asyncio.timeout(WAIT_S), Client(server.url) as client:
        _, queues = await shared_message(client, topic)
        before = client._intake.unacknowledged
        for each in queues:
            await anext(each)
        queues[0].finish()
        assert client._intake.unacknowledged == before
        queues[1].finish()
        assert client._intake.unacknowledged < before


class Rounds:
    """A server that answers every SUBSCRIBE with messages of QoS 1 on the topic of its filter, and never has
    more than `receive_max` of them unacknowledged."""

    def __init__(self, receive_max: int, messages: int) -> None:
        self.receive_max, self.messages = receive_max, messages
        self.unacknowledged: set[int] = set()

    async def __call__(self, peer: Peer) -> None:
        await peer.accept()
        waiting: list[str] = []
        while (packet := await peer.receive()) is not None:
            if isinstance(packet, Puback):
                self.unacknowledged.remove(packet.packet_id)
            elif isinstance(packet, Subscribe):
                peer.send(Suback(packet_id=packet.packet_id, reasons=(1,)))
                waiting += [packet.subscriptions[0].filter] * self.messages
            elif isinstance(packet, Unsubscribe):
                waiting.clear()
                peer.send(Unsuback(packet_id=packet.packet_id, reasons=(0,)))
            free = sorted(set(range(1, self.receive_max + 1)) - self.unacknowledged)
            for number in free[: len(waiting)]:
                self.unacknowledged.add(number)
                peer.send(Publish(topic=waiting.pop(), qos=1, packet_id=number))

    async def all_acknowledged(self) -> None:
        await until(lambda: not self.unacknowledged)


@pytest.mark.parametrize("way", ["async for", "take", "nothing"])
async def test_what_a_dropped_subscription_held_is_done_with(way: str) -> None:
    rounds = Rounds(receive_max=4, messages=3)
    async with asyncio.timeout(WAIT_S), ScriptedServer(rounds) as server:
        async with Client(server.url, receive_max=4, queue_messages_max=5) as client:
            for n in range(6):
                subscription = await client.subscribe(f"t/{n}", qos=1)
                await subscription.messages.wait()
                if way == "take":
                    await subscription.messages.take(2)
                elif way == "async for":
                    async for _ in subscription:
                        break
                await client.unsubscribe(subscription)
                assert rounds.unacknowledged
                del subscription
                await rounds.all_acknowledged()
            assert (client._intake.messages, client._intake.size_bytes) == (0, 0)


async def test_a_dropped_subscription_in_a_cycle_is_done_with_as_well() -> None:
    rounds = Rounds(receive_max=4, messages=3)
    async with asyncio.timeout(WAIT_S), ScriptedServer(rounds) as server, Client(server.url) as client:
        subscription = await client.subscribe("t", qos=1)
        loop = aiter(subscription)
        await anext(loop)
        await client.unsubscribe(subscription)
        cycle = [subscription, loop]
        cycle.append(cycle)
        del subscription, loop, cycle
        while rounds.unacknowledged:  # a collection that is under way in another thread makes it do nothing
            await asyncio.to_thread(gc.collect)  # any thread may be the one that collects
        assert client._intake.messages == 0


async def test_what_a_dropped_subscription_shared_is_acknowledged(server: Server, topic: str) -> None:
    async with asyncio.timeout(WAIT_S), Client(server.url) as client:
        one, queues = await shared_message(client, topic)
        before = client._intake.unacknowledged
        while queues[1].take_nowait():
            pass
        assert client._intake.unacknowledged == before
        await client.unsubscribe(one)
        del one, queues[0]
        await until(lambda: client._intake.unacknowledged != before)


@pytest.mark.parametrize("way", ["get", "nothing", "callback"])
async def test_the_blocking_client_keeps_nothing_of_dropped_subscriptions(way: str) -> None:
    rounds = Rounds(receive_max=4, messages=3)
    loop = asyncio.get_running_loop()

    def work() -> None:
        with sync.Client(server.url, receive_max=4, queue_messages_max=5) as client:
            for n in range(6):
                came = threading.Event()
                callback = (lambda _, came=came: came.set()) if way == "callback" else None
                subscription = client.subscribe(f"t/{n}", qos=1, callback=callback)
                if way == "get":
                    subscription.messages.get(WAIT_S)
                elif way == "callback":
                    came.wait(WAIT_S)
                else:
                    assert subscription.messages
                client.unsubscribe(subscription)
                del subscription
                asyncio.run_coroutine_threadsafe(rounds.all_acknowledged(), loop).result(WAIT_S)
            for worker in list(client._workers):
                worker.join(WAIT_S)
            assert not client._workers
            assert not client._queues
            assert client._async._intake.messages == 0

    async with asyncio.timeout(WAIT_S), ScriptedServer(rounds) as server:
        await asyncio.to_thread(work)


async def test_a_clean_end_acknowledges_what_its_thread_took_of_an_ended_subscription() -> None:
    rounds = Rounds(receive_max=4, messages=1)

    def work() -> None:
        with sync.Client(server.url) as client:
            subscription = client.subscribe("t", qos=1)
            subscription.messages.get(WAIT_S)
            client.unsubscribe(subscription)
            assert rounds.unacknowledged

    async with asyncio.timeout(WAIT_S), ScriptedServer(rounds) as server:
        await asyncio.to_thread(work)
        await rounds.all_acknowledged()


async def test_threads_acknowledge_when_they_ask_for_their_next() -> None:
    sent = Sent(4)

    def work() -> list[list[int]]:
        steps: list[list[int]] = []

        def look(*expected: int) -> None:
            steps.append(asyncio.run_coroutine_threadsafe(sent.acknowledged(*expected), loop).result())

        with sync.Client(server.url) as client:
            client.messages.get(WAIT_S)
            look()
            other = threading.Thread(target=lambda: client.messages.get(WAIT_S))
            other.start()
            other.join()
            look()
            client.messages.get(WAIT_S)
            look(1)
            client.messages.get(WAIT_S)
        look(1, 3, 4)
        return steps

    loop = asyncio.get_running_loop()
    async with asyncio.timeout(WAIT_S), ScriptedServer(sent) as server:
        steps = await asyncio.to_thread(work)
    # what the thread that has ended had taken is done with, sooner or later
    assert steps[:2] == [[], []]
    assert sorted(steps[2]) in ([1], [1, 2])
    assert sorted(steps[3]) == [1, 3, 4] or sorted(steps[3]) == [1, 2, 3, 4]
