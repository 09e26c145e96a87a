"""Counts the messages on a topic of a broker that does not say how many it has received, and says so over
HTTP as TideMQ's counters do: `python client_witness.py BROKER_PORT TOPIC` prints the port of the count.
"""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, HTTPServer

from tidemq.client import Client


def answers(count: Callable[[], int]) -> type[BaseHTTPRequestHandler]:
    """What serves the count."""

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = json.dumps({"messages_received": count()}).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Nothing: the terminal is the benchmark's."""

    return Answers


async def main(port: str, topic: str) -> None:
    """Until it is killed."""
    seen = 0
    server = HTTPServer(("127.0.0.1", 0), answers(lambda: seen))
    async with Client(f"mqtt://127.0.0.1:{port}", queue_messages_max=1_000_000) as client:
        await client.subscribe(topic)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(server.server_port, flush=True)
        while True:
            seen += len(await client.messages.take())


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
