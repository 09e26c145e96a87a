"""What the TLS connections of a listener have in common: certificates, clients' certificates, tickets."""

import cython
import cython.cimports.tidemq.net.openssl as openssl
from cython.cimports.libc.string import memcmp, strlen
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.tidemq.net.server_tls import NamedContext, NamedContexts
from cython.cimports.tidemq.net.tls import Tls, load_openssl, new_context, show, trust

from tidemq.errors import UsageError
from tidemq.net.tls import check_readable

if not cython.compiled:
    raise ImportError("tidemq.net.server_tls is compiled code: run `make build`")

# numbers of OpenSSL's interface
FILETYPE_PEM = cython.declare(cython.int, 1)
VERIFY_PEER = cython.declare(cython.int, 1)
VERIFY_FAIL_IF_NO_PEER_CERT = cython.declare(cython.int, 2)
CTRL_SET_SESS_CACHE_MODE = cython.declare(cython.int, 44)
SESS_CACHE_OFF = cython.declare(cython.long, 0)
CTRL_SET_MAX_CERT_LIST = cython.declare(cython.int, 51)
CTRL_SET_SERVERNAME_CB = cython.declare(cython.int, 53)
CTRL_SET_SERVERNAME_ARG = cython.declare(cython.int, 54)
CTRL_SET_MIN_VERSION = cython.declare(cython.int, 123)
TLS_1_3 = cython.declare(cython.long, 0x0304)
OP_PRIORITIZE_CHACHA = cython.declare(cython.long, 1 << 21)  # of a client that has no AES in its processor
OP_CIPHER_SERVER_PREFERENCE = cython.declare(cython.long, 1 << 22)
CRL_CHECK = cython.declare(cython.ulong, 0x4)
CRL_CHECK_ALL = cython.declare(cython.ulong, 0x8)
TLSEXT_OK = cython.declare(cython.int, 0)
TLSEXT_ALERT_FATAL = cython.declare(cython.int, 2)
TLSEXT_NOACK = cython.declare(cython.int, 3)
NAMETYPE_HOST = cython.declare(cython.int, 0)
HOST_BYTES_MAX = cython.declare(cython.size_t, 255)
EX_INDEX_SSL_CTX = cython.declare(cython.int, 1)

MQTT = cython.declare(cython.p_const_char, b"\x04mqtt")  # of the IANA's list of ALPN's protocols
HTTP = cython.declare(cython.p_const_char, b"\x08http/1.1")
CHAIN_BYTES_MAX = cython.declare(cython.long, 32768)  # of a client's certificates
TICKET_S = cython.declare(cython.long, 7200)
SESSION_ID_CONTEXT = cython.declare(cython.p_const_char, b"tidemq")

names_index = cython.declare(cython.int, -1)  # where an SSL_CTX has its NamedContexts; set once


def find_functions():
    global names_index
    if names_index < 0:
        openssl.find_openssl(load_openssl("TLS"))
        names_index = openssl.CRYPTO_get_ex_new_index(
            EX_INDEX_SSL_CTX, 0, cython.NULL, cython.NULL, cython.NULL, free_names
        )


@cython.cclass
class ServerTls:
    """Certificates and rules of a listener's TLS, 1.2 and 1.3. Any number of connections, of any threads;
    they keep what they need of it.

    A session is resumed by tickets for two hours, its client's certificate unseen. The tickets' keys are
    of this object alone: with the next one, made of the same files, every client has to show it again.
    """

    def __init__(
        self,
        cert: str,
        key: str = "",
        *,
        client_ca: str = "",
        client_cert: str = "none",
        crl: str = "",
        version_min: str = "1.2",
        others: object = (),
    ) -> None:
        """All files are PEM, read once, now. `cert`: the chain that is shown, the server's certificate first;
        `key` is not encrypted, and in `cert` where it is empty.

        `client_ca`: who may sign a client's certificate, which `client_cert` asks for: "none" (not at all),
        "optional", "required". `crl`: the revocation lists of all authorities in the chain; with it, a
        certificate is refused whose authority has no list there, or one that has expired.

        `others`: more certificates, for clients that ask for another server name (SNI): names, cert, key. A
        name is a host's, or "*.host" for one label before it; who asks for none or an unknown one is shown
        the first.

        UsageError for files that cannot be used, and where there is no OpenSSL.
        """
        if client_cert not in ("none", "optional", "required"):
            raise UsageError(f"client_cert is none, optional or required, not {client_cert!r}")
        if version_min not in ("1.2", "1.3"):
            raise UsageError(f"TLS begins with 1.2 or 1.3, not {version_min!r}")
        if (client_cert != "none") != bool(client_ca):
            raise UsageError("client_cert and client_ca need each other: who signs the clients' certificates")
        if crl and not client_ca:
            raise UsageError("crl needs client_ca: it lists clients' certificates")
        find_functions()
        self.handle = new_context(openssl.TLS_server_method())
        if client_ca:
            trust(self.handle, client_ca)
        if crl:
            check_revocation(self.handle, crl)
        prepare(self.handle, client_ca, client_cert, version_min)
        show(self.handle, cert, key)
        serve_names(self.handle, others, client_ca, client_cert, version_min)

    def __dealloc__(self):
        if self.handle != cython.NULL:
            openssl.SSL_CTX_free(self.handle)


