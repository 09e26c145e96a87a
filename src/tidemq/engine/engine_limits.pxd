from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef struct EngineLimits:        # limits.Limits, in the engine's units
    uint32_t packet_bytes_max
    uint32_t topic_bytes_max
    uint32_t topic_levels_max
    uint32_t client_id_bytes_max
    uint32_t keep_alive_s_max
    uint16_t topic_alias_max
    uint16_t receive_max
    uint16_t inflight_max
    uint32_t ack_timeout_s
    uint32_t subscriptions_max
    uint32_t session_expiry_s_max
    uint32_t queued_messages_max
    uint64_t queued_bytes_max
    int64_t connections_max
    int64_t sessions_max
    uint64_t retained_messages_max
    int64_t memory_bytes_max
    int64_t connect_timeout_ms
    uint32_t output_high_bytes
    uint32_t output_bytes_max
    int64_t backpressure_ms
    int64_t shutdown_ms
    uint64_t event_queue_max
    int inbox_messages_max
    uint32_t cache_topics_max
    uint64_t cache_receivers_max
    uint32_t queue_window_messages
    int64_t retained_ttl_ms
