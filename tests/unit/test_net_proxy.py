"""The PROXY header, versions 1 and 2: against a plain model, however the bytes are cut."""

from __future__ import annotations

import ipaddress
import socket
import ssl
import struct
from contextlib import suppress
from pathlib import Path

import pytest
import trustme
from crc32c import crc32c
from hypothesis import example, given, settings
from hypothesis import strategies as st
from quick import examples

from tidemq.net.server_tls import ServerTls
from tidemq.net.server_upgrade import WebSocketTerms
from tidemq.net.transport import ServerScheme, Stream

SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
LOCAL, PROXY = 0x20, 0x21
NONE, TCP4, TCP6, UNIX = 0x00, 0x11, 0x21, 0x31


def serving() -> Stream:
    return Stream(ServerScheme(proxy_protocol=True))


def block(command: int, family: int, body: bytes, size: int | None = None) -> bytes:
    return (
        SIGNATURE + bytes([command, family]) + struct.pack("!H", len(body) if size is None else size) + body
    )


def addresses(source: str, port: int) -> bytes:
    family = socket.AF_INET6 if ":" in source else socket.AF_INET
    packed = socket.inet_pton(family, source)
    return packed + bytes(len(packed)) + struct.pack("!HH", port, 8883)


def field(kind: int, value: bytes) -> bytes:
    return struct.pack("!BH", kind, len(value)) + value


def summed(before: bytes = b"", after: bytes = b"", change: int = 0) -> bytes:
    """A header with the field of its CRC32c, between other fields."""
    fields = [before, field(3, bytes(4)), after]
    header = block(PROXY, TCP4, addresses("192.0.2.7", 9) + b"".join(fields))
    fields[1] = field(3, struct.pack("!I", crc32c(header) ^ change))
    return block(PROXY, TCP4, addresses("192.0.2.7", 9) + b"".join(fields))


SSL_FIELD = field(0x20, b"\x01\0\0\0\0" + field(0x21, b"TLSv1.3"))
LONGEST_LINE = b"PROXY UNKNOWN " + b"x" * 91 + b"\r\n"
GOOD = {
    "IPv4": (b"PROXY TCP4 192.0.2.7 203.0.113.1 56324 1883\r\n", "192.0.2.7:56324"),
    "IPv6": (b"PROXY TCP6 2001:db8::1 ::1 65535 0\r\n", "2001:db8::1:65535"),
    "IPv6 at length": (
        b"PROXY TCP6 " + b" ".join([b":".join([b"ffff"] * 8)] * 2 + [b"65535"] * 2) + b"\r\n",
        "ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff:65535",
    ),
    "unknown": (b"PROXY UNKNOWN\r\n", ""),
    "unknown, with the rest": (b"PROXY UNKNOWN ffff::1 ffff::2 65535 65535\r\n", ""),
    "the longest line": (LONGEST_LINE, ""),
    "version 2, IPv4": (block(PROXY, TCP4, addresses("192.0.2.7", 1)), "192.0.2.7:1"),
    "version 2, IPv6": (block(PROXY, TCP6, addresses("2001:db8::1", 65535)), "2001:db8::1:65535"),
    "version 2, IPv4 in IPv6": (
        block(PROXY, TCP6, addresses("::ffff:192.0.2.7", 9)),
        "::ffff:192.0.2.7:9",
    ),
    "version 2, Unix": (block(PROXY, UNIX, b"/run/x".ljust(216, b"\0")), ""),
    "version 2, local": (block(LOCAL, NONE, b""), ""),
    "version 2, local with anything": (block(LOCAL, TCP4, b"\xff" * 5), ""),
    "version 2, local of no known family": (block(LOCAL, 0x42, b"\xff" * 5), ""),
    "version 2, no family": (block(PROXY, NONE, b"\xff" * 7), ""),
    "version 2 with fields": (
        block(PROXY, TCP4, addresses("192.0.2.7", 9) + SSL_FIELD + field(4, b"")),
        "192.0.2.7:9",
    ),
    "version 2, the longest": (
        block(PROXY, TCP4, addresses("192.0.2.7", 9) + field(4, bytes(4096 - 16 - 12 - 3))),
        "192.0.2.7:9",
    ),
    "version 2 with a checksum": (summed(field(4, b"pad")), "192.0.2.7:9"),
    "version 2 with a checksum before others": (summed(b"", field(4, b"pad")), "192.0.2.7:9"),
}


