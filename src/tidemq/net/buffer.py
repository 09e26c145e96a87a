"""Bytes that are appended at one end and taken off the other."""

import cython
from cython.cimports.libc.stdint import uint8_t
from cython.cimports.libc.stdlib import free, realloc
from cython.cimports.libc.string import memcpy, memmove, memset
from cython.cimports.tidemq.net.buffer import Buffer
from cython.cimports.tidemq.net.exhaustion import out_of_memory

if not cython.compiled:
    raise ImportError("tidemq.net.buffer is compiled code: run `make build`")


def reserve(buffer, size):
    """Room for `size` more bytes; the caller writes there and moves `end`. Valid until the next call."""
    held: cython.size_t = buffer.end - buffer.start
    if buffer.end + size > buffer.size:
        if buffer.start > 0:
            memmove(buffer.bytes, buffer.bytes + buffer.start, held)
            buffer.start, buffer.end = 0, held
        if held + size > buffer.size:
            buffer.size = (held + size) * 2
            buffer.bytes = cython.cast(cython.pointer[uint8_t], realloc(buffer.bytes, buffer.size))
            if buffer.bytes == cython.NULL:
                out_of_memory()
    return buffer.bytes + buffer.end


def append(buffer, data, size):
    memcpy(reserve(buffer, size), data, size)
    buffer.end += size


def discard(buffer, size):
    """Take `size` bytes off the front."""
    buffer.start += size
    if buffer.start == buffer.end:
        buffer.start = buffer.end = 0


def release(buffer):
    """Give its memory back; it is empty then."""
    free(buffer.bytes)
    memset(buffer, 0, cython.sizeof(Buffer))
