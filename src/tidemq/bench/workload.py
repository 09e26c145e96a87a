"""What a load run sends, and what came of it: plain values, no behaviour beyond arithmetic."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tidemq.bench.result import Bucket, End, Interval, Latency, LatencySpan
from tidemq.errors import UsageError

Part = Literal["whole", "enqueue", "drain"]

STAMP_BYTES = 16  # of a payload: sequence number (4), publisher (4), time in ns (8), little-endian
PAYLOAD_BYTES_MAX = 1 << 20
MESSAGES_MAX = 0xFFFFFFFF  # of each publisher: what a sequence number can say
WINDOW_MAX = 32_767  # half of the packet identifiers, so that none is reused while in flight
PREFIX_CHARACTERS_MAX = 14  # a client identifier made of it has the 23 that every broker must take


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One load: who publishes what to whom.

    Without `pairs` every subscriber receives all that every publisher sends; with it, subscriber n receives
    publisher n's messages only. With `mesh` the publishers are the subscribers (one connection is both).
    With `bounce`, connections 2n and 2n + 1 are a pair: what the first publishes the second receives and
    publishes back, and what is timed is the way there and back; each counts as publisher and subscriber.

    A `part` is a run of its own over the sessions that an earlier one left, `persistent` both: in "enqueue"
    the subscribers stay away, and the run ends when all is acknowledged; in "drain" they come back, do not
    subscribe again, and receive what was sent to them, while the publishers stay away.
    """

    name: str
    prefix: str = "bench"  # topic names and client identifiers begin so; two runs at once need two
    publishers: int = 1
    subscribers: int = 1
    pairs: bool = False
    mesh: bool = False
    bounce: bool = False
    qos: int = 0  # of publishing and of subscribing
    version: int = 4  # protocol version of CONNECT: 4 is MQTT 3.1.1, 5 is MQTT 5.0
    messages: int = 100_000  # each publisher sends
    seconds: float = (
        0.0  # stop publishing then, or hold the connections so long if nobody publishes; 0: never
    )
    payload_bytes: int = 64
    random: bool = False  # payloads that compression makes no smaller
    retain: bool = False
    persistent: bool = False  # sessions outlive their connections
    part: Part = "whole"
    topics: int = 1  # each publisher's, used in a scattered order; its subscriber subscribes to each
    topics_used: int = 0  # of those, how many are published to; 0: all
    rate_per_s: float = 0.0  # of all publishers together; 0: as fast as the broker takes it
    connect_rate_per_s: float = 0.0  # connections opened; 0: as fast as the broker takes them
    poll: bool = False  # the generator never sleeps, so that the broker is not charged for waking it
    idle_connections: int = 0  # connected besides, silent
    # QoS 1 and 2: messages in flight, each publisher, or as few as the broker allows (5.0: Receive Maximum).
    # With 1 the wait for each acknowledgement is measured
    window: int = 100
    # sent, and not yet received by every subscriber, in all; 0: no bound. Paced runs have none
    outstanding_max: int = 20_000
    block_bytes: int = 65_536  # at most so much is handed to one send
    one_by_one: bool = False  # each message is a send of its own, when it is due

    @property
    def single(self) -> bool:
        """Each message goes to one subscriber."""
        return self.pairs or self.bounce

    @property
    def deliveries(self) -> int:
        """Messages that subscribers receive in all if all `messages` are sent."""
        return 0 if self.part == "enqueue" else self.deliveries_of(self.publishers * self.messages)

    def deliveries_of(self, sent: int) -> int:
        """Messages that subscribers receive in all if so many were sent."""
        return sent * (1 if self.single else self.subscribers)

    @property
    def connections(self) -> int:
        """All of them; in a part, those that stay away too."""
        both = self.mesh or self.bounce
        return self.publishers + (0 if both else self.subscribers) + self.idle_connections

    @property
    def latency_span(self) -> LatencySpan:
        """What the latencies of a run measure."""
        if self.bounce:
            return "due to returned" if self.rate_per_s else "sent to returned"
        return "due to received" if self.rate_per_s else "sent to received"


