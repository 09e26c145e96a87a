"""Connections of every scheme as one thing: bytes out by `send`, bytes in to an `Owner`.

A link hands everything that is sent to the operating system at once, or says that it cannot: then nothing
more may be sent until it says that all of it has gone.
"""

from __future__ import annotations

import asyncio
from typing import Any, Protocol


class Owner(Protocol):
    """Who uses a link. All calls come from the event loop."""

    def room(self) -> memoryview:
        """Where to read to."""

    def wrote(self, size: int) -> None:
        """So many bytes have been read to there."""

    def feed(self, data: bytes) -> None:
        """Bytes that came another way."""

    def received(self) -> None:
        """There is something new to be parsed."""

    def writable(self, yes: bool) -> None:
        """No: what was sent has not all gone; yes: now it has."""

    def ended(self, error: Exception | None) -> None:
        """The connection is over; None: the server closed it. Called once, last."""


class Link(asyncio.BufferedProtocol):
    """A TCP, TLS or Unix connection."""

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self.transport: Any = None

    def send(self, data: bytes) -> None:
        self.transport.write(data)

    def close(self) -> None:
        """After what was sent has gone."""
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()

    def pause(self) -> None:
        """Nothing is read until `proceed`."""
        self.transport.pause_reading()

    def proceed(self) -> None:
        self.transport.resume_reading()

    # --- called by asyncio

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        # every write that does not go at once pauses; a TLS transport pauses at its limit, not above it
        secure = transport.get_extra_info("ssl_object") is not None
        self.transport.set_write_buffer_limits(high=1 if secure else 0, low=0)

    def get_buffer(self, sizehint: int) -> memoryview:
        return self.owner.room()

    def buffer_updated(self, nbytes: int) -> None:
        self.owner.wrote(nbytes)
        self.owner.received()

    def pause_writing(self) -> None:
        self.owner.writable(False)

    def resume_writing(self) -> None:
        self.owner.writable(True)

    def connection_lost(self, error: Exception | None) -> None:
        self.owner.ended(error)
