"""Persistent MQTT clients whose every acknowledgement is under control, on one asyncio thread.

What a real client would keep on its own disk, its session, they keep in memory across connections: packet
identifiers in use, QoS 2 states of both directions. They do what the standard asks of a client, and record in
the `History` what the broker did.
"""

from __future__ import annotations

import asyncio
import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from crash.history import NEVER, Connection, Delivery, History, Interest, Message

from tidemq.errors import ProtocolError
from tidemq.wire import (
    Connack,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
    encode,
)

NEVER_EXPIRES_S = 0xFFFFFFFF
FAILED = 0x80  # reason codes from here on say no
NOT_FOUND = 0x92
CONNACK_S = 5.0
RETRY_S = 0.02
ASK_AGAIN_S = 0.1  # after a refused SUBSCRIBE
LEAVE_S = 0.05  # for a DISCONNECT to go out


class Link(asyncio.Protocol):
    """One network connection: whole packets in both directions."""

    def __init__(
        self, version: int, received: Callable[[Packet], None], ended: Callable[[str], None]
    ) -> None:
        self.version = version
        self._decoder = Decoder(version)
        self._received, self._ended = received, ended
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._decoder.feed(data)
        try:
            for packet in self._decoder:
                if self._transport is None or self._transport.is_closing():
                    return
                self._received(packet)
        except ProtocolError as error:
            self._ended(f"malformed: {error}")
            self.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self._transport = None
        self._ended(str(error or "end of file"))

    def send(self, *packets: Packet) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(b"".join(encode(each, self.version) for each in packets))

    def pause(self, paused: bool) -> None:
        """Stops reading, or goes on."""
        if self._transport is not None and not self._transport.is_closing():
            (self._transport.pause_reading if paused else self._transport.resume_reading)()

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()


@dataclass(slots=True, kw_only=True)
class Setting:
    """What a client is: its name, its protocol version, its choices, and where it connects now: to which
    broker, and on which port.
    """

    client_id: str
    version: int
    history: History
    choose: random.Random
    place: Callable[[], tuple[str, int]]
    connack_s: float = CONNACK_S
    clean: bool = False
    receive_maximum: int = 65_535
    will: Will | None = None


