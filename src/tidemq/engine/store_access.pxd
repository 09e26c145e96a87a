from tidemq.engine.engine cimport Engine

cdef class StoreAccess:
    cdef Engine engine
    cdef object _check(self)
