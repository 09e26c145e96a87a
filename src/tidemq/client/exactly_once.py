"""Messages that are each published once, whatever is killed: for a program that, begun again, has the same
messages in the same order.

    with ExactlyOncePublisher("mqtt://broker", "readings", partition=3) as publisher:
        publisher.publish(17, messages)  # batch 17; the same again adds nothing

How it goes (docs/decisions/0014-exactly-once-into-a-broker.md): a partition of a publisher is one session,
`PUBLISHER-PARTITION`, which the broker keeps. Messages go in chunks, at QoS 2. Before a chunk is sent, a
retained message announces it; its messages are released (PUBREL) when the announcement of what follows is
safe with the broker. Until then the broker's session knows their packet identifiers, which follow from a
message's place, so who comes back sends the whole chunk again and the broker takes what it does not have.
Identifiers of a chunk are not those of the chunk before, for releasing may have to be repeated.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
import socket
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from functools import partial
from types import TracebackType
from typing import Self, TypeVar

from tidemq.client.address import parse_url
from tidemq.client.errors import (
    ConnectError,
    DisconnectedError,
    PublishError,
    ServerRefusedError,
    SubscribeError,
)
from tidemq.client.link import Link
from tidemq.client.message import Message
from tidemq.client.reconnecting import FINAL_REASONS
from tidemq.client.route import Route, error_text, open_link
from tidemq.errors import ProtocolError, RefusedError, TideMQError, UsageError
from tidemq.wire import (
    Connack,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    Pingreq,
    Pingresp,
    Properties,
    Puback,
    Pubcomp,
    Publish,
    Pubrec,
    Pubrel,
    ReasonCode,
    Suback,
    Subscribe,
    Subscription,
    encode,
)

TOPIC = "tidemq/published"  # below it, PUBLISHER/PARTITION, is what a publisher has got to
RETRY_S = 30.0  # for so long a broker that went away may be starting again
RETRY_PAUSE_S = 0.2
ANSWER_S = 30.0  # without an answer, and without the line taking anything
CHUNK_MESSAGES = 1000  # at most; the server's Receive Maximum may be less
CHUNK_BYTES = 8 << 20  # a chunk ends with the message that passes it
PIECE_BYTES = 1 << 16  # of a chunk, at a time: a slow line is told from a dead one by what it takes
_PROGRESS_ID = 0xFFFF  # packet identifier of announcements; chunks have those up to 2 * CHUNK_MESSAGES
_REQUEST_ID = 0xFFFE
_NEVER = 0xFFFFFFFF  # session expiry
_DUP = 0x08

T = TypeVar("T")


class ProgressError(RefusedError):
    """The messages are not those that this publisher had begun with, or the broker has forgotten how far it
    was. Caught by the program, which has to take another publisher."""


@dataclass(frozen=True, slots=True)
class Progress:
    """An announcement: the first `rows` messages of the batch are with the broker. Those of the chunk that
    follows may be."""

    batch: int
    number: int  # of the chunk that follows, among all of the publisher
    rows: int
    before: int  # messages of the chunk before it, of an earlier batch perhaps: may be not released yet
    size: int  # messages of the chunk that follows; 0: the batch is done
    digest: str  # of that chunk

    @classmethod
    def parse(cls, payload: bytes) -> Self:
        """ProgressError where it is none."""
        try:
            found = cls(**json.loads(payload))
            if not all(type(value) is int for value in (found.batch, found.number, found.rows)):
                raise ValueError("no numbers")
        except (ValueError, TypeError) as error:
            raise ProgressError(f"{payload[:80]!r} is no progress of a publisher: {error}") from error
        return found

    def encode(self) -> bytes:
        return json.dumps(asdict(self)).encode()


class Chunk:
    """Messages as packets, whose identifiers follow from the chunk's number and their place."""

    def __init__(self, number: int, messages: Sequence[Message]) -> None:
        first = first_identifier(number)
        self.topics = {first + place: message.topic for place, message in enumerate(messages)}
        self.packets = [
            encode(
                Publish(
                    topic=message.topic,
                    payload=message.payload,
                    qos=2,
                    retain=message.retain,
                    packet_id=packet_id,
                    properties=message.properties,
                ),
                5,
            )
            for packet_id, message in zip(self.topics, messages, strict=True)
        ]
        self.digest = hashlib.blake2b(b"".join(self.packets), digest_size=16).hexdigest()

    def encoded(self, *, again: bool) -> bytes:
        """With DUP where they may have been sent before."""
        if not again:
            return b"".join(self.packets)
        return b"".join(bytes([packet[0] | _DUP]) + packet[1:] for packet in self.packets)


