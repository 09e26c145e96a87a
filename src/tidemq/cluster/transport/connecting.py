"""A client of one nats-server: connected once, with what nodes show each other, and given up at once."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Iterable
from contextlib import suppress
from typing import Any

import nats.errors
from nats.aio.client import Client

from tidemq.cluster.transport.settings import USER, Patience, Security, format_address, parse_address
from tidemq.errors import ClusterError

PENDING_BYTES = 1 << 20  # handed to nats-py and not yet to the socket; beyond, senders wait
HEADERS_BYTES = 1024  # of a message, at most; they count towards its largest size
PAYLOAD_BYTES_MIN = 64 << 10  # that a server has to take
GIVE_UP_S = 1.0  # for what is left of a connection that was cut

_log = logging.getLogger("tidemq.cluster")


class RefusedError(ClusterError):
    """Somebody has to mend something before another attempt makes sense."""


async def connect(
    address: str,
    security: Security,
    patience: Patience,
    on_error: Callable[[Exception], None],
    on_closed: Callable[[], None],
) -> Client:
    """A connection that nats-py does not renew: it would keep messages for later, and send them then.

    RefusedError where credentials or certificates are refused, by either side.
    """
    host, port = parse_address(address)
    security.check_address(host)
    context, password = security.client_context(), security.read_password()
    client = Client()
    connecting = True

    async def failed(error: Exception) -> None:
        on_error(error)
        if connecting:
            raise error  # or nats-py tries the same address again and again

    async def closed() -> None:
        on_closed()

    scheme = "nats" if context is None else "tls"
    try:
        async with asyncio.timeout(patience.connect_s):
            await client.connect(
                f"{scheme}://{format_address(host, port)}",
                user=USER,
                password=password,
                tls=context,
                tls_handshake_first=context is not None,
                error_cb=failed,
                closed_cb=closed,
                allow_reconnect=False,
                connect_timeout=max(1, int(patience.connect_s)),
                ping_interval=1 << 30,  # its own way to end a silent connection waits for what cannot be sent
                pending_size=PENDING_BYTES,
                flush_timeout=patience.answer_s,  # else who waits for a connection that ends waits for ever
            )
    except (nats.errors.Error, OSError) as error:  # TimeoutError and ssl.SSLError are OSError
        await give_up(client)
        raise explain(error, security) from error
    except BaseException:
        await give_up(client)
        raise
    connecting = False
    if client.max_payload < PAYLOAD_BYTES_MIN:
        await give_up(client)
        raise RefusedError(
            f"its max_payload is {client.max_payload}; expected: {PAYLOAD_BYTES_MIN} or more, best 1 MiB"
        )
    return client


def explain(error: Exception, security: Security) -> ClusterError:
    """What went wrong, and what would be right."""
    text = str(error) or type(error).__name__
    if isinstance(error, ssl.SSLCertVerificationError):
        return RefusedError(
            f"its certificate is refused: {error.verify_message}; expected: one of {security.ca}, with this "
            "host among its names"
        )
    if isinstance(error, ssl.SSLError):
        if "WRONG_VERSION_NUMBER" in text:
            return RefusedError("it speaks no TLS; expected: a nats-server with TLS, as this node has it")
        return RefusedError(
            f"TLS fails: {text}; expected: that it accepts this node's certificate, {security.certificate}"
        )
    if "authorization violation" in text.lower():
        return RefusedError(
            f"it refuses the cluster's password; expected: the one that it has, in {security.password_file}"
        )
    if isinstance(error, TimeoutError):
        return ClusterError("it does not answer; expected: a nats-server" + _with_tls(security))
    if "INFO" in text:
        return RefusedError(f"it ends the connection at once; expected: a nats-server{_with_tls(security)}")
    return ClusterError(text)


def _with_tls(security: Security) -> str:
    if not security.is_tls:
        return " without TLS, as this node has none"
    return f" with TLS that accepts this node's certificate, {security.certificate}"


def cut(client: Client) -> None:
    """Ends a connection now. What was not sent is lost."""
    # nats-py's close waits until the socket has taken all that is left, which a stalled one never does, and
    # nothing of its interface cuts
    for name in ("_bare_io_writer", "_io_writer"):
        writer = getattr(client._transport, name, None)
        if writer is not None:
            writer.transport.abort()


async def give_up(client: Client) -> None:
    """The same, and nothing of the client is left."""
    cut(client)
    try:
        async with asyncio.timeout(GIVE_UP_S):
            await client.close()
    except Exception as error:  # noqa: BLE001 - what it says of a connection that is no more helps nobody
        _log.debug("nats-py, closing: %r", error)


async def end(tasks: Iterable[asyncio.Task[Any]]) -> None:
    """Cancels tasks, and returns when they have ended."""
    left = set(tasks)
    while left:  # nats-py swallows what reaches it while it flushes
        for task in left:
            task.cancel()
        left = (await asyncio.wait(left, timeout=0.05))[1]


async def until_silent(client: Client, patience: Patience) -> None:
    """Asks the server now and then whether it is there. Returns when it was not."""
    with suppress(nats.errors.Error, OSError):
        while True:
            await client.flush(timeout=patience.answer_s)  # type: ignore[arg-type]  # seconds, also in parts
            await asyncio.sleep(patience.ping_s)
