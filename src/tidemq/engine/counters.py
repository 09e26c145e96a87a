"""Public names of the engine's counters, in the order of ``counters.pxd``."""

import cython
from cython.cimports.tidemq.engine.counters import COUNTER_COUNT

NAMES = (
    "connections_accepted",
    "connections_refused",
    "connections_closed",
    "sessions_created",
    "sessions_ended",
    "sessions_taken_over",
    "connections_moved",
    "publishers_moved",
    "bytes_received",
    "bytes_sent",
    "packets_received",
    "messages_received",
    "messages_sent",
    "messages_mailed",
    "messages_retained",
    "messages_unrouted",
    "messages_captured",
    "messages_resent",
    "dropped_slow_consumer",
    "dropped_queue_full",
    "dropped_expired",
    "dropped_packet_too_large",
    "dropped_session_ended",
    "dropped_offline_qos_0",
    "dropped_no_group_member",
    "dropped_receiver_full",
    "dropped_retained_full",
    "dropped_memory",
    "dropped_store_failed",
    "refused_not_authorised",
    "refused_store",
    "publishers_paused",
    "events_dropped",
    "faults",
    "turns",
    "cache_misses",
    "live_connections",
    "live_sessions",
    "live_messages",
    "live_subscriptions",
    "live_buffers",
    "live_entries",
    "memory_messages",
    "memory_buffers",
)

_count: cython.int = COUNTER_COUNT
if len(NAMES) != _count:
    raise ImportError("counters.py and counters.pxd name different counters")
