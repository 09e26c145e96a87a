"""WebSocket frames (RFC 6455 section 5), of either side: MQTT's bytes in binary messages. No I/O, no GIL.

Payloads are passed on as they come, frame by frame: how MQTT packets lie in messages means nothing
[MQTT-6.0.0-2], so no message is put together and no length needs a limit.
"""

import cython
from cython.cimports.libc.stdint import uint8_t, uint64_t
from cython.cimports.libc.string import memcpy, memmove, memset
from cython.cimports.tidemq.net.buffer import Buffer, discard, release, reserve
from cython.cimports.tidemq.net.websocket import (
    BINARY,
    CLOSE,
    CONTINUATION,
    CONTROL_BYTES_MAX,
    CONTROL_FORM,
    FALSE_LENGTH,
    FALSE_MASKING,
    HEADER_BYTES_MAX,
    NOT_BINARY,
    OUT_OF_PLACE,
    PING,
    PONG,
    PROTOCOL_ERROR,
    RESERVED_BITS,
    SOUND,
    TEXT,
    UNKNOWN_OPCODE,
    UNSUPPORTED_DATA,
    WebSocket,
)

if not cython.compiled:
    raise ImportError("tidemq.net.websocket is compiled code: run `make build`")


def frame_fault_name(fault):
    """In words that live for ever."""
    text: cython.p_const_char = b"nothing is wrong"
    if fault == RESERVED_BITS:
        text = b"a reserved bit is set"
    elif fault == UNKNOWN_OPCODE:
        text = b"a frame of an unknown kind"
    elif fault == NOT_BINARY:
        text = b"text, where MQTT has binary messages"
    elif fault == FALSE_LENGTH:
        text = b"a false length"
    elif fault == CONTROL_FORM:
        text = b"a malformed control frame"
    elif fault == OUT_OF_PLACE:
        text = b"a fragment out of place"
    elif fault == FALSE_MASKING:
        text = b"masked as only the other side's frames are, or not at all"
    return text


def parse_header(data, size, header, fault):
    """Read a frame's header; returns its bytes, 0 where it is not whole. The one place where lengths are
    checked; what depends on frames before is not looked at.
    """
    wide: cython.size_t
    at: cython.size_t
    needed: cython.size_t
    if size < 2:
        return 0
    header.size = data[1] & 127
    wide = 0 if header.size < 126 else 2 if header.size == 126 else 8
    header.masked = data[1] > 127
    needed = 2 + wide + (4 if header.masked else 0)
    if size < needed:
        return 0
    if wide:
        header.size = 0
        for at in range(2, 2 + wide):
            header.size = header.size << 8 | data[at]
    header.opcode, header.final = data[0] & 15, data[0] > 127
    if header.masked:
        memcpy(header.key, data + 2 + wide, 4)
    if data[0] & 0x70:
        fault[0] = RESERVED_BITS
    elif header.opcode > PONG or BINARY < header.opcode < CLOSE:
        fault[0] = UNKNOWN_OPCODE
    elif header.opcode == TEXT:  # [MQTT-6.0.0-1]
        fault[0] = NOT_BINARY
    elif (wide == 2 and header.size < 126) or (wide == 8 and (header.size >> 16 == 0 or header.size >> 63)):
        fault[0] = FALSE_LENGTH
    elif header.opcode >= CLOSE and (header.size > CONTROL_BYTES_MAX or not header.final):
        fault[0] = CONTROL_FORM
    return needed


def encode_header(to, opcode, size, key):
    """Write the header of a whole message's frame; `key` NULL: unmasked. Returns its bytes, at most 14."""
    at: cython.size_t = 2
    wide: cython.int = 0 if size < 126 else 2 if size < 65_536 else 8
    to[0] = 0x80 | opcode
    to[1] = size if wide == 0 else 126 if wide == 2 else 127
    while wide > 0:
        wide -= 1
        to[at] = (size >> (8 * wide)) & 0xFF
        at += 1
    if key != cython.NULL:
        to[1] |= 0x80
        memcpy(to + at, key, 4)
        at += 4
    return at


def mask(to, data, size, key, phase):
    """Put a mask on, or take it off; `phase` bytes of the payload came before. `to` may be `data`, or before
    it with an overlap.
    """
    at: cython.size_t = 0
    keys = cython.declare(uint64_t)
    block = cython.declare(uint64_t)
    eight = cython.declare(uint8_t[8])
    for at in range(8):
        eight[at] = key[(phase + at) & 3]
    memcpy(cython.address(keys), eight, 8)
    at = 0
    while at + 8 <= size:
        memcpy(cython.address(block), data + at, 8)
        block ^= keys
        memcpy(to + at, cython.address(block), 8)
        at += 8
    while at < size:
        to[at] = data[at] ^ eight[at & 7]
        at += 1


def append_frame(ws, output, opcode, data, size):
    """One frame, a whole message; a client's is masked with the next random number."""
    key = cython.declare(uint8_t[4])
    to: cython.pointer[uint8_t] = reserve(output, size + HEADER_BYTES_MAX)
    if ws.serves:
        to += encode_header(to, opcode, size, cython.NULL)
        memcpy(to, data, size)
    else:
        ws.noise ^= ws.noise << 13  # xorshift, from a random seed
        ws.noise ^= ws.noise >> 7
        ws.noise ^= ws.noise << 17
        memcpy(key, cython.address(ws.noise), 4)
        to += encode_header(to, opcode, size, key)
        mask(to, data, size, key, 0)
    output.end = (to - output.bytes) + size


