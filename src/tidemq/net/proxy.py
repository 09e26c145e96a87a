"""The PROXY protocol's header, versions 1 and 2, which a proxy puts before what its client sends. No I/O.

By https://www.haproxy.org/download/3.0/doc/proxy-protocol.txt. Of version 2's own fields (TLVs) the lengths
are looked at, and the checksum where there is one.
"""

import cython
from cython.cimports.libc.stdint import uint8_t, uint16_t, uint32_t
from cython.cimports.libc.stdio import snprintf
from cython.cimports.libc.string import memcmp, memcpy, memset, strlen
from cython.cimports.tidemq.net.buffer import append, release
from cython.cimports.tidemq.net.proxy import (
    AF_INET,
    AF_INET6,
    FALSE_HEADER,
    HEADER_TOO_LONG,
    NO_HEADER,
    NO_PROXY_FAULT,
    inet_ntop,
    inet_pton,
)

if not cython.compiled:
    raise ImportError("tidemq.net.proxy is compiled code: run `make build`")

PREFIX_1 = cython.declare(cython.p_const_char, b"PROXY ")
PREFIX_2 = cython.declare(cython.p_const_char, b"\r\n\r\n\x00\r\nQUIT\n")
PREFIX_1_BYTES = cython.declare(cython.size_t, 6)
PREFIX_2_BYTES = cython.declare(cython.size_t, 12)
LINE_BYTES_MAX = cython.declare(cython.size_t, 107)  # of version 1, its end included
HEADER_2_BYTES_MAX = cython.declare(cython.size_t, 4096)  # with TLVs
FIELD_CRC32C = cython.declare(cython.uchar, 3)


def proxy_fault_name(fault):
    """In words that live for ever."""
    if fault == NO_HEADER:
        return cython.cast(cython.p_const_char, b"the connection begins without one")
    if fault == HEADER_TOO_LONG:
        return cython.cast(cython.p_const_char, b"too long")
    if fault == FALSE_HEADER:
        return cython.cast(cython.p_const_char, b"malformed")
    return cython.cast(cython.p_const_char, b"nothing is wrong")


def take_header(proxy, data, size):
    """Take what came of the header (`done`, `fault`). Returns how many bytes were its."""
    before: cython.size_t = proxy.header.end
    part: cython.size_t = min(size, HEADER_2_BYTES_MAX - before)
    whole: cython.size_t
    append(cython.address(proxy.header), data, part)
    if begins(proxy, PREFIX_1, PREFIX_1_BYTES):
        whole = take_line(proxy)
    elif begins(proxy, PREFIX_2, PREFIX_2_BYTES):
        whole = take_block(proxy)
    else:
        proxy.fault = NO_HEADER
        return part
    proxy.done = whole > 0
    return whole - before if proxy.done else part


def begins(proxy, prefix, size):
    """As far as it has come."""
    return memcmp(proxy.header.bytes, prefix, min(size, proxy.header.end)) == 0


def name_client(proxy, family, address, port):
    size: cython.size_t
    if family == AF_INET:
        memset(proxy.address, 0, 10)
        memset(proxy.address + 10, 0xFF, 2)
        memcpy(proxy.address + 12, address, 4)
    else:
        memcpy(proxy.address, address, 16)
    proxy.port = port
    proxy.known = True
    inet_ntop(family, address, proxy.peer, cython.sizeof(proxy.peer))
    size = strlen(proxy.peer)
    snprintf(proxy.peer + size, cython.sizeof(proxy.peer) - size, b":%u", cython.cast(cython.uint, port))


# -------------------------------------------------------------------- version 1: a line


def take_line(proxy):
    """Its bytes when it has come whole and is right, else 0."""
    text: cython.pointer[cython.const[uint8_t]] = proxy.header.bytes
    size: cython.size_t = min(proxy.header.end, LINE_BYTES_MAX)
    at: cython.size_t = 0
    while at < size and text[at] >= 32:
        at += 1
    if at == size:
        if size == LINE_BYTES_MAX:
            proxy.fault = HEADER_TOO_LONG
        return 0
    if text[at] == 13 and at + 1 == LINE_BYTES_MAX:
        proxy.fault = HEADER_TOO_LONG
    elif text[at] != 13 or (at + 1 < size and text[at + 1] != 10):
        proxy.fault = FALSE_HEADER
    elif at + 1 < size:
        read_line(proxy, text + PREFIX_1_BYTES, at - PREFIX_1_BYTES)
        return 0 if proxy.fault else at + 2
    return 0


