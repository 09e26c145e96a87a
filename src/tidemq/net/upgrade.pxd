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

cdef struct Text:              # a part of what came; NULL: it is not there
    const uint8_t* at
    size_t size

cdef struct Field:             # a header's line
    Text name                  # empty: the line has no colon
    Text value                 # without the blanks around it

cdef size_t next_field(const uint8_t* text, size_t size, size_t at, Field* field) noexcept nogil
cdef bint lists(const Text* value, const char* word) noexcept nogil
cdef size_t next_item(const Text* value, size_t at, Text* item) noexcept nogil
cdef size_t find(const uint8_t* text, size_t size, size_t at, uint8_t byte) noexcept nogil
cdef void set_text(Text* to, const uint8_t* at, size_t size) noexcept nogil
cdef bint is_text(const Text* text, const char* word) noexcept nogil
cdef inline bint is_named(const Text* text, const char* word) noexcept nogil:
    """As `is_word`."""
    return is_word(text.at, text.size, word)

cdef size_t take_response(Upgrade* upgrade, const uint8_t* data, size_t size) noexcept nogil
cdef bint is_word(const uint8_t* text, size_t size, const char* word) noexcept nogil
cdef void release_upgrade(Upgrade* upgrade) noexcept nogil
cdef const char* upgrade_fault_name(UpgradeFault fault) noexcept nogil
cdef object upgrade_text(const Upgrade* upgrade)

# of this module alone
cdef void check_response(Upgrade* upgrade, const uint8_t* text, size_t size) noexcept nogil
cdef void set_trimmed(Text* to, const uint8_t* at, size_t size) noexcept nogil
