from libc.stdint cimport uint16_t, uint64_t, uint8_t

from tidemq.net.buffer cimport Buffer

cdef enum Opcode:
    CONTINUATION = 0
    TEXT = 1
    BINARY = 2
    CLOSE = 8              # from here on control frames
    PING = 9
    PONG = 10

cdef enum:
    HEADER_BYTES_MAX = 14
    CONTROL_BYTES_MAX = 125
    NORMAL_CLOSURE = 1000  # codes of Close
    PROTOCOL_ERROR = 1002
    UNSUPPORTED_DATA = 1003

cdef enum FrameFault:      # numbered as `frame_fault_name` lists them
    SOUND = 0
    RESERVED_BITS = 1
    UNKNOWN_OPCODE = 2
    NOT_BINARY = 3
    FALSE_LENGTH = 4       # not the shortest form, or above 2^63
    CONTROL_FORM = 5       # fragmented, longer than 125 bytes, or a Close of one byte
    OUT_OF_PLACE = 6       # a continuation of nothing, or a new message inside another
    FALSE_MASKING = 7

cdef struct FrameHeader:
    uint8_t opcode
    bint final
    bint masked
    uint8_t[4] key
    uint64_t size          # of the payload

cdef struct WebSocket:     # one connection's; all zero but `noise` to begin with
    bint serves            # the peer is a client: its frames are masked, ours are not
    uint64_t noise         # not 0: state of the random numbers in our masks
    FrameFault fault       # the peer's
    bint closed            # the peer has sent Close
    uint16_t close_code    # with it; 0: none
    bint closing           # we have sent Close
    bint inside            # the peer's message goes on in another frame
    uint8_t[14] head       # the beginning of a header whose rest has not come yet
    size_t head_size
    bint open_frame        # the rest of a payload is to come
    FrameHeader header     # of it
    uint64_t taken         # of its payload
    uint8_t[125] control   # payload of a control frame

cdef size_t parse_header(const uint8_t* data, size_t size, FrameHeader* header, FrameFault* fault) noexcept nogil
cdef size_t encode_header(uint8_t* to, uint8_t opcode, uint64_t size, const uint8_t* key) noexcept nogil
cdef void mask(uint8_t* to, const uint8_t* data, size_t size, const uint8_t* key, uint64_t phase) noexcept nogil
cdef void append_frame(WebSocket* ws, Buffer* output, uint8_t opcode, const uint8_t* data, size_t size) noexcept nogil
cdef void append_close(WebSocket* ws, Buffer* output, uint16_t code) noexcept nogil
cdef size_t unframe(WebSocket* ws, uint8_t* data, size_t size, Buffer* answers) noexcept nogil
cdef const char* frame_fault_name(FrameFault fault) noexcept nogil

# of this module alone
cdef void begin_frame(WebSocket* ws) noexcept nogil
cdef void take_payload(WebSocket* ws, uint8_t* to, const uint8_t* data, size_t size) noexcept nogil
cdef void end_frame(WebSocket* ws, Buffer* answers) noexcept nogil
cdef bint may_close_with(uint16_t code) noexcept nogil