@pytest.mark.parametrize(("header", "peer"), GOOD.values(), ids=GOOD.keys())
@pytest.mark.parametrize("size", [1, 7, 1 << 20])
def test_headers_that_are_right(header: bytes, peer: str, size: int) -> None:
    stream = serving()
    heard = b""
    for at in range(0, len(header), size):
        assert (stream.step, stream.open) == ("the PROXY header", False)
        heard += stream.receive(header[at : at + size] + (b"\x10\x20" if at + size >= len(header) else b""))
    assert (heard, stream.open, stream.peer) == (b"\x10\x20", True, peer)
    assert stream.receive(b"PROXY again") == b"PROXY again"
    assert stream.take_output() == b""


NO_HEADER, LONG, MALFORMED = "the connection begins without one", "too long", "malformed"
WRONG = {
    "MQTT": (b"\x10\x0c\x00\x04MQTT", NO_HEADER),
    "TLS": (b"\x16\x03\x01\x02\x00", NO_HEADER),
    "HTTP": (b"GET / HTTP/1.1\r\n", NO_HEADER),
    "nearly": (b"PROXYTCP4", NO_HEADER),
    "small letters": (b"proxy ", NO_HEADER),
    "nearly version 2": (SIGNATURE[:-1] + b"\r", NO_HEADER),
    "too long a line": (LONGEST_LINE.replace(b"x\r", b"xx\r"), LONG),
    "a line without end": (b"PROXY UNKNOWN " + b"x" * 100, LONG),
    "only a line feed": (b"PROXY UNKNOWN\n", MALFORMED),
    "something after the carriage return": (b"PROXY UNKNOWN\rX", MALFORMED),
    "a zero byte": (b"PROXY UNKNOWN \0\r\n", MALFORMED),
    "unknown's beginning": (b"PROXY UNKNOWNS\r\n", MALFORMED),
    "nothing": (b"PROXY \r\n", MALFORMED),
    "another family": (b"PROXY UDP4 192.0.2.7 203.0.113.1 1 1883\r\n", MALFORMED),
    "the other family": (b"PROXY TCP6 192.0.2.7 203.0.113.1 1 1883\r\n", MALFORMED),
    "mixed families": (b"PROXY TCP4 192.0.2.7 ::1 1 1883\r\n", MALFORMED),
    "no address": (b"PROXY TCP4 192.0.2 203.0.113.1 1 1883\r\n", MALFORMED),
    "an octal address": (b"PROXY TCP4 192.0.02.7 203.0.113.1 1 1883\r\n", MALFORMED),
    "a port too high": (b"PROXY TCP4 192.0.2.7 203.0.113.1 65536 1883\r\n", MALFORMED),
    "a port too long": (b"PROXY TCP4 192.0.2.7 203.0.113.1 999999999999 1883\r\n", MALFORMED),
    "a port with a zero before": (b"PROXY TCP4 192.0.2.7 203.0.113.1 01 1883\r\n", MALFORMED),
    "a port with a sign": (b"PROXY TCP4 192.0.2.7 203.0.113.1 +1 1883\r\n", MALFORMED),
    "no port": (b"PROXY TCP4 192.0.2.7 203.0.113.1 1\r\n", MALFORMED),
    "an empty port": (b"PROXY TCP4 192.0.2.7 203.0.113.1 1 \r\n", MALFORMED),
    "two blanks": (b"PROXY TCP4  192.0.2.7 203.0.113.1 1 1883\r\n", MALFORMED),
    "a word too many": (b"PROXY TCP4 192.0.2.7 203.0.113.1 1 1883 x\r\n", MALFORMED),
    "another version": (block(0x11, TCP4, addresses("192.0.2.7", 1)), MALFORMED),
    "another command": (block(0x22, TCP4, addresses("192.0.2.7", 1)), MALFORMED),
    "datagrams": (block(PROXY, 0x12, addresses("192.0.2.7", 1)), MALFORMED),
    "a family of nobody": (block(PROXY, 0x41, b""), MALFORMED),
    "addresses that are short": (block(PROXY, TCP4, addresses("192.0.2.7", 1)[:-1]), MALFORMED),
    "a Unix path that is short": (block(PROXY, UNIX, bytes(215)), MALFORMED),
    "a field that is cut": (block(PROXY, TCP4, addresses("192.0.2.7", 1) + b"\x01\0"), MALFORMED),
    "a field that is short": (block(PROXY, TCP4, addresses("192.0.2.7", 1) + b"\x01\0\x02a"), MALFORMED),
    "another checksum": (summed(change=1), MALFORMED),
    "a checksum of three bytes": (
        block(PROXY, TCP4, addresses("192.0.2.7", 1) + field(3, bytes(3))),
        MALFORMED,
    ),
    "too long a block": (block(PROXY, TCP4, b"", size=4081), LONG),
}


