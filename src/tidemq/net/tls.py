"""TLS 1.2 and 1.3 by OpenSSL, between two pieces of memory: no I/O, no GIL, no Python object a connection.

The caller points `Tls.input` at what came from the peer; records for the peer are appended to
`Tls.output`. OpenSSL reaches both through a BIO of ours, so that nothing is copied but into and out of its
records. It takes all input that it is given and keeps the beginning of a record itself.

A `Tls` belongs to one thread at a time. Renegotiation is off, so a write never waits for the peer.
"""

import cython
import cython.cimports.tidemq.net.openssl as openssl
from cython.cimports.libc.stdint import uint16_t, uint32_t
from cython.cimports.libc.string import memcpy, memset
from cython.cimports.tidemq.net.buffer import append
from cython.cimports.tidemq.net.tls import FAILED, FINISHED, WANTS_INPUT, Tls

from tidemq.errors import UsageError

if not cython.compiled:
    raise ImportError("tidemq.net.tls is compiled code: run `make build`")

# numbers of OpenSSL's interface
VERSION_3 = cython.declare(cython.ulong, 0x30000000)
ERROR_WANT_READ = cython.declare(cython.int, 2)
ERROR_ZERO_RETURN = cython.declare(cython.int, 6)
REASON_MASK = cython.declare(cython.ulong, 0x7FFFFF)
CERTIFICATE_VERIFY_FAILED = cython.declare(cython.ulong, 134)
FILETYPE_PEM = cython.declare(cython.int, 1)
VERIFY_PEER = cython.declare(cython.int, 1)
CTRL_MODE = cython.declare(cython.int, 33)
CTRL_SET_HOSTNAME = cython.declare(cython.int, 55)
CTRL_SET_MIN_VERSION = cython.declare(cython.int, 123)
TLS_1_2 = cython.declare(cython.long, 0x0303)
MODE_RELEASE_BUFFERS = cython.declare(cython.long, 0x10)  # an idle connection holds none
OP_NO_RENEGOTIATION = cython.declare(cython.long, 1 << 30)
OP_NO_COMPRESSION = cython.declare(cython.long, 1 << 17)
BIO_SOURCE_SINK = cython.declare(cython.int, 0x0400)
BIO_CTRL_FLUSH = cython.declare(cython.int, 11)
BIO_RETRY_READ = cython.declare(cython.int, 0x01 | 0x08)

CHANGE_CIPHER_SPEC = cython.declare(cython.int, 20)  # kinds of records
HANDSHAKE = cython.declare(cython.int, 22)
APPLICATION_DATA = cython.declare(cython.int, 23)
MESSAGE_BYTES_MAX = cython.declare(uint32_t, 32768)  # of a handshake, a chain of certificates included

library = cython.declare(cython.p_void, cython.NULL)  # set once, with the functions
bio_method = cython.declare(cython.p_void, cython.NULL)


def read_input(bio, to, room):
    """OpenSSL's read: from the caller's input; asks to be called again where that is used up."""
    tls: cython.pointer[Tls] = cython.cast(cython.pointer[Tls], openssl.BIO_get_data(bio))
    size: cython.size_t = min(cython.cast(cython.size_t, max(room, 0)), tls.input_size)
    openssl.BIO_clear_flags(bio, BIO_RETRY_READ)
    if size == 0:
        openssl.BIO_set_flags(bio, BIO_RETRY_READ)
        return -1
    memcpy(to, tls.input, size)
    tls.input += size
    tls.input_size -= size
    return size


def write_output(bio, data, size):
    """OpenSSL's write: there is always room."""
    tls: cython.pointer[Tls] = cython.cast(cython.pointer[Tls], openssl.BIO_get_data(bio))
    append(tls.output, cython.cast(cython.p_const_uchar, data), size)
    return size


def control_bio(bio, command, number, pointer):
    return command == BIO_CTRL_FLUSH  # done already; nothing else is known here


def refuse_password(to, room, writing, data):
    """Of an encrypted key: OpenSSL's own would ask at the terminal. Notes that it was asked."""
    cython.cast(cython.pointer[cython.bint], data)[0] = True
    return -1


def library_names() -> list[str]:
    """Where OpenSSL is looked for. With an extension's symbols those of the libraries that it links to are
    searched, so the first is the copy that Python uses.
    """
    try:
        import _ssl
    except ImportError:
        return ["libssl.so.3"]
    return [getattr(_ssl, "__file__", ""), "libssl.so.3"]  # it may be a part of Python itself


