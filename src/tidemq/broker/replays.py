"""What streams keep, for MQTT clients: a subscription below `$stream/` (`stream_filters`) is answered with
the messages of the stream from its start on, those that come later included.

Each client with such subscriptions has a task here, which finds messages on another thread, encodes them and
hands them to the engine, a piece at a time. At QoS 0 the next goes when the client's socket has taken the
last, at QoS 1 when the session has room for it; how far a session has come is the engine's to know.
"""

from __future__ import annotations

import asyncio
import logging
import struct
import time
from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from tidemq.broker.fault_log import Lines
from tidemq.broker.providers import IMPLEMENTATION_SPECIFIC_ERROR, NOT_AUTHORIZED, QUOTA_EXCEEDED
from tidemq.broker.replay_pieces import Replay
from tidemq.broker.stream_filters import (
    ReplayRefusedError,
    Wanted,
    find_offset,
    parse_wanted,
)
from tidemq.engine.door.events import Delivered, Fed, Judged, Replaying, SubscribeRequest, Unsubscribed
from tidemq.errors import TideMQError
from tidemq.stream import Stream, Streams

if TYPE_CHECKING:
    from tidemq.config import Config
    from tidemq.engine import Engine

JUDGED_AT_ONCE = 1024  # filters, in a turn of the engine
ALIVE_S = 5.0  # between two looks whether a client that gets nothing is still there
REPLAY_COUNTERS = (
    "replays_refused",
    "replays_delayed",
    "replays_failed",
    "replays_offsets_missing",
    "replays_dropped_packet_too_large",
)

_START = struct.Struct(">BQQ")  # of a replay that is granted: QoS, the stream's epoch, offset

_log = logging.getLogger("tidemq.streams")


@dataclass(frozen=True, slots=True)
class Asked:
    """A subscription to a stream, as one filter of a SUBSCRIBE asks for it; it may not be allowed."""

    wanted: Wanted
    stream: Stream
    topics: tuple[str, ...]  # the filters that the client has to be allowed to subscribe to
    qos_max: int = 1  # that it may have of them


@dataclass(slots=True)
class _Client:
    connection: int
    client_id: str
    replays: dict[str, Replay] = field(default_factory=dict)  # by filter
    gone: asyncio.Future[bool] | None = None  # what was handed over last: whether the client has gone
    left: bool = False  # it has gone
    awake: asyncio.Event = field(default_factory=asyncio.Event)  # there may be something to do


