from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libcpp cimport bool

cdef enum:   # what happens to a message for a queue that is full
    FULL_DROP_NEWEST
    FULL_DROP_OLDEST
    FULL_REJECT

cdef struct EngineLimits:        # limits.Limits, in the engine's units
    uint32_t packet_bytes_max
    uint32_t payload_bytes_max   # 0: any
    uint32_t topic_bytes_max
    uint32_t topic_levels_max
    uint64_t wildcard_ways_max
    uint32_t client_id_bytes_max
    uint32_t keep_alive_s_max
    uint16_t topic_alias_max
    uint16_t receive_max
    uint16_t inflight_max
    uint32_t ack_timeout_s
    uint32_t subscriptions_max
    int64_t subscriptions_total_max
    uint32_t session_expiry_s_max
    uint32_t queued_messages_max
    uint64_t queued_bytes_max
    int64_t connections_max
    int64_t sessions_max
    uint64_t retained_messages_max
    int64_t memory_bytes_max
    int64_t connect_timeout_ms
    int64_t packet_ms_max        # 0: any
    int64_t output_stalled_ms_max   # 0: any
    uint32_t flapping_connects_max   # 0: any number
    int64_t flapping_window_ms
    int64_t flapping_ban_ms
    size_t flapping_clients_max
    uint32_t output_high_bytes
    uint32_t output_bytes_max
    int64_t backpressure_ms
    int64_t shutdown_ms
    uint64_t event_queue_max
    uint32_t spans_per_s         # of all reactors; 0: none are made
    int inbox_messages_max
    int64_t node_bytes_max
    uint32_t cache_topics_max
    uint64_t cache_receivers_max
    uint32_t queue_window_messages
    int64_t retained_ttl_ms

cdef struct Rates:               # of a listener: what may come in a second, 0: any number
    bool limited                 # by one of the first four
    int64_t client_messages      # from each client
    int64_t client_bytes
    int64_t messages             # from all clients together
    int64_t bytes
    int64_t connects

cdef struct Usage:               # when what was taken is paid for, on the monotonic clock
    int64_t messages_ns
    int64_t bytes_ns
