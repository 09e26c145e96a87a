"""What is done to the broker while its clients are at work: kills, a bad disk, the loss of power."""

from __future__ import annotations

import asyncio
import random
import re
import time

from crash.actors import Course
from crash.client import Client, Setting
from crash.disk import Disk
from crash.history import NEVER, History, owed
from crash.server import BrokerError, Server
from waiting import WAIT_S, happens

from tidemq.wire import Packet, Publish, Subscribe, Subscription

FAULTS = ("kill", "slow", "eio", "enospc", "torn", "power")
WITH_DISK = FAULTS[1:]  # those that need the disk layer
MADE_MIN = 50  # messages of an act, before its fault
ECHO_S = 10.0  # in which a QoS 0 message must come back while the store fails
RECOVERY_S = 30.0  # from the end of a fault to the first acknowledgement
SAID_S = 10.0  # from a failed write to the log's line
TORN_S = 2.0  # for the torn write to come
SAID = {"eio": "input/output error", "enospc": "no space left on device"}  # in the log, somewhere


class Chaos:
    """The acts of one run, all of one kind of fault, with kills between them."""

    def __init__(
        self, server: Server, disk: Disk | None, course: Course, choose: random.Random, setting: Setting
    ) -> None:
        self.server, self.course, self.history, self.choose = server, course, course.history, choose
        self._disk, self._setting = disk, setting

    @property
    def disk(self) -> Disk:
        assert self._disk is not None
        return self._disk

    async def play(self, faults: str) -> None:
        """Two to four acts, each followed by a start; ends with the broker up and its disk well."""
        act = {
            "kill": self._kill,
            "slow": self._slow,
            "torn": self._torn,
            "power": self._power,
            "none": self._none,
        }.get(faults)
        for _ in range(self.choose.randrange(2, 5)):
            self.course.acts += 1
            await asyncio.sleep(self.choose.uniform(0.02, 0.5))
            await self._published()
            await (act() if act else self._failing(faults))
        await asyncio.sleep(self.choose.uniform(0.1, 0.3))

    async def _published(self) -> None:
        """Until there is something to lose, however busy the machine."""
        made_min = self.course.acts * MADE_MIN
        if not await happens(lambda: len(self.history.messages) >= made_min, WAIT_S):
            raise BrokerError(f"{len(self.history.messages)} messages and not {made_min} in {WAIT_S} s")

    async def _none(self) -> None:
        """Nothing: what fails then is the broker's work or the harness's."""

    async def _kill(self) -> None:
        """Kills; sometimes also the next process, somewhere in its start."""
        self.server.kill()
        while self.choose.random() < 0.3:
            self.server.spawn()
            await asyncio.sleep(self.choose.uniform(0.05, 0.6))
            self.server.kill()
        await self.server.start()

    async def _slow(self) -> None:
        self.disk.tell(fsync_delay_us=self.choose.choice((2_000, 20_000, 100_000)))
        self.history.note("broker", "fsync is slow")
        await asyncio.sleep(self.choose.uniform(0.1, 0.6))
        if self.choose.random() < 0.7:
            await self._kill()
        self.disk.heal()

    async def _torn(self) -> None:
        """The broker dies in the middle of a write, at work or in its start."""
        self.disk.tell(torn_write=self.choose.randrange(1, 60))
        self.history.note("broker", "a write will be torn")
        starting = self.choose.random() < 0.3
        if starting:
            self.server.kill()
            self.server.spawn()
        await happens(lambda: not self.server.running, TORN_S)
        self.server.kill()
        self.disk.heal()
        await self.server.start()

    async def _power(self) -> None:
        """Loses power; sometimes in the next start, too."""
        self._lose_power()
        while self.choose.random() < 0.3:
            self.server.spawn()
            await asyncio.sleep(self.choose.uniform(0.1, 0.6))
            self._lose_power()
        await self.server.start()

    def _lose_power(self) -> None:
        self.server.kill()
        cost = self.disk.lose_power(self.choose, kept=self.choose.random() < 0.5)
        self.history.note("broker", f"power is lost: {cost}")

    async def _failing(self, faults: str) -> None:
        """A disk that fails for a while. Meanwhile nobody is told that a message is safe, QoS 0 goes on, the
        log says why; afterwards all is well without a restart.
        """
        beacon = Beacon(self._setting, self.history)
        await beacon.begin()
        for_good = faults == "enospc" or self.choose.random() < 0.7
        self.disk.tell(**{"full": 1} if faults == "enospc" else {"fsync_failures": -1 if for_good else 2})
        from_event = self.history.note("broker", f"{faults} begins")
        await asyncio.sleep(self.choose.uniform(0.1, 0.4))
        if self.choose.random() < 0.4:
            await self._kill_in_fault()
        else:
            await beacon.check()
            await asyncio.sleep(self.choose.uniform(0, 0.4))
            if for_good:
                self._no_false_acknowledgement(from_event)
                await self._the_log_says_why(faults)
        beacon.leave()
        self.disk.heal()
        healed = self.history.note("broker", f"{faults} ends")
        if not self.server.running:
            await self.server.start()
        await self._recovered(healed)

    async def _kill_in_fault(self) -> None:
        """Killed, and perhaps started on the failing disk, which it may refuse."""
        self.server.kill()
        if self.choose.random() < 0.5:
            self.server.spawn()
            if not await self.server.ready():
                self.server.kill()
            await asyncio.sleep(self.choose.uniform(0, 0.3))

    def _no_false_acknowledgement(self, from_event: int) -> None:
        for message in self.history.messages:
            if (
                from_event < message.sent_at
                and message.acknowledged_at != NEVER
                and owed(self.history, message)
            ):
                text = "acknowledged while nothing could be stored"
                self.history.fail("false acknowledgement", text, message, message.publisher)

    async def _the_log_says_why(self, faults: str) -> None:
        """Soon after the first write that failed."""
        if not self.disk.told("failed"):
            return
        deadline = time.monotonic() + SAID_S
        while not re.search(SAID[faults], self.server.log.read_text(errors="replace"), re.IGNORECASE):
            if time.monotonic() > deadline:
                self.history.fail("silent", f"the log does not say {SAID[faults]!r}", client="broker")
                return
            await asyncio.sleep(0.02)

    async def _recovered(self, healed: int) -> None:
        """A message is acknowledged soon, if anybody has one."""
        deadline = time.monotonic() + RECOVERY_S
        while time.monotonic() < deadline:
            if not self.server.running:
                raise BrokerError("ended after its disk was well again")
            messages = self.history.messages
            if any(healed < each.acknowledged_at < NEVER for each in reversed(messages)):
                return
            waiting = any(
                each.sent_at < NEVER and each.acknowledged_at == NEVER and not each.refused
                for each in messages
            )
            if not waiting and time.monotonic() > deadline - RECOVERY_S + 1:
                return  # nobody wants anything any more
            await asyncio.sleep(0.02)
        raise BrokerError(f"nothing acknowledged within {RECOVERY_S} s of the fault's end")


