"""The way from HTTP/1.1 to WebSocket (RFC 6455 section 4), the client's side and what both have in common."""

import base64
import hashlib
import os
from http import HTTPStatus

import cython
from cython.cimports.libc.stdint import uint8_t
from cython.cimports.libc.string import memcmp, strlen
from cython.cimports.tidemq.net.buffer import append, release
from cython.cimports.tidemq.net.upgrade import (
    NOT_HTTP,
    NOT_MQTT,
    NOT_WEBSOCKET,
    REFUSED,
    TOO_LONG,
    WRONG_KEY,
    WRONG_METHOD,
    WRONG_ORIGIN,
    WRONG_PATH,
    WRONG_VERSION,
    Field,
    Text,
    is_named,
)

if not cython.compiled:
    raise ImportError("tidemq.net.upgrade is compiled code: run `make build`")

RESPONSE_BYTES_MAX = cython.declare(cython.size_t, 8192)
GUID = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"  # section 1.3


def encode_request(host: str, resource: str) -> tuple[bytes, bytes]:
    """A request for a WebSocket of MQTT with a key of its own, and what the answer must accept it with."""
    key = base64.b64encode(os.urandom(16))
    lines = [
        f"GET {resource} HTTP/1.1".encode(),
        b"Host: " + host.encode(),
        b"Upgrade: websocket",
        b"Connection: Upgrade",
        b"Sec-WebSocket-Key: " + key,
        b"Sec-WebSocket-Version: 13",
        b"Sec-WebSocket-Protocol: mqtt",  # [MQTT-6.0.0-3]
    ]
    return b"\r\n".join([*lines, b"", b""]), base64.b64encode(hashlib.sha1(key + GUID).digest())


def upgrade_fault_name(fault):
    """What a client did wrong, in words that live for ever; it is told them as well."""
    text: cython.p_const_char = b"nothing is wrong"
    if fault == NOT_HTTP:
        text = b"this is no request of HTTP/1.1"
    elif fault == TOO_LONG:
        text = b"the request has more than 8192 bytes"
    elif fault == WRONG_METHOD:
        text = b"the method is not GET"
    elif fault == WRONG_PATH:
        text = b"there is nothing at this path"
    elif fault == NOT_WEBSOCKET:
        text = b"this is no upgrade to WebSocket"
    elif fault == WRONG_VERSION:
        text = b"the version of WebSocket is not 13"
    elif fault == WRONG_KEY:
        text = b"Sec-WebSocket-Key is not 16 bytes in base64"
    elif fault == WRONG_ORIGIN:
        text = b"pages of this origin may not connect"
    elif fault == NOT_MQTT:
        text = b"the subprotocols have no mqtt and no mqttv3.1"
    return text


def upgrade_text(upgrade):
    """Why it failed, in words."""
    if upgrade.fault == REFUSED:
        names = {each.value: f" ({each.phrase.lower()})" for each in HTTPStatus}
        return f"no WebSocket is there: HTTP status {upgrade.status}{names.get(upgrade.status, '')}"
    if upgrade.fault == NOT_MQTT:
        return "the WebSocket that is there does not speak MQTT (no subprotocol mqtt)"
    if upgrade.fault == NOT_WEBSOCKET:
        return "what answers there does not speak WebSocket as it should (Upgrade, Sec-WebSocket-Accept)"
    return "what answers there does not speak HTTP"


def take_response(upgrade, data, size):
    """Take what came of the answer, and check it when it is whole (`done`, `fault`). Returns how many bytes
    were its: after them come frames.
    """
    text: cython.pointer[uint8_t]
    before: cython.size_t = upgrade.response.end
    at: cython.size_t = before - 3 if before > 3 else 0
    append(cython.address(upgrade.response), data, size)
    text = upgrade.response.bytes
    while at + 4 <= upgrade.response.end:
        if memcmp(text + at, cython.cast(cython.p_const_char, b"\r\n\r\n"), 4) == 0:
            upgrade.done = True
            check_response(upgrade, text, at + 2)
            return at + 4 - before
        at += 1
    if before + size > RESPONSE_BYTES_MAX:
        upgrade.fault = TOO_LONG
    elif upgrade.response.end >= 5 and memcmp(text, cython.cast(cython.p_const_char, b"HTTP/"), 5):
        upgrade.fault = NOT_HTTP
    return size