def has_openssl(name: str) -> bool:
    """Whether it has OpenSSL's functions, of version 3 at least; if so they are called there from now on."""
    global library
    path: bytes = name.encode()
    found: cython.p_void = cython.NULL
    if path:
        found = openssl.dlopen(path, openssl.RTLD_NOW | openssl.RTLD_LOCAL)
    if found == cython.NULL or openssl.find_openssl(found) != cython.NULL:
        return False
    if openssl.OpenSSL_version_num() < VERSION_3:
        return False
    library = found
    return True


def load_openssl(what):
    """The library, its functions found once a process; UsageError where there is no OpenSSL 3, which `what`
    needs.
    """
    global bio_method
    if bio_method != cython.NULL:
        return library
    if not any(has_openssl(name) for name in library_names()):
        raise UsageError(f"{what} needs OpenSSL 3, and there is no libssl.so.3: install it (Debian: libssl3)")
    bio_method = openssl.BIO_meth_new(BIO_SOURCE_SINK, b"tidemq")
    openssl.BIO_meth_set_read(bio_method, read_input)
    openssl.BIO_meth_set_write(bio_method, write_output)
    openssl.BIO_meth_set_ctrl(bio_method, control_bio)
    return library


@cython.cclass
class TlsContext:
    """What connections of one kind have in common. Any number of connections, of any threads."""

    def __init__(self, *, cafile: str = "", cert: str = "", key: str = "", insecure: bool = False) -> None:
        """Of a client: it checks the server's certificate and name, TLS 1.2 is the least.

        `cafile`: PEM, who may sign the server's certificate; empty: the system's authorities. `cert`, `key`:
        PEM, what the client shows, its chain after it; an empty `key` is in `cert`. `insecure`: nothing is
        checked. UsageError for files that cannot be used, and where there is no OpenSSL.
        """
        load_openssl("TLS")
        self.handle = new_context(openssl.TLS_client_method())
        if not insecure:
            openssl.SSL_CTX_set_verify(self.handle, VERIFY_PEER, cython.NULL)
            if cafile:
                trust(self.handle, cafile)
            else:
                openssl.SSL_CTX_set_default_verify_paths(self.handle)
        if cert:
            show(self.handle, cert, key)
        elif key:
            raise UsageError("a key needs its certificate")

    def __dealloc__(self):
        if self.handle != cython.NULL:
            openssl.SSL_CTX_free(self.handle)


def new_context(method):
    """What contexts of either side have in common; the caller frees it."""
    openssl.ERR_clear_error()
    context: cython.p_void = openssl.SSL_CTX_new(method)
    if context == cython.NULL:
        raise UsageError(f"OpenSSL refuses to work: {last_error_text()}")
    openssl.SSL_CTX_ctrl(context, CTRL_SET_MIN_VERSION, TLS_1_2, cython.NULL)
    openssl.SSL_CTX_ctrl(context, CTRL_MODE, MODE_RELEASE_BUFFERS, cython.NULL)
    openssl.SSL_CTX_set_options(context, OP_NO_RENEGOTIATION | OP_NO_COMPRESSION)
    openssl.SSL_CTX_set_default_passwd_cb(context, refuse_password)
    return context


def trust(context, cafile):
    """Who may sign the peer's certificate. UsageError."""
    name: bytes = cafile.encode()
    check_readable(cafile)
    openssl.ERR_clear_error()
    if openssl.SSL_CTX_load_verify_locations(context, name, cython.NULL) != 1:
        raise UsageError(f"{cafile} holds no certificates of authorities: {last_error_text()}")


def show(context, cert, key):
    """The certificate and its chain, and its key, which is in `cert` too where `key` is empty. UsageError."""
    cert_name: bytes = cert.encode()
    key_name: bytes = (key or cert).encode()
    encrypted: cython.bint = False
    for path in (cert, key):
        check_readable(path)
    openssl.ERR_clear_error()
    if openssl.SSL_CTX_use_certificate_chain_file(context, cert_name) != 1:
        raise UsageError(f"{cert} holds no certificate: {last_error_text()}")
    openssl.SSL_CTX_set_default_passwd_cb_userdata(context, cython.address(encrypted))
    used: cython.int = openssl.SSL_CTX_use_PrivateKey_file(context, key_name, FILETYPE_PEM)
    openssl.SSL_CTX_set_default_passwd_cb_userdata(context, cython.NULL)
    if encrypted:
        raise UsageError(
            f"the key in {key or cert} is encrypted: it must be without a password "
            "(openssl pkey -in KEY -out NEW)"
        )
    # a key of another kind than the certificate's is taken at first
    if used != 1 or openssl.SSL_CTX_check_private_key(context) != 1:
        raise UsageError(
            f"{key or cert} holds no private key for the certificate in {cert}: {last_error_text()}"
        )


