from libc.stdint cimport uint8_t
from libcpp.memory cimport unique_ptr
from libcpp.string cimport string
from libcpp.vector cimport vector

from tidemq.net.upgrade cimport Upgrade

cdef cppclass WebSocketRules:
    string path
    vector[string] origins     # in small letters
    bint named                 # TLS vouches for the name that clients know the listener by
    bint any_origin

cdef class WebSocketTerms:
    cdef unique_ptr[WebSocketRules] rules

cdef struct Text:              # a part of the request; NULL: it is not there
    const uint8_t* at
    size_t size

cdef struct Request:
    Text method, path, version
    Text host, origin, key, websocket_version
    bint to_websocket          # Upgrade names it
    bint connection_upgrade    # Connection names Upgrade
    Text protocol              # the first of those offered that is MQTT's
    bint malformed             # a header that must stand once stands twice, or has a body follow

cdef size_t take_request(Upgrade* upgrade, const WebSocketRules* rules, const uint8_t* data, size_t size) noexcept nogil
