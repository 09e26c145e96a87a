from libc.stdint cimport int64_t, uint32_t, uint64_t
from libcpp.vector cimport vector

cdef extern from *:
    """
    #define tidemq_load_u64(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
    #define tidemq_store_u64(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)
    #define tidemq_load_int(p) __atomic_load_n(p, __ATOMIC_ACQUIRE)
    #define tidemq_store_int(p, v) __atomic_store_n(p, v, __ATOMIC_RELEASE)
    """
    uint64_t load_u64 "tidemq_load_u64"(const uint64_t* value) noexcept nogil
    void store_u64 "tidemq_store_u64"(uint64_t* value, uint64_t amount) noexcept nogil
    int load_int "tidemq_load_int"(const int* value) noexcept nogil
    void store_int "tidemq_store_int"(int* value, int amount) noexcept nogil

cdef struct Table:              # of one generator of this process, written by its thread alone
    uint64_t* expected          # by subscriber, then by publisher that it hears: the next sequence number
    uint32_t subscribers
    uint64_t arrived            # messages, repeated ones not
    int published               # it sends no more

cdef struct Common:             # words of their own, each with one writer: no lock
    uint64_t* sent              # by publisher: messages encoded, as far as it is known here
    uint64_t* confirmed_far     # by publisher: so many all subscribers of other processes have
    uint32_t publishers
    Table* tables
    uint32_t table_count
    int publishing_far          # shares of other processes that may still send
    int ended                   # index in ENDS, of a run that all are to end early; -1: none
    int64_t progress_ns         # when anything was last sent or received, by anybody

cdef class Board:
    cdef Common common
    cdef vector[uint64_t] sent, confirmed_far
    cdef vector[Table] tables
    cdef vector[vector[uint64_t]] expected
    cdef readonly object workload, shares, far

cdef uint64_t confirmed_by_all(const Common* common, uint32_t publisher) noexcept nogil
cdef uint64_t confirmed_near(const Common* common, uint32_t publisher) noexcept nogil
cdef uint64_t sent_by_all(const Common* common) noexcept nogil
cdef bint near_published(const Common* common) noexcept nogil
cdef bint all_published(const Common* common) noexcept nogil