def read_line(proxy, text, size):
    """What follows the prefix: family, both addresses, both ports, one blank between."""
    family: cython.int
    source = cython.declare(uint8_t[16])
    destination = cython.declare(uint8_t[16])
    source_port: cython.int
    port: cython.int
    line = cython.declare(cython.char[108])
    words = cython.declare(cython.p_char[5])
    count: cython.size_t = 1
    at: cython.size_t
    if size >= 7 and memcmp(text, cython.cast(cython.p_const_char, b"UNKNOWN"), 7) == 0:
        if size > 7 and text[7] != 32:
            proxy.fault = FALSE_HEADER
        return  # whatever follows
    proxy.fault = FALSE_HEADER
    memcpy(line, text, size)
    line[size] = 0
    words[0] = line
    for at in range(size):
        if line[at] == 32:
            if count == 5:
                return
            line[at] = 0
            words[count] = line + at + 1
            count += 1
    if count != 5:
        return
    if memcmp(words[0], cython.cast(cython.p_const_char, b"TCP4"), 5) == 0:
        family = AF_INET
    elif memcmp(words[0], cython.cast(cython.p_const_char, b"TCP6"), 5) == 0:
        family = AF_INET6
    else:
        return
    source_port, port = read_port(words[3]), read_port(words[4])
    if source_port < 0 or port < 0:
        return
    if inet_pton(family, words[1], source) != 1 or inet_pton(family, words[2], destination) != 1:
        return
    proxy.fault = NO_PROXY_FAULT
    name_client(proxy, family, source, source_port)


def read_port(text):
    """Decimal, in its shortest form; -1: it is none."""
    port: cython.int = 0
    at: cython.size_t
    size: cython.size_t = strlen(text)
    if size == 0 or size > 5 or (size > 1 and text[0] == 48):
        return -1
    for at in range(size):
        if not 48 <= text[at] <= 57:
            return -1
        port = port * 10 + text[at] - 48
    return port if port < 65_536 else -1


# -------------------------------------------------------------------- version 2: a block


def take_block(proxy):
    """Its bytes when it has come whole and is right, else 0."""
    data: cython.pointer[cython.const[uint8_t]] = proxy.header.bytes
    have: cython.size_t = proxy.header.end
    whole: cython.size_t
    wrong: cython.bint = have > 12 and data[12] not in (0x20, 0x21)  # version 2, LOCAL or PROXY
    # none, or a stream of IPv4, IPv6, Unix; with LOCAL it means nothing
    wrong |= have > 13 and data[12] == 0x21 and data[13] not in (0x00, 0x11, 0x21, 0x31)
    if wrong:
        proxy.fault = FALSE_HEADER
    elif have >= 16:
        whole = 16 + (cython.cast(cython.size_t, data[14]) << 8 | data[15])
        if whole > HEADER_2_BYTES_MAX:
            proxy.fault = HEADER_TOO_LONG
        elif have >= whole:
            if data[12] == 0x21:
                read_block(proxy, data[13], data + 16, whole - 16)
            return 0 if proxy.fault else whole
    return 0


def read_block(proxy, family, data, size):
    """Both addresses, both ports, then fields of a type, two bytes of length, and a value."""
    wide: cython.size_t = 4 if family == 0x11 else 16
    at: cython.size_t = 0 if family == 0 else 216 if family == 0x31 else 2 * wide + 4
    length: uint32_t
    if size < at:
        proxy.fault = FALSE_HEADER
        return
    while family != 0 and at < size:
        if size - at < 3:
            proxy.fault = FALSE_HEADER
            return
        length = data[at + 1] << 8 | data[at + 2]
        if size - at - 3 < length:
            proxy.fault = FALSE_HEADER
            return
        if data[at] == FIELD_CRC32C and not is_sum(data - 16, 16 + size, 16 + at + 3, length):
            proxy.fault = FALSE_HEADER
            return
        at += 3 + length
    if family == 0x11 or family == 0x21:
        name_client(
            proxy,
            AF_INET if family == 0x11 else AF_INET6,
            data,
            cython.cast(uint16_t, data[2 * wide] << 8 | data[2 * wide + 1]),
        )


def is_sum(header, size, at, length):
    """Whether the field whose value is at `at` has the CRC32c of the header, taken with zeros there."""
    crc: uint32_t = 0xFFFFFFFF
    said: uint32_t = 0
    index: cython.size_t
    if length != 4:
        return False
    for index in range(size):
        if at <= index < at + 4:
            said = said << 8 | header[index]
        else:
            crc ^= header[index]
        for _ in range(8):
            crc = crc >> 1 ^ (cython.cast(uint32_t, 0x82F63B78) if crc & 1 else 0)
    return said == ~crc


def release_proxy(proxy):
    """Give back its memory, which it needs no more once it is done; what it says of the client remains."""
    release(cython.address(proxy.header))
