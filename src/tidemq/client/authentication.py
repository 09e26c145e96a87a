"""Authentication methods of 5.0 (section 4.12), which go to and fro in AUTH packets; SCRAM is one."""

from __future__ import annotations

from collections.abc import Generator
from typing import Protocol

from tidemq.client.errors import FalseServerError
from tidemq.errors import UsageError

_SERVER_BYTES_MAX = 4096  # of a message of the server's; those of SCRAM have some hundred

Steps = Generator[bytes | None, bytes | None, None]


class Authentication(Protocol):
    """What `Client(url, auth=...)` takes. Serves any number of exchanges: one for each connection, and for
    each `reauthenticate`."""

    @property
    def method(self) -> str:
        """The name of the method, as the server knows it."""

    @property
    def username(self) -> str | None:
        """For CONNECT, where the client is not given another."""

    def exchange(self) -> Steps:
        """One exchange: gives what CONNECT, or the first AUTH, is to carry; then for the data of each AUTH of
        the server what to answer it with; and ends with the data that the server accepts the client with,
        where the method lets the server prove itself: `FalseServerError` where it does not.

        Steps may block: they run in a thread; but for the last, which decides and must not.
        """


class Exchange:
    """One exchange under way."""

    def __init__(self, auth: Authentication) -> None:
        self._steps = auth.exchange()

    def begin(self) -> bytes | None:
        """The first data."""
        return next(self._steps, None)

    def answer(self, data: bytes | None) -> bytes | None:
        """The answer to the server's data."""
        try:
            return self._steps.send(data)
        except StopIteration:
            raise FalseServerError("the server goes on asking after the end of the exchange") from None

    def finish(self, data: bytes | None) -> None:
        """The server has accepted the client, with this data."""
        try:
            self._steps.send(data)
        except StopIteration:
            return
        raise FalseServerError("the server ended the exchange before it had proved who it is")


class Scram:
    """SCRAM-SHA-256 (RFC 5802, RFC 7677): the server learns that the client has the password, not the
    password, and has to prove that it knew the user. `UsageError` for a name or password with characters that
    may not be in one (RFC 4013).
    """

    method = "SCRAM-SHA-256"

    def __init__(self, username: str, password: str | bytes) -> None:
        from scramp import ScramClient, ScramException  # late: most clients do without

        self.username = username
        try:
            text = password.decode() if isinstance(password, bytes) else password
            ScramClient([self.method], username, text)
        except UnicodeDecodeError:
            raise UsageError("a password for SCRAM is UTF-8") from None
        except ScramException as error:
            raise UsageError(f"SCRAM cannot take the user name or the password: {error}") from None
        self._text = text

    def __repr__(self) -> str:
        return f"Scram({self.username!r})"

    def exchange(self) -> Steps:
        """See `Authentication`."""
        from scramp import ScramClient, ScramException

        client = ScramClient([self.method], self.username, self._text)
        try:
            client.set_server_first(_text((yield client.get_client_first().encode())))
            # takes as long as the server's number of iterations wants; up to ten million, some seconds
            client.set_server_final(_text((yield client.get_client_final().encode())))
        except ScramException as error:
            text = f"the server did not prove that it knows the user {self.username!r}: {error}"
            raise FalseServerError(text) from None


def _text(data: bytes | None) -> str:
    """A message of the server's; FalseServerError where it can be none."""
    if data is None:
        raise FalseServerError("the server accepted the client, or asked, without a message of SCRAM")
    if len(data) > _SERVER_BYTES_MAX:
        raise FalseServerError(f"the server's message of SCRAM has {len(data)} bytes")
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise FalseServerError("the server's message of SCRAM is not UTF-8") from None
