"""Clients that are not of these tests: paho-mqtt, Mosquitto's two commands, and `tidemq.client`.

Of them less is known than of the tests' own, so what they are owed is recorded late and what they have sent
early: as soon as they begin to send, and when they have said that it is done. How often they send again on
their own is not seen.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import paho.mqtt.client as paho
from cluster.processes.overheard import OverheardLink
from crash.actors import KEY_BYTES, TOPICS, Course
from crash.history import Connection, Delivery, Interest, Message
from paho.mqtt.enums import CallbackAPIVersion

from tidemq.client import Client, DisconnectedError
from tidemq.errors import TideMQError

SENT_AGAIN_MAX = 20  # by such a client
LINE_BYTES_MAX = 1 << 20
PACE_S = 0.1
GONE_S = 10.0  # for a process to end
FILTER = "crash/+/1"


class Guest(Protocol):
    """From `begin` to `end`."""

    async def begin(self, group: asyncio.TaskGroup) -> None: ...
    async def end(self) -> None: ...


class Host:
    """What a guest needs: a port that leads to one node or another, and where what it does is recorded."""

    def __init__(
        self, name: str, course: Course, choose: random.Random, place: Callable[[], tuple[str, int]]
    ):
        self.name, self.course, self.history, self.choose = name, course, course.history, choose
        self._place = place
        self.door = OverheardLink(self._port, name, self._hidden)
        self.has_one_connection = True  # at a time; else it is not known when they end
        self._number = 0
        self._is_under_way = False
        self._was_acknowledged = False

    def _port(self) -> int:
        """Of the broker for the connection that comes now."""
        broker, port = self._place()
        at = self.history.note(self.name, f"connects to {broker}")
        for each in self.history.connections:
            if each.client == self.name and self.has_one_connection:
                each.ended_at = min(each.ended_at, at)
        self.history.connections.append(Connection(self.name, broker, False, False, at, at))
        return port

    def _hidden(self, packet_id: int, payload: bytes) -> None:
        text = f"packet identifier {packet_id} used anew before its PUBREL, the message is hidden"
        self.history.fail("identifier", text, self.course.find(payload), self.name)

    @property
    def publishes(self) -> bool:
        """Whether to publish more: to the end of the run, but at least until one is acknowledged."""
        return not (self.course.ending and self._was_acknowledged)

    @property
    def busy(self) -> bool:
        """Whether a message is under way, or none has been acknowledged yet."""
        return self._is_under_way or not self._was_acknowledged

    def interest(self, qos: int) -> Interest:
        found = Interest(self.name, FILTER, qos, asked_at=self.history.note(self.name, "subscribes"))
        self.history.interests.append(found)
        return found

    def acknowledged(self, interest: Interest) -> None:
        at = self.history.note(self.name, "is subscribed")
        interest.acknowledged_at = min(interest.acknowledged_at, at)

    def got(self, payload: bytes, qos: int) -> None:
        """A message that does not come as a retained one."""
        message = self.course.find(payload)
        at = self.history.note(self.name, f"got PUBLISH QoS {qos}", message)
        if message is None or message.payload != payload:
            self.history.fail("corrupt", f"{payload[:40]!r}, which nobody published", client=self.name)
        else:
            self.history.deliveries.append(Delivery(self.name, message, qos, at))

    def make(self, qos: int) -> Message:
        """What it publishes next; short, so that it fits a command line."""
        self._number += 1
        key = f"{self.name}#{self._number}".ljust(KEY_BYTES).encode()
        message = Message(self.name, self._number, self.choose.choice(TOPICS), qos, False, key)
        self.history.messages.append(message)
        self.course.messages[key] = message
        message.sent_at = self.history.note(self.name, "sends", message)
        message.sends += [message.sent_at] * SENT_AGAIN_MAX
        self._is_under_way = True
        return message

    def done(self, message: Message, *, well: bool) -> None:
        """Its sender has given up, where it is not well: it may come or not."""
        self._is_under_way = False
        self._was_acknowledged |= well
        at = self.history.note(self.name, "is done" if well else "gives up", message)
        if well:
            message.acknowledged_at = at
        else:
            message.refused = True


class Paho:
    """paho-mqtt, on a thread of its own: subscribes, and publishes at QoS 1."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._loop = asyncio.get_running_loop()
        self._client = paho.Client(CallbackAPIVersion.VERSION2, client_id=host.name, clean_session=False)
        self._interest: Interest | None = None
        self._sent: dict[int, Message] = {}
        self._early: set[int] = set()  # acknowledged before their identifiers were known

    async def begin(self, group: asyncio.TaskGroup) -> None:
        client = self._client
        self._interest = self.host.interest(2)
        client.on_connect = lambda client, *_: client.subscribe(FILTER, 2) and None
        client.on_subscribe = self._tell(lambda *_: self._subscribed())
        client.on_message = self._tell(lambda _client, _data, message: self._got(message))
        client.on_publish = self._tell(lambda _client, _data, mid, *_: self._published(mid))
        client.reconnect_delay_set(1, 1)
        client.connect_async("127.0.0.1", self.host.door.port)
        client.loop_start()
        group.create_task(self._publish())

    async def end(self) -> None:
        self._client.disconnect()
        await asyncio.to_thread(self._client.loop_stop)

    def _tell(self, function: Callable[..., None]) -> Callable[..., None]:
        """What paho calls on its thread happens on ours."""

        def tell(*arguments: Any) -> None:
            self._loop.call_soon_threadsafe(function, *arguments)

        return tell

    def _subscribed(self) -> None:
        assert self._interest is not None
        self.host.acknowledged(self._interest)

    def _got(self, message: Any) -> None:
        if not message.retain:
            self.host.got(message.payload, message.qos)

    def _published(self, mid: int) -> None:
        if mid in self._sent:
            self.host.done(self._sent.pop(mid), well=True)
        else:
            self._early.add(mid)

    async def _publish(self) -> None:
        while self.host.publishes:
            if self._client.is_connected() and not self._sent:
                message = self.host.make(1)
                mid = self._client.publish(message.topic, message.payload, message.qos).mid
                self._sent[mid] = message
                if mid in self._early:
                    self._early.discard(mid)
                    self._published(mid)
            await asyncio.sleep(self.host.choose.uniform(0, 2 * PACE_S))


