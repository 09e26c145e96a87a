"""What lies between the devices and the broker: it passes bytes on, keeps answers back when it is told to,
and cuts connections. What was published and not answered, devices send again.
"""

from __future__ import annotations

import asyncio
from typing import Self

BLOCK_BYTES = 1 << 16


class Relay:
    """`async with Relay(server_port) as relay:` listens on `relay.port`."""

    def __init__(self, server_port: int) -> None:
        self.server_port = server_port
        self.port = 0
        self._answering = asyncio.Event()
        self._answering.set()
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        self.cut()

    def keep_answers(self) -> None:
        """Nothing comes back from the broker until connections are cut."""
        self._answering.clear()

    def cut(self) -> None:
        """Ends all connections; what was under way is lost."""
        for writer in self._writers:
            writer.transport.abort()
        self._answering.set()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        try:
            back_reader, back = await asyncio.open_connection("127.0.0.1", self.server_port)
        except OSError:
            writer.transport.abort()
            self._writers.remove(writer)
            return
        self._writers.add(back)
        passing = asyncio.create_task(self._pass(reader, back))
        answering = asyncio.create_task(self._answer(back_reader, writer))
        await asyncio.wait([passing, answering], return_when=asyncio.FIRST_COMPLETED)
        for each in (writer, back):
            each.transport.abort()
            self._writers.remove(each)
        passing.cancel()
        answering.cancel()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(BLOCK_BYTES):
                writer.write(data)
                await writer.drain()
        except OSError:
            return

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(BLOCK_BYTES):
                await self._answering.wait()
                if writer.is_closing():
                    return
                writer.write(data)
                await writer.drain()
        except OSError:
            return