def check_revocation(context, crl):
    name: bytes = crl.encode()
    check_readable(crl)
    openssl.ERR_clear_error()
    store: cython.p_void = openssl.SSL_CTX_get_cert_store(context)
    lookup: cython.p_void = openssl.X509_STORE_add_lookup(store, openssl.X509_LOOKUP_file())
    if lookup == cython.NULL or openssl.X509_load_crl_file(lookup, name, FILETYPE_PEM) < 1:
        openssl.ERR_clear_error()
        raise UsageError(f"{crl} holds no certificate revocation list in PEM")
    openssl.X509_STORE_set_flags(store, CRL_CHECK | CRL_CHECK_ALL)


def prepare(context, client_ca, client_cert, version_min):
    """What the contexts of all names have in common: a connection goes over to another in the middle."""
    mode: cython.int = VERIFY_PEER
    name: bytes = client_ca.encode()
    if version_min == "1.3":
        openssl.SSL_CTX_ctrl(context, CTRL_SET_MIN_VERSION, TLS_1_3, cython.NULL)
    openssl.SSL_CTX_set_options(context, OP_CIPHER_SERVER_PREFERENCE | OP_PRIORITIZE_CHACHA)
    # as OpenSSL and the system choose, but who gets the key one day reads nothing of today
    openssl.SSL_CTX_set_cipher_list(context, b"DEFAULT:!kRSA")
    openssl.SSL_CTX_set_alpn_select_cb(context, choose_protocol, cython.NULL)
    openssl.SSL_CTX_set_session_id_context(
        context, cython.cast(cython.p_const_uchar, SESSION_ID_CONTEXT), strlen(SESSION_ID_CONTEXT)
    )
    openssl.SSL_CTX_ctrl(context, CTRL_SET_SESS_CACHE_MODE, SESS_CACHE_OFF, cython.NULL)  # tickets do
    openssl.SSL_CTX_set_num_tickets(context, 1)  # a client of MQTT has one connection
    openssl.SSL_CTX_set_timeout(context, TICKET_S)
    openssl.SSL_CTX_ctrl(context, CTRL_SET_MAX_CERT_LIST, CHAIN_BYTES_MAX, cython.NULL)
    if client_ca:
        if client_cert == "required":
            mode |= VERIFY_FAIL_IF_NO_PEER_CERT
        openssl.SSL_CTX_set_verify(context, mode, cython.NULL)
        openssl.SSL_CTX_set_client_CA_list(context, openssl.SSL_load_client_CA_file(name))


def serve_names(default, others, client_ca, client_cert, version_min):
    owner: unique_ptr[NamedContexts] = make_unique[NamedContexts]()
    names: cython.pointer[NamedContexts] = owner.get()
    context: cython.p_void
    known: set = set()
    openssl.SSL_CTX_set_ex_data(default, names_index, owner.release())  # frees them whatever happens
    for hosts, cert, key in others:
        context = new_context(openssl.TLS_server_method())
        try:
            openssl.SSL_CTX_set1_cert_store(context, openssl.SSL_CTX_get_cert_store(default))
            prepare(context, client_ca, client_cert, version_min)
            show(context, cert, key)
            for host in hosts:
                add_name(names, host_bytes(host, known), context)
        finally:
            openssl.SSL_CTX_free(context)
    if others:
        openssl.SSL_CTX_callback_ctrl(default, CTRL_SET_SERVERNAME_CB, choose_certificate)
        openssl.SSL_CTX_ctrl(default, CTRL_SET_SERVERNAME_ARG, 0, names)


