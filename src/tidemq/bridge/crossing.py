"""One time that a bridge is connected, to both brokers at once: handshakes, subscriptions, and bytes from
each side to the other in the pieces in which they come. When one connection ends, so does the other.

Everything here belongs to the bridges' event loop.
"""

from __future__ import annotations

import asyncio
import os
import ssl
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar

from tidemq.bridge.far import Far
from tidemq.bridge.relay import Counts, Half, PeerRefusedError
from tidemq.bridge_config import Bridge
from tidemq.client.address import parse_url
from tidemq.client.errors import ConnectError, connect_reason, reason_text
from tidemq.client.link import Link
from tidemq.client.route import FRAME_BYTES_MAX, Route, error_text, open_link
from tidemq.errors import ProtocolError, TideMQError
from tidemq.limits import Limits
from tidemq.wire import (
    Connack,
    Connect,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Publish,
    ReasonCode,
    Suback,
    Subscribe,
    Subscription,
    Unsuback,
    Unsubscribe,
    Will,
    encode,
)

CONNECT_S = 10.0  # to a connection, and to each answer before the bridge is there
REMOTE_PACKET_BYTES_MIN = 16 << 20  # a packet of the other side may be so large, if only to be dropped
OUTPUT_BYTES_MAX = 1 << 16  # that waits for a side that takes no more; then the other is not read from
FILTERS_BYTES = 1 << 15  # of one SUBSCRIBE
NEVER = 0xFFFFFFFF  # session expiry
OTHER_OPTIONS = -1  # in place of a filter's QoS: it was subscribed to in another version of MQTT
_REQUEST_ID = 0xFFFF  # of SUBSCRIBE and UNSUBSCRIBE, one at a time
_FAILURE = 0x80  # reason codes from here on
_PACKET_ID_MAX = 0xFFFF

P = TypeVar("P", bound=Packet)


class BridgeError(TideMQError):
    """A bridge is not connected, or no longer; its text says why. Caught by who keeps it up."""


class NotificationsRefusedError(BridgeError):
    """The other side lets nobody say there that a bridge is connected. Caught by who tries without."""


class PrivateRefusedError(BridgeError):
    """The other side does not know the version of MQTT that bridges say. Caught by who tries without."""


@dataclass(frozen=True, slots=True)
class Home:
    """The own broker, as a bridge gets in."""

    path: str  # of its Unix socket
    client_id: str  # that no other client can have
    secret: bytes = field(repr=False)
    limits: Limits


def outward_filters(bridge: Bridge) -> dict[str, int]:
    """QoS by the topic filter in the own broker."""
    found: dict[str, int] = {}
    for topic in bridge.topics:
        if topic.is_outward:
            found[topic.local_filter] = max(topic.qos, found.get(topic.local_filter, 0))
    return found


def inward_filters(bridge: Bridge) -> dict[str, int]:
    """QoS by the topic filter at the other side."""
    found: dict[str, int] = {}
    for topic in bridge.topics:
        if topic.is_inward:
            found[topic.remote_filter] = max(topic.qos, found.get(topic.remote_filter, 0))
    return found


def state_topic(bridge: Bridge, client_id: str) -> str:
    """Where it is said whether the bridge is connected."""
    return bridge.notification_topic or f"$SYS/broker/connection/{client_id}/state"


