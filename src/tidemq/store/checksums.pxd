"""Checksums of the logs that RocksDB and SQLite write ahead."""
from libc.stdint cimport uint8_t, uint32_t

cdef object _fill_table()

cdef inline uint32_t word(const uint8_t[:] data, Py_ssize_t at, bint big) noexcept:
    cdef uint32_t a = data[at]
    cdef uint32_t b = data[at + 1]
    cdef uint32_t c = data[at + 2]
    cdef uint32_t d = data[at + 3]
    return a << 24 | b << 16 | c << 8 | d if big else d << 24 | c << 16 | b << 8 | a
