"""What streams keep, for MQTT clients: a subscription to `$stream/NAME/START/FILTER` is answered with the
messages of the stream from START on, those that come later included.

Each client with such subscriptions has a task here, which finds messages on another thread, encodes them and
hands them to the engine, a piece at a time: the next goes when the client's socket has taken the last.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tidemq.broker.fault_log import Lines
from tidemq.broker.providers import IMPLEMENTATION_SPECIFIC_ERROR, QUOTA_EXCEEDED, TOPIC_FILTER_INVALID
from tidemq.engine.door.events import Delivered, SubscribeRequest, Unsubscribed
from tidemq.errors import TideMQError
from tidemq.stream import Stream, Streams
from tidemq.stream.ranges import Cursor
from tidemq.wire import Properties, Publish, encode

if TYPE_CHECKING:
    from tidemq.config import Config
    from tidemq.engine import Engine

PREFIX = "$stream/"
PIECE_ROWS = 256  # handed over at a time,
PIECE_BYTES = 64 << 10  # or the first message that brings it to this
ALIVE_S = 5.0  # between two looks whether a client that gets nothing is still there
REPLAY_COUNTERS = ("replays_refused", "replays_failed", "replays_dropped_packet_too_large")

_log = logging.getLogger("tidemq")


class ReplayRefusedError(TideMQError):
    """There is no such replay, or there are too many. Caught by who answers the SUBSCRIBE with `reason`."""

    def __init__(self, message: str, reason: int) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(slots=True)
class Replay:
    """One subscription: what it goes through, and the form that the client gets it in."""

    topic_filter: str  # as the client wrote it
    stream: Stream
    cursor: Cursor
    protocol_version: int
    packet_bytes_max: int
    subscription_id: int  # 0: none
    key: tuple[int, str]  # connection and filter: its place among those that there may be
    rows: list[dict[str, Any]] = field(default_factory=list)  # read, and not yet handed over, the next last
    _prefix: str = field(init=False)  # of its topics: all of the filter before the stream's own

    def __post_init__(self) -> None:
        name, start, _ = self.topic_filter.removeprefix(PREFIX).split("/", 2)
        self._prefix = f"{PREFIX}{name}/{start}/"

    def piece(self) -> tuple[bytes, int, int]:
        """The next messages as packets, how many, and how many were too large for the client."""
        packets = bytearray()
        messages = too_large = 0
        if not self.rows:
            self.rows = self.cursor.read(PIECE_ROWS)[::-1]
        while self.rows and len(packets) < PIECE_BYTES:
            packet = self._packet(self.rows.pop())
            if len(packet) > self.packet_bytes_max:
                too_large += 1
                continue
            packets += packet
            messages += 1
        return bytes(packets), messages, too_large

    def has_more(self) -> bool:
        """Whether there is something to be read now."""
        return bool(self.rows) or not self.cursor.at_end

    def _packet(self, row: dict[str, Any]) -> bytes:
        properties = Properties()
        if self.protocol_version == 5:
            users = tuple((each["name"], each["value"]) for each in row["user_properties"])
            properties = Properties(
                content_type=row["content_type"],
                response_topic=row["response_topic"],
                correlation_data=row["correlation_data"],
                user_properties=(
                    *users,
                    ("stream-offset", str(row["offset"])),
                    ("stream-received", row["received"].isoformat()),
                ),
                subscription_ids=(self.subscription_id,) if self.subscription_id else (),
            )
        topic = self._prefix + row["topic"]
        return encode(
            Publish(topic=topic, payload=row["payload"], properties=properties), self.protocol_version
        )


@dataclass(slots=True)
class _Client:
    connection: int
    client_id: str
    replays: dict[str, Replay] = field(default_factory=dict)  # by filter
    gone: asyncio.Future[bool] | None = None  # what was handed over last: whether the client has gone
    awake: asyncio.Event = field(default_factory=asyncio.Event)  # there may be something to do


class Replays:
    """The replays of one broker. All methods run on its event loop; `streams` is None where it keeps none."""

    def __init__(self, engine: Engine, streams: Streams | None, config: Config) -> None:
        self._engine = engine
        self._streams = streams
        self._limits = config.limits
        self._refusals = Lines(config.fault_lines_max, "refused replays", logging.INFO)
        self._held: Counter[tuple[int, str]] = Counter()  # places that are taken
        self._clients: dict[int, _Client] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter(dict.fromkeys(REPLAY_COUNTERS, 0))

    def open(self, request: SubscribeRequest, topic_filter: str) -> Replay:
        """What one filter of a SUBSCRIBE asks for: its place is taken, until it ends or is given up.
        ReplayRefusedError.
        """
        key = (request.connection, topic_filter)
        try:
            if key not in self._held and len(self._held) >= self._limits.replays_max:
                raise ReplayRefusedError(f"{self._limits.replays_max} replays go on already", QUOTA_EXCEEDED)
            stream, start, wanted = self._parse(topic_filter)
        except ReplayRefusedError as error:
            self.counts["replays_refused"] += 1
            if self._refusals.take():
                _log.info("the replay %r of client %r is refused: %s", topic_filter, request.client_id, error)
            raise
        self._held[key] += 1
        return Replay(
            topic_filter,
            stream,
            Cursor(stream.log, wanted, start),
            request.protocol_version,
            request.packet_bytes_max,
            request.subscription_id,
            key,
        )

    def _parse(self, topic_filter: str) -> tuple[Stream, int, str]:
        """The stream, the offset to begin with, and the filter of its topics."""
        if len(topic_filter.encode()) > self._limits.topic_bytes_max:  # the engine refuses it, too
            raise ReplayRefusedError("it is too long", TOPIC_FILTER_INVALID)
        parts = topic_filter.removeprefix(PREFIX).split("/", 2)
        if len(parts) < 3:
            raise ReplayRefusedError("it has to be $stream/NAME/START/FILTER", TOPIC_FILTER_INVALID)
        name, start, wanted = parts
        stream = self._streams.all.get(name) if self._streams else None
        if stream is None:
            raise ReplayRefusedError(f"there is no stream {name!r}", TOPIC_FILTER_INVALID)
        return stream, _offset(stream, start), wanted

    def begin(self, request: SubscribeRequest, replays: list[Replay]) -> None:
        """Sends what was asked for; a filter that was there before begins anew."""
        client = self._clients.get(request.connection)
        if client is None:
            client = self._clients[request.connection] = _Client(request.connection, request.client_id)
            task = asyncio.create_task(self._serve(client))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        for each in replays:
            self._end(client, each.topic_filter)
            client.replays[each.topic_filter] = each
        client.awake.set()

    def give_up(self, replays: list[Replay]) -> None:
        """What was opened will not begin."""
        for each in replays:
            self._release(each)

    def _release(self, replay: Replay) -> None:
        self._held[replay.key] -= 1
        if not self._held[replay.key]:
            del self._held[replay.key]

    def _end(self, client: _Client, topic_filter: str) -> None:
        if replay := client.replays.pop(topic_filter, None):
            self._release(replay)

    def on_unsubscribed(self, event: Unsubscribed) -> None:
        """Ends one replay."""
        if client := self._clients.get(event.connection):
            self._end(client, event.topic_filter)
            client.awake.set()

    def on_delivered(self, event: Delivered) -> None:
        """Lets the next piece go, or ends the client's replays."""
        client = self._clients.get(event.connection)
        if client and client.gone and not client.gone.done():
            client.gone.set_result(event.gone)

    async def close(self) -> None:
        """Ends all of them."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._refusals.flush()

    async def _serve(self, client: _Client) -> None:
        """One client's replays in turn, until it has none or has gone."""
        looked = time.monotonic()
        try:
            while client.replays:
                client.awake.clear()
                waiting = [each for each in client.replays.values() if each.has_more()]
                for replay in waiting:
                    packets, messages, too_large = await asyncio.to_thread(replay.piece)
                    self.counts["replays_dropped_packet_too_large"] += too_large
                    if client.replays.get(replay.topic_filter) is replay and packets:
                        looked = time.monotonic()
                        if await self._deliver(client, packets, messages):
                            return
                if not waiting:
                    await self._wait(client, looked + ALIVE_S - time.monotonic())
                if time.monotonic() - looked >= ALIVE_S:
                    looked = time.monotonic()
                    if await self._deliver(client, b"", 0):
                        return
                self._check_streams(client)
        except Exception:  # noqa: BLE001 - of files, of Arrow: the client sees its connection end
            self.counts["replays_failed"] += 1
            _log.exception("the replays of client %r end", client.client_id)
            self._engine.disconnect(client.client_id, IMPLEMENTATION_SPECIFIC_ERROR)
        finally:
            del self._clients[client.connection]
            self.give_up(list(client.replays.values()))

    async def _wait(self, client: _Client, wait_s: float) -> None:
        """Until messages have come to a stream, other subscriptions have come, or time is over."""
        assert self._streams is not None
        await self._streams.growth.wait(
            client.awake, wait_s, lambda: any(each.has_more() for each in client.replays.values())
        )

    async def _deliver(self, client: _Client, packets: bytes, messages: int) -> bool:
        """Whether the client has gone."""
        client.gone = asyncio.get_running_loop().create_future()
        self._engine.deliver(client.connection, packets, messages)
        return await client.gone

    def _check_streams(self, client: _Client) -> None:
        """TideMQError when a stream was deleted."""
        kept = self._streams.all if self._streams else {}
        for replay in client.replays.values():
            name = replay.stream.config.name
            if kept.get(name) is not replay.stream:
                raise TideMQError(f"the stream {name} was deleted")


def _offset(stream: Stream, start: str) -> int:
    """The offset that `start` names: first, next, a number, or a time in UTC; ReplayRefusedError."""
    if start in ("first", "next"):
        return stream.log.first_offset if start == "first" else stream.log.next_offset
    if start.isascii() and start.isdigit() and len(start) <= 18:
        return int(start)
    try:
        at = datetime.fromisoformat(start)
    except ValueError:
        at = datetime.min
    if at.tzinfo != UTC:
        raise ReplayRefusedError(
            f"{start!r} is not a valid start: accepted are first, next, an offset, "
            "or a time in UTC such as 2026-01-31T12:00Z",
            TOPIC_FILTER_INVALID,
        )
    return stream.log.offset_at(int(at.timestamp() * 1_000_000))
