"""Streams over HTTP: declared, listed, deleted, and read as Arrow IPC by ranges of offsets.

A read is answered from the segments' files by sendfile, from this loop: no reactor and no Python per message
takes part in it. Some columns are taken out of the batches by another thread, a piece at a time.
docs/streams.md describes the interface.
"""

from __future__ import annotations

import asyncio
import os
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import IO, Any, NoReturn, TypeVar

import pyarrow as pa
from aiohttp import web
from pydantic import ValidationError

from tidemq.broker.durability.keeper import Keeper
from tidemq.config import StreamConfig
from tidemq.errors import StoreError, UsageError
from tidemq.stream import Extent, Stream, Streams
from tidemq.stream.compaction import StoppedError
from tidemq.stream.projection import Projection
from tidemq.stream.ranges import ExpiredOffsetError, open_range
from tidemq.stream.schema import END, HEAD, SCHEMA, serialized_batch
from tidemq.stream.table import Table, TooManyTopicsError, read_table

T = TypeVar("T")

_SILENCE_S = 30.0  # of a reader of a table

WAIT_MAX_S = 60.0  # for a reader that waits for the next message
PIECE_BYTES = 4 << 20  # of batches whose columns are taken out at once,
PIECE_EXTENTS = 256  # or so many of them


class StreamRoutes:
    """The handlers of `/streams`; they run on the broker's event loop."""

    def __init__(self, find: Callable[[], tuple[Streams | None, Keeper | None]], node: str = "") -> None:
        """`find`: None where a program has brought a store that is not on disk. `node`: this broker's name in
        its cluster; empty: it is no node of one.
        """
        self._find = find
        self._node = node
        self._one_table = asyncio.Lock()

    @property
    def _streams(self) -> Streams:
        streams, _ = self._find()
        if streams is None:
            _refuse(web.HTTPNotFound, "this broker has no store on disk, and so no streams", "No streams")
        return streams

    @property
    def _keeper(self) -> Keeper:
        _, keeper = self._find()
        assert keeper is not None, "streams have a store"
        return keeper

    def routes(self) -> list[web.RouteDef]:
        """For an aiohttp application."""
        return [
            web.get("/streams", self._list),
            web.get("/streams/{name}", self._describe),
            web.put("/streams/{name}", self._declare),
            web.delete("/streams/{name}", self._delete),
            web.get("/streams/{name}/offset", self._offset_at),
            web.get("/streams/{name}/messages", self._read),
            web.get("/streams/{name}/last", self._read_table),
        ]

    async def _list(self, _: web.Request) -> web.Response:
        return web.json_response([self._said(stream) for stream in self._streams.all.values()])

    def _said(self, stream: Stream) -> dict[str, Any]:
        """A stream, and whose it is: each node of a cluster has its own."""
        return stream.describe() | {"node": self._node or None}

    async def _describe(self, request: web.Request) -> web.Response:
        """With `beyond` and `wait_s`: once the stream has a message of that offset, or the time is over."""
        stream = self._named(request)
        beyond = _number(request, "beyond", -1)
        until = time.monotonic() + min(_seconds(request, "wait_s"), WAIT_MAX_S)
        awake = asyncio.Event()
        while stream.log.next_offset <= beyond and (left_s := until - time.monotonic()) > 0:
            awake.clear()
            await self._streams.growth.wait(awake, left_s, lambda: stream.log.next_offset > beyond)
        return web.json_response(self._said(stream))

    async def _declare(self, request: web.Request) -> web.Response:
        name = request.match_info["name"]
        try:
            given = await request.json()
            if not isinstance(given, dict):
                raise ValueError("it is no object")
            config = StreamConfig.model_validate(given | {"name": name})
        except ValidationError as error:
            first = error.errors()[0]
            key = ".".join(str(part) for part in first["loc"])
            _refuse(web.HTTPBadRequest, f"{key}: {first['msg']}")
        except ValueError as error:
            _refuse(web.HTTPBadRequest, f"the body has to be a JSON object with filters: {error}")
        known = name in self._streams.all
        stream = await self._change(partial(self._streams.declare, config))
        return web.json_response(self._said(stream), status=200 if known else 201)

    async def _delete(self, request: web.Request) -> web.Response:
        name = self._named(request).config.name
        folder = await self._change(partial(self._streams.delete, name))
        await asyncio.to_thread(self._streams.remove_files, folder)
        return web.Response(status=204)

    async def _change(self, act: Callable[[], T]) -> T:
        """Changes what streams there are, on the keeper's thread, durable."""
        try:
            return await asyncio.wrap_future(self._keeper.ask(act))
        except UsageError as error:
            _refuse(web.HTTPBadRequest, str(error))
        except StoreError as error:
            _refuse(web.HTTPServiceUnavailable, str(error))

    async def _offset_at(self, request: web.Request) -> web.Response:
        """The offset to read from for all that came at `time_us` or later."""
        stream = self._named(request)
        return web.json_response({"offset": stream.log.offset_at(_number(request, "time_us"))})

    async def _read(self, request: web.Request) -> web.StreamResponse:
        """The messages from `start` up to `end`, and some around them: whole batches."""
        stream = self._named(request)
        start, end = _number(request, "start"), _number(request, "end")
        bytes_max = _number(request, "bytes_max", 0)
        _check_epoch(request, stream)
        columns = _columns(request)
        with ExitStack() as stack:
            try:
                runs = open_range(stream.log, start, end, bytes_max, stack)
            except ExpiredOffsetError as error:
                _refuse(web.HTTPGone, str(error))
            except StoreError as error:
                _refuse(web.HTTPInternalServerError, str(error))
            response = _answer(start, [each for _, run in runs for each in run], columns)
            await response.prepare(request)
            with suppress(ConnectionError):  # a reader may go when it has what it wants
                await response.write(columns.head if columns else HEAD)
                for file, run in runs:
                    if columns:
                        await _send_columns(response, file, run, columns)
                    else:
                        await _send(request, file, run)
                await response.write(END)
                await response.write_eof()
        return response

    async def _read_table(self, request: web.Request) -> web.StreamResponse:
        """The newest message of each topic of a stream with `last`."""
        stream = self._named(request)
        _check_epoch(request, stream)
        if not stream.config.last:
            _refuse(web.HTTPBadRequest, f"the stream {stream.config.name} is not one with last = true")
        names = request.query["columns"].split(",") if _columns(request) else SCHEMA.names

        def stopped() -> bool:
            return request.transport is None or self._streams.closing

        with ExitStack() as stack:
            try:
                async with self._one_table:  # each takes memory for its topics
                    limit = self._streams.topics_bytes_max
                    table = await asyncio.to_thread(read_table, stream.log, limit, stack, stopped)
            except StoppedError as error:
                _refuse(web.HTTPServiceUnavailable, str(error))
            except TooManyTopicsError as error:
                _refuse(web.HTTPInsufficientStorage, str(error))
            except (StoreError, OSError) as error:
                _refuse(web.HTTPInternalServerError, str(error))
            return await _send_table(request, table, [name for name in SCHEMA.names if name in names])

    def _named(self, request: web.Request) -> Stream:
        name = request.match_info["name"]
        stream = self._streams.all.get(name)
        if stream is None:
            _refuse(web.HTTPNotFound, f"there is no stream {name!r}", reason="No such stream")
        return stream