class Side:
    """The connection to one of the two brokers: a half of the relay, and its link."""

    def __init__(self, crossing: Crossing, half: Half, name: str) -> None:
        self._crossing = crossing
        self.half = half
        self.name = name
        self.link: Link | None = None
        self.is_open = False  # what is passed on may go out: the handshake is done
        self.is_blocked = False  # it takes nothing more
        self.is_paused = False  # nothing is read from it
        self.was_heard = self.was_told = False  # since somebody looked last
        self.answers: dict[type, asyncio.Future[Packet]] = {}  # that are waited for, by kind

    def send(self, packet: bytes) -> None:
        assert self.link is not None
        self.was_told = True
        self.link.send(packet)

    async def ask(self, packet: Packet, kind: type[P], version: int) -> P:
        """Sends a request and waits for the answer of this kind. BridgeError where none comes."""
        return await self.ask_encoded(encode(packet, version), kind)

    async def ask_encoded(self, packet: bytes, kind: type[P]) -> P:
        answer: asyncio.Future[Packet] = asyncio.get_running_loop().create_future()
        self.answers[kind] = answer
        try:
            async with asyncio.timeout(CONNECT_S):
                self.send(packet)
                found = await answer
        except TimeoutError as error:
            raise BridgeError(f"{self.name} did not answer within {CONNECT_S:g} s") from error
        finally:
            self.answers.pop(kind, None)
        assert isinstance(found, kind)
        return found

    def close(self, goodbye: bytes | None) -> None:
        """With last packets, where there is somebody to be told; None: at once, as if the process died."""
        if self.link is None:
            return
        if goodbye is None or self.is_blocked:
            self.link.abort()
        else:
            self.link.send(goodbye)
            self.link.close()

    # --- called by the link

    def room(self) -> memoryview:
        return self.half.room()

    def wrote(self, size: int) -> None:
        self.half.wrote(size)

    def feed(self, data: bytes) -> None:
        self.half.feed(data)

    def received(self) -> None:
        self.was_heard = True
        self._crossing.on_received(self)

    def writable(self, yes: bool) -> None:
        self.is_blocked = not yes
        if yes:
            self._crossing.flush()

    def ended(self, error: Exception | None) -> None:
        self._crossing.note_loss(self)
        text = "the connection was closed" if error is None else error_text(error)
        self._crossing.fail(BridgeError(f"{self.name}: {text}"))