def check_response(upgrade, text, size):
    """The status line and the headers that must be there; `size` is up to the empty line."""
    field = cython.declare(Field)
    to_websocket: cython.bint = False
    to_upgrade: cython.bint = False
    to_mqtt: cython.bint = False
    accepted: cython.bint = False
    at: cython.size_t
    digit: cython.size_t
    if size < 12 or memcmp(text, cython.cast(cython.p_const_char, b"HTTP/1."), 7) or text[8] != 32:
        upgrade.fault = NOT_HTTP
        return
    for digit in range(9, 12):
        if not 48 <= text[digit] <= 57:
            upgrade.fault = NOT_HTTP
            return
        upgrade.status = upgrade.status * 10 + text[digit] - 48
    if upgrade.status != 101:
        upgrade.fault = REFUSED
        return
    at = find(text, size, 0, 13) + 2
    while at < size:
        at = next_field(text, size, at, cython.address(field))
        if is_named(cython.address(field.name), b"upgrade"):
            to_websocket |= is_named(cython.address(field.value), b"websocket")
        elif is_named(cython.address(field.name), b"connection"):
            to_upgrade |= lists(cython.address(field.value), b"upgrade")
        elif is_named(cython.address(field.name), b"sec-websocket-accept"):
            accepted |= field.value.size == 28 and memcmp(field.value.at, upgrade.accept, 28) == 0
        elif is_named(cython.address(field.name), b"sec-websocket-protocol"):
            to_mqtt |= is_named(cython.address(field.value), b"mqtt")
    if not (to_websocket and to_upgrade and accepted):
        upgrade.fault = NOT_WEBSOCKET
    elif not to_mqtt:  # [MQTT-6.0.0-4]
        upgrade.fault = NOT_MQTT


# -------------------------------------------------------------------- headers


def next_field(text, size, at, field):
    """The header whose line begins at `at`; returns where the next one does. `text` ends with the last's."""
    end: cython.size_t = min(find(text, size, at, 13), size)
    colon: cython.size_t = find(text, end, at, 58)
    set_text(cython.address(field.name), text + at, colon - at if colon < end else 0)
    set_text(cython.address(field.value), cython.NULL, 0)
    if colon < end:
        set_trimmed(cython.address(field.value), text + colon + 1, end - colon - 1)
    return end + 2


def lists(value, word):
    """Whether it is one of those between commas; in small letters."""
    item = cython.declare(Text)
    at: cython.size_t = 0
    while at < value.size:
        at = next_item(value, at, cython.address(item))
        if is_word(item.at, item.size, word):
            return True
    return False


def next_item(value, at, item):
    """What stands from `at` to the next comma; returns what follows that."""
    comma: cython.size_t = min(find(value.at, value.size, at, 44), value.size)
    set_trimmed(item, value.at + at, comma - at)
    return comma + 1


def find(text, size, at, byte):
    """Where it stands first, from `at` on; `size` or more: nowhere."""
    while at < size and text[at] != byte:
        at += 1
    return at


def set_text(to, at, size):
    to.at, to.size = at, size


def set_trimmed(to, at, size):
    while size > 0 and at[0] in (32, 9):
        at += 1
        size -= 1
    while size > 0 and at[size - 1] in (32, 9):
        size -= 1
    set_text(to, at, size)


def is_text(text, word):
    return text.size == strlen(word) and memcmp(text.at, word, text.size) == 0


def is_word(text, size, word):
    """Whether the text is this word of small letters, whichever case it is in itself."""
    at: cython.size_t
    letter: uint8_t
    if size != strlen(word):
        return False
    for at in range(size):
        letter = text[at]
        if 65 <= letter <= 90:
            letter += 32
        if letter != cython.cast(uint8_t, word[at]):
            return False
    return True


def release_upgrade(upgrade):
    """Give back its memory, which it needs no more once it is done; status and fault remain."""
    release(cython.address(upgrade.request))
    release(cython.address(upgrade.response))