@pytest.mark.parametrize(("header", "said"), WRONG.values(), ids=WRONG.keys())
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_headers_that_are_wrong(header: bytes, said: str, size: int) -> None:
    stream = serving()
    for at in range(0, len(header), size):
        assert stream.receive(header[at : at + size]) == b""
    assert (stream.faulty, stream.text) == (True, f"the PROXY header is not as it must be: {said}")
    assert stream.take_output() == b""  # nothing is answered
    assert (stream.peer, stream.receive(b"more")) == ("", b"")


def test_a_client_that_begins_otherwise_is_known_by_its_first_byte() -> None:
    for byte in range(256):
        stream = serving()
        stream.receive(bytes([byte]))
        assert stream.faulty == (byte not in b"P\r")


def model(header: bytes) -> str | None:
    """The peer in a line of version 1, None where it is wrong, as Python reads it."""
    if not header.startswith(b"PROXY ") or not header.endswith(b"\r\n") or len(header) > 107:
        return None
    text = header[6:-2].decode("latin-1")
    if any(letter < " " for letter in text):
        return None
    if text.split(" ")[0] == "UNKNOWN":
        return ""
    words = text.split(" ")
    if len(words) != 5 or words[0] not in ("TCP4", "TCP6"):
        return None
    try:
        parsed = [ipaddress.ip_address(word) for word in words[1:3]]
    except ValueError:
        return None
    if any(str(each.version) != words[0][3] or "%" in str(each) for each in parsed):
        return None
    if not all(word.isascii() and word.isdigit() and str(int(word)) == word for word in words[3:]):
        return None
    return f"{parsed[0]}:{words[3]}" if all(int(word) < 65_536 for word in words[3:]) else None


HOSTS = st.one_of(
    st.ip_addresses(v=4).map(str), st.ip_addresses(v=6).map(str), st.sampled_from(["", "::", "1.2"])
)
PORTS = st.one_of(st.integers(0, 70_000).map(str), st.sampled_from(["", "00", "-1", "\u0663"]))
WORDS = st.tuples(
    st.sampled_from(["TCP4", "TCP4", "TCP6", "TCP6", "UNKNOWN", "UDP4"]), HOSTS, HOSTS, PORTS, PORTS
)


@given(
    words=WORDS, extra=st.sampled_from(["", "", "", "", " ", " x", "\t", "\u00e9"]), cut=st.integers(0, 120)
)
@example(words=("TCP4", "1.1.1.1", "1.1.1.1", "1", "1"), extra="", cut=3)
@settings(max_examples=examples(150), deadline=None)
def test_lines_are_read_as_the_model_reads_them(words: tuple[str, ...], extra: str, cut: int) -> None:
    header = b"PROXY " + (" ".join(words) + extra).encode() + b"\r\n"
    stream = serving()
    stream.receive(header[:cut])
    stream.receive(header[cut:])
    expected = model(header)
    assert stream.faulty == (expected is None)
    if expected:  # IPv6 addresses have several forms
        host, port = stream.peer.rsplit(":", 1)
        assert (ipaddress.ip_address(host), port) == (
            ipaddress.ip_address(expected.rsplit(":", 1)[0]),
            expected.rsplit(":", 1)[1],
        )