class Crossing:
    """One time. `run` returns never: it raises BridgeError with the reason for the end, or is cancelled."""

    def __init__(
        self, bridge: Bridge, home: Home, far: Far, counts: Counts, on_connected: Callable[[], None]
    ) -> None:
        self._bridge, self._home, self._far = bridge, home, far
        self._on_connected = on_connected
        self._version = 5 if bridge.protocol_version == "5.0" else 4
        limits = home.limits
        remote_bytes_max = self._remote_bytes_max = max(REMOTE_PACKET_BYTES_MIN, limits.packet_bytes_max)
        # what the own broker sends has been within its limits already
        inner = Half(counts, is_local=True, packet_bytes_max=FRAME_BYTES_MAX)
        outer = Half(counts, is_local=False, packet_bytes_max=remote_bytes_max)
        inner.join(outer)
        inner.peer_bytes_max = limits.packet_bytes_max
        inner.topic_bytes_max, inner.topic_levels_max = limits.topic_bytes_max, limits.topic_levels_max
        outer.version = self._version
        inner.hops_max = outer.hops_max = bridge.hops_max
        for topic in bridge.topics:
            here, there = topic.local_prefix.encode(), topic.remote_prefix.encode()
            if topic.is_outward:
                inner.map(topic.local_filter.encode(), len(here), there)
            if topic.is_inward:
                outer.map(topic.remote_filter.encode(), len(there), here)
        self._local = Side(self, inner, "the own broker")
        self._remote = Side(self, outer, far.url)
        self._error: TideMQError | None = None
        self._ended = asyncio.Event()
        self._send_max = bridge.inflight_max  # QoS 1 and 2 to the other side, unacknowledged
        self._keep_alive_s = bridge.keep_alive_s
        self.is_home_new = False  # the own broker had no session for the bridge
        self.is_connected = False

    async def run(
        self, password: bytes | None, tls: ssl.SSLContext | None, leaves: Callable[[], bool] = lambda: False
    ) -> None:
        """Connects, and passes on until one side ends. `leaves` is asked when it is cancelled: whether the
        other side's session is to end, too.
        """
        goodbye = False
        try:
            await self._greet_remote(password, tls)
            await self._greet_local()
            await self._subscribe_remote()
            self._begin()
            await self._keep_alive()
        except asyncio.CancelledError:
            goodbye = True
            raise
        finally:
            await self._close(self._goodbye(leaves()) if goodbye else None)

    async def declare(self, stale: Iterable[str]) -> None:
        """Has the own broker keep from now on what is to cross, without a connection to the other side; in
        place of `run`. `stale`: filters that its session has from before, and that are no longer wanted.
        """
        try:
            connack = await enter(self._local, self._home, 1, clean=False)
            self.is_home_new = not connack.session_present
            for filters in _pieces(stale):
                packet = Unsubscribe(packet_id=_REQUEST_ID, filters=tuple(filters))
                await self._local.ask(packet, Unsuback, 5)
            await subscribe_home(self._local, self._bridge)
            self._local.is_open = True
        finally:
            await self._close(None)

    # --- both ways

    def on_received(self, side: Side) -> None:
        """Something came in: it is passed on."""
        try:
            self._pass_on(side)
            other = self._other(side)
            if other.half.held:  # there may be room for it now
                self._pass_on(other)
        except ProtocolError as error:
            self.fail(BridgeError(f"{side.name} broke MQTT: {error}"))
        except PeerRefusedError as error:
            self.flush()  # what was acknowledged before need not come again
            if side is self._remote:
                self._far.note_refusal(error.packet_id, self._bridge.refused_retry_s)
            self.fail(BridgeError(f"{side.name} takes no messages now: {reason_text(error.reason)}"))
        else:
            self.flush()

    def flush(self) -> None:
        """Sends what both sides take, and reads from each only what the other takes."""
        sides = (self._remote, self._local)
        for side in sides:
            if side.is_open and not side.is_blocked and side.half.output_bytes and self._error is None:
                side.send(side.half.take())
        for side in sides:
            waits = self._is_full(self._other(side)) or side.half.held
            waits = waits or (side.is_open and self._is_full(side))
            if side.link is not None and waits != side.is_paused and self._error is None:
                side.is_paused = waits
                (side.link.pause if waits else side.link.proceed)()

    def fail(self, error: TideMQError) -> None:
        """The first reason stays."""
        if self._error is not None:
            return
        self._error = error
        self._ended.set()
        for side in (self._remote, self._local):
            for answer in side.answers.values():
                if not answer.done():
                    answer.set_exception(error)

    def note_loss(self, side: Side) -> None:
        """Called by a side whose connection has ended."""
        if self._error is None and side is self._remote:
            self._far.note_loss(side.half, self._send_max)

    def _other(self, side: Side) -> Side:
        return self._remote if side is self._local else self._local

    def _is_full(self, side: Side) -> bool:
        return side.half.output_bytes > OUTPUT_BYTES_MAX

    def _pass_on(self, side: Side) -> None:
        while self._error is None and (packet := side.half.parse()) is not None:
            answer = side.answers.get(type(packet))
            if answer is not None and not answer.done():
                answer.set_result(packet)
            elif isinstance(packet, Disconnect):
                self.flush()  # what was acknowledged before need not come again
                if side is self._remote:
                    self._far.note_disconnect(side.half, packet.reason, self._send_max)
                self.fail(BridgeError(f"{side.name} ended the connection: {reason_text(packet.reason)}"))
            elif not isinstance(packet, Pingresp):
                self.fail(BridgeError(f"{side.name} sent {type(packet).__name__} at the wrong time"))

    # --- to the other side

    async def _greet_remote(self, password: bytes | None, tls: ssl.SSLContext | None) -> None:
        address = parse_url(self._far.url)
        server_name = self._bridge.tls.server_name if self._bridge.tls is not None else ""
        route = Route(
            address=address,
            tls=tls if address.secure else None,
            tls_server_name=server_name or None if address.secure else None,
            frame_bytes_max=self._remote_bytes_max,
        )
        side = self._remote
        try:
            async with asyncio.timeout(CONNECT_S):
                side.link = await open_link(route, side)
        except TimeoutError as error:
            raise BridgeError(f"{side.name} did not answer within {CONNECT_S:g} s") from error
        except ConnectError as error:
            cause = error.__cause__
            if isinstance(cause, ConnectionError) and cause.errno:  # asyncio's words for it are its own
                raise BridgeError(f"cannot connect to {side.name}: {os.strerror(cause.errno)}") from error
            raise BridgeError(str(error)) from error
        packet = encode(self._make_connect(password), self._version)
        if self._far.is_private:
            level = packet.index(b"\x00\x04MQTT") + 6
            packet = packet[:level] + bytes([packet[level] | 0x80]) + packet[level + 1 :]
        self._accept(await side.ask_encoded(packet, Connack))
        self._far.prepare(side.half)

    def _make_connect(self, password: bytes | None) -> Connect:
        bridge, limits = self._bridge, self._home.limits
        will = None
        if self._far.is_notified:
            will = Will(state_topic(bridge, self._far.client_id), b"0", qos=1, retain=True)
        properties = Properties(
            session_expiry_s=None if bridge.clean_session else NEVER,
            receive_maximum=min(bridge.inflight_max, limits.receive_max),
            maximum_packet_size=limits.packet_bytes_max,
        )
        return Connect(
            version=self._version,
            client_id=self._far.client_id,
            clean_start=bridge.clean_session,
            keep_alive_s=bridge.keep_alive_s,
            will=will,
            username=bridge.username or None,
            password=password,
            properties=properties if self._version == 5 else Properties(),
        )

    def _accept(self, connack: Connack) -> None:
        """What the other side takes; BridgeError where it does not take this bridge."""
        if connack.reason:
            reason = connect_reason(connack.reason, self._version)
            text = f"{self._far.url} refuses the connection: {reason_text(reason)}"
            if self._far.is_private and reason == ReasonCode.UNSUPPORTED_PROTOCOL_VERSION:
                raise PrivateRefusedError(text)
            unfit = (
                ReasonCode.TOPIC_NAME_INVALID,
                ReasonCode.RETAIN_NOT_SUPPORTED,
                ReasonCode.QOS_NOT_SUPPORTED,
            )
            if self._far.is_notified and reason in unfit:
                raise NotificationsRefusedError(text)
            raise BridgeError(text)
        if not connack.session_present:
            self._far.filters.clear()
            self._far.is_behind, self._far.is_ahead = not self._far.is_ahead, False
        half, properties = self._remote.half, connack.properties
        limits = (half.peer_bytes_max, properties.maximum_packet_size, self._bridge.packet_bytes_max)
        half.peer_bytes_max = min(each for each in limits if each)
        if properties.receive_maximum is not None:
            self._send_max = min(self._send_max, properties.receive_maximum)
        if properties.server_keep_alive_s:
            self._keep_alive_s = properties.server_keep_alive_s
        half.keeps_retain = self._bridge.outgoing_retain and properties.retain_available is not False
        if properties.maximum_qos == 0 and any(outward_filters(self._bridge).values()):
            raise BridgeError(f"{self._far.url} takes no QoS above 0: set qos = 0 for what goes there")
        half.qos_max = 2 if properties.maximum_qos is None else max(properties.maximum_qos, 1)

    async def _subscribe_remote(self) -> None:
        """What comes from there meanwhile is passed on; nothing is published there before the answers have
        come, so that no message has the packet identifier of these requests.
        """
        far, wanted = self._far, inward_filters(self._bridge)
        # Mosquitto has No Local of a filter only where it is new
        gone = [each for each, qos in far.filters.items() if each not in wanted or qos == OTHER_OPTIONS]
        for filters in _pieces(gone):
            packet = Unsubscribe(packet_id=_REQUEST_ID, filters=tuple(filters))
            await self._remote.ask(packet, Unsuback, self._version)
        missing = {each: qos for each, qos in wanted.items() if far.filters.get(each) != qos}
        far.refused = await _subscribe(self._remote, missing, self._version)
        far.filters = {each: qos for each, qos in wanted.items() if each not in far.refused}

    # --- to the own broker

    async def _greet_local(self) -> None:
        clean = self._bridge.clean_session
        connack = await enter(self._local, self._home, self._send_max, clean=clean)
        if not connack.session_present:
            self.is_home_new = True
            self._far.is_ahead = not self._far.is_behind
            self._remote.half.skip = 0
            await subscribe_home(self._local, self._bridge)
        elif self._far.is_behind and 2 in inward_filters(self._bridge).values():
            let_go(self._local)
        self._far.is_behind = False
        self._local.is_open = True
        self.flush()

    def _begin(self) -> None:
        self.is_connected = True
        has_qos_2 = self._remote.half.qos_max == 2 and 2 in outward_filters(self._bridge).values()
        if self._far.is_ahead and has_qos_2:
            let_go(self._remote)
        self._far.is_ahead = False
        self._remote.is_open = True
        if self._far.is_notified:
            said = Publish(topic=state_topic(self._bridge, self._far.client_id), payload=b"1", retain=True)
            self._remote.half.write(encode(said, self._version))
        self._on_connected()
        self.flush()

    async def _keep_alive(self) -> None:
        """Asks a side that says nothing whether it is there; raises what has ended the crossing. One that is
        not listened to, because the own broker takes no more, is asked again.
        """
        side, was_asked = self._remote, False
        while self._error is None:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._keep_alive_s / 2):
                    await self._ended.wait()
            if self._error is not None:
                break
            if was_asked and not side.was_heard and (side.is_blocked or not side.is_paused):
                raise BridgeError(f"{side.name} did not answer within {self._keep_alive_s / 2:g} s")
            was_asked = not side.was_heard or not side.was_told
            side.was_heard = side.was_told = False
            if was_asked and not side.is_blocked:
                side.send(encode(Pingreq(), self._version))
        raise self._error

    def _goodbye(self, leaves: bool) -> bytes | None:
        """The last packets to the other side where the bridge ends in order; else its will goes out there."""
        if not self.is_connected or self._error is not None:
            return None
        packets: list[Packet] = []
        if self._far.is_notified:
            topic = state_topic(self._bridge, self._far.client_id)
            packets.append(Publish(topic=topic, payload=b"0", retain=True))
        if leaves and self._version < 5:
            for filters in _pieces(self._far.filters):
                packets.append(Unsubscribe(packet_id=_REQUEST_ID, filters=tuple(filters)))
        ends = leaves and self._version == 5 and not self._bridge.clean_session
        packets.append(Disconnect(properties=Properties(session_expiry_s=0) if ends else Properties()))
        return b"".join(encode(each, self._version) for each in packets)

    async def _close(self, goodbye: bytes | None) -> None:
        self._error = self._error or BridgeError("the bridge was ended")
        self._local.close(encode(Disconnect(), 5) if self._local.is_open else None)
        self._remote.close(goodbye)
        self._local.half.part()
        self._remote.half.part()
        await asyncio.sleep(0)  # transports close in the next turn of the loop


