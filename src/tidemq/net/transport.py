"""What a connection's bytes are wrapped in: TLS, WebSocket, or WebSocket over TLS. A client's side.

Bytes in, bytes out: the caller owns the socket. What is to be sent gathers in `Transport.output`; nothing of
MQTT may be wrapped before the phase is OPEN.
"""

import ipaddress
import os

import cython
from cython.cimports.libc.stdint import uint8_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memcpy, memmove
from cython.cimports.tidemq.net.buffer import Buffer, append, discard, release
from cython.cimports.tidemq.net.tls import (
    FAILED,
    FINISHED,
    Step,
    TlsContext,
    close_tls,
    decrypt,
    encrypt,
    fault_text,
    open_client,
    say_end,
    shake_hands,
)
from cython.cimports.tidemq.net.transport import (
    ENDED,
    FAULTY,
    OPEN,
    RECORD_BYTES_MAX,
    SECURING,
    UPGRADING,
    Transport,
)
from cython.cimports.tidemq.net.upgrade import release_upgrade, take_response, upgrade_text
from cython.cimports.tidemq.net.websocket import (
    BINARY,
    NORMAL_CLOSURE,
    append_close,
    append_frame,
    fault_words,
    unframe,
)

from tidemq.errors import UsageError
from tidemq.net.upgrade import encode_request

if not cython.compiled:
    raise ImportError("tidemq.net.transport is compiled code: run `make build`")


@cython.cclass
class Scheme:
    """How connections to one server are wrapped; it makes their transports. Any thread."""

    def __init__(
        self, *, tls: TlsContext | None = None, server_name: str = "", host: str = "", resource: str = ""
    ) -> None:
        """`tls` is for a server whose certificate is for `server_name`, a host name or an address. `resource`
        makes a WebSocket of that path, at `host` as HTTP wants it.
        """
        self.tls, self.host, self.resource = tls, host, resource
        self.server_name = server_name.encode("idna" if not server_name.isascii() else "ascii")
        try:
            ipaddress.ip_address(server_name)
            self.named = False
        except ValueError:
            self.named = True

    @cython.cfunc
    @cython.exceptval(check=True)
    def make(self) -> cython.pointer[Transport]:
        """A transport that waits for its connection; the caller frees it."""
        t: cython.pointer[Transport] = cython.cast(
            cython.pointer[Transport], calloc(1, cython.sizeof(Transport))
        )
        request: bytes
        accept: bytes
        noise: bytes
        if t == cython.NULL:
            raise MemoryError
        t.secure, t.framed = self.tls is not None, self.resource != ""
        if t.secure and not open_client(
            cython.address(t.tls), self.tls.handle, self.server_name, self.named, cython.address(t.output)
        ):
            free_transport(t)
            raise UsageError(f"{self.server_name.decode()!r} cannot be a server's name")
        if t.framed:
            request, accept = encode_request(self.host, self.resource)
            append(
                cython.address(t.upgrade.request),
                cython.cast(cython.p_const_uchar, cython.cast(cython.p_const_char, request)),
                len(request),
            )
            memcpy(t.upgrade.accept, cython.cast(cython.p_const_char, accept), 28)
            noise = os.urandom(8)
            memcpy(cython.address(t.websocket.noise), cython.cast(cython.p_const_char, noise), 8)
            t.websocket.noise |= 1
        return t


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def free_transport(t: cython.pointer[Transport]) -> cython.void:
    """Of NULL too."""
    if t != cython.NULL:
        close_tls(cython.address(t.tls))
        release_upgrade(cython.address(t.upgrade))
        release(cython.address(t.clear))
        release(cython.address(t.output))
        free(t)


@cython.cfunc
def step_text(t: cython.pointer[cython.const[Transport]]) -> object:
    """What is going on until it is OPEN; empty from then on."""
    return {SECURING: "the TLS handshake", UPGRADING: "the WebSocket upgrade"}.get(t.phase, "")


@cython.cfunc
def transport_text(t: cython.pointer[cython.const[Transport]]) -> object:
    """Why it is over, or would be if the server went now; empty where the connection was open till then."""
    if t.phase == FAULTY and t.tls.failed:
        return fault_text(cython.address(t.tls))
    if t.phase == FAULTY and t.upgrade.fault:
        return upgrade_text(cython.address(t.upgrade))
    if t.phase == FAULTY:
        return f"the server breaks the WebSocket protocol: {fault_words(t.websocket.fault)}"
    if t.websocket.close_code:
        return f"the server closed the WebSocket (code {t.websocket.close_code})"
    step: str = step_text(t)
    return f"the server closed the connection during {step}" if step else ""


