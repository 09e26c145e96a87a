"""What is written into a frame before it is sent: digits of its topic, and bytes that do not compress."""

import cython
from cython.cimports.libc.string import memcpy

if not cython.compiled:
    raise ImportError("tidemq.bench.load.frame_patches is compiled code: run `make build`")

DIGITS = cython.declare(cython.p_const_char, b"0123456789abcdef")


def write_hex(out, value):
    """Eight digits."""
    i: cython.int
    for i in range(8):
        out[7 - i] = DIGITS[value & 15]
        value >>= 4


def fill_random(state, data, size):
    """Random bytes (xorshift of 64 bits); `state` is anything but 0, and moves on."""
    at: cython.size_t = 0
    while at < size:
        state[0] ^= state[0] << 13
        state[0] ^= state[0] >> 7
        state[0] ^= state[0] << 17
        memcpy(data + at, state, min(size - at, cython.cast(cython.size_t, 8)))
        at += 8
