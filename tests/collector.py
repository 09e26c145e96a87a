"""A collector of spans: OTLP over HTTP, decoded by OpenTelemetry's own messages."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span


@dataclass
class Collector:
    """What it was sent; `status` is its answer."""

    url: str
    status: int = 200
    service: str = ""
    spans: list[Span] = field(default_factory=list)

    def take(self, body: bytes) -> None:
        for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
            found = {each.key: each.value.string_value for each in resource.resource.attributes}
            self.service = found["service.name"]
            for scope in resource.scope_spans:
                self.spans.extend(scope.spans)

    def steps_of(self, trace: str) -> list[str]:
        return [each.name for each in self.of(trace)]

    def of(self, trace: str) -> list[Span]:
        """In the order of their beginnings."""
        found = [each for each in list(self.spans) if each.trace_id.hex() == trace]
        return sorted(found, key=lambda each: (each.start_time_unix_nano, each.name != "receive"))


@contextmanager
def collecting() -> Iterator[Collector]:
    """Until the block ends, on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            if found.status == 200:
                found.take(gzip.decompress(body) if self.headers["content-encoding"] == "gzip" else body)
            self.send_response(found.status)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        found = Collector(f"http://127.0.0.1:{server.server_port}")
        threading.Thread(target=server.serve_forever).start()
        yield found
        server.shutdown()