class Mosquitto:
    """mosquitto_sub for the whole run, and mosquitto_pub for each message."""

    def __init__(self, host: Host) -> None:
        self.host = host
        host.has_one_connection = False
        self._process: asyncio.subprocess.Process | None = None
        self._ends = False

    async def begin(self, group: asyncio.TaskGroup) -> None:
        group.create_task(self._receive(self.host.interest(1)))
        group.create_task(self._publish())

    async def end(self) -> None:
        self._ends = True
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    def _where(self) -> list[str]:
        return ["-h", "127.0.0.1", "-p", str(self.host.door.port), "-V", "mqttv311"]

    async def _receive(self, interest: Interest) -> None:
        """mosquitto_sub ends where a node refuses it; then another one goes on with its session. That knows
        nothing of a message at QoS 2 that had come to the one before, and answers PUBREL all the same.
        """
        options = [*self._where(), "-i", self.host.name, "-c", "-q", "1", "-t", FILTER, "-d"]
        while not self._ends:
            self._process = await asyncio.create_subprocess_exec(
                *("stdbuf", "-oL", "mosquitto_sub", *options, "-F", "GOT %q %r %x"),
                stdout=asyncio.subprocess.PIPE,
                limit=LINE_BYTES_MAX,
                stderr=asyncio.subprocess.DEVNULL,
            )
            assert self._process.stdout is not None
            while line := (await self._process.stdout.readline()).decode():
                self._take(line, interest)
            await self._process.wait()
            await asyncio.sleep(PACE_S)

    def _take(self, line: str, interest: Interest) -> None:
        if line.startswith("Subscribed"):
            self.host.acknowledged(interest)
        elif line.startswith("GOT "):
            _, qos, retain, payload = line.split()
            if retain == "0":
                self.host.got(bytes.fromhex(payload), int(qos))

    async def _publish(self) -> None:
        while self.host.publishes:
            message = self.host.make(1)
            process = await asyncio.create_subprocess_exec(
                *("mosquitto_pub", *self._where(), "-q", "1", "-t", message.topic),
                *("-m", message.payload.decode()),
                stdout=asyncio.subprocess.DEVNULL,
                stderr=asyncio.subprocess.DEVNULL,
            )
            try:
                status = await asyncio.wait_for(process.wait(), GONE_S)
            except TimeoutError:
                with suppress(ProcessLookupError):  # it has ended just now
                    process.kill()
                status = await process.wait()
            self.host.done(message, well=status == 0)
            await asyncio.sleep(self.host.choose.uniform(0, 4 * PACE_S))


class Ours:
    """`tidemq.client`: subscribes, and publishes at QoS 1."""

    def __init__(self, host: Host) -> None:
        self.host = host
        self._ends = asyncio.Event()

    async def begin(self, group: asyncio.TaskGroup) -> None:
        group.create_task(self._live(group))

    async def end(self) -> None:
        self._ends.set()

    async def _live(self, group: asyncio.TaskGroup) -> None:
        interest = self.host.interest(2)
        client = await self._connected()
        receiving = group.create_task(self._receive(client))
        try:
            while interest.acknowledged_at > len(self.host.history.events):
                with suppress(TideMQError):
                    await client.subscribe(FILTER, qos=2)
                    self.host.acknowledged(interest)
            await self._publish(client)
            await self._ends.wait()
        finally:
            receiving.cancel()
            await client.disconnect(wait=False)

    async def _connected(self) -> Client:
        """However often it takes; later it reconnects by itself."""
        url = f"mqtt://127.0.0.1:{self.host.door.port}"
        settings: dict[str, Any] = {"client_id": self.host.name, "session_expiry_s": 3600}
        while True:
            client = Client(url, clean_start=False, **settings)
            try:
                await client.connect()
            except TideMQError:
                await asyncio.sleep(PACE_S)
            else:
                return client

    async def _receive(self, client: Client) -> None:
        with suppress(DisconnectedError):
            async for message in client.messages:
                if not message.retain:
                    self.host.got(bytes(message.payload), message.qos)

    async def _publish(self, client: Client) -> None:
        while self.host.publishes:
            message = self.host.make(1)
            try:
                await client.publish(message.topic, message.payload, qos=1)
            except TideMQError:
                self.host.done(message, well=False)
            else:
                self.host.done(message, well=True)
            await asyncio.sleep(self.host.choose.uniform(0, 2 * PACE_S))


GUESTS: tuple[Callable[[Host], Guest], ...] = (Paho, Mosquitto, Ours)
