from libc.stdint cimport uint8_t

from tidemq.net.buffer cimport Buffer

cdef enum UpgradeFault:
    UPGRADED = 0
    NOT_HTTP = 1
    TOO_LONG = 2
    NOT_WEBSOCKET = 3      # Upgrade, Connection or Sec-WebSocket-Accept is not as it must be
    NOT_MQTT = 4           # another subprotocol, or none
    REFUSED = 5            # a client's: by another status than 101
    WRONG_METHOD = 6       # from here on a server's
    WRONG_PATH = 7
    WRONG_VERSION = 8
    WRONG_KEY = 9
    WRONG_ORIGIN = 10

cdef struct Upgrade:           # one connection's
    Buffer request             # a client's, to be sent; a server's, as far as it has come
    uint8_t[28] accept         # a client's: what Sec-WebSocket-Accept must say
    Buffer response            # a client's, as far as it has come; a server's, to be sent
    bint done
    UpgradeFault fault
    int status                 # of HTTP

cdef size_t take_response(Upgrade* upgrade, const uint8_t* data, size_t size) noexcept nogil
cdef size_t find_header(const uint8_t* text, size_t size, const char* name, const uint8_t** value) noexcept nogil
cdef bint is_word(const uint8_t* text, size_t size, const char* word) noexcept nogil
cdef void release_upgrade(Upgrade* upgrade) noexcept nogil
cdef const char* upgrade_fault_name(UpgradeFault fault) noexcept nogil
cdef object upgrade_text(const Upgrade* upgrade)
