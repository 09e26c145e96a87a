from libc.stdint cimport uint16_t, uint32_t, uint8_t

from tidemq.net.buffer cimport Buffer

cdef extern from "<arpa/inet.h>" nogil:
    enum:
        AF_INET
        AF_INET6
    int inet_pton(int family, const char* text, void* address)
    const char* inet_ntop(int family, const void* address, char* to, unsigned int size)

cdef enum:
    PEER_BYTES_MAX = 52        # of an IPv6 address, a colon, a port and the final 0

cdef enum ProxyFault:
    NO_PROXY_FAULT = 0
    NO_HEADER = 1              # what came begins as none does
    HEADER_TOO_LONG = 2
    FALSE_HEADER = 3

cdef struct Proxy:             # one connection's; all zero to begin with
    Buffer header              # as far as it has come
    bint done
    bint known                 # it names the client; else it is from the proxy itself, or of no IP address
    ProxyFault fault
    uint16_t port              # the client's
    uint8_t[16] address        # the same as an IPv6 address; of IPv4: ::ffff:a.b.c.d
    char[52] peer              # both as a text, "host:port"; empty: not known

cdef size_t take_header(Proxy* proxy, const uint8_t* data, size_t size) noexcept nogil
cdef const char* proxy_fault_name(ProxyFault fault) noexcept nogil
cdef void release_proxy(Proxy* proxy) noexcept nogil

# of this module alone
cdef bint begins(const Proxy* proxy, const char* prefix, size_t size) noexcept nogil
cdef void name_client(Proxy* proxy, int family, const void* address, uint16_t port) noexcept nogil
cdef size_t take_line(Proxy* proxy) noexcept nogil
cdef void read_line(Proxy* proxy, const uint8_t* text, size_t size) noexcept nogil
cdef int read_port(const char* text) noexcept nogil
cdef size_t take_block(Proxy* proxy) noexcept nogil
cdef void read_block(Proxy* proxy, uint8_t family, const uint8_t* data, size_t size) noexcept nogil
cdef bint is_sum(const uint8_t* header, size_t size, size_t at, uint32_t length) noexcept nogil
