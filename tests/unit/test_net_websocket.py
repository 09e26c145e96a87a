"""WebSocket frames against a plain model of RFC 6455 section 5, however the bytes are cut."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from quick import examples

from tidemq.net.websocket import WebSocketView

CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG = 0, 1, 2, 8, 9, 10
KEY = b"\x01\x80\xff\x7e"


def frame(
    opcode: int, payload: bytes, *, final: bool = True, masked: bool = False, rsv: int = 0, wide: int = 0
) -> bytes:
    """A frame; `wide`: 2 or 8 bytes of length whether they are needed or not."""
    wide = max(wide, 0 if len(payload) < 126 else 2 if len(payload) < 65_536 else 8)
    size = len(payload).to_bytes(1) if not wide else bytes([126 if wide == 2 else 127])
    if wide:
        size += len(payload).to_bytes(wide)
    head = bytes([final << 7 | rsv << 4 | opcode, size[0] | masked << 7]) + size[1:]
    return head + (KEY + masking(payload) if masked else payload)


def masking(payload: bytes) -> bytes:
    return bytes(byte ^ KEY[number % 4] for number, byte in enumerate(payload))


@dataclass
class Heard:
    """What a reader makes of all bytes that came."""

    payload: bytes = b""
    answers: list[tuple[int, bytes]] = field(default_factory=list)
    fault: str = ""
    closed: int | None = None


def model(data: bytes, serves: bool) -> Heard:
    heard, inside = Heard(), False
    while len(data) >= 2:
        final, rsv, opcode = data[0] >> 7, data[0] >> 4 & 7, data[0] & 15
        masked, size, wide = data[1] >> 7, data[1] & 127, {126: 2, 127: 8}.get(data[1] & 127, 0)
        head = 2 + wide + 4 * masked
        if len(data) < head:
            break
        if wide:
            size = int.from_bytes(data[2 : 2 + wide])
        faults = {
            "a reserved bit is set": rsv,
            "a frame of an unknown kind": opcode not in (CONTINUATION, TEXT, BINARY, CLOSE, PING, PONG),
            "text, where MQTT has binary messages": opcode == TEXT,
            "a false length": (wide == 2 and size < 126) or (wide == 8 and not 65_536 <= size < 1 << 63),
            "a malformed control frame": opcode >= CLOSE and (size > 125 or not final),
            "masked as only the other side's frames are, or not at all": masked != serves,
            "a malformed control frame ": opcode == CLOSE and size == 1,
            "a fragment out of place": opcode < CLOSE and (opcode == CONTINUATION) != inside,
        }
        heard.fault = next((text.strip() for text, found in faults.items() if found), "")
        if heard.fault:
            code = 1003 if opcode == TEXT and not rsv else 1002
            heard.answers.append((CLOSE, code.to_bytes(2)))
            break
        payload = data[head : head + size]
        if masked:
            payload = bytes(byte ^ data[head - 4 + number % 4] for number, byte in enumerate(payload))
        data = data[head + size :]
        if opcode < CLOSE:
            heard.payload += payload
            inside = not final
        elif len(payload) < size:
            break
        elif opcode == PING:
            heard.answers.append((PONG, payload))
        elif opcode == CLOSE:
            heard.closed = int.from_bytes(payload[:2])
            said = not payload or heard.closed in (*range(1000, 1004), *range(1007, 1015), *range(3000, 5000))
            heard.answers.append((CLOSE, payload[:2] if said else b"\x03\xea"))
            break
    return heard


def frames_in(data: bytes, masked: bool) -> list[tuple[int, bytes]]:
    """Opcodes and payloads of whole frames that are as they should be, not fragmented."""
    found = []
    while data:
        assert data[0] & 0xF0 == 0x80
        assert data[1] >> 7 == masked
        size, at = data[1] & 127, 2
        if size > 125:
            wide = 2 if size == 126 else 8
            size, at = int.from_bytes(data[2 : 2 + wide]), 2 + wide
            assert size > (125 if wide == 2 else 65_535)
        key, at = (data[at : at + 4], at + 4) if masked else (bytes(4), at)
        payload = bytes(byte ^ key[number % 4] for number, byte in enumerate(data[at : at + size]))
        assert len(payload) == size
        found.append((data[0] & 15, payload))
        data = data[at + size :]
    return found


def rarely(value: Any, usual: Any) -> st.SearchStrategy[Any]:
    return st.integers(0, 20).map(lambda drawn: value if drawn == 20 else usual)


@st.composite
def streams(draw: st.DrawFn, serves: bool) -> bytes:
    """Frames as a peer may send them; now and then one that it may not send."""
    data, inside = b"", False
    for _ in range(draw(st.integers(0, 8))):
        opcode = draw(st.sampled_from([BINARY, BINARY, BINARY, PING, PONG, CLOSE, TEXT, 3, 11]))
        opcode = draw(rarely(opcode, draw(st.sampled_from([BINARY, BINARY, PING, PONG]))))
        if opcode == BINARY and inside:
            opcode = draw(rarely(BINARY, CONTINUATION))
        control = opcode >= CLOSE
        final = draw(rarely(False, True) if control else st.booleans())
        size = draw(
            st.integers(0, 125) if control else st.sampled_from([0, 1, 7, 8, 9, 125, 126, 300, 66_000])
        )
        payload = draw(st.binary(min_size=8, max_size=8)) * (size // 8 + 1)
        data += frame(
            opcode,
            payload[:size],
            final=final,
            masked=draw(rarely(not serves, serves)),
            rsv=draw(rarely(1, 0)),
            wide=draw(st.sampled_from([0, 0, 0, 0, 0, 0, 0, 2, 8])),
        )
        inside = inside if control else not final
    return data[: len(data) - draw(rarely(draw(st.integers(0, len(data))), 0))]


@pytest.mark.parametrize("serves", [False, True])
@given(data=st.data())
@settings(max_examples=examples(150))
def test_frames_are_read_as_the_model_reads_them(serves: bool, data: st.DataObject) -> None:
    stream = data.draw(streams(serves))
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=12)))
    view, payload = WebSocketView(serves), b""
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        payload += view.receive(stream[start:end])
    expected = model(stream, serves)
    assert payload == expected.payload
    assert (view.fault, view.closed) == (expected.fault, expected.closed)
    assert frames_in(view.take_output(), not serves) == expected.answers


@pytest.mark.parametrize("size", [0, 1, 125, 126, 65_535, 65_536])
@pytest.mark.parametrize("serves", [False, True])
def test_frames_that_are_sent(serves: bool, size: int) -> None:
    view, payload = WebSocketView(serves, noise=7), bytes(range(256)) * 300
    view.send(payload[:size])
    view.close(1000)
    view.close(1001)  # nothing follows Close
    assert frames_in(view.take_output(), not serves) == [(BINARY, payload[:size]), (CLOSE, b"\x03\xe8")]


def test_each_mask_is_another() -> None:
    view = WebSocketView(noise=7)
    masks = set()
    for _ in range(100):
        view.send(b"")
        masks.add(view.take_output()[2:])
    assert len(masks) == 100
    assert {len(mask) for mask in masks} == {4}


@pytest.mark.parametrize(
    ("stream", "fault"),
    [
        (frame(BINARY, b"", rsv=4), "a reserved bit is set"),
        (frame(3, b""), "a frame of an unknown kind"),
        (frame(TEXT, b"abc"), "text"),
        (b"\x82\x7e\x00\x7d", "a false length"),
        (b"\x82\x7f\x00\x00\x00\x00\x00\x00\xff\xff", "a false length"),
        (b"\x82\x7f\x80\x00\x00\x00\x00\x00\x00\x00", "a false length"),
        (frame(PING, bytes(126)), "a malformed control frame"),
        (frame(PING, b"", final=False), "a malformed control frame"),
        (frame(CLOSE, b"x"), "a malformed control frame"),
        (frame(CONTINUATION, b""), "a fragment out of place"),
        (frame(BINARY, b"", final=False) + frame(BINARY, b""), "a fragment out of place"),
        (frame(BINARY, b"", masked=True), "masked as only the other side's"),
    ],
)
def test_what_a_peer_may_not_send(stream: bytes, fault: str) -> None:
    view = WebSocketView()
    for number in range(len(stream)):
        view.receive(stream[number : number + 1])
    assert fault in view.fault
    code = 1003 if fault == "text" else 1002
    assert frames_in(view.take_output(), masked=True) == [(CLOSE, code.to_bytes(2))]
    assert view.receive(frame(BINARY, b"later")) == b""


@pytest.mark.parametrize(
    ("code", "answer"),
    [(1000, 1000), (1003, 1003), (1014, 1014), (3000, 3000), (4999, 4999)]
    + [(code, 1002) for code in (0, 999, 1004, 1005, 1006, 1015, 2999, 5000, 65535)],
)
def test_close_is_answered_with_its_code_if_that_may_be_sent(code: int, answer: int) -> None:
    view = WebSocketView(serves=True)
    view.receive(frame(CLOSE, code.to_bytes(2), masked=True))
    assert (view.closed, view.fault) == (code, "")
    assert view.take_output() == frame(CLOSE, answer.to_bytes(2))