async def enter(side: Side, home: Home, receive_maximum: int, *, clean: bool) -> Connack:
    """Connects to the own broker. BridgeError where it does not let us in."""
    try:
        async with asyncio.timeout(CONNECT_S):
            loop = asyncio.get_running_loop()
            _, side.link = await loop.create_unix_connection(lambda: Link(side), home.path)
    except (OSError, TimeoutError) as error:
        raise BridgeError(f"{side.name} cannot be reached: {error_text(error)}") from error
    connect = Connect(
        version=5,
        client_id=home.client_id,
        clean_start=clean,
        keep_alive_s=0,
        username=home.client_id,
        password=home.secret,
        properties=Properties(session_expiry_s=None if clean else NEVER, receive_maximum=receive_maximum),
    )
    connack = await side.ask(connect, Connack, 5)
    if connack.reason:
        raise BridgeError(f"{side.name} refuses the bridge: {reason_text(connack.reason)}")
    return connack


def let_go(side: Side) -> None:
    """Has a session forget messages of QoS 2 that the other one has forgotten. It would take a new message
    with the identifier of such a one for that, and drop it. No identifier is known, so all are released.
    """
    side.half.releases = _PACKET_ID_MAX
    pubrel = b"\x62\x02"
    side.send(b"".join(pubrel + each.to_bytes(2) for each in range(1, _PACKET_ID_MAX + 1)))


