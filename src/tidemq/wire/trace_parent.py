"""Finds ``traceparent`` among the user properties of a message, and checks it. See W3C Trace Context, section
3.2: https://www.w3.org/TR/trace-context/.
"""

import cython
from cython.cimports.libc.stdint import uint8_t, uint32_t
from cython.cimports.libc.string import memcmp
from cython.cimports.tidemq.wire.cursor import Cursor, read_binary, read_varint
from cython.cimports.tidemq.wire.properties import skip_value
from cython.cimports.tidemq.wire.protocol import FAULT_NONE, PROP_USER_PROPERTY, Span
from cython.cimports.tidemq.wire.trace_parent import TRACE_PARENT_BYTES, TRACE_PARENT_SPAN_AT

_NAME_BYTES = cython.declare(uint32_t, 11)


def find_trace_parent(properties):
    """Of several the first counts."""
    name: cython.p_char = b"traceparent"
    c: Cursor = Cursor(properties.data, properties.data + properties.size, FAULT_NONE)
    while c.at < c.end:
        property_id: uint32_t = read_varint(cython.address(c))
        if property_id != PROP_USER_PROPERTY:
            skip_value(cython.address(c), property_id)
            continue
        key: Span = read_binary(cython.address(c))
        value: Span = read_binary(cython.address(c))
        if key.size == _NAME_BYTES and memcmp(key.data, name, _NAME_BYTES) == 0:
            if value.size == TRACE_PARENT_BYTES and is_sampled(value.data):
                return value.data
            return cython.NULL
    return cython.NULL


def is_sampled(value):
    """Whether it is of version 00, and whoever began the trace records it."""
    if memcmp(value, cython.cast(cython.p_char, b"00-"), 3) != 0 or value[35] != 0x2D or value[52] != 0x2D:
        return False
    if not is_identifier(value + 3, 32) or not is_identifier(value + TRACE_PARENT_SPAN_AT, 16):
        return False
    # the last bit of the flags; other flags mean nothing yet
    flags: uint8_t = value[54]
    hexadecimal: cython.bint = 0x30 <= value[53] <= 0x39 or 0x61 <= value[53] <= 0x66
    if 0x30 <= flags <= 0x39:
        return hexadecimal and flags & 1 == 1
    return hexadecimal and 0x61 <= flags <= 0x66 and flags & 1 == 0


def is_identifier(digits, size):
    """Lower-case hexadecimal digits, not all of them 0."""
    index: uint32_t
    some: cython.bint = False
    for index in range(size):
        digit: uint8_t = digits[index]
        if not (0x30 <= digit <= 0x39 or 0x61 <= digit <= 0x66):
            return False
        some = some or digit != 0x30
    return some
