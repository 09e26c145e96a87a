from libc.stdint cimport uint8_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from tidemq.net.upgrade cimport Text, Upgrade

cdef extern from * nogil:
    int count_reference "__atomic_add_fetch"(int* references, int change, int order)
    int ACQ_REL "__ATOMIC_ACQ_REL"

cdef cppclass WebSocketRules:  # constant once a listener has them
    int references             # atomic: its WebSocketTerms, and each transport
    string path
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