def _check_epoch(request: web.Request, stream: Stream) -> None:
    epoch = _number(request, "epoch", stream.epoch)
    if epoch != stream.epoch:
        _refuse(
            web.HTTPConflict,
            f"the stream {stream.config.name} was made anew: its epoch is {stream.epoch}, not {epoch}",
        )


def _columns(request: web.Request) -> Projection | None:
    """Those that the reader wants; None: all."""
    text = request.query.get("columns")
    if text is None:
        return None
    try:
        return Projection.of(tuple(text.split(",")))
    except UsageError as error:
        _refuse(web.HTTPBadRequest, str(error))


def _answer(start: int, extents: Sequence[Extent], columns: Projection | None) -> web.StreamResponse:
    """The beginning of an answer with these batches. How long it gets with some columns nobody knows yet."""
    headers = {
        "Content-Type": "application/vnd.apache.arrow.stream",
        "X-First-Offset": str(extents[0].first if extents else start),
        "X-Next-Offset": str(extents[-1].end if extents else start),
        "X-Messages": str(sum(each.rows for each in extents)),
    }
    if columns is None:
        headers["Content-Length"] = str(len(HEAD) + sum(each.length for each in extents) + len(END))
    return web.StreamResponse(headers=headers)


async def _send_columns(
    response: web.StreamResponse, file: IO[bytes], run: list[Extent], columns: Projection
) -> None:
    """Some columns of a run, piece by piece; another thread takes them out."""
    for piece in _pieces(run):
        try:
            data = await asyncio.to_thread(_project, file, piece, columns)
        except (ValueError, struct.error) as error:
            raise ConnectionResetError(f"a batch is not as it was written: {error}") from error
        await response.write(data)


