"""The way from HTTP/1.1 to WebSocket (RFC 6455 section 4.2), the server's side. No I/O."""

import re

import cython
import cython.cimports.tidemq.net.openssl as openssl
from cython.cimports.libc.stdint import uint8_t
from cython.cimports.libc.stdio import snprintf
from cython.cimports.libc.string import memcmp, memcpy, memset, strlen
from cython.cimports.libcpp.memory import make_unique, unique_ptr
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.net.buffer import append
from cython.cimports.tidemq.net.server_upgrade import (
    Request,
    WebSocketRules,
    hold_rules,
    let_go_rules,
)
from cython.cimports.tidemq.net.tls import load_openssl
from cython.cimports.tidemq.net.upgrade import (
    NOT_HTTP,
    NOT_MQTT,
    NOT_WEBSOCKET,
    TOO_LONG,
    UPGRADED,
    WRONG_KEY,
    WRONG_METHOD,
    WRONG_ORIGIN,
    WRONG_PATH,
    WRONG_VERSION,
    Field,
    Text,
    UpgradeFault,
    find,
    is_named,
    is_text,
    is_word,
    lists,
    next_field,
    next_item,
    set_text,
    upgrade_fault_name,
)

from tidemq.errors import UsageError

if not cython.compiled:
    raise ImportError("tidemq.net.server_upgrade is compiled code: run `make build`")

