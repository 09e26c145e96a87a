"""What a connection's bytes are wrapped in: TLS, WebSocket, or WebSocket over TLS; of either side. A server's
may begin with a PROXY header.

Bytes in, bytes out: the caller owns the socket. What is to be sent gathers in `Transport.output`; nothing of
MQTT may be wrapped before the phase is OPEN.
"""

import ipaddress
import os

import cython
from cython.cimports.libc.stdint import uint8_t
from cython.cimports.libc.stdlib import calloc, free
from cython.cimports.libc.string import memcpy, memmove
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.net.buffer import append, discard, release
from cython.cimports.tidemq.net.proxy import proxy_fault_name, release_proxy, take_header
from cython.cimports.tidemq.net.server_tls import ServerTls
from cython.cimports.tidemq.net.server_upgrade import WebSocketTerms, hold_rules, let_go_rules, take_request
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
    open_server,
    peer_certificate,
    say_end,
    shake_hands,
    tls_fault_name,
)
from cython.cimports.tidemq.net.transport import (
    ENDED,
    FAULTY,
    FRAME_FAULT,
    NO_FAULT,
    OPEN,
    PROXY_FAULT,
    PROXYING,
    RECORD_BYTES_MAX,
    SECURING,
    TLS_FAULT,
    UPGRADE_FAULT,
    UPGRADING,
    Transport,
    TransportFault,
)
from cython.cimports.tidemq.net.upgrade import (
    release_upgrade,
    take_response,
    upgrade_fault_name,
    upgrade_text,
)
from cython.cimports.tidemq.net.websocket import (
    BINARY,
    NORMAL_CLOSURE,
    append_close,
    append_frame,
    frame_fault_name,
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

    def make(self):
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


@cython.cclass
class ServerScheme:
    """How connections to one listener are wrapped. Any thread. Its transports keep what they need of it."""

    def __init__(
        self,
        *,
        tls: ServerTls | None = None,
        websocket: WebSocketTerms | None = None,
        proxy_protocol: bool = False,
    ) -> None:
        """`proxy_protocol`: each connection begins with a PROXY header, of version 1 or 2."""
        self.tls, self.websocket = tls, websocket
        if tls is not None:
            self.terms.tls = tls.handle
        self.terms.framed = websocket is not None
        self.terms.proxied = proxy_protocol
        if websocket is not None:
            if tls is not None:
                websocket.rules.named = True
            self.terms.rules = websocket.rules


def serve(terms):
    """A transport for an accepted socket, ready for its first bytes; the caller frees it. NULL: no memory."""
    t: cython.pointer[Transport] = cython.cast(cython.pointer[Transport], calloc(1, cython.sizeof(Transport)))
    if t == cython.NULL:
        return cython.NULL
    t.serves = t.websocket.serves = True
    t.secure, t.framed, t.rules = terms.tls != cython.NULL, terms.framed, terms.rules
    hold_rules(t.rules)
    if t.secure and not open_server(cython.address(t.tls), terms.tls, t.framed, cython.address(t.output)):
        free_transport(t)
        return cython.NULL
    if terms.proxied:
        t.phase = PROXYING
    else:
        begin(t)
    return t


def free_transport(t):
    """Of NULL too."""
    if t != cython.NULL:
        close_tls(cython.address(t.tls))
        release_proxy(cython.address(t.proxy))
        release_upgrade(cython.address(t.upgrade))
        let_go_rules(t.rules)
        release(cython.address(t.clear))
        release(cython.address(t.output))
        free(t)


def fault_kind(t):
    """Which part the peer is at fault with, to be counted."""
    if t.phase != FAULTY:
        return NO_FAULT
    if t.proxy.fault:
        return PROXY_FAULT
    if t.tls.failed:
        return TLS_FAULT
    return UPGRADE_FAULT if t.upgrade.fault else FRAME_FAULT


def fault_name(t):
    """What the peer did wrong, in a few words that live for ever; empty: nothing."""
    kind: TransportFault = fault_kind(t)
    if kind == PROXY_FAULT:
        return proxy_fault_name(t.proxy.fault)
    if kind == TLS_FAULT:
        return tls_fault_name(cython.address(t.tls))
    if kind == UPGRADE_FAULT:
        return upgrade_fault_name(t.upgrade.fault)
    if kind == FRAME_FAULT:
        return frame_fault_name(t.websocket.fault)
    return cython.cast(cython.p_const_char, b"")


def certificate_of(t, der):
    """The peer's certificate, checked, in DER. False: it has shown none, or the handshake is not done."""
    return t.secure and SECURING < t.phase < FAULTY and peer_certificate(cython.address(t.tls), der)


def step_text(t):
    """What is going on until it is OPEN; empty from then on."""
    steps = {PROXYING: "the PROXY header", SECURING: "the TLS handshake", UPGRADING: "the WebSocket upgrade"}
    return steps.get(t.phase, "")


def transport_text(t):
    """Why it is over, or would be if the peer went now; empty where the connection was open till then."""
    kind: TransportFault = fault_kind(t)
    peer: str = "client" if t.serves else "server"
    if kind == PROXY_FAULT:
        return f"the PROXY header is not as it must be: {name_text(t)}"
    if kind == TLS_FAULT:
        return fault_text(cython.address(t.tls), peer)
    if kind == UPGRADE_FAULT and not t.serves:
        return upgrade_text(cython.address(t.upgrade))
    if kind == UPGRADE_FAULT:
        return f"the client asks for no WebSocket that is here: {name_text(t)}"
    if kind == FRAME_FAULT:
        return f"the {peer} breaks the WebSocket protocol: {name_text(t)}"
    if t.websocket.close_code:
        return f"the {peer} closed the WebSocket (code {t.websocket.close_code})"
    step: str = step_text(t)
    return f"the {peer} closed the connection during {step}" if step else ""


def name_text(t):
    return cython.cast(bytes, fault_name(t)).decode()


# -------------------------------------------------------------------- bytes in, bytes out


def begin(t):
    """The bytes that come are TLS's, WebSocket's or MQTT's from now on. Of a client: the socket is connected,
    and its first bytes go to the output.
    """
    if not t.secure:
        secured(t)
        return
    t.phase = SECURING
    if not t.serves:
        shake(t)


def shake(t):
    step: Step = shake_hands(cython.address(t.tls))
    if step == FAILED:
        t.phase = FAULTY
    elif step == FINISHED:
        secured(t)


def secured(t):
    """What is below WebSocket is ready."""
    t.phase = UPGRADING if t.framed else OPEN
    if t.framed and not t.serves:
        emit(t, t.upgrade.request.bytes, t.upgrade.request.end)


def emit(t, data, size):
    """Send what is above TLS."""
    if not t.secure:
        append(cython.address(t.output), data, size)
    elif not encrypt(cython.address(t.tls), data, size):
        t.phase = FAULTY


def unwrap(t, data, size, to):
    """Take all that came from the peer; returns how many bytes of MQTT lie at `to` then, which has room for
    `size` + RECORD_BYTES_MAX. The phase says how it goes on; where it is over, these bytes came before the
    end. Answers go to the output: to Pings and changes of keys no more bytes than these have.
    """
    got: cython.size_t = size
    used: cython.size_t = 0
    if t.phase >= ENDED:
        return 0
    if t.phase == PROXYING:
        used = proxied(t, data, size)
        if t.phase == PROXYING or t.phase == FAULTY:
            return 0
        data, size = data + used, size - used
        got, used = size, 0
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
    elif t.tls.ended and (t.phase == OPEN or (t.serves and t.phase < OPEN)):
        t.phase = ENDED
    return got


def proxied(t, data, size):
    used: cython.size_t = take_header(cython.address(t.proxy), data, size)
    if t.proxy.fault:
        t.phase = FAULTY
    elif t.proxy.done:
        release_proxy(cython.address(t.proxy))
        begin(t)
    return used


def upgraded(t, data, size):
    used: cython.size_t
    if t.serves:
        used = take_request(cython.address(t.upgrade), t.rules, data, size)
        if t.upgrade.response.end:
            emit(t, t.upgrade.response.bytes, t.upgrade.response.end)
    else:
        used = take_response(cython.address(t.upgrade), data, size)
    if t.upgrade.fault:
        t.phase = FAULTY
        if t.secure:
            say_end(cython.address(t.tls))
    elif t.upgrade.done:
        t.phase = OPEN
        release_upgrade(cython.address(t.upgrade))
    return used


def unframed(t, data, size):
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


def wrap(t, data, size):
    """MQTT for the peer goes to the output. False: the phase is not OPEN, or is no more."""
    if t.phase != OPEN:
        return False
    if t.framed:
        append_frame(
            cython.address(t.websocket),
            cython.address(t.clear) if t.secure else cython.address(t.output),
            BINARY,
            data,
            size,
        )
        encrypt_clear(t)
    else:
        emit(t, data, size)
    return t.phase == OPEN


def encrypt_clear(t):
    if t.clear.end:
        if not encrypt(cython.address(t.tls), t.clear.bytes, t.clear.end):
            t.phase = FAULTY
        discard(cython.address(t.clear), t.clear.end)


def conclude(t):
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

    def __init__(self, scheme: Scheme | ServerScheme) -> None:
        if isinstance(scheme, ServerScheme):
            served: ServerScheme = scheme
            self.t = serve(cython.address(served.terms))
            if self.t == cython.NULL:
                raise MemoryError
        else:
            maker: Scheme = scheme
            self.t = maker.make()

    def __dealloc__(self):
        free_transport(self.t)

    def connected(self) -> None:
        """The socket is connected; of a client."""
        begin(self.t)

    def receive(self, data: bytes) -> bytes:
        """The bytes of MQTT in what came."""
        space: bytearray = bytearray(len(data) + RECORD_BYTES_MAX)
        to: cython.p_char = space
        at: cython.p_const_char = data
        size: cython.size_t = len(data)
        got: cython.size_t
        with cython.nogil:
            got = unwrap(
                self.t, cython.cast(cython.p_const_uchar, at), size, cython.cast(cython.pointer[uint8_t], to)
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
    def peer(self) -> str:
        """The client as the PROXY header names it, "host:port"; empty: it names none."""
        return cython.cast(bytes, cython.cast(cython.p_char, self.t.proxy.peer)).decode()

    @property
    def certificate(self) -> bytes | None:
        """The peer's, in DER."""
        der = cython.declare(string)
        return der if certificate_of(self.t, cython.address(der)) else None

    @property
    def step(self) -> str:
        """What is going on until it is open, in words."""
        return step_text(self.t)

    @property
    def text(self) -> str:
        """Why it is over, or would be if the peer went now; empty where it was open till then."""
        return transport_text(self.t)
