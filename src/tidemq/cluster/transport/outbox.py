"""Messages that wait for one connection: put there by any thread, sent by the transport's, in their order."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections import deque
from collections.abc import Callable

from nats.aio.client import Client

from tidemq.cluster.transport.connecting import HEADERS_BYTES
from tidemq.cluster.transport.frames import pack_message


class Outbox:
    """Closed while there is no connection: what nobody can take now would be stale later."""

    def __init__(self, bytes_max: int, post: Callable[[Callable[[], object]], object]) -> None:
        """`post` calls a function on the transport's thread."""
        self._bytes_max, self._post = bytes_max, post
        self._lock = threading.Lock()
        self._waiting: deque[tuple[str, bytes]] = deque()
        self._bytes = 0
        self._is_open = False
        self._is_woken = False
        self._work = asyncio.Event()

    @property
    def waiting_bytes(self) -> int:
        return self._bytes

    def put(self, kind: str, body: bytes) -> bool:
        """Whether it is sent, if the connection lasts. One message may always wait, whatever its size."""
        with self._lock:
            if not self._is_open or (self._waiting and self._bytes + len(body) > self._bytes_max):
                return False
            self._waiting.append((kind, body))
            self._bytes += len(body)
            wakes = not self._is_woken
            self._is_woken = True
        if wakes:
            self._post(self._work.set)
        return True

    def open(self) -> None:
        with self._lock:
            self._is_open = True

    def close(self) -> int:
        """How many are dropped."""
        with self._lock:
            dropped = len(self._waiting)
            self._waiting.clear()
            self._bytes, self._is_open = 0, False
        return dropped

    async def send_all(self, client: Client, subject: str, sender: str) -> None:
        """For ever, as fast as the connection takes them. `subject`, `sender`: before and after the kind."""
        connection, number = secrets.randbits(32) or 1, 0
        piece_bytes = client.max_payload - HEADERS_BYTES
        while True:
            await self._work.wait()
            self._work.clear()
            with self._lock:
                self._is_woken = False
            while self._waiting:
                kind, body = self._waiting[0]
                for frame in pack_message(connection, number, body, piece_bytes):
                    await client.publish(f"{subject}.{kind}.{sender}", frame)
                number += 1
                self._sent(body)

    def _sent(self, body: bytes) -> None:
        """It waits no more, unless all of them were dropped meanwhile."""
        with self._lock:
            if self._waiting and self._waiting[0][1] is body:
                self._waiting.popleft()
                self._bytes -= len(body)