@given(
    command=st.sampled_from([LOCAL, PROXY, PROXY, PROXY, 0x22, 0x10]),
    family=st.sampled_from([NONE, TCP4, TCP4, TCP6, TCP6, UNIX, 0x12, 0x13]),
    body=st.one_of(
        st.binary(max_size=300),
        st.tuples(
            st.sampled_from([12, 36, 216]),
            # 3, a checksum, has tests of its own
            st.lists(st.tuples(st.integers(4, 255), st.binary(max_size=40)), max_size=4),
        ).map(lambda drawn: bytes(drawn[0]) + b"".join(field(*each) for each in drawn[1])),
    ),
    cuts=st.lists(st.integers(0, 300), max_size=4),
)
@settings(max_examples=examples(150), deadline=None)
def test_blocks_are_read_as_the_model_reads_them(
    command: int, family: int, body: bytes, cuts: list[int]
) -> None:
    stream, data, heard = serving(), block(command, family, body) + b"after", b""
    for start, end in zip([0, *sorted(cuts)], [*sorted(cuts), len(data)], strict=True):
        heard += stream.receive(data[start:end])
    known = command == LOCAL or (command == PROXY and family in (NONE, TCP4, TCP6, UNIX))
    if known and command == PROXY and family != NONE:
        size = {TCP4: 12, TCP6: 36, UNIX: 216}[family]
        known, rest = len(body) >= size, body[size:]
        while known and rest:
            known = len(rest) >= 3 and len(rest) >= 3 + int.from_bytes(rest[1:3]) and rest[0] != 3
            rest = rest[3 + int.from_bytes(rest[1:3]) :]
    assert (stream.faulty, stream.open, heard) == (not known, known, b"after" if known else b"")


# -------------------------------------------------------------------- what follows


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_a_websocket_after_the_header(size: int) -> None:
    stream = Stream(ServerScheme(websocket=WebSocketTerms(), proxy_protocol=True))
    request = (
        b"GET /mqtt HTTP/1.1\r\nHost: h\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\n"
        b"Sec-WebSocket-Protocol: mqtt\r\n\r\n"
    )
    data = b"PROXY TCP4 192.0.2.7 203.0.113.1 5 80\r\n" + request + b"\x82\x82\0\0\0\0hi"
    heard = b"".join(stream.receive(data[at : at + size]) for at in range(0, len(data), size))
    assert (heard, stream.open, stream.peer) == (b"hi", True, "192.0.2.7:5")


@pytest.fixture
def cert(tmp_path: Path) -> tuple[str, ssl.SSLContext]:
    authority = trustme.CA()
    path = tmp_path / "localhost.pem"
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(path)
    context = ssl.create_default_context()
    authority.configure_trust(context)
    return str(path), context


@pytest.mark.parametrize("size", [1, 1 << 20])
def test_tls_after_the_header(cert: tuple[str, ssl.SSLContext], size: int) -> None:
    path, context = cert
    stream = Stream(ServerScheme(tls=ServerTls(path, ""), proxy_protocol=True))
    to, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = context.wrap_bio(to, back, server_hostname="localhost")
    out = block(PROXY, TCP4, addresses("192.0.2.7", 5))
    for _ in range(3):
        with suppress(ssl.SSLWantReadError):
            client.do_handshake()
        out += back.read()
        for at in range(0, len(out), size):
            stream.receive(out[at : at + size])
        out = b""
        to.write(stream.take_output())
    client.write(b"CONNECT")
    assert (stream.open, stream.peer, stream.receive(back.read())) == (True, "192.0.2.7:5", b"CONNECT")


def test_a_fault_after_the_header_is_another_s(cert: tuple[str, ssl.SSLContext]) -> None:
    stream = Stream(ServerScheme(tls=ServerTls(cert[0], ""), proxy_protocol=True))
    stream.receive(b"PROXY UNKNOWN\r\n\x10\x0c\x00\x04MQTT")
    assert stream.text.startswith("TLS failed: ")
