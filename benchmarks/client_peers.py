"""One client library at work, in a process of its own: publishes or receives so many messages, says how long
it took.

Each library is used as its documentation shows for many messages; what a program would have to do for each
message (a call, an iteration, a callback) is done, and nothing beside it.
"""

from __future__ import annotations

import asyncio
import json
import logging
import sys
import threading
import time
import urllib.request
from collections.abc import Awaitable, Callable

import aiomqtt
import gmqtt  # type: ignore[import-untyped]
import mqttools  # type: ignore[import-untyped]
import paho.mqtt.client as paho
from paho.mqtt.enums import CallbackAPIVersion

from tidemq.client import Client, sync
from tidemq.wire import Connect, Publish, Subscribe, Subscription, encode

HOST = "127.0.0.1"
TOPIC = "bench/client/0"
PAYLOAD = bytes(64)
INFLIGHT = 1000  # unacknowledged at QoS 1, for those who have to be told
POLL_S = 0.002
TURN = 500  # messages after which a plain loop lets others have their turn
Stop = Callable[[], None]


def arrived(admin_port: int) -> int:
    """Messages that the broker has received from anybody."""
    with urllib.request.urlopen(f"http://{HOST}:{admin_port}/counters") as answer:
        count: int = json.load(answer)["messages_received"]
        return count


class Watch:
    """Wall and CPU time of this process, from when it is made."""

    def __init__(self) -> None:
        self.begun_s, self.cpu_begun_s = time.perf_counter(), time.process_time()

    def report(self, count: int) -> None:
        """Prints what the parent reads."""
        seconds = time.perf_counter() - self.begun_s
        cpu_s = time.process_time() - self.cpu_begun_s
        print(json.dumps({"count": count, "seconds": seconds, "cpu_s": cpu_s}), flush=True)


class Job:
    """What is to be done: `count` messages at `qos`, against the broker on `port`."""

    def __init__(self, count: int, qos: int, port: int, admin_port: int) -> None:
        self.count, self.qos, self.port, self.admin_port = count, qos, port, admin_port
        self._before = arrived(admin_port)

    @property
    def url(self) -> str:
        return f"mqtt://{HOST}:{self.port}"

    def all_arrived(self) -> bool:
        return arrived(self.admin_port) - self._before >= self.count

    def wait_arrived(self) -> None:
        while not self.all_arrived():
            time.sleep(POLL_S)

    async def await_arrived(self) -> None:
        while not await asyncio.to_thread(self.all_arrived):
            await asyncio.sleep(POLL_S)


def say_ready() -> None:
    """The parent starts to publish."""
    print("ready", flush=True)


# --- TideMQ


async def tidemq_publish_many(job: Job) -> None:
    async with Client(job.url) as client:
        watch = Watch()
        await client.publish_many(((TOPIC, PAYLOAD) for _ in range(job.count)), qos=job.qos)
        await job.await_arrived()
        watch.report(job.count)


async def tidemq_publish_nowait(job: Job) -> None:
    async with Client(job.url) as client:
        watch = Watch()
        for number in range(job.count):
            client.publish_nowait(TOPIC, PAYLOAD, qos=job.qos)
            if number % TURN == 0:
                await asyncio.sleep(0)
                if client.held_messages > 50_000:
                    await client.flush()
        await client.flush()
        await job.await_arrived()
        watch.report(job.count)


