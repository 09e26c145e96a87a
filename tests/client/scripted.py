"""A server that says what the test wants it to: for faults that no real broker shows."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from tidemq.wire import Connack, Connect, Decoder, Packet, encode

READ_BYTES = 1 << 16


class Peer:
    """The server's side of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, version: int) -> None:
        self._reader, self.writer, self.version = reader, writer, version
        self._decoder = Decoder(version)

    async def receive(self) -> Any:
        """The client's next packet; None when it has closed."""
        while (packet := next(self._decoder, None)) is None:
            data = await self._reader.read(READ_BYTES)
            if not data:
                return None
            self._decoder.feed(data)
        return packet

    async def accept(self, connack: Connack | None = None) -> Connect:
        """Takes CONNECT and answers."""
        packet = await self.receive()
        assert isinstance(packet, Connect)
        self.send(connack or Connack())
        return packet

    def send(self, *packets: Packet | bytes) -> None:
        for packet in packets:
            self.writer.write(packet if isinstance(packet, bytes) else encode(packet, self.version))


class ScriptedServer:
    """`async with ScriptedServer(script) as server:`: `script(peer)` runs for each connection, which then
    ends."""

    def __init__(self, script: Callable[[Peer], Awaitable[None]], version: int = 5) -> None:
        self._script, self._version = script, version
        self.connections = 0
        self.errors: list[BaseException] = []
        self._tasks: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> ScriptedServer:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.url = f"mqtt://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"
        return self

    async def __aexit__(self, *_: object) -> None:
        self._server.close()
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)
        assert not self.errors, self.errors

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        self.connections += 1
        try:
            await self._script(Peer(reader, writer, self._version))
        except (OSError, asyncio.CancelledError):
            pass
        except BaseException as error:  # noqa: BLE001 (a script fails the test, at its end)
            self.errors.append(error)
        finally:
            writer.close()