class Replays:
    """The replays of one broker. All methods run on its event loop; `streams` is None where it keeps none."""

    def __init__(self, engine: Engine, streams: Streams | None, config: Config) -> None:
        self._engine = engine
        self._streams = streams
        self._limits = config.limits
        self._refusals = Lines(config.fault_lines_max, "refused replays", logging.INFO)
        self._held: Counter[tuple[int, str]] = Counter()  # places that are taken
        self._delayed: dict[tuple[int, str], _Client] = {}  # replays that wait for one
        self._gaps = Lines(config.fault_lines_max, "gaps in replays", logging.WARNING)
        self._clients: dict[int, _Client] = {}
        # by connection: each is answered, in order; a client that is back may ask while it goes on
        self._judging: defaultdict[int, deque[asyncio.Future[bytes]]] = defaultdict(deque)
        self._tasks: set[asyncio.Task[None]] = set()
        self.counts: Counter[str] = Counter(dict.fromkeys(REPLAY_COUNTERS, 0))

    def ask(self, request: SubscribeRequest, topic_filter: str) -> Asked:
        """What one filter of a SUBSCRIBE asks for. ReplayRefusedError."""
        try:
            if len(topic_filter.encode()) > self._limits.topic_bytes_max:  # the engine refuses it, too
                raise ReplayRefusedError("it is too long")
            wanted = parse_wanted(topic_filter, request.user_properties)
            stream = self._streams.all.get(wanted.name) if self._streams else None
            if stream is None:
                raise ReplayRefusedError(f"there is no stream {wanted.name!r}")
            return Asked(wanted, stream, wanted.filters_of(stream))
        except ReplayRefusedError as error:
            self.refuse(request, topic_filter, error)
            raise

    def refuse(
        self, request: SubscribeRequest, topic_filter: str, error: ReplayRefusedError
    ) -> ReplayRefusedError:
        """Counts and logs a refusal, and returns it."""
        self.counts["replays_refused"] += 1
        if self._refusals.take():
            _log.info("the replay %r of client %r is refused: %s", topic_filter, request.client_id, error)
        return error

    async def judge(self, connection: int, asked: Iterable[Asked]) -> dict[str, int]:
        """What the rules say of the filters of topics that are asked for: the QoS that the client may have,
        or the reason to refuse.
        """
        topics = list(dict.fromkeys(topic for each in asked for topic in each.topics))
        reasons = bytearray()
        while len(reasons) < len(topics):
            part = topics[len(reasons) : len(reasons) + JUDGED_AT_ONCE]
            answer = asyncio.get_running_loop().create_future()
            self._engine.judge(connection, part)
            self._judging[connection].append(answer)
            reasons += await answer or bytes([NOT_AUTHORIZED] * len(part))
        return dict(zip(topics, reasons, strict=True))

    def on_judged(self, event: Judged) -> None:
        """What `judge` waits for, unless its time is over."""
        answer = self._judging[event.connection].popleft()
        if not self._judging[event.connection]:
            del self._judging[event.connection]
        if not answer.done():
            answer.set_result(event.reasons)

    def open(self, request: SubscribeRequest, topic_filter: str, qos: int, asked: Asked) -> Replay:
        """What one filter of a SUBSCRIBE asks for and is allowed: its place is taken, until it ends or is
        given up. ReplayRefusedError.
        """
        replay = self._make(request, topic_filter, min(qos, asked.qos_max), asked)
        if not self._take_place(replay):
            error = ReplayRefusedError(f"{self._limits.replays_max} replays go on already", QUOTA_EXCEEDED)
            raise self.refuse(request, topic_filter, error)
        first = find_offset(asked.stream, asked.wanted.start)
        replay.start = _START.pack(replay.qos, asked.stream.epoch, first)
        if replay.qos == 0:
            replay.begin(first)
        return replay

    def _make(self, request: SubscribeRequest, topic_filter: str, qos: int, asked: Asked) -> Replay:
        return Replay(
            topic_filter,
            asked.stream,
            asked.topics,
            asked.wanted.prefix,
            qos,
            request.protocol_version,
            request.packet_bytes_max,
            request.subscription_id,
            (request.connection, topic_filter),
        )

    def _take_place(self, replay: Replay) -> bool:
        if not replay.placed and replay.key not in self._held and len(self._held) >= self._limits.replays_max:
            return False
        if not replay.placed:
            self._held[replay.key] += 1
            replay.placed = True
        return True

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
        self._delayed.pop(replay.key, None)
        if not replay.placed:
            return
        replay.placed = False
        self._held[replay.key] -= 1
        if not self._held[replay.key]:
            del self._held[replay.key]
            for client in self._delayed.values():
                client.awake.set()
                break

    def _end(self, client: _Client, topic_filter: str) -> None:
        if replay := client.replays.pop(topic_filter, None):
            self._release(replay)

    def on_granted(self, event: Replaying) -> None:
        """The engine has said where a replay at QoS 1 begins, which was granted just now."""
        client = self._clients.get(event.request.connection)
        replay = client.replays.get(event.request.filters[0][0]) if client else None
        if client and replay and replay.qos:
            replay.begin(event.offset)
            client.awake.set()

    def resume(self, event: Replaying, asked: Asked) -> None:
        """The replay of a client that is back, and may have it, goes on, or waits for a place."""
        request = event.request
        client = self._clients.get(request.connection)
        if client and request.filters[0][0] in client.replays:
            return  # it has subscribed again meanwhile, and the engine says where that begins
        if asked.stream.epoch != event.epoch:
            error = ReplayRefusedError(f"the stream {asked.wanted.name} was deleted, and made anew")
            self.revoke(event, error)
            return
        replay = self._make(request, request.filters[0][0], 1, asked)
        replay.begin(event.offset)
        if not self._take_place(replay):
            self.counts["replays_delayed"] += 1
        self.begin(request, [replay])

    def revoke(self, event: Replaying, error: ReplayRefusedError | None) -> None:
        """Ends what a session has of a stream, for its client may have it no more; where the stream is not
        there, or not the same, its connection ends, too.
        """
        request = event.request
        topic_filter = request.filters[0][0]
        self._engine.revoke_replay(request.connection, topic_filter)
        why = str(error or "the authoriser does not allow it")
        _log.warning("the replay %r of client %r ends: %s", topic_filter, request.client_id, why)
        if error is not None and error.reason != NOT_AUTHORIZED:
            self.counts["replays_failed"] += 1
            self._engine.disconnect(request.client_id, IMPLEMENTATION_SPECIFIC_ERROR)

    def on_fed(self, event: Fed) -> None:
        """There is room for more of a replay at QoS 1, or nobody to have it."""
        client = self._clients.get(event.connection)
        if client is None:
            return
        client.left = client.left or event.gone
        if replay := client.replays.get(event.topic_filter):
            replay.busy = False
        client.awake.set()

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
        self._gaps.flush()

    async def _serve(self, client: _Client) -> None:
        """One client's replays in turn, until it has none or has gone."""
        looked = time.monotonic()
        try:
            while client.replays and not client.left:
                client.awake.clear()
                waiting = [each for each in client.replays.values() if self._may_read(client, each)]
                for replay in waiting:
                    if await self._hand_over(client, replay):
                        looked = time.monotonic()
                if not waiting:
                    await self._wait(client, looked + ALIVE_S - time.monotonic())
                if time.monotonic() - looked >= ALIVE_S:
                    looked = time.monotonic()
                    await self._deliver(client, b"", 0)
                self._check_streams(client)
        except Exception:  # noqa: BLE001 - of files, of Arrow: the client sees its connection end
            await self._deliver(client, b"", 0)  # where that has gone, another may have its client identifier
            if not client.left:
                self.counts["replays_failed"] += 1
                _log.exception("the replays of client %r end", client.client_id)
                self._engine.disconnect(client.client_id, IMPLEMENTATION_SPECIFIC_ERROR)
        finally:
            del self._clients[client.connection]
            self.give_up(list(client.replays.values()))

    def _may_read(self, client: _Client, replay: Replay) -> bool:
        """Whether it has something to be read, room for it and a place."""
        if not replay.has_more():
            return False
        if self._take_place(replay):
            self._delayed.pop(replay.key, None)
            return True
        self._delayed[replay.key] = client
        return False

    async def _hand_over(self, client: _Client, replay: Replay) -> bool:
        """Brings the engine the next piece; whether it has told that the client is there."""
        piece = await asyncio.to_thread(replay.piece)
        self.counts["replays_dropped_packet_too_large"] += piece.too_large
        if piece.missed:
            self.counts["replays_offsets_missing"] += piece.missed
            if self._gaps.take():
                text = "the replay %r of client %r has a gap: %d offsets before %d are not there any more"
                _log.warning(text, replay.topic_filter, client.client_id, piece.missed, piece.end)
        if client.replays.get(replay.topic_filter) is not replay or client.left:
            return False
        if replay.qos:
            replay.busy = True
            self._engine.feed(client.connection, replay.topic_filter, piece.data, piece.end)
        elif piece.data:
            await self._deliver(client, piece.data, piece.messages)
            return True
        return False

    async def _wait(self, client: _Client, wait_s: float) -> None:
        """Until messages have come to a stream, other subscriptions have come, or time is over."""
        assert self._streams is not None
        await self._streams.growth.wait(
            client.awake,
            wait_s,
            lambda: any(each.placed and each.has_more() for each in client.replays.values()),
        )

    async def _deliver(self, client: _Client, packets: bytes, messages: int) -> None:
        client.gone = asyncio.get_running_loop().create_future()
        self._engine.deliver(client.connection, packets, messages)
        if await client.gone:
            client.left = True

    def _check_streams(self, client: _Client) -> None:
        """TideMQError when a stream was deleted."""
        kept = self._streams.all if self._streams else {}
        for replay in client.replays.values():
            name = replay.stream.config.name
            if kept.get(name) is not replay.stream:
                raise TideMQError(f"the stream {name} was deleted")
