"""What a client may claim in a TLS handshake before OpenSSL is asked."""

from __future__ import annotations

import hashlib

import pytest
import trustme

from tidemq.net.server_tls import ServerTls
from tidemq.net.transport import ServerScheme, Stream


@pytest.fixture(scope="module")
def scheme(tmp_path_factory: pytest.TempPathFactory) -> ServerScheme:
    path = tmp_path_factory.mktemp("tls") / "localhost.pem"
    trustme.CA().issue_cert("localhost").private_key_and_cert_chain_pem.write_to_path(path)
    return ServerScheme(tls=ServerTls(str(path), str(path)))


def pieces(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


def hello(size: int, *, cut: int = 16384) -> bytes:
    """The beginning of a message of the handshake, in records of at most `cut` bytes."""
    message = b"\x01" + size.to_bytes(3) + bytes(100)
    return b"".join(b"\x16\x03\x01" + len(each).to_bytes(2) + each for each in pieces(message, cut))


@pytest.mark.parametrize("cut", [1, 3, 4, 5, 16384])
@pytest.mark.parametrize("size", [1, 1 << 20])
def test_a_message_that_claims_too_much_gets_no_memory(scheme: ServerScheme, cut: int, size: int) -> None:
    stream = Stream(scheme)
    for piece in pieces(hello(131_392, cut=cut), size):
        stream.receive(piece)
    assert stream.faulty
    assert stream.text == "TLS failed: a message of the handshake is too long"
    stream = Stream(scheme)
    stream.receive(hello(32_768, cut=cut))
    assert not stream.faulty


def extension(kind: int, data: bytes) -> bytes:
    return kind.to_bytes(2) + len(data).to_bytes(2) + data


def test_the_second_hello_may_claim_no_more_than_the_first(scheme: ServerScheme) -> None:
    """A client of TLS 1.3 that sends no key is asked for one (HelloRetryRequest); a record that means nothing
    may stand before its second hello (RFC 8446 appendix D.4).
    """
    extensions = [
        extension(43, b"\x02\x03\x04"),  # versions: 1.3
        extension(10, b"\0\x02\0\x1d"),  # groups: x25519
        extension(13, b"\0\x04\x04\x03\x08\x04"),  # signatures: ECDSA, RSA-PSS
        extension(51, b"\0\0"),  # keys: none
    ]
    body = b"\x03\x03" + bytes(32) + b"\0" + b"\0\x02\x13\x01" + b"\x01\0"
    body += len(b"".join(extensions)).to_bytes(2) + b"".join(extensions)
    message = b"\x01" + len(body).to_bytes(3) + body
    stream = Stream(scheme)
    stream.receive(b"\x16\x03\x01" + len(message).to_bytes(2) + message)
    answer = stream.take_output()
    assert answer[11:43] == hashlib.sha256(b"HelloRetryRequest").digest()
    assert not stream.faulty
    stream.receive(b"\x14\x03\x03\0\x01\x01")
    assert not stream.faulty
    stream.receive(hello(131_392))
    assert stream.text == "TLS failed: a message of the handshake is too long"