def append_close(ws, output, code):
    """Close, once; nothing may follow it."""
    payload = cython.declare(uint8_t[2])
    if not ws.closing:
        ws.closing = True
        payload[0] = code >> 8
        payload[1] = code & 0xFF
        append_frame(ws, output, CLOSE, payload, 2)


def unframe(ws, data, size, answers):
    """Take off the frames of what came, in place: returns how many bytes of payload lie at `data` then.

    Answers to Ping and Close go to `answers`. After a fault or Close nothing more is taken.
    """
    at: cython.size_t = 0
    kept: cython.size_t = 0
    part: cython.size_t
    while at < size and ws.fault == SOUND and not ws.closed:
        if not ws.open_frame:
            ws.head[ws.head_size] = data[at]
            ws.head_size += 1
            at += 1
            begin_frame(ws)
        else:
            part = cython.cast(
                cython.size_t, min(ws.header.size - ws.taken, cython.cast(uint64_t, size - at))
            )
            if ws.header.opcode >= CLOSE:
                take_payload(ws, ws.control + ws.taken, data + at, part)
            else:
                take_payload(ws, data + kept, data + at, part)
                kept += part
            at += part
        if ws.open_frame and ws.taken == ws.header.size:
            end_frame(ws, answers)
    if ws.fault != SOUND:
        append_close(ws, answers, UNSUPPORTED_DATA if ws.fault == NOT_BINARY else PROTOCOL_ERROR)
    return kept


def begin_frame(ws):
    """If the header is whole now: check that it fits where it stands."""
    if parse_header(ws.head, ws.head_size, cython.address(ws.header), cython.address(ws.fault)) == 0:
        return
    ws.head_size = 0
    ws.open_frame = True
    ws.taken = 0
    if ws.fault != SOUND:
        return
    if ws.header.masked != ws.serves:
        ws.fault = FALSE_MASKING
    elif ws.header.opcode == CLOSE and ws.header.size == 1:
        ws.fault = CONTROL_FORM
    elif ws.header.opcode < CLOSE:
        if (ws.header.opcode == CONTINUATION) != ws.inside:
            ws.fault = OUT_OF_PLACE
        ws.inside = not ws.header.final


def take_payload(ws, to, data, size):
    if ws.header.masked:
        mask(to, data, size, ws.header.key, ws.taken)
    else:
        memmove(to, data, size)
    ws.taken += size


def end_frame(ws, answers):
    """Act on a control frame that is whole."""
    ws.open_frame = False
    if ws.fault != SOUND:
        return
    if ws.header.opcode == PING:
        append_frame(ws, answers, PONG, ws.control, ws.taken)
    elif ws.header.opcode == CLOSE:
        ws.closed = True
        if ws.taken >= 2:
            ws.close_code = ws.control[0] << 8 | ws.control[1]
        if ws.taken >= 2 and not may_close_with(ws.close_code):
            append_close(ws, answers, PROTOCOL_ERROR)
        elif not ws.closing:
            ws.closing = True
            append_frame(ws, answers, CLOSE, ws.control, min(ws.taken, cython.cast(uint64_t, 2)))


def may_close_with(code):
    """Whether a Close may say it: RFC 6455 section 7.4 and the IANA's list."""
    return 3000 <= code < 5000 or (1000 <= code <= 1014 and not 1004 <= code <= 1006)


@cython.cclass
class WebSocketView:
    """One side of a WebSocket for tests. One thread."""

    ws: WebSocket
    output: Buffer

    def __cinit__(self, serves: bool = False, noise: int = 1) -> None:
        memset(cython.address(self.ws), 0, cython.sizeof(WebSocket))
        memset(cython.address(self.output), 0, cython.sizeof(Buffer))
        self.ws.serves, self.ws.noise = serves, noise

    def __dealloc__(self) -> None:
        release(cython.address(self.output))

    def receive(self, data: bytes) -> bytes:
        """The payload in what came."""
        space: bytearray = bytearray(data)
        at: cython.p_char = space
        kept: cython.size_t = unframe(
            cython.address(self.ws),
            cython.cast(cython.pointer[uint8_t], at),
            len(data),
            cython.address(self.output),
        )
        return bytes(space[:kept])

    def send(self, data: bytes, opcode: int = BINARY) -> None:
        at: cython.p_const_char = data
        append_frame(
            cython.address(self.ws),
            cython.address(self.output),
            opcode,
            cython.cast(cython.p_const_uchar, at),
            len(data),
        )

    def close(self, code: int) -> None:
        append_close(cython.address(self.ws), cython.address(self.output), code)

    def take_output(self) -> bytes:
        """What is to be sent, answers included."""
        at: cython.p_char = cython.cast(cython.p_char, self.output.bytes)
        taken: bytes = at[self.output.start : self.output.end] if self.output.bytes != cython.NULL else b""
        discard(cython.address(self.output), len(taken))
        return taken

    @property
    def fault(self) -> str:
        """What the peer did wrong; empty: nothing."""
        return cython.cast(bytes, frame_fault_name(self.ws.fault)).decode() if self.ws.fault else ""

    @property
    def closed(self) -> int | None:
        """The code of the peer's Close, 0 where it had none; None: none came."""
        return self.ws.close_code if self.ws.closed else None
