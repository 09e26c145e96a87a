"""Sends spans to a collector, by OpenTelemetry's SDK: OTLP over HTTP.

Where to, and with which credentials, say the environment variables that each such SDK reads, such as
`OTEL_EXPORTER_OTLP_ENDPOINT`. Attributes are those of OpenTelemetry's conventions for messaging, where these
have one.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import SERVICE_NAME, Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.trace import (
    NonRecordingSpan,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
    set_span_in_context,
)

import tidemq

if TYPE_CHECKING:
    from opentelemetry.context import Context

    from tidemq.engine.door.events import Spanned

WAITING_MAX = 20_000  # spans that wait for the collector
BATCH_MAX = 512  # in one request
EXPORT_S = 5.0  # for one request, with what is tried again
FAILED_FROM = 0x80  # reason codes
_KINDS = {"receive": SpanKind.CONSUMER, "commit": SpanKind.INTERNAL, "deliver": SpanKind.PRODUCER}


class _Identifiers(RandomIdGenerator):
    """What the next span will be known by, where the engine has told others already."""

    given = ""

    def generate_span_id(self) -> int:
        return int(self.given, 16) if self.given else super().generate_span_id()


class _Counted(SpanExporter):
    """Counts what the collector has taken, and what it has not."""

    def __init__(self, inner: SpanExporter, counts: Counter[str]) -> None:
        self._inner = inner
        self._counts = counts

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """On the SDK's thread, which alone counts here."""
        result = SpanExportResult.FAILURE
        try:
            result = self._inner.export(spans)
        finally:
            if result is SpanExportResult.SUCCESS:
                self._counts["spans_sent"] += len(spans)
            else:
                self._counts["spans_lost"] += len(spans)
        return result

    def shutdown(self) -> None:
        self._inner.shutdown()


class Export:
    """`add` belongs to one thread; what it takes is sent by another."""

    def __init__(self) -> None:
        self._added = self._left_out = 0
        self._exported: Counter[str] = Counter(spans_sent=0, spans_lost=0)
        self._identifiers = _Identifiers()
        self._provider = TracerProvider(
            resource=Resource.create({SERVICE_NAME: os.environ.get("OTEL_SERVICE_NAME", "tidemq")}),
            id_generator=self._identifiers,
            shutdown_on_exit=False,
        )
        exporter = _Counted(OTLPSpanExporter(timeout=EXPORT_S), self._exported)
        self._provider.add_span_processor(
            BatchSpanProcessor(exporter, max_queue_size=WAITING_MAX, max_export_batch_size=BATCH_MAX)
        )
        self._tracer = self._provider.get_tracer("tidemq", tidemq.__version__)

    @property
    def counts(self) -> Counter[str]:
        """Spans that the collector has taken, and those that it has not."""
        counts = self._exported.copy()
        counts["spans_lost"] += self._left_out  # apart, for another thread counts the others
        return counts

    def add(self, event: Spanned) -> None:
        """Left out where so many wait that the SDK would drop one, which nobody would count."""
        if self._added - self._exported.total() >= WAITING_MAX - BATCH_MAX:
            self._left_out += 1
            return
        self._added += 1
        self._identifiers.given = event.span_id
        span = self._tracer.start_span(
            event.step,
            _parent(event.traceparent),
            _KINDS[event.step],
            {
                "messaging.system": "mqtt",
                "messaging.operation.name": event.step,
                "messaging.destination.name": event.topic,
                "messaging.client.id": event.client_id,
                "messaging.message.body.size": event.payload_bytes,
                "mqtt.qos": event.qos,
            },
            start_time=event.begin_ns,
        )
        if event.reason >= FAILED_FROM:
            span.set_status(Status(StatusCode.ERROR, f"reason code 0x{event.reason:02x}"))
        span.end(event.end_ns)

    def close(self) -> None:
        """Waits no longer than one request may take; a collector that does not answer holds up nobody."""
        last = threading.Thread(target=self._provider.shutdown, daemon=True)
        last.start()
        last.join(EXPORT_S)


def _parent(traceparent: str) -> Context:
    """Of a valid `traceparent` of version 00."""
    _, trace, span, flags = traceparent.split("-")
    given = TraceFlags(int(flags, 16))
    context = SpanContext(int(trace, 16), int(span, 16), is_remote=True, trace_flags=given)
    return set_span_in_context(NonRecordingSpan(context))
