from libc.stdint cimport uint8_t

from tidemq.net.buffer cimport Buffer

cdef enum UpgradeFault:
    UPGRADED = 0
    NOT_HTTP = 1
    REFUSED = 2            # by another status than 101
    NOT_WEBSOCKET = 3      # Upgrade, Connection or Sec-WebSocket-Accept is not as it must be
    NOT_MQTT = 4           # another subprotocol, or none
    TOO_LONG = 5

cdef struct Upgrade:           # a client's, one connection's
    Buffer request             # to be sent
    uint8_t[28] accept         # what Sec-WebSocket-Accept must say
    Buffer response            # as far as it has come
    bint done
    UpgradeFault fault
    int status                 # of HTTP

cdef size_t take_response(Upgrade* upgrade, const uint8_t* data, size_t size) noexcept nogil
cdef size_t find_header(const uint8_t* text, size_t size, const char* name, const uint8_t** value) noexcept nogil
cdef void release_upgrade(Upgrade* upgrade) noexcept nogil
cdef object upgrade_text(const Upgrade* upgrade)
