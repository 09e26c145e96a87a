"""The server's WebSocket against another client and our own, over TLS too; its upgrade by hand as well."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import trustme
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples
from websockets.client import ClientProtocol
from websockets.frames import Frame
from websockets.http11 import Response
from websockets.typing import Origin, Subprotocol
from websockets.uri import parse_uri

from tidemq.errors import UsageError
from tidemq.net.server_tls import ServerTls
from tidemq.net.server_upgrade import WebSocketTerms
from tidemq.net.tls import TlsContext
from tidemq.net.transport import Scheme, ServerScheme, Stream


def serving(path: str = "/mqtt", origins: tuple[str, ...] = ()) -> Stream:
    return Stream(ServerScheme(websocket=WebSocketTerms(path, origins)))


def pieces(data: bytes, size: int) -> Iterator[bytes]:
    for at in range(0, len(data), size):
        yield data[at : at + size]


KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
HEADERS = {
    b"Host": b"broker.example:8080",
    b"Upgrade": b"websocket",
    b"Connection": b"Upgrade",
    b"Sec-WebSocket-Key": KEY,
    b"Sec-WebSocket-Version": b"13",
    b"Sec-WebSocket-Protocol": b"mqtt",
}


def request(line: bytes = b"GET /mqtt HTTP/1.1", more: bytes = b"", **changed: bytes | None) -> bytes:
    """One that is right, with headers changed, or left out (None); `_` stands for a hyphen."""
    headers = HEADERS | {name.replace("_", "-").encode(): value for name, value in changed.items()}
    lines = [line, *(name + b": " + value for name, value in headers.items() if value is not None)]
    return b"\r\n".join([*lines, b""]) + more + b"\r\n"


# -------------------------------------------------------------------- peers


@pytest.mark.parametrize("size", [1, 7, 1 << 20])
@pytest.mark.parametrize("offered", [["mqtt"], ["amqp", "mqttv3.1", "mqtt"]])
def test_another_client(size: int, offered: list[str]) -> None:
    client = ClientProtocol(
        parse_uri("ws://broker.example/mqtt?x=/y"), subprotocols=[Subprotocol(each) for each in offered]
    )
    client.send_request(client.connect())
    stream = serving()

    def pass_on() -> tuple[bytes, list[object]]:
        heard = b""
        for piece in pieces(b"".join(client.data_to_send()), size):
            heard += stream.receive(piece)
        client.receive_data(stream.take_output())
        return heard, list(client.events_received())

    heard, events = pass_on()
    assert isinstance(events[0], Response)
    assert (heard, stream.open, client.handshake_exc) == (b"", True, None)
    assert client.subprotocol == next(each for each in offered if each != "amqp")
    client.send_ping(b"there?")
    client.send_binary(
        b"CON", fin=False
    )  # fragments with control frames between, and two messages in a piece
    client.send_ping(b"")
    client.send_continuation(b"NECT", fin=True)
    client.send_binary(bytes(70_000))
    heard, events = pass_on()
    assert heard == b"CONNECT" + bytes(70_000)
    assert [frame.data for frame in events if isinstance(frame, Frame)] == [b"there?", b""]
    stream.send(b"CONNACK")
    heard, events = pass_on()
    assert [frame.data for frame in events if isinstance(frame, Frame)] == [b"CONNACK"]
    client.send_close(1001)
    pass_on()
    assert (stream.over, stream.faulty) == (True, False)
    assert stream.text == "the client closed the WebSocket (code 1001)"
    assert client.close_rcvd is not None


def test_what_came_with_the_request_is_frames() -> None:
    stream = serving()
    assert stream.receive(request() + b"\x82\x82\0\0\0\0hi") == b"hi"
    assert b"\r\nSec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=\r\n" in stream.take_output()


@pytest.mark.parametrize("secure", [False, True])
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_our_own_client(tmp_path: Path, secure: bool, size: int) -> None:
    near_tls = far_tls = None
    if secure:
        authority = trustme.CA()
        authority.cert_pem.write_to_path(tmp_path / "ca.pem")
        issued = authority.issue_cert("localhost")
        issued.private_key_and_cert_chain_pem.write_to_path(tmp_path / "localhost.pem")
        near_tls = TlsContext(cafile=str(tmp_path / "ca.pem"))
        far_tls = ServerTls(str(tmp_path / "localhost.pem"), "")
    near = Stream(Scheme(tls=near_tls, server_name="localhost", host="localhost", resource="/mqtt"))
    far = Stream(ServerScheme(tls=far_tls, websocket=WebSocketTerms()))
    heard = {near: b"", far: b""}

    def talk() -> None:
        moved = True
        while moved:
            moved = False
            for one, other in ((near, far), (far, near)):
                for piece in pieces(one.take_output(), size):
                    heard[other] += other.receive(piece)
                    moved = True

    near.connected()
    assert far.step == ("the TLS handshake" if secure else "the WebSocket upgrade")
    talk()
    assert (near.open, far.open) == (True, True)
    message = bytes(range(256)) * 100
    near.send(message)
    far.send(b"answer")
    talk()
    assert heard == {near: b"answer", far: message}
    near.finish()
    talk()
    assert (far.over, far.faulty) == (True, False)


# -------------------------------------------------------------------- requests


GOOD = {
    "a query": request(b"GET /mqtt?client=7 HTTP/1.1"),
    "an absolute URL": request(b"GET http://broker.example:8080/mqtt HTTP/1.1"),
    "an absolute URL with a query": request(b"GET http://broker.example/mqtt?a://b HTTP/1.1"),
    "any case": request(Upgrade=b"WebSocket", Connection=b"keep-alive, UPGRADE"),
    "blanks": request(Connection=b" \tkeep-alive \t,\tupgrade\t ", Sec_WebSocket_Protocol=b"a ,mqtt, b"),
    "lists in several lines": request(more=b"Sec-WebSocket-Protocol: x\r\nConnection: close\r\n"),
    "compression that is not taken": request(Sec_WebSocket_Extensions=b"permessage-deflate"),
    "headers of others": request(Cookie="\u00fc=1; b".encode(), X_Empty=b"", Content_Length=b"0"),
    "a long one": request(Cookie=b"x" * (8192 - len(request()) - 10)),
}


@pytest.mark.parametrize("text", GOOD.values(), ids=GOOD.keys())
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_requests_that_are_accepted(text: bytes, size: int) -> None:
    stream = serving()
    for piece in pieces(text, size):
        assert not stream.open
        stream.receive(piece)
    assert stream.open
    lines = stream.take_output().split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 101 Switching Protocols"
    assert sorted(lines[1:-2]) == [
        b"Connection: Upgrade",
        b"Sec-WebSocket-Accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=",
        b"Sec-WebSocket-Protocol: mqtt",
        b"Upgrade: websocket",
    ]


NO_HTTP = "this is no request of HTTP/1.1"
REFUSED = {
    "MQTT": (b"\x10\x0c\x00\x04MQTT", 400, NO_HTTP),
    "TLS": (b"\x16\x03\x01\x02\x00", 400, NO_HTTP),
    "no request line": (b"\r\n\r\n", 400, NO_HTTP),
    "one word": (b"GET\r\n\r\n", 400, NO_HTTP),
    "no version": (request(b"GET /mqtt"), 400, NO_HTTP),
    "an older version": (request(b"GET /mqtt HTTP/1.0"), 400, NO_HTTP),
    "two blanks": (request(b"GET  /mqtt HTTP/1.1"), 400, NO_HTTP),
    "a bare line feed": (b"GET /mqtt HTTP/1.1\n", 400, NO_HTTP),
    "a bare carriage return": (b"GET /mqtt HTTP/1.1\rHost: x", 400, NO_HTTP),
    "a folded line": (request(more=b" folded\r\n"), 400, NO_HTTP),
    "a line without colon": (request(more=b"abc\r\n"), 400, NO_HTTP),
    "a line without name": (request(more=b": x\r\n"), 400, NO_HTTP),
    "a blank before the colon": (request(more=b"A : x\r\n"), 400, NO_HTTP),
    "a zero byte": (request(more=b"A: \0\r\n"), 400, NO_HTTP),
    "no host": (request(Host=None), 400, NO_HTTP),
    "an empty host": (request(Host=b""), 400, NO_HTTP),
    "two hosts": (request(more=b"host: x\r\n"), 400, NO_HTTP),
    "two keys": (request(more=b"sec-websocket-key: " + KEY + b"\r\n"), 400, NO_HTTP),
    "a body": (request(Content_Length=b"4"), 400, NO_HTTP),
    "a body in chunks": (request(Transfer_Encoding=b"chunked"), 400, NO_HTTP),
    "another method": (request(b"POST /mqtt HTTP/1.1"), 405, "the method is not GET"),
    "another path": (request(b"GET / HTTP/1.1"), 404, "there is nothing at this path"),
    "a longer path": (request(b"GET /mqtt/ HTTP/1.1"), 404, "there is nothing at this path"),
    "a URL without path": (request(b"GET http://h HTTP/1.1"), 404, "there is nothing at this path"),
    "only a scheme": (request(b"GET http:// HTTP/1.1"), 404, "there is nothing at this path"),
    "no URL": (request(b"GET * HTTP/1.1"), 404, "there is nothing at this path"),
    "a browser": (request(Upgrade=None, Connection=b"keep-alive"), 426, "this is no upgrade to WebSocket"),
    "another upgrade": (request(Upgrade=b"h2c"), 426, "this is no upgrade to WebSocket"),
    "no upgrade's connection": (request(Connection=b"upgrades"), 426, "this is no upgrade to WebSocket"),
    "an old WebSocket": (request(Sec_WebSocket_Version=b"8"), 426, "the version of WebSocket is not 13"),
    "no version of it": (request(Sec_WebSocket_Version=None), 426, "the version of WebSocket is not 13"),
    "no key": (request(Sec_WebSocket_Key=None), 400, "Sec-WebSocket-Key is not 16 bytes in base64"),
    "a short key": (request(Sec_WebSocket_Key=KEY[4:]), 400, "Sec-WebSocket-Key is not 16 bytes in base64"),
    "a long key": (
        request(Sec_WebSocket_Key=KEY[:22] + b"A="),
        400,
        "Sec-WebSocket-Key is not 16 bytes in base64",
    ),
    "bits too many": (
        request(Sec_WebSocket_Key=KEY[:21] + b"B=="),
        400,
        "Sec-WebSocket-Key is not 16 bytes in base64",
    ),
    "no base64": (
        request(Sec_WebSocket_Key=b"-" + KEY[1:]),
        400,
        "Sec-WebSocket-Key is not 16 bytes in base64",
    ),
    "no subprotocol": (
        request(Sec_WebSocket_Protocol=None),
        400,
        "the subprotocols have no mqtt and no mqttv3.1",
    ),
    "another subprotocol": (
        request(Sec_WebSocket_Protocol=b"mqttv5, MQTT"),
        400,
        "the subprotocols have no mqtt and no mqttv3.1",
    ),
    "too long": (request(Cookie=b"x" * 8192), 431, "the request has more than 8192 bytes"),
}
STATUS = {
    400: b"400 Bad Request",
    403: b"403 Forbidden",
    404: b"404 Not Found",
    405: b"405 Method Not Allowed",
    426: b"426 Upgrade Required",
    431: b"431 Request Header Fields Too Large",
}


@pytest.mark.parametrize(("text", "status", "said"), REFUSED.values(), ids=REFUSED.keys())
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_requests_that_are_refused(text: bytes, status: int, said: str, size: int) -> None:
    stream = serving()
    for piece in pieces(text, size):
        assert stream.receive(piece) == b""
    assert stream.faulty
    assert stream.text == f"the client asks for no WebSocket that is here: {said}"
    head, _, body = stream.take_output().partition(b"\r\n\r\n")
    lines = head.split(b"\r\n")
    assert lines[0] == b"HTTP/1.1 " + STATUS[status]
    assert {b"Connection: close", b"Content-Length: %d" % len(body)} <= set(lines)
    assert ({b"Sec-WebSocket-Version: 13", b"Upgrade: websocket"} <= set(lines)) == (status == 426)
    assert (b"Allow: GET" in lines) == (status == 405)
    assert body.decode() == said + "\n"
    assert stream.receive(request()) == b""


def test_what_is_no_http_is_refused_by_its_first_byte() -> None:
    stream = serving()
    stream.receive(b"\x10")
    assert stream.faulty


ORIGINS = ("https://app.example.org", "HTTP://Other.example:8000", "null")


@pytest.mark.parametrize(
    ("origin", "origins", "accepted"),
    [
        (None, (), True),
        ("http://broker.example", (), False),  # whoever owns the name may make it mean this machine
        ("http://broker.example", ("http://broker.example",), True),
        ("https://broker.example.evil.org", (), False),
        ("https://evil-broker.example", (), False),
        ("https://evil.org:8080", (), False),
        ("null", (), False),
        ("", (), False),
        ("broker.example", (), False),
        ("https://evil.org", ("*",), True),
        ("https://app.example.org", ORIGINS, True),
        ("https://app.example.org:8443", ORIGINS, False),
        ("http://app.example.org", ORIGINS, False),
        ("http://other.example:8000", ORIGINS, True),
        ("null", ORIGINS, True),
        ("http://broker.example", ORIGINS, False),
    ],
)
def test_pages_of_other_origins(origin: str | None, origins: tuple[str, ...], accepted: bool) -> None:
    stream = serving(origins=origins)
    stream.receive(request(Origin=None if origin is None else origin.encode()))
    assert stream.open == accepted
    if not accepted:
        assert stream.take_output().startswith(b"HTTP/1.1 403 Forbidden\r\n")
        assert "pages of this origin may not connect" in stream.text


@pytest.mark.parametrize(
    ("host", "origin", "accepted"),
    [
        (b"[::1]:8080", "http://[::1]", True),
        (b"[::1]", "http://[::2]", False),
        (b"[::1]", "http://[", False),
        (b"127.0.0.1", "http://127.0.0.1:8080", True),
        (b"127.0.0.1", "http://127.0.0.2:8080", False),
        (b"localhost:9001", "http://LocalHost:8080", True),
        (b"1e100.net", "http://1e100.net", False),
    ],
)
def test_origins_by_address(host: bytes, origin: str, accepted: bool) -> None:
    stream = serving()
    stream.receive(request(Host=host, Origin=origin.encode()))
    assert stream.open == accepted


def test_a_browser_s_headers_by_another_client() -> None:
    uri = parse_uri("ws://localhost/mqtt")
    client = ClientProtocol(uri, subprotocols=[Subprotocol("mqtt")], origin=Origin("http://localhost:8000"))
    client.send_request(client.connect())
    stream = serving()
    stream.receive(b"".join(client.data_to_send()))
    assert stream.open


@given(data=st.data())
@settings(max_examples=examples(100), deadline=None)
def test_any_request_ends_in_one_way(data: st.DataObject) -> None:
    """However it is cut; with whole lines changed, and single bytes."""
    lines = request().split(b"\r\n")
    for _ in range(data.draw(st.integers(0, 3))):
        number = data.draw(st.integers(0, len(lines) - 1))
        change: Callable[[bytes], bytes] = data.draw(
            st.sampled_from([lambda _: b"", lambda line: line + b"\r\n" + line, bytes.upper, bytes.lower])
        )
        lines[number] = change(lines[number])
    text = bytearray(b"\r\n".join(lines))
    for _ in range(data.draw(st.integers(0, 2))):
        text[data.draw(st.integers(0, len(text) - 1))] = data.draw(st.integers(0, 255))
    head, end, _ = bytes(text).partition(b"\r\n\r\n")  # what follows is frames
    ends = []
    for size in (1, data.draw(st.integers(2, 40)), 1 << 20):
        stream = serving()
        for piece in pieces(head + end, size):
            stream.receive(piece)
        ends.append((stream.open, stream.faulty, stream.text, stream.take_output()))
    assert ends[0] == ends[1] == ends[2]
    is_open, faulty, _, output = ends[0]
    assert output.startswith(b"HTTP/1.1 4") == faulty
    assert output.startswith(b"HTTP/1.1 101 ") == is_open


# -------------------------------------------------------------------- frames


@pytest.mark.parametrize(
    ("frame", "said", "code"),
    [
        (b"\x82\x02hi", "masked as only the other side's frames are, or not at all", 1002),
        (b"\x81\x82\0\0\0\0hi", "text, where MQTT has binary messages", 1003),
        (b"\xc2\x82\0\0\0\0hi", "a reserved bit is set", 1002),  # compressed
    ],
)
def test_frames_that_a_client_may_not_send(frame: bytes, said: str, code: int) -> None:
    stream = serving()
    stream.receive(request())
    stream.take_output()
    assert stream.receive(frame) == b""
    assert stream.text == f"the client breaks the WebSocket protocol: {said}"
    assert stream.take_output() == b"\x88\x02" + code.to_bytes(2)


def test_a_frame_of_any_length_is_passed_on_as_it_comes() -> None:
    """No memory is taken for the length that it names."""
    stream = serving()
    stream.receive(request())
    assert stream.receive(b"\x82\xff\x7f" + b"\xff" * 7 + bytes(4) + b"abc") == b"abc"
    assert stream.receive(b"d" * 100_000) == b"d" * 100_000
    assert not stream.over


# -------------------------------------------------------------------- terms


@pytest.mark.parametrize(
    ("path", "origins", "said"),
    [
        ("mqtt", (), "cannot be the path of a WebSocket"),
        ("", (), "cannot be the path of a WebSocket"),
        ("/a b", (), "cannot be the path of a WebSocket"),
        ("/a?b", (), "cannot be the path of a WebSocket"),
        ("/mqtt", ("example.org",), "cannot be the origin of a page"),
        ("/mqtt", ("https://example.org/",), "cannot be the origin of a page"),
        ("/mqtt", ("https://*",), "cannot be the origin of a page"),
    ],
)
def test_terms_that_cannot_be(path: str, origins: tuple[str, ...], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        WebSocketTerms(path, origins)
