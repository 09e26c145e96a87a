"""Fuzzes what lies between a listener's socket and MQTT: PROXY headers, upgrades, frames, TLS.

`python tests/fuzz/fuzz_transport.py --seconds 60 [--seed N] [--runs N]`. An input's first byte says what the
listener's connections are wrapped in and whether a PROXY header comes first, its second how the rest is cut.
The rest is what a client sends; or, for a live client of WebSocket over TLS, how many bytes of its records
are changed, which, and what it sends within. Whatever the input:

- cut otherwise it gives the same;
- bytes of MQTT are no more than the bytes that came, answers little more;
- with records changed, what comes out is the beginning of what the client has sent, or nothing;
- within TLS it gives what it gives without.
"""

from __future__ import annotations

import atexit
import shutil
import ssl
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import trustme

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from fuzz.driver import INPUT_BYTES_MAX, Subject, guarded, parser

from tidemq.net.server_tls import ServerTls
from tidemq.net.server_upgrade import WebSocketTerms
from tidemq.net.transport import ServerScheme, Stream

PLAIN, WEBSOCKET, TLS, LIVE = range(4)  # the lowest bits of an input's first byte
PROXIED = 4
ANSWERS_BYTES_MAX = 512  # beyond what has come: to a request, or one frame
HANDSHAKE_BYTES_MAX = 4096  # of the server
TOKENS = (
    b"PROXY TCP4 192.0.2.7 203.0.113.1 5 1883\r\n",
    b"\r\n\r\n\0\r\nQUIT\n\x21\x11\0\x0c" + bytes(12),
    b"\r\n\r\n",
    b"\r\nHost: h",
    b"\r\nOrigin: http://h",
    b"\r\nSec-WebSocket-Protocol: mqtt",
    b", ",
    b"\x82\x84\1\2\3\4abcd",
    b"\x02\x80\0\0\0\0",
    b"\x80\xfe\0\x80\0\0\0\0",
    b"\x89\x81\0\0\0\0x",
    b"\x88\x82\0\0\0\0\3\xe8",
    b"\x16\3\1\0\5",
    b"\x16\3\1\0\4\1\2\0\0",
    b"\x17\3\3\0\x20" + bytes(32),
    b"\x15\3\3\0\2\1\0",
)


def make_listeners() -> tuple[ServerTls, ssl.SSLContext]:
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    authority = trustme.CA()
    path = Path(folder, "localhost.pem")
    authority.issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(path)
    authority.cert_pem.write_to_path(f"{folder}/ca.pem")
    context = ssl.create_default_context()
    authority.configure_trust(context)
    tls = ServerTls(str(path), "", client_ca=f"{folder}/ca.pem", client_cert="optional")
    return tls, context


SERVER_TLS, CLIENT_TLS = make_listeners()
SCHEMES = {
    (kind, proxied): ServerScheme(
        tls=SERVER_TLS if kind in (TLS, LIVE) else None,
        websocket=WebSocketTerms() if kind in (WEBSOCKET, LIVE) else None,
        proxy_protocol=bool(proxied),
    )
    for kind in range(4)
    for proxied in (0, PROXIED)
}
# no TLS, and the terms of the listener that has it: pages of any name are its own
UNSECURED = ServerScheme(websocket=SCHEMES[LIVE, 0].websocket)


# --- the target


def exercise(data: bytes) -> tuple[object, ...]:
    """Play one input and check what must hold of any; the return value says what was seen."""
    if len(data) < 2:
        return ()
    kind, proxied, size, rest = data[0] % 4, data[0] & PROXIED, data[1] or INPUT_BYTES_MAX, data[2:]
    if kind == LIVE:
        return exercise_live(size, rest)
    scheme = SCHEMES[kind, proxied]
    whole, cut = (play(scheme, rest, step) for step in (INPUT_BYTES_MAX, size))
    assert whole == cut, "cut otherwise it gives something else"
    heard, peer, text, output = whole
    return (kind, proxied, bool(heard), bool(peer), text, output[:14])


Seen = tuple[bytes, str, str, bytes]


def play(scheme: ServerScheme, data: bytes, size: int) -> Seen:
    """What MQTT gets, who the client is, how it stands, and what is answered, where that is no TLS."""
    stream, heard, output = Stream(scheme), b"", b""
    for at in range(0, len(data), size):
        heard += receive(stream, data[at : at + size])
        output += stream.take_output()
    extra = HANDSHAKE_BYTES_MAX if scheme.tls else ANSWERS_BYTES_MAX
    assert len(output) <= len(data) + extra, "answers grow"
    return heard, stream.peer, standing(stream), b"" if scheme.tls else output


def receive(stream: Stream, piece: bytes) -> bytes:
    over = stream.over
    heard = stream.receive(piece)
    assert len(heard) <= len(piece) + (1 << 14), "more comes out than goes in"
    assert not (over and (heard or not stream.over)), "it goes on after its end"
    assert not (heard and stream.step), "MQTT before it is open"
    return heard


def standing(stream: Stream) -> str:
    return stream.text if stream.over else stream.step or "open"


def exercise_live(size: int, data: bytes) -> tuple[object, ...]:
    """A real client within TLS, of whose records some bytes are changed on the way."""
    count = data[0] % 4 if data else 0
    changes = {
        int.from_bytes(data[at : at + 2]) % 4096: data[at + 2]
        for at in range(1, 1 + 3 * count, 3)
        if at + 2 < len(data)
    }
    sent = data[1 + 3 * count :]
    expected = play(UNSECURED, sent, INPUT_BYTES_MAX)
    heard, standing, answers, changed = converse(sent, changes, size)
    assert expected[0].startswith(heard), "other bytes come out than were sent"
    if not changed:
        assert (heard, standing) == (expected[0], expected[2]), "TLS makes a difference"
        assert expected[3].startswith(answers), "other answers within TLS"
    return (LIVE, bool(changes))  # no more: records are never the same twice


def converse(sent: bytes, changes: dict[int, int], size: int) -> tuple[bytes, str, bytes, bool]:
    """What MQTT gets, how it stands at the end, what the client got, and whether a byte was changed."""
    stream, heard, answers, position, changed = Stream(SCHEMES[LIVE, 0]), b"", b"", 0, False
    to, back = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = CLIENT_TLS.wrap_bio(to, back, server_hostname="localhost")
    shaken = False
    for _ in range(6):
        with suppress(ssl.SSLError):
            if not shaken:
                client.do_handshake()
                shaken = True
                client.write(sent)
            answers += client.read(1 << 16)
        records = bytearray(back.read())
        for place, bits in changes.items():
            if bits and position <= place < position + len(records):
                records[place - position] ^= bits
                changed = True
        position += len(records)
        for at in range(0, len(records), size):
            heard += receive(stream, bytes(records[at : at + size]))
        to.write(stream.take_output())
    return heard, standing(stream), answers, changed


# --- the driver


SUBJECT = Subject(name="transport", target=exercise, tokens=TOKENS)


def main() -> int:
    options = parser(__doc__.splitlines()[0]).parse_args()
    return guarded(SUBJECT, options.seed, options.seconds, options.runs, options.crash_dir)


if __name__ == "__main__":
    raise SystemExit(main())