REQUEST_BYTES_MAX = cython.declare(cython.size_t, 8192)
KEY_BYTES = cython.declare(cython.size_t, 24)
ACCEPT_BYTES = cython.declare(cython.size_t, 28)
GUID = cython.declare(cython.p_const_char, b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11")  # section 1.3
SAMPLE_KEY = cython.declare(cython.p_const_char, b"dGhlIHNhbXBsZSBub25jZQ==")  # and its answer, of the same
SAMPLE_ACCEPT = cython.declare(cython.p_const_char, b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=")

PATH = re.compile(r"/[!-~]*")
ORIGIN = re.compile(r"\*|null|[a-z][a-z0-9+.-]*://[!-)+-.0-~]+")


@cython.cclass
class WebSocketTerms:
    """Which WebSockets a listener makes."""

    def __init__(self, path: str = "/mqtt", origins: object = ()) -> None:
        """`path`: of the URL, the only one that is there; "*": any. `origins`: pages whose scripts may
        connect from a browser, as "https://host[:port]", besides those of the listener's own host; "*": all.
        What is no browser names no origin, and may connect. UsageError for what is no path or origin, and
        where there is no OpenSSL.
        """
        answer = cython.declare(uint8_t[29])
        openssl.find_openssl(load_openssl("WebSocket"))
        if (
            not encode_accept(cython.cast(cython.p_const_uchar, SAMPLE_KEY), answer)
            or memcmp(answer, SAMPLE_ACCEPT, ACCEPT_BYTES) != 0
        ):
            raise UsageError("WebSocket needs SHA-1, which OpenSSL refuses here")
        if (path != "*" and not PATH.fullmatch(path)) or "?" in path or "#" in path:
            raise UsageError(f"{path!r} cannot be the path of a WebSocket: it is as in a URL, /mqtt")
        owner: unique_ptr[WebSocketRules] = make_unique[WebSocketRules]()
        self.rules = owner.release()
        hold_rules(self.rules)
        self.rules.path = path.encode()
        self.rules.any_path = path == "*"
        self.rules.any_origin = "*" in origins
        for origin in origins:
            if not ORIGIN.fullmatch(origin.lower()):
                raise UsageError(
                    f"{origin!r} cannot be the origin of a page: it is https://host[:port], or *"
                )
            self.rules.origins.push_back(origin.lower().encode())

    def __dealloc__(self):
        let_go_rules(self.rules)


def take_request(upgrade, rules, data, size):
    """Take what came of the request; when it is whole or wrong (`done`, `fault`) `response` is the answer.
    Returns how many bytes were its: after them come frames.
    """
    text: cython.pointer[cython.const[uint8_t]]
    request = cython.declare(Request)
    before: cython.size_t = upgrade.request.end
    at: cython.size_t = before
    append(cython.address(upgrade.request), data, min(size, REQUEST_BYTES_MAX + 1 - before))
    text = upgrade.request.bytes
    while at < upgrade.request.end and upgrade.fault == UPGRADED:
        upgrade.fault = TOO_LONG if at == REQUEST_BYTES_MAX else check_byte(text, at)
        at += 1
        if at >= 4 and upgrade.fault == UPGRADED and memcmp(text + at - 4, b"\r\n\r\n", 4) == 0:
            upgrade.fault = read_request(cython.address(request), text, at - 2)
            if upgrade.fault == UPGRADED:
                upgrade.fault = judge(cython.address(request), rules)
            if upgrade.fault == UPGRADED:
                upgrade.done = True
                accept(cython.address(upgrade.response), cython.address(request))
                return at - before
    if upgrade.fault != UPGRADED:
        refuse(cython.address(upgrade.response), upgrade.fault)
    return size


def check_byte(text, at):
    """Text in lines that end as they must. So another protocol is known by its first bytes."""
    byte: uint8_t = text[at]
    after_return: cython.bint = at > 0 and text[at - 1] == 13
    if (byte == 10) != after_return or (byte < 32 and byte not in (9, 10, 13)) or byte == 127:
        return NOT_HTTP
    return UPGRADED


# -------------------------------------------------------------------- what it says


def read_request(request, text, size):
    """`text` ends with the last header's line."""
    field = cython.declare(Field)
    end: cython.size_t = find(text, size, 0, 13)
    at: cython.size_t = end + 2
    fault: UpgradeFault
    memset(request, 0, cython.sizeof(Request))
    fault = read_first_line(request, text, end)
    while at < size and fault == UPGRADED:
        at = next_field(text, size, at, cython.address(field))
        fault = read_header(request, cython.address(field.name), cython.address(field.value))
    return NOT_HTTP if request.malformed else fault


def read_first_line(request, text, size):
    """Method, target, version; of the target the path."""
    first: cython.size_t = find(text, size, 0, 32)
    second: cython.size_t = find(text, size, first + 1, 32)
    at: cython.size_t = first + 1
    end: cython.size_t
    if first == 0 or second >= size or second == at:
        return NOT_HTTP
    if text[at] != 47:  # an absolute URL, which a server has to understand: what follows its host
        while at + 1 < second and not (text[at] == 47 and text[at + 1] == 47):
            at += 1
        at = find(text, second, at + 2, 47)
    end = min(find(text, second, at, 63), second)
    set_text(cython.address(request.method), text, first)
    set_text(cython.address(request.path), text + at, end - at if end > at else 0)
    set_text(cython.address(request.version), text + second + 1, size - second - 1)
    return UPGRADED if is_text(cython.address(request.version), b"HTTP/1.1") else NOT_HTTP


def read_header(request, name, value):
    at: cython.size_t
    if name.size == 0:
        return NOT_HTTP
    for at in range(name.size):
        if not is_token_byte(name.at[at]):
            return NOT_HTTP
    if is_named(name, b"host"):
        set_once(request, cython.address(request.host), value)
    elif is_named(name, b"origin"):
        set_once(request, cython.address(request.origin), value)
    elif is_named(name, b"sec-websocket-key"):
        set_once(request, cython.address(request.key), value)
    elif is_named(name, b"sec-websocket-version"):
        set_once(request, cython.address(request.websocket_version), value)
    elif is_named(name, b"upgrade"):
        request.to_websocket |= lists(value, b"websocket")
    elif is_named(name, b"connection"):
        request.connection_upgrade |= lists(value, b"upgrade")
    elif is_named(name, b"sec-websocket-protocol"):
        choose_protocol(request, value)
    elif is_named(name, b"content-length"):  # a body would be taken for frames
        request.malformed |= not is_text(value, b"0")
    elif is_named(name, b"transfer-encoding"):
        request.malformed = True
    return UPGRADED


def choose_protocol(request, value):
    """The client's first of MQTT's names [MQTT-6.0.0-3], which stood for 3.1 before."""
    item = cython.declare(Text)
    at: cython.size_t = 0
    while at < value.size and request.protocol.at == cython.NULL:
        at = next_item(value, at, cython.address(item))
        if is_text(cython.address(item), b"mqtt") or is_text(cython.address(item), b"mqttv3.1"):
            request.protocol = item


def set_once(request, to, value):
    request.malformed |= to.at != cython.NULL
    to[0] = value[0]


def is_token_byte(byte):
    """RFC 9110 section 5.6.2."""
    return (
        48 <= byte <= 57
        or 65 <= byte <= 90
        or 94 <= byte <= 122  # ^ _ ` and small letters
        or byte in (33, 35, 36, 37, 38, 39, 42, 43, 45, 46, 124, 126)
    )


# -------------------------------------------------------------------- what is answered


def judge(request, rules):
    """Section 4.2.1, in the order of what a client would mend first."""
    path: cython.pointer[cython.const[string]] = cython.address(rules.path)
    if request.host.size == 0:
        return NOT_HTTP
    if not is_text(cython.address(request.method), b"GET"):
        return WRONG_METHOD
    known: cython.bint = (
        request.path.size == path.size() and memcmp(request.path.at, path.data(), path.size()) == 0
    )
    if not known and not rules.any_path:
        return WRONG_PATH
    if not request.to_websocket or not request.connection_upgrade:
        return NOT_WEBSOCKET
    if not is_text(cython.address(request.websocket_version), b"13"):
        return WRONG_VERSION
    if not is_key(cython.address(request.key)):
        return WRONG_KEY
    if not may_connect(request, rules):
        return WRONG_ORIGIN
    return NOT_MQTT if request.protocol.at == cython.NULL else UPGRADED


def is_key(key):
    """16 bytes in base64: 21 digits, one of four, and two signs that nothing follows."""
    at: cython.size_t
    byte: uint8_t
    if key.size != KEY_BYTES or memcmp(key.at + 22, b"==", 2) != 0 or key.at[21] not in (65, 81, 103, 119):
        return False
    for at in range(22):
        byte = key.at[at]
        if not (48 <= byte <= 57 or 65 <= byte <= 90 or 97 <= byte <= 122 or byte in (43, 47)):
            return False
    return True


def may_connect(request, rules):
    """By the Origin that a browser names: a page of somebody else may not use the user's standing here."""
    origin: cython.pointer[cython.const[Text]] = cython.address(request.origin)
    name: Text
    ours: Text
    at: cython.size_t
    if origin.at == cython.NULL or rules.any_origin:
        return True
    for at in range(rules.origins.size()):
        if is_word(origin.at, origin.size, rules.origins[at].c_str()):
            return True
    at = 0
    while at + 3 <= origin.size and memcmp(origin.at + at, b"://", 3) != 0:
        at += 1
    if at + 3 > origin.size:
        return False
    name = host_of(origin.at + at + 3, origin.size - at - 3)
    ours = host_of(request.host.at, request.host.size)
    if name.size != ours.size or not same_letters(name.at, ours.at, ours.size):
        return False
    # without TLS any name can be made to mean this machine (DNS rebinding), but not an address or this one
    return rules.named or is_word(ours.at, ours.size, b"localhost") or is_address(cython.address(ours))


def is_address(host):
    """Of IPv4 or IPv6, and no name."""
    at: cython.size_t
    if host.size > 0 and host.at[0] == 91:
        return True
    for at in range(host.size):
        if host.at[at] != 46 and not 48 <= host.at[at] <= 57:
            return False
    return host.size > 0


def host_of(text, size):
    """Without the port."""
    host = cython.declare(Text)
    bracket: cython.size_t = find(text, size, 0, 93) if size > 0 and text[0] == 91 else 0
    set_text(cython.address(host), text, min(find(text, size, bracket, 58), size))
    return host


def same_letters(one, other, size):
    """Whichever their case."""
    at: cython.size_t = 0
    while at < size and small(one[at]) == small(other[at]):
        at += 1
    return at == size


def small(letter):
    return letter + 32 if 65 <= letter <= 90 else letter


def encode_accept(key, to):
    """28 bytes and a final 0. False: OpenSSL has no SHA-1."""
    text = cython.declare(uint8_t[60])
    digest = cython.declare(uint8_t[20])
    memcpy(text, key, KEY_BYTES)
    memcpy(text + KEY_BYTES, GUID, 36)
    if openssl.EVP_Digest(text, 60, digest, cython.NULL, openssl.EVP_sha1(), cython.NULL) != 1:
        return False
    openssl.EVP_EncodeBlock(to, digest, 20)
    return True


def accept(response, request):
    answer = cython.declare(uint8_t[29])
    encode_accept(request.key.at, answer)
    append_text(
        response, b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
    )
    append_text(response, b"Sec-WebSocket-Accept: ")
    append(response, answer, ACCEPT_BYTES)
    append_text(response, b"\r\nSec-WebSocket-Protocol: ")  # [MQTT-6.0.0-4]
    append(response, request.protocol.at, request.protocol.size)
    append_text(response, b"\r\n\r\n")


def refuse(response, fault):
    """With a line for who tries it by hand; the connection is closed then."""
    words: cython.p_const_char = upgrade_fault_name(fault)
    head = cython.declare(cython.char[128])
    status: cython.p_const_char = b"400 Bad Request"
    if fault == WRONG_ORIGIN:
        status = b"403 Forbidden"
    elif fault == WRONG_PATH:
        status = b"404 Not Found"
    elif fault == WRONG_METHOD:
        status = b"405 Method Not Allowed\r\nAllow: GET"
    elif fault in (NOT_WEBSOCKET, WRONG_VERSION):  # section 4.2.2
        status = b"426 Upgrade Required\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13"
    elif fault == TOO_LONG:
        status = b"431 Request Header Fields Too Large"
    append_text(response, b"HTTP/1.1 ")
    append_text(response, status)
    snprintf(head, 128, b"\r\nContent-Type: text/plain\r\nContent-Length: %zu", strlen(words) + 1)
    append_text(response, head)
    append_text(response, b"\r\nConnection: close\r\n\r\n")
    append_text(response, words)
    append_text(response, b"\n")


def append_text(to, text):
    append(to, cython.cast(cython.p_const_uchar, text), strlen(text))