class Client:
    """A client that keeps its session over connections. Subclasses say what it does with packets."""

    def __init__(self, setting: Setting) -> None:
        self.setting = setting
        self.history, self.choose = setting.history, setting.choose
        self.client_id, self.version = setting.client_id, setting.version
        self.clean = setting.clean  # what the next CONNECT asks for
        self.known = False  # the broker has accepted this session once
        self.attempts = 0  # to connect to this session, not knowing how they ended
        self.connection: Connection | None = None  # the last that was accepted
        self.peer_maximum = 65_535
        self._asks: tuple[str, int] = ("", 0)  # of CONNECT: the broker, number of the event
        self._link: Link | None = None
        self._connack: asyncio.Future[Connack] | None = None
        self._lost = asyncio.Event()
        self._lost.set()

    @property
    def online(self) -> bool:
        return not self._lost.is_set()

    def note(self, what: str, message: Message | None = None) -> int:
        return self.history.note(self.client_id, what, message)

    def send(self, *packets: Packet) -> None:
        if self._link is not None:
            self._link.send(*packets)

    async def open(self) -> None:
        """Connects, as often as it takes, and resumes the session."""
        while True:
            try:
                connack = await asyncio.wait_for(self._try_to_connect(), self.setting.connack_s)
            except (OSError, TimeoutError) as error:
                self.drop()
                if isinstance(error, TimeoutError):
                    self.note("no CONNACK in time")
                await asyncio.sleep(RETRY_S)
                continue
            if connack.reason == 0:
                return
            self.note(f"refused: {connack.reason}")
            self.drop()
            await asyncio.sleep(5 * RETRY_S)

    def _accepted(self, connack: Connack) -> None:
        """Resumes at once: what follows CONNACK in the same read belongs to the resumed session."""
        kind = "connected clean" if self.clean else "connected"
        broker, asked_at = self._asks
        at = self.note(f"{kind} to {broker}, session present: {connack.session_present}")
        self.connection = Connection(
            self.client_id, broker, self.clean, connack.session_present, asked_at, at
        )
        self.history.connections.append(self.connection)
        if connack.session_present and self.attempts <= 1 and not self.known:
            self.history.fail("session back", "it was discarded, or never there", client=self.client_id)
        if self.clean:
            self.attempts = 0
        if self.known and not (connack.session_present or self.clean) and self.has_acknowledged_state():
            self.history.fail("session lost", "the broker knows the session no more", client=self.client_id)
        self.known = not self.clean
        self.peer_maximum = connack.properties.receive_maximum or 65_535
        self.resume(connack.session_present)

    async def _try_to_connect(self) -> Connack:
        loop = asyncio.get_running_loop()
        self._lost.clear()
        self._connack = loop.create_future()
        link = Link(self.version, lambda each: self._received(link, each), lambda why: self._ended(link, why))
        self._link = link
        broker, port = self.setting.place()
        await loop.create_connection(lambda: link, "127.0.0.1", port)
        properties = Properties()
        if self.version == 5:
            expiry_s = 0 if self.clean else NEVER_EXPIRES_S
            properties = Properties(session_expiry_s=expiry_s, receive_maximum=self.setting.receive_maximum)
        connect = Connect(
            version=self.version,
            client_id=self.client_id,
            clean_start=self.clean,
            keep_alive_s=0,
            will=self.setting.will,
            properties=properties,
        )
        self._asks = (broker, self.note(f"sends CONNECT to {broker}"))
        link.send(connect)
        self.attempts += not self.clean
        return await self._connack

    def _received(self, link: Link, packet: Packet) -> None:
        if link is not self._link:
            return
        if isinstance(packet, Connack):
            if self._connack is not None and not self._connack.done():
                if packet.reason == 0:
                    self._accepted(packet)
                self._connack.set_result(packet)
        elif isinstance(packet, Disconnect):
            self.note(f"got DISCONNECT, reason {packet.reason:#x}")
        else:
            self.received(packet)

    def _ended(self, link: Link, why: str) -> None:
        if link is not self._link:
            return
        self._link = None
        self._over(self.note(f"connection ended: {why}"))
        if self._connack is not None and not self._connack.done():
            self._connack.set_exception(ConnectionResetError(why))

    def _over(self, at: int) -> None:
        if self.connection is not None:
            self.connection.ended_at = min(self.connection.ended_at, at)
        self._lost.set()

    async def lost(self, within_s: float) -> bool:
        """Waits for the connection's end; false where it holds for so long."""
        try:
            await asyncio.wait_for(self._lost.wait(), within_s)
        except TimeoutError:
            return False
        return True

    def drop(self) -> None:
        """Ends the connection without DISCONNECT."""
        link, self._link = self._link, None
        self._over(len(self.history.events))
        if link is not None:
            link.abort()

    def leave(self) -> None:
        """DISCONNECT, then the end of the connection."""
        self.note("leaves")
        self.send(Disconnect())
        link, self._link = self._link, None
        self._over(len(self.history.events))
        if link is not None:
            asyncio.get_running_loop().call_later(LEAVE_S, link.abort)

    async def discard(self) -> None:
        """Ends the session: connects for a clean one, which ends with its connection."""
        self.clean = True
        await self.open()
        self.leave()
        self.clean = self.setting.clean

    def pause(self, paused: bool) -> None:
        if self._link is not None:
            self._link.pause(paused)

    def has_acknowledged_state(self) -> bool:
        """Whether the broker has acknowledged anything that its session must hold."""
        raise NotImplementedError

    def resume(self, session_present: bool) -> None:
        raise NotImplementedError

    def received(self, packet: Packet) -> None:
        raise NotImplementedError


