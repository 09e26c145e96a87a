"""Bytes that are appended at one end and taken off the other."""

import cython
from cython.cimports.libc.stdint import uint8_t
from cython.cimports.libc.stdlib import free, realloc
from cython.cimports.libc.string import memcpy, memmove, memset
from cython.cimports.tidemq.net.buffer import Buffer
from cython.cimports.tidemq.net.exhaustion import out_of_memory

if not cython.compiled:
    raise ImportError("tidemq.net.buffer is compiled code: run `make build`")


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def reserve(buffer: cython.pointer[Buffer], size: cython.size_t) -> cython.pointer[uint8_t]:
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


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def append(
    buffer: cython.pointer[Buffer], data: cython.pointer[cython.const[uint8_t]], size: cython.size_t
) -> cython.void:
    memcpy(reserve(buffer, size), data, size)
    buffer.end += size


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def discard(buffer: cython.pointer[Buffer], size: cython.size_t) -> cython.void:
    """Take `size` bytes off the front."""
    buffer.start += size
    if buffer.start == buffer.end:
        buffer.start = buffer.end = 0


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def release(buffer: cython.pointer[Buffer]) -> cython.void:
    """Give its memory back; it is empty then."""
    free(buffer.bytes)
    memset(buffer, 0, cython.sizeof(Buffer))