def first_identifier(number: int) -> int:
    """The packet identifier of a chunk's first message."""
    return 1 + number % 2 * CHUNK_MESSAGES


class ExactlyOncePublisher:
    """One partition of a publisher, used by one thread; another of the same name ends it.

    Messages are published at QoS 2, whatever their own. `publish` raises ConnectError or DisconnectedError
    when the broker cannot be reached for `retry_s`, ServerRefusedError when it does not let this client in or
    another has taken over, PublishError when it refuses a message, ProgressError as that says.
    """

    def __init__(
        self,
        url: str,
        publisher: str,
        partition: int = 0,
        *,
        username: str | None = None,
        password: str | None = None,
        tls: ssl.SSLContext | None = None,
        retry_s: float = RETRY_S,
    ) -> None:
        if not re.fullmatch(r"[\w.-]+", publisher):
            raise UsageError(f"the publisher is {publisher!r}; accepted: letters, digits, '_', '.' and '-'")
        self._route, self._retry_s = Route(address=parse_url(url), tls=tls), retry_s
        self._client_id = f"{publisher}-{partition}"
        self._topic = f"{TOPIC}/{publisher}/{partition}"
        address = self._route.address
        self._username = username if username is not None else address.username
        self._password = password if password is not None else address.password
        self._runner: asyncio.Runner | None = asyncio.Runner()
        self._session: _Session | None = None  # that the broker remembers, and of which the progress is known
        self._progress: Progress | None = None  # as the broker has it
        self._new = False  # the session was made by a connection that did not get as far

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection; the broker keeps the session."""
        runner, self._runner = self._runner, None
        if runner is not None:
            if self._session is not None:
                runner.run(self._session.close())
            runner.close()

    def publish(self, batch: int, messages: Iterable[Message]) -> int:
        """Publishes a batch, or what the broker does not have of it; returns the number of its messages.

        Batches are numbered upwards. The same batch again must have the same messages in the same order.
        """
        if self._runner is None:
            raise UsageError("the publisher is closed")
        return self._runner.run(self._publish(batch, messages))

    async def _publish(self, batch: int, messages: Iterable[Message]) -> int:
        old = await self._retry(self._known)
        rest = iter(messages)
        now = self._begin(batch, old)
        passed = sum(1 for _ in zip(range(now.rows), rest, strict=False))
        if passed < now.rows or (now == old and now.size == 0 and next(rest, None) is not None):
            raise self._changed(batch)
        size = now.size
        while True:
            limit = size or await self._retry(self._chunk_limit)
            chunk = Chunk(now.number, list(_taken(rest, limit, 0 if size else CHUNK_BYTES)))
            if size and (len(chunk.packets), chunk.digest) != (now.size, now.digest):
                raise self._changed(batch)
            now = replace(now, size=len(chunk.packets), digest=chunk.digest if chunk.packets else "")
            await self._retry(partial(self._advance, old, now, chunk))
            if not chunk.packets:
                return now.rows
            old = now
            rows, size = now.rows + now.size, 0
            now = Progress(batch, now.number + 1, rows, now.size, 0, "")

    def _begin(self, batch: int, old: Progress | None) -> Progress:
        """What the broker is to be told first: what it has of this batch, or that there is a new one."""
        if old is None:
            return Progress(batch, 0, 0, 0, 0, "")
        if old.batch < batch and not old.size:
            # the release of the last batch's end may have got lost, and nobody else would repeat it
            return Progress(batch, old.number, 0, old.before, 0, "")
        if old.batch == batch:
            return old
        state = "has not finished" if old.batch < batch else "is at"
        raise ProgressError(
            f"the publisher {self._client_id} {state} batch {old.batch}, and this is batch {batch}; what "
            "publishes something else needs another publisher id"
        )

    def _changed(self, batch: int) -> ProgressError:
        return ProgressError(
            f"batch {batch} of the publisher {self._client_id} has come again with other messages, or in "
            "another order: each message once is possible only where they are the same"
        )

    # --- steps, each of which may be repeated on another connection

    async def _known(self) -> Progress | None:
        return self._progress

    async def _chunk_limit(self) -> int:
        assert self._session is not None
        return min(CHUNK_MESSAGES, self._session.receive_maximum - 1)  # one is for the announcement

    async def _advance(self, old: Progress | None, now: Progress, chunk: Chunk) -> None:
        """Announces the chunk, releases the one before, and has the broker take its messages."""
        session, again = self._session, self._progress == now
        assert session is not None
        session.check(chunk)
        if not again:
            if self._progress != old:  # it was read again after the connection was lost
                raise ProgressError(f"somebody else publishes as {self._client_id}")
            packet = Publish(
                topic=self._topic, payload=now.encode(), qos=1, retain=True, packet_id=_PROGRESS_ID
            )
            await session.ask(encode(packet, 5), Puback, {_PROGRESS_ID: self._topic})
            self._progress = now
        if now.before:
            first = first_identifier(now.number - 1)
            released = {first + place: "" for place in range(now.before)}
            packets = b"".join(encode(Pubrel(packet_id=each), 5) for each in released)
            await session.ask(packets, Pubcomp, released)
        if chunk.packets:
            await session.ask(chunk.encoded(again=again), Pubrec, chunk.topics)

    async def _retry(self, work: Callable[[], Awaitable[T]]) -> T:
        """Connects where there is no connection, and works; again, where that is lost meanwhile. After any
        failure nothing of the connection is relied on: what the broker has is read again."""
        deadline: float | None = None
        while True:
            try:
                if self._session is None:
                    await self._connect()
                return await work()
            except BaseException as error:
                session, self._session, self._progress = self._session, None, None
                if session is not None:
                    await session.close()
                now = time.monotonic()
                deadline = now + self._retry_s if deadline is None else deadline
                if not _may_pass(error) or now >= deadline:
                    raise
                await asyncio.sleep(RETRY_PAUSE_S)

    async def _connect(self) -> None:
        session, present = await self._open(clean_start=False)
        self._new = self._new or not present
        try:
            progress = await self._read(session)
        except BaseException as error:
            # of what was only made now the broker is to remember nothing: who comes next is told the same
            await session.close(ends=self._new and isinstance(error, ProgressError))
            raise
        if progress is None and present:  # what it may know of identifiers belongs to nothing
            await session.close()
            session, _ = await self._open(clean_start=True)
        self._session, self._progress, self._new = session, progress, False

    async def _open(self, *, clean_start: bool) -> tuple[_Session, bool]:
        """A connection, and whether the broker has the session."""
        session = _Session(self._route)
        try:
            return session, await session.open(self._make_connect(clean_start=clean_start))
        except BaseException:
            await session.close()
            raise

    async def _read(self, session: _Session) -> Progress | None:
        """How far the broker is."""
        payload = await session.retained(self._topic)
        progress = Progress.parse(payload) if payload else None
        if progress is not None and progress.size and self._new:
            raise ProgressError(
                f"the broker has forgotten the session {self._client_id}: it cannot be known which messages "
                f"of batch {progress.batch} it has; take another publisher id"
            )
        return progress

    def _make_connect(self, *, clean_start: bool) -> Connect:
        return Connect(
            version=5,
            client_id=self._client_id,
            clean_start=clean_start,
            keep_alive_s=0,  # between two calls nobody is there to send PINGREQ
            username=self._username,
            password=None if self._password is None else self._password.encode(),
            properties=Properties(session_expiry_s=_NEVER),
        )


def _may_pass(error: BaseException) -> bool:
    """Another attempt may succeed."""
    final = isinstance(error, ServerRefusedError) and error.reason in FINAL_REASONS
    return isinstance(error, ConnectError | DisconnectedError | ServerRefusedError) and not final


def _taken(messages: Iterator[Message], count: int, size_max: int) -> Iterator[Message]:
    """The next messages: so many, or, where `size_max` is not 0, until they have so many bytes."""
    size = 0
    for _, message in zip(range(count), messages, strict=False):
        yield message
        size += len(message.payload)
        if size_max and size >= size_max:
            return


def _keep_short(link: Link) -> None:
    """What the system holds and has not sent: it may be megabytes, of which nothing is heard for minutes."""
    option = getattr(socket, "TCP_NOTSENT_LOWAT", None)
    if option is not None:
        with suppress(OSError):  # a Unix socket has none of it
            link.transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, option, PIECE_BYTES)


class _Session:
    """One connection: a request at a time, each with all of its answers. Implements `link.Owner`."""

    def __init__(self, route: Route) -> None:
        self._route, self._address = route, route.address
        self._decoder = Decoder(5)
        self._buffer = bytearray(1 << 16)
        self._link: Link | None = None
        self._ended: Exception | None = None
        self._kind: type[Packet] = Connack  # of the answers that are awaited
        self._missing: dict[int, str] = {}  # their packet identifiers, with the topics
        self._refusal: TideMQError | None = None
        self._answer: Packet | None = None  # the last of them
        self._sending = self._blocked = False
        self._moved = asyncio.Event()  # something was answered, or taken, or the connection has ended
        self._topic, self._retained = "", b""
        self.receive_maximum = 0xFFFF
        self._packet_bytes_max = 0xFFFFFFFF

    async def open(self, connect: Connect) -> bool:
        """Connects; whether the server has the session."""
        try:
            async with asyncio.timeout(ANSWER_S):
                self._link = await open_link(self._route, self)
        except TimeoutError:
            raise ConnectError(f"cannot connect to {self._address} within {ANSWER_S:g} s") from None
        _keep_short(self._link)
        connack = await self.ask(encode(connect, 5), Connack, {})
        assert isinstance(connack, Connack)
        properties = connack.properties
        if connack.reason:
            text = properties.reason_string
            raise ServerRefusedError(f"{self._address} refused the connection", connack.reason, text)
        if properties.maximum_qos is not None or properties.receive_maximum == 1:
            raise UsageError(
                f"{self._address} takes no QoS 2, or one message at a time: no message can be published "
                "exactly once"
            )
        self.receive_maximum = properties.receive_maximum or 0xFFFF
        self._packet_bytes_max = properties.maximum_packet_size or 0xFFFFFFFF
        return connack.session_present

    async def retained(self, topic: str) -> bytes:
        """The payload of the topic's retained message; empty where there is none."""
        self._topic = topic
        wanted = Subscription(filter=topic, no_local=True, retain_as_published=True)
        packet = encode(Subscribe(packet_id=_REQUEST_ID, subscriptions=(wanted,)), 5)
        suback = await self.ask(packet, Suback, {})
        assert isinstance(suback, Suback)
        if suback.reasons[0] >= 0x80:
            raise SubscribeError(f"subscribing to {topic!r}", suback.reasons)
        await self.ask(encode(Pingreq(), 5), Pingresp, {})  # what is retained goes out behind SUBACK
        return self._retained

    def check(self, chunk: Chunk) -> None:
        """PublishError names a message that is too large for the server."""
        for packet, topic in zip(chunk.packets, chunk.topics.values(), strict=True):
            if len(packet) > self._packet_bytes_max:
                raise PublishError(f"publishing to {topic!r}", ReasonCode.PACKET_TOO_LARGE)

    async def ask(self, data: bytes, kind: type[Packet], topics: dict[int, str]) -> Packet:
        """Sends, and waits for the answer of this kind, or for one for each packet identifier; the last.

        PublishError where any message was refused, after all were answered.
        """
        self._kind, self._missing, self._refusal, self._answer = kind, dict(topics), None, None
        await self._send(data)
        await self._until(lambda: self._answer is not None)
        assert self._answer is not None
        if self._refusal is not None:
            raise self._refusal
        return self._answer

    async def _send(self, data: bytes) -> None:
        if self._ended is not None:
            raise self._ended
        assert self._link is not None
        self._sending = True
        for at in range(0, len(data), PIECE_BYTES):
            self._link.send(data[at : at + PIECE_BYTES])
            await self._until(lambda: not self._blocked)
        self._sending = False

    async def _until(self, done: Callable[[], bool]) -> None:
        """However long it takes, as long as something moves."""
        while not done():
            if self._ended is not None:
                raise self._ended
            self._moved.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(ANSWER_S):
                    await self._moved.wait()
            if not self._moved.is_set():
                self.ended(ConnectError(f"{self._address} did not answer within {ANSWER_S:g} s"))

    def _dispatch(self, packet: Packet) -> None:
        if isinstance(packet, Disconnect):
            text = packet.properties.reason_string
            self.ended(ServerRefusedError(f"{self._address} ended the connection", packet.reason, text))
        elif isinstance(packet, Publish):
            if packet.topic == self._topic:
                self._retained = packet.payload
        elif type(packet) is self._kind and self._answer is None:
            if isinstance(packet, Puback | Pubrec | Pubcomp) and self._acknowledged(packet):
                return
            self._answer = packet
            self._moved.set()

    def _acknowledged(self, packet: Puback | Pubrec | Pubcomp) -> bool:
        """True while others are missing."""
        topic = self._missing.pop(packet.packet_id, None)
        if topic is not None:
            self._moved.set()
        if topic and packet.reason >= 0x80 and self._refusal is None:  # a PUBCOMP names no topic
            text = packet.properties.reason_string
            self._refusal = PublishError(f"publishing to {topic!r}", packet.reason, text)
        return topic is None or bool(self._missing)

    async def close(self, *, ends: bool = False) -> None:
        """Says goodbye if there is somebody to say it to; `ends`: to the session as well."""
        if self._link is None:
            return
        if self._ended is None and not self._sending:  # else it would be taken for the rest of a packet
            self._link.send(
                encode(Disconnect(properties=Properties(session_expiry_s=0 if ends else None)), 5)
            )
            self._link.close()
        else:
            self._link.abort()
        self._ended = self._ended or DisconnectedError("the publisher is closed")
        await asyncio.sleep(0)  # the transport closes in the next turn of the loop

    # --- called by the link

    def room(self) -> memoryview:
        return memoryview(self._buffer)

    def wrote(self, size: int) -> None:
        self._decoder.feed(memoryview(self._buffer)[:size])

    def feed(self, data: bytes) -> None:
        self._decoder.feed(data)

    def received(self) -> None:
        try:
            for packet in self._decoder:
                self._dispatch(packet)
        except ProtocolError as error:
            self.ended(ConnectError(f"{self._address} broke MQTT: {error}"))

    def writable(self, yes: bool) -> None:
        self._blocked = not yes
        if yes:
            self._moved.set()

    def ended(self, error: Exception | None) -> None:
        """The first reason stays."""
        if self._ended is None:
            if not isinstance(error, TideMQError):
                text = "the server closed the connection" if error is None else error_text(error)
                error = DisconnectedError(f"{self._address}: {text}")
            self._ended = error
        self._moved.set()
