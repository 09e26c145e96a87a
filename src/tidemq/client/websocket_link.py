"""MQTT over WebSocket (5.0 section 6): the same link, its bytes in binary frames.

The protocol is the package `websockets`, without its I/O (extra `tidemq[websocket]`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

from tidemq.client.address import Address
from tidemq.client.errors import ConnectError
from tidemq.client.link import Link, Owner
from tidemq.errors import UsageError

try:
    from websockets.client import ClientProtocol
    from websockets.frames import Frame, Opcode
    from websockets.http11 import Response
    from websockets.protocol import State
    from websockets.typing import Subprotocol
    from websockets.uri import parse_uri
except ImportError as error:
    raise UsageError("ws:// and wss:// need the package websockets: install tidemq[websocket]") from error

_READ_BYTES = 1 << 16
_DATA = (Opcode.BINARY, Opcode.CONT)


class WebSocketLink(Link):
    """A connection upgraded to WebSocket, over TCP or TLS. A frame of more than `frame_bytes_max` ends it."""

    def __init__(
        self, owner: Owner, address: Address, headers: Mapping[str, str], frame_bytes_max: int
    ) -> None:
        super().__init__(owner)
        self._headers = headers
        self._protocol = ClientProtocol(
            parse_uri(address.resource), subprotocols=[Subprotocol("mqtt")], max_size=frame_bytes_max
        )
        self._upgraded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._buffer = bytearray(_READ_BYTES)

    async def open(self) -> None:
        """The upgrade; `ConnectError` where the server does not want it."""
        request = self._protocol.connect()
        for name, value in self._headers.items():
            if name in request.headers:
                del request.headers[name]
            request.headers[name] = value
        self._protocol.send_request(request)
        self._write()
        await self._upgraded

    def send(self, data: bytes) -> None:
        if self._protocol.state is not State.OPEN:
            self.owner.writable(False)  # the server has closed it: nothing goes any more
            return
        self._protocol.send_binary(data)
        self._write()

    def close(self) -> None:
        if self._protocol.state is State.OPEN:
            self._protocol.send_close(1000)
            self._write()
        self.transport.close()

    def _write(self) -> None:
        data = b"".join(self._protocol.data_to_send())
        if data:
            self.transport.write(data)

    # --- called by asyncio

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self._protocol.receive_data(bytes(memoryview(self._buffer)[:nbytes]))
        fed = False
        for event in self._protocol.events_received():
            if isinstance(event, Response):
                self._upgrade()
            elif isinstance(event, Frame) and event.opcode in _DATA:
                self.owner.feed(bytes(event.data))
                fed = True
        self._write()  # answers to ping and close
        if fed:
            self.owner.received()
        if self._protocol.close_expected():
            self.transport.close()

    def _upgrade(self) -> None:
        error = self._protocol.handshake_exc
        if self._upgraded.done():
            return
        if error is None:
            self._upgraded.set_result(None)
        else:
            self._upgraded.set_exception(
                ConnectError(f"the server does not speak MQTT over WebSocket: {error}")
            )

    def connection_lost(self, error: Exception | None) -> None:
        if not self._upgraded.done():
            self._upgraded.set_exception(
                ConnectError("the server closed the connection before it was a WebSocket")
            )
        super().connection_lost(error)