async def tidemq_publish(job: Job) -> None:
    """At QoS 1 as many tasks as others have messages in flight; each awaits its acknowledgement."""
    async with Client(job.url) as client:
        tasks = INFLIGHT if job.qos else 1

        async def publish() -> None:
            for _ in range(job.count // tasks):
                await client.publish(TOPIC, PAYLOAD, qos=job.qos)

        job.count = job.count // tasks * tasks
        watch = Watch()
        await asyncio.gather(*(publish() for _ in range(tasks)))
        await job.await_arrived()
        watch.report(job.count)


def tidemq_sync_publish(job: Job) -> None:
    with sync.Client(job.url) as client:
        watch = Watch()
        for _ in range(job.count):
            client.publish_nowait(TOPIC, PAYLOAD, qos=job.qos)
            if client.held_messages > 50_000:
                client.flush()
        client.flush()
        job.wait_arrived()
        watch.report(job.count)


async def tidemq_one_by_one(job: Job) -> None:
    async with Client(job.url) as client:
        watch = Watch()
        for _ in range(job.count):
            await client.publish(TOPIC, PAYLOAD, qos=job.qos)
        watch.report(job.count)


def tidemq_sync_one_by_one(job: Job) -> None:
    with sync.Client(job.url) as client:
        watch = Watch()
        for _ in range(job.count):
            client.publish(TOPIC, PAYLOAD, qos=job.qos)
        watch.report(job.count)


async def asyncio_wake(job: Job) -> None:
    """No client: as many tasks as above, each awaiting a future that a callback of the loop then sets. What
    `await publish` can't be cheaper than."""
    loop = asyncio.get_running_loop()
    waiting: list[asyncio.Future[None]] = []

    def wake() -> None:
        woken = waiting.copy()
        waiting.clear()
        for each in woken:
            each.set_result(None)

    async def wait() -> None:
        for _ in range(job.count // INFLIGHT):
            future: asyncio.Future[None] = asyncio.Future(loop=loop)
            waiting.append(future)
            if len(waiting) == 1:
                loop.call_soon(wake)
            await future

    job.count = job.count // INFLIGHT * INFLIGHT
    watch = Watch()
    await asyncio.gather(*(wait() for _ in range(INFLIGHT)))
    watch.report(job.count)


class Bare(asyncio.BufferedProtocol):
    """No client: what asyncio alone does with a connection. Says when `wanted` bytes have come."""

    def __init__(self) -> None:
        self._buffer = bytearray(1 << 18)
        self._came = 0
        self._wanted = 0
        self._waiter: asyncio.Future[None] | None = None

    def get_buffer(self, _: int) -> bytearray:
        return self._buffer

    def buffer_updated(self, size: int) -> None:
        self._came += size
        if self._waiter is not None and self._came >= self._wanted:
            self._waiter.set_result(None)
            self._waiter = None

    async def bytes_of(self, wanted: int) -> None:
        """So many more have come."""
        self._came, self._wanted = self._came - self._wanted, wanted
        if self._came < wanted:
            self._waiter = asyncio.get_running_loop().create_future()
            await self._waiter

    @classmethod
    async def connected(cls, job: Job) -> tuple[asyncio.WriteTransport, Bare]:
        """After CONNACK, of MQTT 3.1.1: the shortest there is."""
        transport, bare = await asyncio.get_running_loop().create_connection(cls, HOST, job.port)
        transport.write(encode(Connect(version=4, clean_start=True, keep_alive_s=0), 4))
        await bare.bytes_of(4)
        return transport, bare


async def asyncio_one_by_one(job: Job) -> None:
    transport, bare = await Bare.connected(job)
    packet = encode(Publish(topic=TOPIC, payload=PAYLOAD, qos=1, packet_id=1), 4)
    watch = Watch()
    for _ in range(job.count):
        transport.write(packet)
        await bare.bytes_of(4)
    watch.report(job.count)


async def asyncio_receive(job: Job) -> None:
    transport, bare = await Bare.connected(job)
    transport.write(encode(Subscribe(packet_id=1, subscriptions=(Subscription(filter=TOPIC),)), 4))
    await bare.bytes_of(5)
    say_ready()
    size = len(encode(Publish(topic=TOPIC, payload=PAYLOAD), 4))
    await bare.bytes_of(size)
    watch = Watch()
    await bare.bytes_of(size * (job.count - 1))
    watch.report(job.count - 1)


async def _tidemq_received(job: Job, receive: Callable[[Client, int], Awaitable[Watch]]) -> None:
    async with Client(job.url) as client:
        await client.subscribe(TOPIC, qos=job.qos)
        say_ready()
        (await receive(client, job.count)).report(job.count)


async def tidemq_async_for(job: Job) -> None:
    async def receive(client: Client, count: int) -> Watch:
        watch: Watch | None = None
        async for message in client.messages:
            watch = watch or Watch()
            assert len(message.payload) == 64
            count -= 1
            if not count:
                break
        assert watch is not None
        return watch

    await _tidemq_received(job, receive)


async def tidemq_take(job: Job) -> None:
    async def receive(client: Client, count: int) -> Watch:
        watch: Watch | None = None
        while count:
            for message in await client.messages.take():
                watch = watch or Watch()
                assert len(message.payload) == 64
                count -= 1
        assert watch is not None
        return watch

    await _tidemq_received(job, receive)


async def tidemq_callback(job: Job) -> None:
    counting = Counting(job.count)
    async with Client(job.url) as client:
        await client.subscribe(TOPIC, qos=job.qos, callback=lambda message: counting.take(message.payload))
        say_ready()
        await counting.awaited()
        counting.report()


def tidemq_sync_for(job: Job) -> None:
    with sync.Client(job.url) as client:
        client.subscribe(TOPIC, qos=job.qos)
        say_ready()
        counting = Counting(job.count)
        for message in client.messages:
            counting.take(message.payload)
            if not counting.left:
                break
        counting.report()


class Counting:
    """Counts payloads in a callback."""

    def __init__(self, count: int) -> None:
        self.count = self.left = count
        self._watch: Watch | None = None
        self.done = threading.Event()

    def take(self, payload: bytes | bytearray) -> None:
        """A message came."""
        if self._watch is None:
            self._watch = Watch()
        assert len(payload) == 64
        self.left -= 1
        if not self.left:
            self.done.set()

    async def awaited(self) -> None:
        while not self.done.is_set():
            await asyncio.sleep(POLL_S)

    def report(self) -> None:
        assert self._watch is not None
        self._watch.report(self.count)


# --- paho-mqtt: its own thread, as `loop_start` makes it


def _paho_client(job: Job) -> paho.Client:
    client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
    client.max_inflight_messages_set(INFLIGHT)
    client.max_queued_messages_set(0)
    return client


def paho_publish(job: Job) -> None:
    client = _paho_client(job)
    connected = threading.Event()
    client.on_connect = lambda *_: connected.set()
    client.connect(HOST, job.port)
    client.loop_start()
    connected.wait()
    watch = Watch()
    infos = [client.publish(TOPIC, PAYLOAD, job.qos) for _ in range(job.count)]
    for info in infos:
        info.wait_for_publish()
    job.wait_arrived()
    watch.report(job.count)
    client.disconnect()
    client.loop_stop()


def paho_one_by_one(job: Job) -> None:
    client = _paho_client(job)
    connected = threading.Event()
    client.on_connect = lambda *_: connected.set()
    client.connect(HOST, job.port)
    client.loop_start()
    connected.wait()
    watch = Watch()
    for _ in range(job.count):
        client.publish(TOPIC, PAYLOAD, job.qos).wait_for_publish()
    watch.report(job.count)
    client.disconnect()
    client.loop_stop()


def paho_receive(job: Job) -> None:
    counting = Counting(job.count)
    client = _paho_client(job)

    def subscribe(*_: object) -> None:
        client.subscribe(TOPIC, job.qos)

    client.on_connect = subscribe
    client.on_subscribe = lambda *_: say_ready()
    client.on_message = lambda _client, _data, message: counting.take(message.payload)
    client.connect(HOST, job.port)
    client.loop_start()
    counting.done.wait()
    counting.report()
    client.disconnect()
    client.loop_stop()


# --- gmqtt


async def gmqtt_publish(job: Job) -> None:
    client = gmqtt.Client("bench-gmqtt")
    await client.connect(HOST, job.port)
    watch = Watch()
    for number in range(job.count):
        client.publish(TOPIC, PAYLOAD, qos=job.qos)
        if number % TURN == 0:
            await asyncio.sleep(0)
        if job.qos and number % INFLIGHT == 0:
            await client._persistent_storage.wait_empty()  # it raises where 65,535 are in flight
    await job.await_arrived()
    await client._persistent_storage.wait_empty()
    watch.report(job.count)
    await client.disconnect()


async def gmqtt_receive(job: Job) -> None:
    counting = Counting(job.count)
    client = gmqtt.Client("bench-gmqtt")

    def take(_client: object, _topic: str, payload: bytes, _qos: int, _properties: object) -> int:
        counting.take(payload)
        return 0

    client.on_message = take
    client.on_subscribe = lambda *_: say_ready()
    await client.connect(HOST, job.port)
    client.subscribe(TOPIC, qos=job.qos)
    await counting.awaited()
    counting.report()
    await client.disconnect()


# --- aiomqtt


async def aiomqtt_publish(job: Job) -> None:
    """At QoS 1 with as many tasks as messages may be in flight."""
    logging.getLogger("mqtt").setLevel(logging.ERROR)  # it warns of more than ten calls at a time
    async with aiomqtt.Client(
        HOST,
        job.port,
        protocol=aiomqtt.ProtocolVersion.V5,
        max_inflight_messages=INFLIGHT,
        max_concurrent_outgoing_calls=INFLIGHT,
    ) as client:
        tasks = INFLIGHT if job.qos else 1

        async def publish() -> None:
            for _ in range(job.count // tasks):
                await client.publish(TOPIC, PAYLOAD, qos=job.qos, timeout=60)

        job.count = job.count // tasks * tasks
        watch = Watch()
        await asyncio.gather(*(publish() for _ in range(tasks)))
        await job.await_arrived()
        watch.report(job.count)


async def aiomqtt_one_by_one(job: Job) -> None:
    async with aiomqtt.Client(HOST, job.port, protocol=aiomqtt.ProtocolVersion.V5) as client:
        watch = Watch()
        for _ in range(job.count):
            await client.publish(TOPIC, PAYLOAD, qos=job.qos, timeout=60)
        watch.report(job.count)


async def aiomqtt_receive(job: Job) -> None:
    counting = Counting(job.count)
    async with aiomqtt.Client(HOST, job.port, protocol=aiomqtt.ProtocolVersion.V5) as client:
        await client.subscribe(TOPIC, qos=job.qos)
        say_ready()
        async for message in client.messages:
            assert isinstance(message.payload, bytes)
            counting.take(message.payload)
            if not counting.left:
                break
    counting.report()


# --- mqttools: QoS 0 only


async def mqttools_publish(job: Job) -> None:
    client = mqttools.Client(HOST, job.port)
    await client.start()
    watch = Watch()
    for number in range(job.count):
        client.publish(mqttools.Message(TOPIC, PAYLOAD))
        if number % TURN == 0:
            await asyncio.sleep(0)
    await job.await_arrived()
    watch.report(job.count)
    await client.stop()


async def mqttools_receive(job: Job) -> None:
    counting = Counting(job.count)
    client = mqttools.Client(HOST, job.port)
    await client.start()
    await client.subscribe(TOPIC)
    say_ready()
    while counting.left:
        counting.take((await client.messages.get()).message)
    counting.report()
    await client.stop()


def main(name: str, count: str, qos: str, port: str, admin_port: str) -> None:
    """Runs the function of that name in this module."""
    function = globals()[name]
    job = Job(int(count), int(qos), int(port), int(admin_port))
    if asyncio.iscoroutinefunction(function):
        asyncio.run(function(job))
    else:
        function(job)


if __name__ == "__main__":
    main(*sys.argv[1:])