async def _send_table(request: web.Request, table: Table, names: Sequence[str]) -> web.StreamResponse:
    """Some columns of a table, batch by batch; another thread reads them."""
    headers = {
        "Content-Type": "application/vnd.apache.arrow.stream",
        "X-Next-Offset": str(table.next_offset),
        "X-Messages": str(table.rows),
    }
    response = web.StreamResponse(headers=headers)
    batches = table.batches(names)
    with suppress(ConnectionError, TimeoutError):
        await response.prepare(request)
        await response.write(Projection.of(tuple(names)).head)
        while (data := await asyncio.to_thread(_next_batch, batches)) is not None:
            async with asyncio.timeout(_SILENCE_S):  # who does not read holds files that are removed
                await response.write(data)
        await response.write(END)
        await response.write_eof()
        return response
    if request.transport is not None:
        request.transport.abort()
    return response


def _next_batch(batches: Iterator[pa.RecordBatch]) -> memoryview | None:
    try:
        batch = next(batches, None)
        return None if batch is None else serialized_batch(batch)
    except (OSError, StoreError) as error:
        raise ConnectionResetError(f"a batch cannot be read: {error}") from error


def _project(file: IO[bytes], piece: list[Extent], columns: Projection) -> bytes:
    count = sum(each.length for each in piece)
    data = os.pread(file.fileno(), count, piece[0].position)
    if len(data) != count:
        raise ValueError("a segment is shorter than its extents")
    return columns.of_batches(data)


def _pieces(run: list[Extent]) -> Iterator[list[Extent]]:
    """Parts of a run that are small enough to be held in memory, and to be worked in a moment."""
    piece: list[Extent] = []
    size = 0
    for each in run:
        if piece and (size + each.length > PIECE_BYTES or len(piece) == PIECE_EXTENTS):
            yield piece
            piece, size = [], 0
        piece.append(each)
        size += each.length
    yield piece


async def _send(request: web.Request, file: IO[bytes], run: list[Extent]) -> None:
    """A run's bytes, from the file to the socket without passing through here."""
    transport = request.transport
    if transport is None:
        raise ConnectionResetError("the reader has gone")
    count = sum(each.length for each in run)
    if not count:  # all of it was compacted
        return
    sent = await asyncio.get_running_loop().sendfile(transport, file, run[0].position, count)
    if sent != count:
        raise ConnectionResetError("a segment is shorter than its extents")


def _number(request: web.Request, name: str, default: int | None = None) -> int:
    text = request.query.get(name)
    if text is None and default is not None:
        return default
    if text is None or not text.isascii() or not text.isdigit() or len(text) > 18:
        _refuse(web.HTTPBadRequest, f"{name} has to be given, as a whole number from 0: not {text!r}")
    return int(text)


def _seconds(request: web.Request, name: str) -> float:
    text = request.query.get(name, "0")
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 1e9:
        _refuse(web.HTTPBadRequest, f"{name} has to be seconds, not {text!r}")
    return value


def _refuse(kind: type[web.HTTPError], text: str, reason: str | None = None) -> NoReturn:
    raise kind(text=text, reason=reason)