@dataclass(frozen=True, slots=True, kw_only=True)
class Connecting:
    """How the connections of a run came up."""

    connections: int
    seconds: float  # from the first SYN until all are connected and subscribed
    latency: Latency | None  # from SYN to CONNACK
    latencies: tuple[Bucket, ...] = ()  # the same, all of them

    @property
    def per_s(self) -> float:
        return self.connections / self.seconds if self.seconds else 0.0


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
    generator_ready_share: float  # of the run's time the thread ran or waited for a core; else it slept
    latency: Latency | None  # paced: from when a message was due, else from its sending, to its parsing
    latencies: tuple[Bucket, ...]  # the same, all of them
    ack_latency: Latency | None  # with a window of 1: from PUBLISH to PUBACK or PUBCOMP
    intervals: tuple[Interval, ...]
    reason: str = ""  # of a disconnection, where the broker gave one
    shares: int = 1  # generators that drove it
    clock_error_s: float = 0.0  # latencies between machines may be off by so much
    word_s: float = 0.0  # how old at most the word was, on average, of what had arrived at other shares

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
        """Everything arrived once and in order, and was acknowledged in order."""
        faults = self.lost + self.duplicates + self.disordered + self.foreign + self.ack_errors
        return self.end == "complete" and faults == 0


def check_workload(workload: Workload) -> None:
    """Raise UsageError for what this generator cannot send or check."""
    for wrong, text in (*faults_of_numbers(workload), *faults_of_shape(workload)):
        if wrong:
            raise UsageError(text)


def faults_of_numbers(load: Workload) -> tuple[tuple[bool, str], ...]:
    sizes = STAMP_BYTES <= load.payload_bytes <= PAYLOAD_BYTES_MAX
    named = load.prefix.isascii() and load.prefix.isalnum() and len(load.prefix) <= PREFIX_CHARACTERS_MAX
    counts = (load.publishers, load.subscribers, load.idle_connections, load.outstanding_max)
    return (
        (not sizes, f"a payload has {STAMP_BYTES} to {PAYLOAD_BYTES_MAX:,} bytes, not {load.payload_bytes}"),
        (not 0 <= load.messages <= MESSAGES_MAX, f"messages must be 0 to {MESSAGES_MAX:,} of each publisher"),
        (min(counts) < 0, "there cannot be fewer than 0 connections or messages"),
        (load.connections < 1, "a load needs at least one connection"),
        (not 1 <= load.window <= WINDOW_MAX, f"window must be 1 to {WINDOW_MAX}"),
        (load.qos not in (0, 1, 2), "QoS must be 0, 1 or 2"),
        (load.version not in (4, 5), "version must be 4 (MQTT 3.1.1) or 5 (MQTT 5.0)"),
        (min(load.rate_per_s, load.connect_rate_per_s) < 0, "a rate cannot be below 0"),
        (load.rate_per_s > 1e9, "a rate can be 1,000,000,000 a second at most"),
        (load.seconds < 0, "a run cannot last less than 0 seconds"),
        (not named, f"a prefix has 1 to {PREFIX_CHARACTERS_MAX} letters and digits"),
    )


def faults_of_shape(load: Workload) -> tuple[tuple[bool, str], ...]:
    in_part = load.mesh or load.bounce or not load.persistent or load.rate_per_s > 0 or load.seconds > 0
    unequal = load.publishers != load.subscribers
    return (
        (
            load.part != "whole" and in_part,
            "a run in parts needs persistent sessions, and knows neither mesh nor bounce, rate nor seconds",
        ),
        (
            load.mesh and unequal,
            "in a mesh the publishers are the subscribers: give the same number of both",
        ),
        (load.pairs and unequal, "pairs need as many publishers as subscribers"),
        (
            load.bounce and (unequal or load.publishers % 2 == 1),
            "to bounce needs an even number of publishers, and as many subscribers",
        ),
        (
            load.topics > 1 and (not load.pairs or load.bounce),
            "several topics are for pairs: only there does a subscriber hear one publisher",
        ),
    )
