"""One blocking connection to a broker, for a few packets: MQTT's bytes, whatever they are wrapped in."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

from tidemq.bench.peer.target import Target
from tidemq.net.transport import Stream

READ_BYTES = 65_536


class Link:
    """Connected from construction on. Raises OSError, and ConnectionError, in one sentence, where TLS or
    WebSocket fail.
    """

    def __init__(self, target: Target, timeout_s: float) -> None:
        until_s = time.monotonic() + timeout_s
        self._url = target.url
        scheme = target.scheme()
        self._stream = None if scheme is None else Stream(scheme)
        self._socket = socket.socket(target.family, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(timeout_s)
            self._socket.connect(target.endpoint)
            if self._stream is not None:
                self._open(self._stream, until_s, timeout_s)
        except BaseException:
            self._socket.close()
            raise

    def _open(self, stream: Stream, until_s: float, timeout_s: float) -> None:
        stream.connected()
        try:
            while not stream.open:
                self._socket.sendall(stream.take_output())
                self.receive(until_s)  # nothing of MQTT: the client speaks first
        except TimeoutError as error:
            raise ConnectionError(
                f"{self._url}: no answer to {stream.step} within {timeout_s:g} s"
            ) from error
        except ConnectionResetError as error:
            raise ConnectionError(f"{self._url}: {stream.text}") from error

    def send(self, data: bytes) -> None:
        """Waits until the system has taken it."""
        if self._stream is not None:
            self._stream.send(data)
            data = self._stream.take_output()
        self._socket.sendall(data)

    def receive(self, until_s: float) -> bytes:
        """What has come, empty where that was nothing of MQTT; TimeoutError at the monotonic time `until_s`,
        ConnectionResetError at the end.
        """
        left_s = until_s - time.monotonic()
        if left_s <= 0:
            raise TimeoutError
        self._socket.settimeout(left_s)
        data = self._socket.recv(READ_BYTES)
        if self._stream is not None and data:
            data = self._stream.receive(data)
            if self._stream.faulty:
                raise ConnectionError(f"{self._url}: {self._stream.text}")
            self._socket.sendall(self._stream.take_output())
            if data or not self._stream.over:
                return data
        if not data:
            raise ConnectionResetError
        return data

    def __enter__(self) -> Link:
        return self

    def __exit__(self, *_: object) -> None:
        """Closes it, in order where the broker still listens."""
        with suppress(OSError):
            if self._stream is not None and self._stream.open:
                self._stream.finish()
                self._socket.sendall(self._stream.take_output())
        self._socket.close()
