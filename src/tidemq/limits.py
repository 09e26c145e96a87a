"""Every limit of the broker, with its unit, in one place. `config.py` reads them from file, flags and
environment.

A limit of 0 means "none" only where its line says so. Sizes are bytes, times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one broker accepts and keeps. Only those of CHANGEABLE change while it runs."""

    # what a client may send
    packet_bytes_max: int = 1 << 20  # one control packet; announced to 5.0 clients
    payload_bytes_max: int = 0  # of a PUBLISH or a will; 0: as many as its packet takes
    topic_bytes_max: int = 4096  # topic name or filter, at most 65,535
    topic_levels_max: int = 64
    wildcard_ways_max: int = 500  # in which the `+` of a filter could be spread over its levels
    client_id_bytes_max: int = 1024
    keep_alive_s_max: int = 0  # 0: any; else announced as server keep alive to 5.0 clients
    topic_alias_max: int = 32  # aliases that a client may set, and that we set towards it
    receive_max: int = 1024  # QoS 1 and 2 messages a 5.0 client may have unacknowledged towards us

    # what we send
    inflight_max: int = 1024  # messages unacknowledged towards one client; its Receive Maximum may lower it
    ack_timeout_s: int = 0  # resend to a 3.1 client what it did not acknowledge for so long; 0: never

    # what a session may hold
    subscriptions_max: int = 10_000  # a client
    session_expiry_s_max: int = 0xFFFFFFFF  # 0xFFFFFFFF: for ever
    queued_messages_max: int = 100_000  # a session, in flight included
    queued_bytes_max: int = 256 << 20  # a session
    queue_window_messages: int = 1000  # waiting for a connected client, in memory; the rest is in the store

    # how fast clients may be: a second's worth at once, the rest waits; a listener may have its own
    client_messages_per_s: int = 0  # all packets but acknowledgements; 0: any number
    client_bytes_per_s: int = 0  # as they come from the network; 0: any number
    listener_messages_per_s: int = 0  # of all clients of a listener together; 0: any number
    listener_bytes_per_s: int = 0  # 0: any number
    connects_per_s: int = 0  # of a listener; 0: any number
    connections_per_address_max: int = 0  # of an IPv4 address or an IPv6 network of 64 bits; 0: any number
    flapping_connects_max: int = 0  # of one client in the window; beyond it is banned; 0: any number
    flapping_window_s: int = 60
    flapping_ban_s: int = 300
    flapping_clients_max: int = 100_000  # remembered for this, some 100 bytes each

    # what the broker holds
    connections_max: int = 1_000_000
    sessions_max: int = 10_000_000
    subscriptions_total_max: int = 10_000_000  # of all sessions
    replays_max: int = 32  # subscriptions to what streams keep; each holds a batch of messages, up to 16 MiB
    compaction_bytes_max: int = 128 << 20  # topics, and 12 bytes for each, of a stream's compaction at a time
    retained_messages_max: int = 10_000_000
    retained_ttl_s: int = 0  # after which a retained message goes; 0: never
    memory_bytes_max: int = 0  # messages and buffers; 0: three quarters of the machine's memory
    store_bytes_max: int = 0  # on disk; 0: as much as the disk has

    # time-outs and buffers
    connect_timeout_s: int = 10  # from accept to CONNECT
    packet_s_max: int = 300  # for a packet to become whole once it has begun; 0: any
    output_stalled_s_max: int = 60  # that a client may take none of its output; 0: any
    tcp_keepalive_s: int = 300  # of silence, after which TCP asks whether the client is there; 0: never
    tcp_keepalive_interval_s: int = 30  # between two such questions
    tcp_keepalive_probes: int = 4  # so many without an answer end the connection
    tcp_user_timeout_s: int = 120  # that what was sent may be unacknowledged by TCP; 0: as the system has it
    output_high_bytes: int = 1 << 20  # of one connection: its publishers are paused above it
    output_bytes_max: int = 16 << 20  # of one connection: above it, or after the pause, QoS 0 is dropped
    backpressure_s: int = 5  # how long a publisher waits for a slow receiver before the policy applies
    shutdown_s: int = 5  # for the last writes when the broker stops
    event_queue_max: int = 100_000  # events waiting for the control plane
    spans_per_s: int = 0  # for OpenTelemetry, of messages with `traceparent`; 0: none
    inbox_messages_max: int = 32_768  # waiting for one reactor; publishers on others are paused above it
    node_bytes_max: int = 16 << 20  # under way to one other node of a cluster, and from all to one reactor

    # what a reactor remembers of who receives what
    cache_topics_max: int = 131_072  # topic names; beyond, new ones take the place of others
    cache_receivers_max: int = 4 << 20  # of all these topics, some 32 bytes each; beyond, it forgets all


# that the engine looks at each time it needs them, so that a running broker can have others
CHANGEABLE = (
    "subscriptions_max",
    "subscriptions_total_max",
    "session_expiry_s_max",
    "queued_messages_max",
    "queued_bytes_max",
    "connections_max",
    "sessions_max",
    "retained_messages_max",
    "memory_bytes_max",
    "connect_timeout_s",
    "packet_s_max",
    "output_stalled_s_max",
    "output_high_bytes",
    "output_bytes_max",
    "backpressure_s",
)
