"""What a broker says of itself under $SYS, asked once before it is measured."""

from __future__ import annotations

import secrets
import time

from tidemq.bench.peer.blocking_link import Link
from tidemq.bench.peer.refusal import connack_text, connect_fault
from tidemq.bench.peer.target import Target
from tidemq.errors import ProtocolError
from tidemq.wire import (
    Connack,
    Connect,
    Decoder,
    Disconnect,
    Packet,
    Publish,
    Subscribe,
    Subscription,
    encode,
)

TOPIC = "$SYS/broker/version"
ANSWER_S = 0.5  # a retained message comes at once


def read_version(target: Target, version: int, timeout_s: float) -> str:
    """The text that the broker retains under $SYS/broker/version; empty where it has none.

    ConnectionError, in one sentence, where it cannot be reached or refuses the connection: so bad input is
    found before a run is begun.
    """
    try:
        with Link(target, timeout_s) as link:
            return asked(link, target, version, timeout_s)
    except TimeoutError as error:
        raise ConnectionError(f"{target.url}: no answer to CONNECT within {timeout_s:g} s") from error
    except ConnectionResetError as error:
        hint = " (does it want a certificate?)" if target.security and not target.security.cert else ""
        raise ConnectionError(
            f"{target.url}: the broker closed the connection instead of CONNACK{hint}"
        ) from error
    except ProtocolError as error:
        raise ConnectionError(f"{target.url}: what answers there does not speak MQTT ({error})") from error
    except OSError as error:
        if error.errno is None:
            raise
        raise ConnectionError(f"{target.url}: {connect_fault(error.errno, 0)}") from error


def asked(link: Link, target: Target, version: int, timeout_s: float) -> str:
    decoder = Decoder(version)
    connect = Connect(
        version=version,
        client_id="bench" + secrets.token_hex(4),
        username=target.username,
        password=None if target.password is None else target.password.encode(),
    )
    link.send(encode(connect, version))
    connack = following(link, decoder, time.monotonic() + timeout_s)
    if not isinstance(connack, Connack):
        raise ConnectionError(f"{target.url}: {type(connack).__name__} came instead of CONNACK")
    if connack.reason:
        raise ConnectionError(
            f"{target.url}: the broker refused the connection: {connack_text(version, connack.reason)}"
        )
    subscribe = Subscribe(packet_id=1, subscriptions=(Subscription(filter=TOPIC),))
    link.send(encode(subscribe, version))
    found = ""
    until_s = time.monotonic() + ANSWER_S
    try:
        while not found:
            packet = following(link, decoder, until_s)
            if isinstance(packet, Publish) and packet.topic == TOPIC:
                found = bytes(packet.payload).decode(errors="replace")
        link.send(encode(Disconnect(), version))
    except (TimeoutError, ConnectionError):
        pass  # it does not say, or it minds being asked
    return found


def following(link: Link, decoder: Decoder, until_s: float) -> Packet:
    """The next packet; TimeoutError, or ConnectionResetError at the end of the stream."""
    while True:
        packet = next(decoder, None)
        if packet is not None:
            return packet
        decoder.feed(link.receive(until_s))
