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
