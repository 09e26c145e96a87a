"""Checksums of the logs that RocksDB and SQLite write ahead: without them nobody can tell where a log breaks
off. Compiled, for a log has up to 100 MB.
"""

from __future__ import annotations

import cython
from cython.cimports.libc.stdint import uint8_t, uint32_t

if not cython.compiled:
    raise ImportError("tidemq.store.checksums is to be compiled: make build")

# of a byte at each of eight places: eight bytes are one step
_TABLE = cython.declare(uint32_t[2048])


def _fill_table():
    index: cython.uint
    place: cython.uint
    value: uint32_t
    for index in range(256):
        value = index
        for _ in range(8):
            value = value >> 1 ^ (cython.cast(uint32_t, 0x82F63B78) if value & 1 else 0)
        _TABLE[index] = value
    for place in range(1, 8):
        for index in range(256):
            value = _TABLE[(place - 1) * 256 + index]
            _TABLE[place * 256 + index] = value >> 8 ^ _TABLE[value & 0xFF]


_fill_table()


def crc32c(data: cython.const[uint8_t][:], value: cython.uint = 0) -> int:
    """CRC-32C of the bytes; ``value`` is that of the bytes before them."""
    crc: uint32_t = ~cython.cast(uint32_t, value)
    index: cython.Py_ssize_t
    whole: cython.Py_ssize_t = data.shape[0] & ~7
    high: uint32_t
    for index in range(0, whole, 8):
        crc ^= word(data, index, False)
        high = word(data, index + 4, False)
        crc = (
            _TABLE[1792 + (crc & 0xFF)]
            ^ _TABLE[1536 + (crc >> 8 & 0xFF)]
            ^ _TABLE[1280 + (crc >> 16 & 0xFF)]
            ^ _TABLE[1024 + (crc >> 24)]
            ^ _TABLE[768 + (high & 0xFF)]
            ^ _TABLE[512 + (high >> 8 & 0xFF)]
            ^ _TABLE[256 + (high >> 16 & 0xFF)]
            ^ _TABLE[high >> 24]
        )
    for index in range(whole, data.shape[0]):
        crc = crc >> 8 ^ _TABLE[(crc ^ data[index]) & 0xFF]
    return cython.cast(uint32_t, ~crc)


def sum_words(data: cython.const[uint8_t][:], big_endian: bool, first: int, second: int) -> tuple:
    """SQLite's two running sums over 32-bit words, of which there is an even number."""
    one: uint32_t = first
    two: uint32_t = second
    big: cython.bint = big_endian
    index: cython.Py_ssize_t
    for index in range(0, data.shape[0] - 7, 8):
        one += word(data, index, big) + two
        two += word(data, index + 4, big) + one
    return one, two