class Publisher(Client):
    """Publishes at QoS 1 and 2. What was not acknowledged is sent again after a reconnection, in order, as
    the standard says; the lowest free packet identifier is always taken, so that they are soon used again.
    """

    def __init__(self, setting: Setting, window: int) -> None:
        super().__init__(setting)
        self.window = window
        self.waiting: deque[Message] = deque()  # not yet sent
        self.in_flight: dict[int, Message] = {}  # by packet identifier, in the order of sending
        self.released: set[int] = set()  # of these, whose PUBREC came
        self.refusals = 0  # by reason code

    @property
    def done(self) -> bool:
        return not self.waiting and not self.in_flight

    def publish(self, *messages: Message) -> None:
        self.waiting.extend(messages)
        self.send_waiting()

    def send_waiting(self) -> None:
        """As many as the window and the broker's Receive Maximum allow."""
        while self.online and self.waiting and len(self.in_flight) < min(self.window, self.peer_maximum):
            message = self.waiting.popleft()
            packet_id = next(number for number in range(1, 65_536) if number not in self.in_flight)
            self.in_flight[packet_id] = message
            self._send(packet_id, message, dup=False)

    def _send(self, packet_id: int, message: Message, *, dup: bool) -> None:
        at = self.note(f"sends PUBLISH {packet_id}{' DUP' if dup else ''}", message)
        message.sent_at = min(message.sent_at, at)
        message.sends.append(at)
        message.packet_id = packet_id
        publish = Publish(
            topic=message.topic,
            payload=message.payload,
            qos=message.qos,
            retain=message.retain,
            dup=dup,
            packet_id=packet_id,
        )
        self.send(publish)

    def has_acknowledged_state(self) -> bool:
        return bool(self.released)

    def resume(self, session_present: bool) -> None:
        if not session_present:  # the session is new, and so are its messages [MQTT-3.2.2-5]
            unsent = [each for key, each in self.in_flight.items() if key not in self.released]
            self.in_flight.clear()
            self.released.clear()
            self.waiting.extendleft(reversed(unsent))
        for packet_id, message in self.in_flight.items():
            if packet_id in self.released:
                self.note(f"sends PUBREL {packet_id} again", message)
                self.send(Pubrel(packet_id=packet_id))
            else:
                self._send(packet_id, message, dup=True)
        self.send_waiting()

    def received(self, packet: Packet) -> None:
        match packet:
            case Puback(packet_id=packet_id):
                self._acknowledged(packet_id, packet.reason, qos=1)
            case Pubrec(packet_id=packet_id):
                self._acknowledged(packet_id, packet.reason, qos=2)
            case Pubcomp(packet_id=packet_id):
                self._completed(packet_id, packet.reason)
            case _:
                self.history.fail("unexpected", f"a publisher got {packet}", client=self.client_id)
        self.send_waiting()

    def _acknowledged(self, packet_id: int, reason: int, qos: int) -> None:
        message = self.in_flight.get(packet_id)
        name = "PUBACK" if qos == 1 else "PUBREC"
        if message is None or message.qos != qos:
            self.history.fail("unexpected", f"{name} for packet {packet_id}", message, self.client_id)
            return
        at = self.note(f"got {name} {packet_id}, reason {reason:#x}", message)
        if reason >= FAILED:
            del self.in_flight[packet_id]
            message.refused = True
            self.refusals += 1
            return
        message.acknowledged_at = min(message.acknowledged_at, at)
        if qos == 1:
            del self.in_flight[packet_id]
        else:
            self.released.add(packet_id)
            self.send(Pubrel(packet_id=packet_id))

    def _completed(self, packet_id: int, reason: int) -> None:
        message = self.in_flight.get(packet_id)
        if packet_id not in self.released or message is None:
            self.history.fail("unexpected", f"PUBCOMP for packet {packet_id}", message, self.client_id)
            return
        self.note(f"got PUBCOMP {packet_id}, reason {reason:#x}", message)
        if reason not in (0, NOT_FOUND):
            self.history.fail("unexpected", f"PUBCOMP with reason {reason:#x}", message, self.client_id)
        self.released.discard(packet_id)
        del self.in_flight[packet_id]


