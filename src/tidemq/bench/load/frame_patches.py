"""What is written into a frame before it is sent: digits of its topic, and bytes that do not compress."""

import cython
from cython.cimports.libc.stdint import uint8_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcpy

if not cython.compiled:
    raise ImportError("tidemq.bench.load.frame_patches is compiled code: run `make build`")

DIGITS = cython.declare(cython.p_const_char, b"0123456789abcdef")


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def write_hex(out: cython.pointer[uint8_t], value: uint32_t) -> cython.void:
    """Eight digits."""
    i: cython.int
    for i in range(8):
        out[7 - i] = DIGITS[value & 15]
        value >>= 4


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def fill_random(
    state: cython.pointer[uint64_t], data: cython.pointer[uint8_t], size: cython.size_t
) -> cython.void:
    """Random bytes (xorshift of 64 bits); `state` is anything but 0, and moves on."""
    at: cython.size_t = 0
    while at < size:
        state[0] ^= state[0] << 13
        state[0] ^= state[0] >> 7
        state[0] ^= state[0] << 17
        memcpy(data + at, state, min(size - at, cython.cast(cython.size_t, 8)))
        at += 8