def host_bytes(host: str, known: set[str]) -> bytes:
    """As it is compared; UsageError for what is no host's name, and for one that is `known`: now it is."""
    text = host.removeprefix("*.")
    try:
        name = (host[: len(host) - len(text)] + text.encode("idna").decode()).lower()
    except UnicodeError:  # an empty or too long label
        name = ""
    if not name or "*" in text or any(letter.isspace() for letter in text) or text.endswith("."):
        raise UsageError(f"{host!r} cannot be a server's name: it is as example.org or *.example.org")
    if name in known:
        raise UsageError(f"the server name {host} has two certificates")
    known.add(name)
    return name.encode()


def add_name(names, host, context):
    entry = cython.declare(NamedContext)
    entry.wildcard = host.startswith(b"*")
    entry.name = host[1:] if entry.wildcard else host
    entry.context = context
    openssl.SSL_CTX_up_ref(context)
    names.entries.push_back(entry)


# -------------------------------------------------------------------- what OpenSSL calls


def free_names(context, data, table, index, number, more):
    """With each SSL_CTX of this process, also with those that are not ours: they have none."""
    names: cython.pointer[NamedContexts] = cython.cast(cython.pointer[NamedContexts], data)
    owner = cython.declare(unique_ptr[NamedContexts])
    at: cython.size_t
    if names == cython.NULL:
        return
    owner.reset(names)
    for at in range(names.entries.size()):
        openssl.SSL_CTX_free(names.entries[at].context)


def choose_certificate(ssl, alert, data):
    """By the server name that the client asks for: an exact one before a wildcard."""
    names: cython.pointer[NamedContexts] = cython.cast(cython.pointer[NamedContexts], data)
    asked: cython.p_const_char = openssl.SSL_get_servername(ssl, NAMETYPE_HOST)
    host = cython.declare(cython.char[256])
    size: cython.size_t = 0 if asked == cython.NULL else strlen(asked)
    dot: cython.size_t = 0
    at: cython.size_t
    found: cython.p_void = cython.NULL
    if size == 0 or size > HOST_BYTES_MAX:
        return TLSEXT_NOACK
    for at in range(size):
        host[at] = asked[at] + 32 if 65 <= asked[at] <= 90 else asked[at]
    while dot < size and host[dot] != 46:
        dot += 1
    for at in range(names.entries.size()):
        if names.entries[at].wildcard:
            if (
                found == cython.NULL
                and dot > 0
                and is_name(cython.address(names.entries[at]), host + dot, size - dot)
            ):
                found = names.entries[at].context
        elif is_name(cython.address(names.entries[at]), host, size):
            found = names.entries[at].context
            break
    if found == cython.NULL:
        return TLSEXT_NOACK
    openssl.SSL_set_SSL_CTX(ssl, found)
    return TLSEXT_OK


def is_name(entry, host, size):
    return entry.name.size() == size and memcmp(entry.name.data(), host, size) == 0


def choose_protocol(ssl, chosen, chosen_size, offered, offered_size, data):
    """ALPN, of a client that offers any: what is above TLS must be among it, or the client gets the alert
    no_application_protocol (RFC 7301 section 3.2).
    """
    tls: cython.pointer[Tls] = cython.cast(
        cython.pointer[Tls], openssl.BIO_get_data(openssl.SSL_get_rbio(ssl))
    )
    ours: cython.p_const_uchar = cython.cast(cython.p_const_uchar, HTTP if tls.framed else MQTT)
    at: cython.uint = 0
    while at < offered_size and at + 1 + offered[at] <= offered_size:
        if offered[at] == ours[0] and memcmp(offered + at + 1, ours + 1, ours[0]) == 0:
            chosen[0] = offered + at + 1
            chosen_size[0] = ours[0]
            return TLSEXT_OK
        at += 1 + offered[at]
    return TLSEXT_ALERT_FATAL