async def subscribe_home(side: Side, bridge: Bridge) -> None:
    """To what goes to the other side. BridgeError names a filter that the own broker does not take."""
    for filter, reason in (await _subscribe(side, outward_filters(bridge), 5)).items():
        raise BridgeError(f"{side.name} refuses the topic filter {filter!r}: {reason_text(reason)}")


async def _subscribe(side: Side, filters: Mapping[str, int], version: int) -> dict[str, int]:
    """Subscribes, and gives the reasons for those that are refused. What is retained comes for filters that
    are new (5.0), and what this bridge has brought there does not come back.
    """
    refused: dict[str, int] = {}
    for piece in _pieces(filters):
        plain = [Subscription(filter=each, qos=filters[each]) for each in piece]
        wanted = plain if version < 5 else [_with_options(each) for each in plain]
        packet = Subscribe(packet_id=_REQUEST_ID, subscriptions=tuple(wanted))
        suback = await side.ask(packet, Suback, version)
        if len(suback.reasons) != len(piece):
            raise BridgeError(f"{side.name} broke MQTT: SUBACK has not a reason for each filter")
        answers = zip(piece, suback.reasons, strict=True)
        refused |= {each: reason for each, reason in answers if reason >= _FAILURE}
    return refused


def _with_options(wanted: Subscription) -> Subscription:
    return Subscription(
        filter=wanted.filter, qos=wanted.qos, no_local=True, retain_as_published=True, retain_handling=1
    )


def _pieces(filters: Iterable[str]) -> Iterator[list[str]]:
    """As many filters as go into one packet."""
    piece: list[str] = []
    size = 0
    for each in filters:
        if piece and size + len(each.encode()) > FILTERS_BYTES:
            yield piece
            piece, size = [], 0
        piece.append(each)
        size += len(each.encode())
    if piece:
        yield piece
