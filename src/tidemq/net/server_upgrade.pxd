from libc.stdint cimport uint8_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from tidemq.net.buffer cimport Buffer
from tidemq.net.upgrade cimport Text, Upgrade, UpgradeFault

cdef extern from * nogil:
    int count_reference "__atomic_add_fetch"(int* references, int change, int order)
    int ACQ_REL "__ATOMIC_ACQ_REL"

cdef cppclass WebSocketRules:  # constant once a listener has them
    int references             # atomic: its WebSocketTerms, and each transport
    string path
    bint any_path              # it is "*"
    vector[string] origins     # in small letters
    bint named                 # TLS vouches for the name that clients know the listener by
    bint any_origin

cdef class WebSocketTerms:
    cdef WebSocketRules* rules

cdef struct Request:
    Text method, path, version
    Text host, origin, key, websocket_version
    bint to_websocket          # Upgrade names it
    bint connection_upgrade    # Connection names Upgrade
    Text protocol              # the first of those offered that is MQTT's
    bint malformed             # a header that must stand once stands twice, or has a body follow

cdef inline void hold_rules(WebSocketRules* rules) noexcept nogil:
    """Also of NULL, as its opposite is."""
    if rules != NULL:
        count_reference(&rules.references, 1, ACQ_REL)

cdef inline void let_go_rules(WebSocketRules* rules) noexcept nogil:
    if rules != NULL and count_reference(&rules.references, -1, ACQ_REL) == 0:
        del rules

cdef size_t take_request(Upgrade* upgrade, const WebSocketRules* rules, const uint8_t* data, size_t size) noexcept nogil

# of this module alone
cdef UpgradeFault check_byte(const uint8_t* text, size_t at) noexcept nogil
cdef UpgradeFault read_request(Request* request, const uint8_t* text, size_t size) noexcept nogil
cdef UpgradeFault read_first_line(Request* request, const uint8_t* text, size_t size) noexcept nogil
cdef UpgradeFault read_header(Request* request, const Text* name, const Text* value) noexcept nogil
cdef void choose_protocol(Request* request, const Text* value) noexcept nogil
cdef void set_once(Request* request, Text* to, const Text* value) noexcept nogil
cdef bint is_token_byte(uint8_t byte) noexcept nogil
cdef UpgradeFault judge(const Request* request, const WebSocketRules* rules) noexcept nogil
cdef bint is_key(const Text* key) noexcept nogil
cdef bint may_connect(const Request* request, const WebSocketRules* rules) noexcept nogil
cdef bint is_address(const Text* host) noexcept nogil
cdef Text host_of(const uint8_t* text, size_t size) noexcept nogil
cdef bint same_letters(const uint8_t* one, const uint8_t* other, size_t size) noexcept nogil
cdef uint8_t small(uint8_t letter) noexcept nogil
cdef bint encode_accept(const unsigned char* key, unsigned char* to) noexcept nogil
cdef void accept(Buffer* response, const Request* request) noexcept nogil
cdef void refuse(Buffer* response, UpgradeFault fault) noexcept nogil
cdef void append_text(Buffer* to, const char* text) noexcept nogil