# -------------------------------------------------------------------- bytes in, bytes out


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def begin(t: cython.pointer[Transport]) -> cython.void:
    """The socket is connected: the first bytes for the server."""
    if t.secure:
        t.phase = SECURING
        shake(t)
    else:
        ask(t)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def shake(t: cython.pointer[Transport]) -> cython.void:
    step: Step = shake_hands(cython.address(t.tls))
    if step == FAILED:
        t.phase = FAULTY
    elif step == FINISHED:
        ask(t)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def ask(t: cython.pointer[Transport]) -> cython.void:
    """What is below WebSocket is ready."""
    request: cython.pointer[Buffer] = cython.address(t.upgrade.request)
    if not t.framed:
        t.phase = OPEN
        return
    t.phase = UPGRADING
    if not t.secure:
        append(cython.address(t.output), request.bytes, request.end)
    elif not encrypt(cython.address(t.tls), request.bytes, request.end):
        t.phase = FAULTY


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def unwrap(
    t: cython.pointer[Transport],
    data: cython.pointer[cython.const[uint8_t]],
    size: cython.size_t,
    to: cython.pointer[uint8_t],
) -> cython.size_t:
    """Take all that came from the peer; returns how many bytes of MQTT lie at `to` then, which has room for
    `size` + RECORD_BYTES_MAX. Answers go to the output; the phase says how it goes on.
    """
    got: cython.size_t = size
    used: cython.size_t = 0
    if t.phase >= ENDED:
        return 0
    if t.secure:
        t.tls.input, t.tls.input_size = data, size
        if t.phase == SECURING:
            shake(t)
            if t.phase == SECURING or t.phase == FAULTY:
                return 0
        got = decrypt(cython.address(t.tls), to, size + RECORD_BYTES_MAX)
    else:
        memcpy(to, data, size)
    if t.framed:
        if t.phase == UPGRADING:
            used = upgraded(t, to, got)
        got = unframed(t, to + used, got - used) if t.phase == OPEN else 0
        if used:
            memmove(to, to + used, got)
    if t.tls.failed:
        t.phase = FAULTY
    elif t.tls.ended and t.phase == OPEN:
        t.phase = ENDED
    return got


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def upgraded(
    t: cython.pointer[Transport], data: cython.pointer[cython.const[uint8_t]], size: cython.size_t
) -> cython.size_t:
    used: cython.size_t = take_response(cython.address(t.upgrade), data, size)
    if t.upgrade.fault:
        t.phase = FAULTY
    elif t.upgrade.done:
        t.phase = OPEN
        release_upgrade(cython.address(t.upgrade))
    return used


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def unframed(
    t: cython.pointer[Transport], data: cython.pointer[uint8_t], size: cython.size_t
) -> cython.size_t:
    kept: cython.size_t = unframe(
        cython.address(t.websocket),
        data,
        size,
        cython.address(t.clear) if t.secure else cython.address(t.output),
    )
    if t.websocket.fault:
        t.phase = FAULTY
    elif t.websocket.closed:
        t.phase = ENDED
    encrypt_clear(t)
    return kept


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def wrap(
    t: cython.pointer[Transport], data: cython.pointer[cython.const[uint8_t]], size: cython.size_t
) -> cython.bint:
    """MQTT for the peer goes to the output; in the phase OPEN. False: it failed."""
    if t.framed:
        append_frame(
            cython.address(t.websocket),
            cython.address(t.clear) if t.secure else cython.address(t.output),
            BINARY,
            data,
            size,
        )
        encrypt_clear(t)
    elif not encrypt(cython.address(t.tls), data, size):
        t.phase = FAULTY
    return t.phase != FAULTY


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def encrypt_clear(t: cython.pointer[Transport]) -> cython.void:
    if t.clear.end:
        if not encrypt(cython.address(t.tls), t.clear.bytes, t.clear.end):
            t.phase = FAULTY
        discard(cython.address(t.clear), t.clear.end)


@cython.cfunc
@cython.nogil
@cython.exceptval(check=False)
def conclude(t: cython.pointer[Transport]) -> cython.void:
    """Say goodbye: Close, close_notify; nothing may be wrapped after it."""
    if t.phase != OPEN:
        return
    if t.framed:
        append_close(
            cython.address(t.websocket),
            cython.address(t.clear) if t.secure else cython.address(t.output),
            NORMAL_CLOSURE,
        )
        encrypt_clear(t)
    if t.secure:
        say_end(cython.address(t.tls))


@cython.cclass
class Stream:
    """A transport for Python code: bytes in, bytes out, no I/O. One thread."""

    t: cython.pointer[Transport]

    def __init__(self, scheme: Scheme) -> None:
        self.t = scheme.make()

    def __dealloc__(self):
        free_transport(self.t)

    def connected(self) -> None:
        """The socket is connected."""
        begin(self.t)

    def receive(self, data: bytes) -> bytes:
        """The bytes of MQTT in what came."""
        space: bytearray = bytearray(len(data) + RECORD_BYTES_MAX)
        to: cython.p_char = space
        at: cython.p_const_char = data
        got: cython.size_t = unwrap(
            self.t, cython.cast(cython.p_const_uchar, at), len(data), cython.cast(cython.pointer[uint8_t], to)
        )
        return bytes(space[:got])

    def send(self, data: bytes) -> None:
        """Wrap MQTT, once it is open."""
        at: cython.p_const_char = data
        wrap(self.t, cython.cast(cython.p_const_uchar, at), len(data))

    def finish(self) -> None:
        """Nothing more will be sent."""
        conclude(self.t)

    def take_output(self) -> bytes:
        """What is to be sent to the peer."""
        at: cython.p_char = cython.cast(cython.p_char, self.t.output.bytes)
        taken: bytes = b""
        if self.t.output.end:
            taken = at[self.t.output.start : self.t.output.end]
            discard(cython.address(self.t.output), len(taken))
        return taken

    @property
    def open(self) -> bool:
        return self.t.phase == OPEN

    @property
    def over(self) -> bool:
        """The peer ended it, or it is at fault."""
        return self.t.phase >= ENDED

    @property
    def faulty(self) -> bool:
        """The peer did what it may not; `text` says what."""
        return self.t.phase == FAULTY

    @property
    def step(self) -> str:
        """What is going on until it is open, in words."""
        return step_text(self.t)

    @property
    def text(self) -> str:
        """Why it is over, or would be if the peer went now; empty where it was open till then."""
        return transport_text(self.t)