class Beacon(Client):
    """A client of QoS 0 that sends to itself, to see that this goes on whatever the store does."""

    TOPIC = "beacon"

    def __init__(self, setting: Setting, history: History) -> None:
        super().__init__(setting)
        self._run_history = history
        self._echoed = asyncio.Event()
        self._number = 0

    def has_acknowledged_state(self) -> bool:
        return False

    def resume(self, session_present: bool) -> None:
        self.send(Subscribe(packet_id=1, subscriptions=(Subscription(filter=self.TOPIC),)))

    def received(self, packet: Packet) -> None:
        if isinstance(packet, Publish) and packet.payload == b"%d" % self._number:
            self._echoed.set()

    async def begin(self) -> None:
        await self.open()
        await self._echo("before the fault")

    async def check(self) -> None:
        """While the store fails: on the connection of before, and on a new one."""
        await self._echo("on an old connection")
        self.drop()
        try:
            await asyncio.wait_for(self.open(), ECHO_S)
        except TimeoutError:
            self._run_history.fail("QoS 0 stopped", f"no CONNACK within {ECHO_S} s", client="broker")
            return
        await self._echo("on a new connection")

    async def _echo(self, where: str) -> None:
        self._number += 1
        self._echoed.clear()
        self.send(Publish(topic=self.TOPIC, payload=b"%d" % self._number))
        try:
            await asyncio.wait_for(self._echoed.wait(), ECHO_S)
        except TimeoutError:
            self._run_history.fail("QoS 0 stopped", f"no echo within {ECHO_S} s {where}", client="broker")
