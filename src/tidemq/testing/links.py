"""TCP between processes that whoever tests holds in his hand: passed on, slow, cut, or silent, in either
direction.

A link is a port that passes connections on to a server's port. Who connects to it is known by what it says:
`name_of` finds a name in the first bytes, as a node says its incarnation in its hello.
"""

from __future__ import annotations

import asyncio
import re
import socket
import struct
from collections.abc import Callable
from contextlib import suppress

READ_BYTES = 65_536
STEP_S = 1e-6  # between two pieces
NAMED_BYTES_MAX = 4096  # in which a name comes, if at all
HELLO = re.compile(rb'"incarnation": "([0-9a-f]{16})"')


def name_of_node(text: bytes) -> str | None:
    """The incarnation of the node that has opened a connection, in its own spelling."""
    found = HELLO.search(text)
    return found[1].decode() if found else None


def _reset(writer: asyncio.StreamWriter) -> None:
    """As where there is nobody: an end in order would mean that somebody has ended it."""
    stream = writer.get_extra_info("socket")
    if stream is not None and stream.fileno() >= 0:
        stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


class _Passage:
    """One connection through a link. `dangling`: who opened it has gone, and the server does not know."""

    def __init__(self, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self.near, self.far = near, far
        self.name: str | None = None
        self.begun = b""
        self.dangling = False
        self.due: dict[asyncio.StreamWriter, float] = {}  # when what is late has come, of the loop's clock

    def abort(self) -> None:
        _reset(self.near)
        _reset(self.far)


class Proxy:
    """Listens on `port` from `start` to `close`, and has `_pass_on` do what is done with each connection."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        raise NotImplementedError

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            # cancelled by `close`; asyncio's streams would report that as an error of theirs
            with suppress(OSError, asyncio.CancelledError):
                await self._pass_on(reader, writer)
        finally:
            self._tasks.discard(task)
            _reset(writer)


class Link(Proxy):
    """`target`: the server's port, asked at each connection."""

    def __init__(
        self, target: Callable[[], int], name_of: Callable[[bytes], str | None] = lambda _text: None
    ) -> None:
        super().__init__()
        self._target, self._name_of = target, name_of
        self._passages: set[_Passage] = set()
        self._stopped: frozenset[str] | None = frozenset()  # whose bytes do not get through; None: anybody's
        self._waiting = False  # they wait; else the connections have ended, and new ones do
        self._slow: frozenset[str] = frozenset()  # whose bytes are late
        self._late_s = 0.0
        self._open = asyncio.Event()  # nobody's bytes wait
        self._open.set()

    def cut(self, *names: str) -> None:
        """Connections end, of these names, or all where none is given, and so do new ones until `heal`."""
        self._stopped, self._waiting = frozenset(names) or None, False
        for each in list(self._passages):
            if self._is_stopped(each):
                each.abort()

    def silence(self, *names: str) -> None:
        """What these say, or are told, waits until `heal`."""
        self._stopped, self._waiting = frozenset(names) or None, True
        self._open.clear()

    def slow(self, late_s: float, *names: str) -> None:
        """What these say, or are told, comes so much later until `heal`. Meanwhile it is in memory."""
        self._slow, self._late_s = frozenset(names), late_s

    def heal(self) -> None:
        self._stopped = self._slow = frozenset()
        self._open.set()

    def strand(self) -> None:
        """Whoever has opened a connection loses it now; the server does not learn of it until `forget`."""
        for each in self._passages:
            each.dangling = True
            each.near.transport.abort()

    def forget(self) -> None:
        """The server learns of it."""
        for each in list(self._passages):
            if each.dangling:
                each.abort()

    def _is_stopped(self, passage: _Passage) -> bool:
        return self._stopped is None or passage.name in self._stopped

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far = await asyncio.open_connection("127.0.0.1", self._target())
        await self._pass(_Passage(writer, far), reader, far_reader)

    async def _pass(self, passage: _Passage, near: asyncio.StreamReader, far: asyncio.StreamReader) -> None:
        self._passages.add(passage)
        there = asyncio.create_task(self._there(passage, near))
        back = asyncio.create_task(self._back(passage, far))
        try:
            await asyncio.wait({there, back}, return_when=asyncio.FIRST_COMPLETED)
            if passage.dangling:
                await back
        finally:
            self._passages.discard(passage)
            passage.abort()
            for task in (there, back):
                task.cancel()
            await asyncio.gather(there, back, return_exceptions=True)

    async def _there(self, passage: _Passage, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(READ_BYTES):
            if len(passage.begun) < NAMED_BYTES_MAX:
                passage.begun += data
                passage.name = self._name_of(passage.begun) or passage.name
            await self._write(passage, passage.far, data)

    async def _back(self, passage: _Passage, reader: asyncio.StreamReader) -> None:
        while data := await reader.read(READ_BYTES):
            if not passage.dangling:
                with suppress(OSError):  # it may begin to dangle now
                    await self._write(passage, passage.near, data)

    async def _write(self, passage: _Passage, writer: asyncio.StreamWriter, data: bytes) -> None:
        while self._is_stopped(passage):
            if not self._waiting:
                raise ConnectionResetError("cut")
            await self._open.wait()
        loop = asyncio.get_running_loop()
        late_s = self._late_s if passage.name in self._slow else 0.0
        if late_s or writer in passage.due:  # then in the order of the clock, which is behind what is late
            passage.due[writer] = max(loop.time() + late_s, passage.due.get(writer, 0.0) + STEP_S)
            loop.call_at(passage.due[writer], writer.write, data)
            return
        writer.write(data)
        await writer.drain()
