from libcpp.string cimport string
from libcpp.vector cimport vector

cdef cppclass NamedContext:    # what a client gets that asks for this name
    string name                # in small letters; of a wildcard what follows its asterisk, from the dot on
    bint wildcard
    void* context              # SSL_CTX, of which it holds a reference

cdef cppclass NamedContexts:   # of one SSL_CTX, which frees them at its end
    vector[NamedContext] entries

cdef class ServerTls:
    cdef void* handle          # SSL_CTX

# of this module alone
cdef void find_functions() except *
cdef void check_revocation(void* context, str crl) except *
cdef void prepare(void* context, str client_ca, str client_cert, str version_min) except *
cdef void serve_names(void* default, others, str client_ca, str client_cert, str version_min) except *
cdef void add_name(NamedContexts* names, bytes host, void* context) except *
cdef void free_names(
    void* context, void* data, void* table, int index, long number, void* more,
) noexcept nogil
cdef int choose_certificate(void* ssl, int* alert, void* data) noexcept nogil
cdef bint is_name(const NamedContext* entry, const char* host, size_t size) noexcept nogil
cdef int choose_protocol(
    void* ssl, const unsigned char** chosen, unsigned char* chosen_size, const unsigned char* offered, unsigned int offered_size, void* data,
) noexcept nogil
