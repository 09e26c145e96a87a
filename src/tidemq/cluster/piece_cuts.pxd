"""Rows of all nodes, joined and digested."""
from libc.stdint cimport uint8_t, uint32_t, uint64_t

cdef class Cutter:
    cdef uint64_t mask
    cdef uint64_t digest
    cdef list pairs

# of this module alone
cdef const uint8_t* _data(bytes text)
cdef uint64_t _mixed(uint64_t value) noexcept
cdef uint64_t _digest(const uint8_t* data, Py_ssize_t size, uint64_t seed) noexcept
cdef bytes _spelled(uint64_t value)
cdef bint _is_of(bytes there, bytes text, const uint8_t* name)
cdef bytes _state(bytes text, bytes row, uint8_t status)