class Subscriber(Client):
    """Subscribes and receives. Acknowledgements of one kind go out in order, and only when `acknowledge` is
    called; `eager` sends each at once.
    """

    def __init__(self, setting: Setting, find: Callable[[bytes], Message | None]) -> None:
        super().__init__(setting)
        self._find = find  # the message that a payload belongs to
        self.eager = False
        self.begins_anew = False  # its session was not there any more: nothing is subscribed
        self.unreleased: dict[int, bytes] = {}  # QoS 2 packet identifiers received, without PUBREL so far
        self.due: tuple[deque[Packet], deque[Packet], deque[Packet]] = (deque(), deque(), deque())
        self.held: set[int] = set()  # packet identifiers that count against the Receive Maximum
        self._requests: dict[int, tuple[Packet, tuple[Interest, ...]]] = {}
        self._last_request = 0
        self.retained: dict[str, bytes] = {}  # what came as retained

    @property
    def settled(self) -> bool:
        """Every SUBSCRIBE and UNSUBSCRIBE has its answer."""
        return not self._requests

    def subscribe(self, *interests: Interest) -> None:
        """One SUBSCRIBE, repeated until it is granted."""
        self.history.interests.extend(interests)
        for each in interests:
            each.asked_at = self.note(f"subscribes {each.written} QoS {each.qos}")
        self._request(interests, subscribed=True)

    def unsubscribe(self, interest: Interest) -> None:
        """UNSUBSCRIBE, repeated until it is acknowledged."""
        interest.ending_at = self.note(f"unsubscribes {interest.written}")
        self._request((interest,), subscribed=False)

    def _request(self, interests: tuple[Interest, ...], *, subscribed: bool) -> None:
        self._last_request = packet_id = self._last_request % 65_535 + 1
        packet: Packet
        if subscribed:
            subscriptions = tuple(Subscription(filter=each.written, qos=each.qos) for each in interests)
            packet = Subscribe(packet_id=packet_id, subscriptions=subscriptions)
        else:
            packet = Unsubscribe(packet_id=packet_id, filters=tuple(each.written for each in interests))
        self._requests[packet_id] = (packet, interests)
        self.send(packet)

    async def discard(self) -> None:
        """The session ends with its subscriptions and all that waits; requests under way are forgotten."""
        self._requests.clear()
        at = self.note("discards its session")
        for each in self._mine():
            each.ending_at = min(each.ending_at, at)
        await super().discard()
        self._begin_anew()

    def _mine(self) -> list[Interest]:
        return [each for each in self.history.interests if each.subscriber == self.client_id]

    def _begin_anew(self) -> None:
        """The session that there was has ended, at the latest when this connection was accepted."""
        assert self.connection is not None
        at = self.connection.accepted_at
        self._requests.clear()
        for each in self._mine():
            each.ending_at = min(each.ending_at, at)
            each.ended_at, each.discarded_at = min(each.ended_at, at), min(each.discarded_at, at)

    def has_acknowledged_state(self) -> bool:
        return any(each.acknowledged_at != NEVER and each.ended_at == NEVER for each in self._mine())

    def resume(self, session_present: bool) -> None:
        for queue in self.due:
            queue.clear()
        self.held.clear()
        if not session_present:
            self.unreleased.clear()
            known = not self.clean and self.has_acknowledged_state()
            self.begins_anew = known and any(each.met_at == NEVER for each in self.history.splits)
            if self.begins_anew:  # the verdict has been noted
                self._begin_anew()
        for packet, _ in list(self._requests.values()):
            self.send(packet)

    def received(self, packet: Packet) -> None:
        match packet:
            case Publish():
                self._published(packet)
            case Pubrel(packet_id=packet_id):
                self._released(packet_id)
            case Suback(packet_id=packet_id):
                self._answered(packet_id, packet.reasons, subscribed=True)
            case Unsuback(packet_id=packet_id):
                self._answered(packet_id, packet.reasons, subscribed=False)
            case _:
                self.history.fail("unexpected", f"a subscriber got {packet}", client=self.client_id)
        if self.eager:
            self.acknowledge_all()

    def _answered(self, packet_id: int, reasons: tuple[int, ...], *, subscribed: bool) -> None:
        if packet_id not in self._requests:
            return  # it was sent twice
        _, interests = self._requests[packet_id]
        name, filters = "SUBACK" if subscribed else "UNSUBACK", [each.written for each in interests]
        at = self.note(f"got {name} for {filters}, reasons {reasons}")
        if any(reason >= FAILED for reason in reasons):
            asyncio.get_running_loop().call_later(ASK_AGAIN_S, self._ask_again, packet_id)
            return
        del self._requests[packet_id]
        for position, each in enumerate(interests):
            if not subscribed:
                each.ended_at = at
                continue
            each.acknowledged_at = at
            if reasons[position] != each.qos:
                text = f"{each.written} granted at QoS {reasons[position]}, asked {each.qos}"
                self.history.fail("quality", text, client=self.client_id)

    def _ask_again(self, packet_id: int) -> None:
        """What was refused, unless the session has been discarded; until it is granted nothing is settled."""
        if packet_id in self._requests:
            self.send(self._requests[packet_id][0])

    def _published(self, packet: Publish) -> None:
        message = self._find(packet.payload)
        if message is None or message.payload != packet.payload or message.topic != packet.topic:
            text = f"{packet.payload[:40]!r} on {packet.topic}, which nobody published"
            if packet.payload:  # empty ones, which remove retained messages, are not told apart
                self.history.fail("corrupt", text, message, self.client_id)
            message = None
        flags = f"{' DUP' if packet.dup else ''}{' retained' if packet.retain else ''}"
        at = self.note(f"got PUBLISH {packet.packet_id} QoS {packet.qos}{flags}", message)
        if packet.qos:
            self._hold(packet.packet_id, message)
        if packet.qos == 2 and not self._is_new(packet, message):
            self.due[1].append(Pubrec(packet_id=packet.packet_id))
            return
        if packet.retain:
            self.retained[packet.topic] = packet.payload
        elif message is not None:
            self.history.deliveries.append(
                Delivery(
                    self.client_id, message, packet.qos, at, packet.dup, packet.packet_id, self.connection
                )
            )
        if packet.qos == 1:
            self.due[0].append(Puback(packet_id=packet.packet_id))
        elif packet.qos == 2:
            self.due[1].append(Pubrec(packet_id=packet.packet_id))

    def _hold(self, packet_id: int, message: Message | None) -> None:
        self.held.add(packet_id)
        if self.version == 5 and len(self.held) > self.setting.receive_maximum:
            text = f"{len(self.held)} unacknowledged, Receive Maximum is {self.setting.receive_maximum}"
            self.history.fail("flow", text, message, self.client_id)

    def _is_new(self, packet: Publish, message: Message | None) -> bool:
        """Whether a QoS 2 PUBLISH is a new message by this client's state; records that it now is known."""
        known = self.unreleased.get(packet.packet_id)
        if known is None:
            self.unreleased[packet.packet_id] = packet.payload
            return True
        if known != packet.payload:
            text = f"packet identifier {packet.packet_id} used anew before its PUBREL, the message is hidden"
            self.history.fail("identifier", text, message, self.client_id)
        elif not packet.dup:
            self.history.fail("flow", "sent again without DUP", message, self.client_id)
        return False

    def _released(self, packet_id: int) -> None:
        message = self._find(self.unreleased.pop(packet_id, b""))
        self.note(f"got PUBREL {packet_id}", message)
        self.due[2].append(Pubcomp(packet_id=packet_id))

    def acknowledge(self, count: int) -> None:
        """Sends up to so many acknowledgements that are due: of kinds chosen at random, each in order."""
        packets: list[Packet] = []
        while len(packets) < count and (queues := [queue for queue in self.due if queue]):
            packet = self.choose.choice(queues).popleft()
            if isinstance(packet, Puback | Pubcomp):
                self.held.discard(packet.packet_id)
            packets.append(packet)
        if packets:
            self.send(*packets)

    def acknowledge_all(self) -> None:
        self.acknowledge(1 << 16)
