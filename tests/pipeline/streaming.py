"""A broker with streams, and what publishes into them."""

from __future__ import annotations

import json
import random
import sys
import time
import urllib.request
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from tidemq.client import sync as blocking
from tidemq.client.streams import StreamReader
from tidemq.testing.ports import free_port

TIDEMQ = [sys.executable, "-c", "from tidemq.cli import main; main()"]
SETTINGS = """
store = "sqlite"
data = "{data}"
admin_port = {admin_port}

[[listeners]]
name = "slow"
host = "127.0.0.1"
port = {slow_port}
client_messages_per_s = 2000
"""


class Streaming:
    """Its streams are declared by `declare`; each has the topics below its name. Who publishes at `slow_port`
    is given time.
    """

    def __init__(self, start: Callable[..., Any], data: Path) -> None:
        self.admin_port, self.slow_port = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.admin_port}"
        self._names: set[str] = set()
        self.broker = start(SETTINGS.format(data=data, admin_port=self.admin_port, slow_port=self.slow_port))

    def declare(self, name: str, **more: Any) -> str:
        """Makes a stream, of a name that no other test has."""
        assert name not in self._names, f"another test has a stream {name}"
        self._names.add(name)
        body = json.dumps({"filters": [f"{name}/#"]} | more).encode()
        self._ask("PUT", name, body)
        return name

    def delete(self, name: str) -> None:
        self._names.remove(name)
        self._ask("DELETE", name)

    def client(self, **options: Any) -> blocking.Client:
        return blocking.Client(f"mqtt://127.0.0.1:{self.broker.port}", **options)

    def publish(self, messages: Iterable[tuple[str, bytes]]) -> int:
        """The number of those that are acknowledged: all, or it raises."""
        with self.client() as client:
            return client.publish_many(messages, qos=1)

    def expire(self, name: str) -> None:
        """Publishes into a stream that keeps 1 MiB until its first messages are gone."""
        self.publish((f"{name}/b", random.randbytes(20_000)) for _ in range(200))
        deadline = time.monotonic() + 20
        while self.kept(name).start == 0 or StreamReader(self.url, name).describe().bytes > 3 << 20:
            assert time.monotonic() < deadline, "nothing expires"
            time.sleep(0.1)

    def kept(self, name: str) -> range:
        """The offsets of a stream's messages."""
        state = StreamReader(self.url, name).describe()
        return range(state.first_offset, state.next_offset)

    def _ask(self, method: str, name: str, body: bytes | None = None) -> None:
        request = urllib.request.Request(f"{self.url}/streams/{name}", body, method=method)
        urllib.request.urlopen(request, timeout=60).close()
