"""Reads and writes MQTT's data types (5.0 section 1.5): integers, strings, binary data.

A reader never passes `end`, whatever the bytes say. Writers trust their caller for room. No Python object is
made here and nothing is kept; every function may run on any thread without the GIL.
"""

import cython
from cython.cimports.libc.stdint import uint8_t, uint16_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcpy
from cython.cimports.tidemq.wire.protocol import (
    FAULT_NONE,
    FAULT_NUL,
    FAULT_TRUNCATED,
    FAULT_UTF8,
    FAULT_VARINT_OVERLONG,
    Fault,
    Span,
)


def fail(c, fault):
    """Keep the first fault and leave nothing to read, so that every further read fails too."""
    if c.fault == FAULT_NONE:
        c.fault = fault
    c.at = c.end


def has(c, size):
    """Whether `size` more bytes are there; the fault FAULT_TRUNCATED if not."""
    if cython.cast(cython.size_t, c.end - c.at) >= size:
        return True
    fail(c, FAULT_TRUNCATED)
    return False


def read_u8(c):
    if not has(c, 1):
        return 0
    c.at += 1
    return (c.at - 1)[0]


def read_u16(c):
    if not has(c, 2):
        return 0
    c.at += 2
    return cython.cast(uint16_t, ((c.at - 2)[0] << 8) | (c.at - 1)[0])


def read_u32(c):
    high: uint32_t = read_u16(c)
    low: uint32_t = read_u16(c)
    return (high << 16) | low if c.fault == FAULT_NONE else 0


def read_varint(c):
    """A variable byte integer, 0 to 268,435,455, in its shortest form (1.5.5)."""
    value: uint32_t = 0
    shift: uint32_t = 0
    while shift < 28:
        if not has(c, 1):
            return 0
        byte: uint8_t = c.at[0]
        c.at += 1
        value |= cython.cast(uint32_t, byte & 0x7F) << shift
        if byte < 0x80:
            if byte == 0 and shift > 0:
                break  # [MQTT-1.5.5-1]
            return value
        shift += 7
    fail(c, FAULT_VARINT_OVERLONG)
    return 0


def read_binary(c):
    out: Span = Span(cython.NULL, 0)
    size: uint32_t = read_u16(c)
    if has(c, size):
        out.data = c.at
        out.size = size
        c.at += size
    return out


def read_string(c):
    out: Span = read_binary(c)
    fault: Fault = check_utf8(out.data, out.size)
    if fault != FAULT_NONE:
        fail(c, fault)
        out.size = 0
    return out


def read_rest(c):
    out: Span = Span(c.at, cython.cast(uint32_t, c.end - c.at))
    c.at = c.end
    return out


def repeat(byte):
    return cython.cast(uint64_t, byte) * (~cython.cast(uint64_t, 0) // 0xFF)


def zero_bytes(word):
    """Has a byte's high bit set where `word`, all ASCII, has a zero byte; else none."""
    return (word - repeat(0x01)) & ~word


def check_utf8(data, size):
    """FAULT_UTF8 or FAULT_NUL where `data` is not an MQTT string (1.5.4). Eight bytes a step while ASCII."""
    at: cython.pointer[cython.const[uint8_t]] = data
    end: cython.pointer[cython.const[uint8_t]] = data + size
    word: uint64_t = 0
    while end - at >= 8:
        memcpy(cython.address(word), at, 8)
        if (word | zero_bytes(word)) & repeat(0x80):  # some byte is not ASCII, or zero
            break
        at += 8
    return check_code_points(at, end)


def check_code_points(at, end):
    while at < end:
        if at[0] == 0:
            return FAULT_NUL  # [MQTT-1.5.4-2]
        size: uint32_t = code_point_size(at, end)
        if size == 0:
            return FAULT_UTF8  # [MQTT-1.5.4-1]
        at += size
    return FAULT_NONE


def code_point_size(at, end):
    """Bytes of the code point at `at`; 0 where it is none (Unicode 3.9, table 3-7). Needs at < end."""
    lead: uint8_t = at[0]
    size: uint32_t = 2
    low: uint8_t = 0x80  # bounds of the second byte
    high: uint8_t = 0xBF
    if lead < 0x80:
        return 1
    if lead < 0xC2 or lead > 0xF4:
        return 0  # a continuation byte, an overlong form, above U+10FFFF
    if lead >= 0xF0:
        size = 4
        low = 0x90 if lead == 0xF0 else 0x80  # else overlong
        high = 0x8F if lead == 0xF4 else 0xBF  # else above U+10FFFF
    elif lead >= 0xE0:
        size = 3
        low = 0xA0 if lead == 0xE0 else 0x80  # else overlong
        high = 0x9F if lead == 0xED else 0xBF  # else a surrogate
    if end - at < size or at[1] < low or at[1] > high:
        return 0
    i: uint32_t
    for i in range(2, size):
        if at[i] & 0xC0 != 0x80:
            return 0
    return size


def varint_size(value):
    if value < 0x80:
        return 1
    if value < 0x4000:
        return 2
    return 3 if value < 0x200000 else 4


def write_varint(out, value):
    while value >= 0x80:
        out[0] = cython.cast(uint8_t, (value & 0x7F) | 0x80)
        out += 1
        value >>= 7
    out[0] = cython.cast(uint8_t, value)
    return out + 1


def write_u16(out, value):
    out[0] = cython.cast(uint8_t, value >> 8)
    out[1] = cython.cast(uint8_t, value & 0xFF)
    return out + 2


def write_u32(out, value):
    out = write_u16(out, cython.cast(uint16_t, value >> 16))
    return write_u16(out, cython.cast(uint16_t, value & 0xFFFF))


def write_bytes(out, data, size):
    if size:  # memcpy must not see the null pointer of an empty Span
        memcpy(out, data, size)
    return out + size


def write_string(out, text):
    out = write_u16(out, cython.cast(uint16_t, text.size))
    return write_bytes(out, text.data, text.size)
