from libcpp.vector cimport vector

from tidemq.engine.state cimport Section, Shared

cdef class StoreWork:
    cdef Shared* shared
    cdef vector[Section*] sections
    cdef readonly list writes
    cdef readonly list references
    cdef readonly list reads
    cdef readonly list trims
    cdef readonly list expired
    cdef readonly list purges
    cdef readonly bint adds
    cdef readonly bint outdated
    cdef readonly unsigned long long streams

cdef object init_journal(Shared* shared)
cdef StoreWork wait_for_work(Shared* shared, double timeout_s)
cdef StoreWork rest_of_work(StoreWork work)
cdef void answer_work(StoreWork work, int reason)
cdef void poke_journal(Shared* shared) noexcept nogil
cdef void close_journal(Shared* shared) noexcept nogil