def check_readable(path: str) -> None:
    """UsageError, which OpenSSL cannot put as well."""
    if not path:
        return
    try:
        with open(path, "rb"):
            pass
    except OSError as error:
        raise UsageError(f"{path} cannot be read: {(error.strerror or str(error)).lower()}") from error


def last_error_text() -> str:
    """Of this thread's first error since they were cleared; clears them."""
    code: cython.ulong = openssl.ERR_peek_error()
    openssl.ERR_clear_error()
    return reason_text(code)


def reason_text(code):
    return cython.cast(bytes, reason_name(code)).decode()


def reason_name(code):
    text: cython.p_const_char = openssl.ERR_reason_error_string(code)
    return cython.cast(cython.p_const_char, b"unknown error") if text == cython.NULL else text


def tls_fault_name(tls):
    """OpenSSL's words for why it failed, or ours; they live for ever."""
    if tls.foreign:
        return cython.cast(cython.p_const_char, b"the client does not speak TLS")
    if tls.message_left > MESSAGE_BYTES_MAX:
        return cython.cast(cython.p_const_char, b"a message of the handshake is too long")
    if tls.verify_fault:
        return openssl.X509_verify_cert_error_string(tls.verify_fault)
    return reason_name(tls.fault)


def fault_text(tls, peer):
    """Why it failed, in words; `peer`: client or server."""
    text: str = cython.cast(bytes, tls_fault_name(tls)).decode()
    return f"the {peer}'s certificate is not accepted: {text}" if tls.verify_fault else f"TLS failed: {text}"


# -------------------------------------------------------------------- one connection


def open_client(tls, context, server_name, named, output):
    """Make the client's end. `server_name` is what the certificate must be for, a host name or an IP address;
    `named`: it is a name, and is told to the server (SNI). False: no name of a server, or no memory.
    """
    if not open_end(tls, context, output):
        return False
    openssl.SSL_set_connect_state(tls.ssl)
    if named and not openssl.SSL_ctrl(tls.ssl, CTRL_SET_HOSTNAME, 0, cython.cast(cython.p_void, server_name)):
        return False
    # an empty name would let any certificate pass
    return server_name[0] != 0 and openssl.SSL_set1_host(tls.ssl, server_name) == 1


def open_server(tls, context, framed, output):
    """Make the server's end. False: no memory."""
    if not open_end(tls, context, output):
        return False
    tls.framed = framed
    tls.in_clear = True
    openssl.SSL_set_accept_state(tls.ssl)
    return True


def open_end(tls, context, output):
    bio: cython.p_void
    memset(tls, 0, cython.sizeof(Tls))
    tls.output = output
    tls.ssl = openssl.SSL_new(context)  # keeps the context
    if tls.ssl == cython.NULL:
        return False
    bio = openssl.BIO_new(bio_method)
    if bio == cython.NULL:
        return False
    openssl.BIO_set_data(bio, tls)
    openssl.BIO_set_init(bio, 1)
    openssl.SSL_set_bio(tls.ssl, bio, bio)  # is freed with it
    return True


def peer_certificate(tls, der):
    """What the peer has shown, in DER. False: nothing."""
    to: cython.pointer[cython.uchar]
    size: cython.int
    shown: cython.p_void = openssl.SSL_get1_peer_certificate(tls.ssl)
    if shown == cython.NULL:
        return False
    size = openssl.i2d_X509(shown, cython.NULL)
    if size > 0:
        der.resize(size)
        to = cython.cast(cython.pointer[cython.uchar], der.data())
        openssl.i2d_X509(shown, cython.address(to))
    openssl.X509_free(shown)
    return size > 0


def shake_hands(tls):
    """Go on with the handshake as far as the input allows; after FINISHED there may be input left."""
    result: cython.int
    if tls.failed:
        return FAILED
    if tls.in_clear:
        tls.input_size = check_claims(tls)
    openssl.ERR_clear_error()
    result = openssl.SSL_do_handshake(tls.ssl)
    if result != 1 and openssl.SSL_get_error(tls.ssl, result) != ERROR_WANT_READ:
        fail(tls)
    elif tls.message_left > MESSAGE_BYTES_MAX:
        tls.failed = True
    if tls.failed:
        return FAILED
    return FINISHED if result == 1 else WANTS_INPUT


