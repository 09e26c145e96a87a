"""What a load run sends, and what came of it: plain values, no behaviour beyond arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

End = Literal["complete", "stalled", "disconnected"]
Part = Literal["whole", "enqueue", "drain"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One load: who publishes what to whom.

    Without `pairs` every subscriber receives all that every publisher sends; with it, subscriber n receives
    publisher n's messages only. With `mesh` the publishers are the subscribers (one connection is both).

    A `part` is a run of its own over the sessions that an earlier one left, `persistent` both: in "enqueue"
    the subscribers stay away, and the run ends when all is acknowledged; in "drain" they come back, do not
    subscribe again, and receive what was sent to them, while the publishers stay away.
    """

    name: str
    publishers: int = 1
    subscribers: int = 1
    pairs: bool = False
    mesh: bool = False
    qos: int = 0  # of publishing and of subscribing
    version: int = 4  # protocol version of CONNECT: 4 is MQTT 3.1.1, 5 is MQTT 5.0
    messages: int = 100_000  # each publisher sends
    payload_bytes: int = 64
    random: bool = False  # payloads that compression makes no smaller
    retain: bool = False
    persistent: bool = False  # sessions outlive their connections
    part: Part = "whole"
    topics: int = 1  # each publisher's, used in a scattered order; its subscriber subscribes to each
    topics_used: int = 0  # of those, how many are published to; 0: all
    rate_per_s: int = 0  # of all publishers together; 0: as fast as the broker takes it
    poll: bool = False  # the generator never sleeps, so that the broker is not charged for waking it
    idle_connections: int = 0  # connected besides, silent
    window: int = (
        100  # QoS 1 and 2: messages in flight, each publisher; in 5.0 the broker must allow so many.
    )
    # With 1 the wait for each acknowledgement is measured
    outstanding_max: int = 20_000  # sent, and not yet received by every subscriber, in all; 0: no bound
    block_bytes: int = 65_536  # at most so much is handed to one send

    @property
    def deliveries(self) -> int:
        """Messages that subscribers must receive in all."""
        if self.part == "enqueue":
            return 0
        return self.publishers * self.messages * (1 if self.pairs else self.subscribers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Latency:
    """Quantiles of a wait, in microseconds."""

    p50_us: float
    p99_us: float
    p999_us: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one run of a workload showed. All counts but `sent` are of deliveries."""

    end: End
    sent: int  # messages published
    expected: int  # deliveries
    received: int  # deliveries, duplicates not counted
    lost: int
    duplicates: int
    disordered: int  # arrived after a later message of the same publisher
    foreign: int  # payload that this generator did not send to this subscriber
    ack_errors: int  # acknowledgements out of order or for no message
    seconds: float  # from the first message sent (drain: CONNECT) to the last received or acknowledged
    generator_cpu_s: float
    latency: Latency | None  # of paced runs: from when a message was due to its parsing at the subscriber
    ack_latency: Latency | None  # with a window of 1: from PUBLISH to PUBACK or PUBCOMP

    @property
    def messages_per_s(self) -> float:
        """Deliveries per second of wall-clock time."""
        return self.received / self.seconds if self.seconds else 0.0

    @property
    def sent_per_s(self) -> float:
        """Messages published per second of wall-clock time."""
        return self.sent / self.seconds if self.seconds else 0.0

    @property
    def intact(self) -> bool:
        """Everything arrived once and in order."""
        faults = self.lost + self.duplicates + self.disordered + self.foreign + self.ack_errors
        return self.end == "complete" and faults == 0
