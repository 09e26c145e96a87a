"""Every limit of the broker, with its unit, in one place. `config.py` reads them from file, flags and
environment.

A limit of 0 means "none" only where its line says so. Sizes are bytes, times are seconds.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What one broker accepts and keeps. Passed once to the engine; changing it needs a new engine."""

    # what a client may send
    packet_bytes_max: int = 1 << 20  # one control packet; announced to 5.0 clients
    topic_bytes_max: int = 4096  # topic name or filter, at most 65,535
    topic_levels_max: int = 64
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

    # what the broker holds
    connections_max: int = 1_000_000
    sessions_max: int = 10_000_000
    replays_max: int = 32  # subscriptions to what streams keep; each holds a batch of messages, up to 16 MiB
    retained_messages_max: int = 10_000_000
    retained_ttl_s: int = 0  # after which a retained message goes; 0: never
    memory_bytes_max: int = 0  # messages and buffers; 0: three quarters of the machine's memory
    store_bytes_max: int = 0  # on disk; 0: as much as the disk has

    # time-outs and buffers
    connect_timeout_s: int = 10  # from accept to CONNECT
    output_high_bytes: int = 1 << 20  # of one connection: its publishers are paused above it
    output_bytes_max: int = 16 << 20  # of one connection: above it, or after the pause, QoS 0 is dropped
    backpressure_s: int = 5  # how long a publisher waits for a slow receiver before the policy applies
    shutdown_s: int = 5  # for the last writes when the broker stops
    event_queue_max: int = 100_000  # events waiting for the control plane
    inbox_messages_max: int = 32_768  # waiting for one reactor; publishers on others are paused above it

    # what a reactor remembers of who receives what
    cache_topics_max: int = 131_072  # topic names; beyond, new ones take the place of others
    cache_receivers_max: int = 4 << 20  # of all these topics, some 32 bytes each; beyond, it forgets all