def check_claims(tls):
    """Follow the messages of a handshake as far as they come in clear (RFC 8446 section 5.1). Returns how
    much of the input OpenSSL may have: what comes before the size of a message that is longer than
    MESSAGE_BYTES_MAX. OpenSSL, which allows four times that, takes memory for a whole message with its first
    bytes, so strangers could have much of it for little.
    """
    at: cython.size_t = 0
    part: cython.size_t
    while at < tls.input_size:
        if tls.record_head < 5:  # kind, version, size
            if tls.record_head == 0:
                tls.record_kind = tls.input[at]
                tls.foreign |= not (tls.begun or CHANGE_CIPHER_SPEC <= tls.record_kind <= APPLICATION_DATA)
                tls.begun = True
            elif tls.record_head > 2:
                tls.record_left = cython.cast(uint16_t, tls.record_left << 8 | tls.input[at])
            tls.record_head += 1
            at += 1
            # encrypted from here on; in 1.3 another message in clear may follow such a change
            if tls.record_kind == APPLICATION_DATA or (
                tls.record_kind == CHANGE_CIPHER_SPEC and openssl.SSL_version(tls.ssl) == TLS_1_2
            ):
                tls.in_clear = False
                return tls.input_size
        elif tls.record_left == 0:
            tls.record_head = 0
        elif tls.record_kind == HANDSHAKE and tls.message_left == 0:
            if tls.message_head:  # after the message's kind its size
                tls.message_size = tls.message_size << 8 | tls.input[at]
            tls.message_head += 1
            tls.record_left -= 1
            at += 1
            if tls.message_head == 4:
                tls.message_left = tls.message_size
                tls.message_head, tls.message_size = 0, 0
                if tls.message_left > MESSAGE_BYTES_MAX:
                    return at - 1
        else:
            part = min(cython.cast(cython.size_t, tls.record_left), tls.input_size - at)
            if tls.record_kind == HANDSHAKE:
                part = min(part, cython.cast(cython.size_t, tls.message_left))
                tls.message_left -= cython.cast(uint32_t, part)
            tls.record_left -= cython.cast(uint16_t, part)
            at += part
    return tls.input_size


def decrypt(tls, to, room):
    """What the input holds, in clear; all of it where there is room for the input and one record more
    (16 KiB). Sets `ended` or `failed` where that is met.
    """
    result: cython.int
    error: cython.int
    got: cython.size_t = 0
    while got < room and not tls.failed and not tls.ended:
        openssl.ERR_clear_error()
        result = openssl.SSL_read(
            tls.ssl, to + got, cython.cast(cython.int, min(room - got, cython.cast(cython.size_t, 1 << 30)))
        )
        if result > 0:
            got += result
            continue
        error = openssl.SSL_get_error(tls.ssl, result)
        if error == ERROR_WANT_READ:
            return got
        if error == ERROR_ZERO_RETURN:
            tls.ended = True
        else:
            fail(tls)
    return got


def encrypt(tls, data, size):
    """Records of all `data` go to the output; after the handshake. False when that failed."""
    result: cython.int
    while size > 0 and not tls.failed:
        openssl.ERR_clear_error()
        result = openssl.SSL_write(
            tls.ssl, data, cython.cast(cython.int, min(size, cython.cast(cython.size_t, 1 << 30)))
        )
        if result <= 0:
            fail(tls)
            break
        data += result
        size -= result
    return not tls.failed


def say_end(tls):
    """close_notify goes to the output: the stream ends here, and was not cut."""
    if not tls.failed:
        openssl.ERR_clear_error()
        openssl.SSL_shutdown(tls.ssl)


def fail(tls):
    """Note this thread's error."""
    tls.failed = True
    tls.message_left = 0  # the fault is OpenSSL's
    tls.fault = openssl.ERR_peek_error()
    if tls.fault & REASON_MASK == CERTIFICATE_VERIFY_FAILED:
        tls.verify_fault = openssl.SSL_get_verify_result(tls.ssl)


def close_tls(tls):
    """Free it, if it is open; the faults remain."""
    if tls.ssl != cython.NULL:
        openssl.SSL_free(tls.ssl)
        tls.ssl = cython.NULL
