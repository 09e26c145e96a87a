"""What a client raises, all below `TideMQError`. Reason codes are those of MQTT 5.0 (section 2.4)."""

from __future__ import annotations

from collections.abc import Sequence

from tidemq.errors import RefusedError, TideMQError
from tidemq.wire import ConnectReturnCode, ReasonCode


class ConnectError(TideMQError):
    """The server cannot be reached, or what answers does not speak MQTT. Caught by who may try again.

    Its text names the address and the reason; the cause is the OSError or ProtocolError below it.
    """


class FalseServerError(TideMQError):
    """The server accepted the client, but did not prove that it knew the user, as the authentication method
    wants it to: it may be another in its place. The client does not come back. Caught by the program."""


class DisconnectedError(TideMQError):
    """The connection ended before an answer came, and the client does not reconnect. Caught by whoever
    waited."""


class AnswerTimeoutError(TideMQError, TimeoutError):
    """No answer came in the time that the call gave it. Caught by whoever waited.

    Of a message that was published: `withdrawn` where it was taken back, for it was not sent; otherwise it
    may arrive.
    """

    withdrawn = False

    def __str__(self) -> str:
        text = super().__str__()
        return f"{text}; it was not sent, and never will be" if self.withdrawn else text


def late_error(topic: str, timeout_s: float) -> AnswerTimeoutError:
    """Of a message that was not acknowledged in time."""
    return AnswerTimeoutError(f"publishing to {topic!r}: nothing within {timeout_s:g} s")


class BufferFullError(RefusedError):
    """The client holds as much unsent and unacknowledged as it may. Caught by the publisher, who may wait."""


def full_error(held: tuple[int, int], accepted: tuple[int, int]) -> BufferFullError:
    """Pairs of messages and bytes."""
    return BufferFullError(
        f"the client holds {held[0]} messages of {held[1]} bytes; accepted: {accepted[0]} messages "
        f"(buffer_messages_max) and {accepted[1]} bytes (buffer_bytes_max)"
    )


class ReasonError(RefusedError):
    """The server answered with a reason code of 0x80 or above; `reason` is it, `reason_string` its text, if
    any."""

    def __init__(self, what: str, reason: int, reason_string: str | None = None) -> None:
        text = f"{what}: {reason_text(reason)}"
        super().__init__(f"{text} ({reason_string})" if reason_string else text)
        self.reason = reason
        self.reason_string = reason_string


class ServerRefusedError(ReasonError):
    """The server refused the connection in CONNACK, or ended it with DISCONNECT. Below 5.0 `reason` is the
    5.0 code that says the same. `server_reference` is another server's address, where the server named
    one."""

    server_reference: str | None = None


class PublishError(ReasonError):
    """A message was refused by the server, or cannot be sent to this one. Caught by the publisher."""


class SubscribeError(ReasonError):
    """A topic filter was refused. `reasons` has the answer to each filter, in the order of the call."""

    def __init__(self, what: str, reasons: Sequence[int], reason_string: str | None = None) -> None:
        super().__init__(what, next(each for each in reasons if each >= 0x80), reason_string)
        self.reasons = tuple(reasons)


_RETURN_CODES = {
    ConnectReturnCode.UNACCEPTABLE_PROTOCOL_VERSION: ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
    ConnectReturnCode.IDENTIFIER_REJECTED: ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
    ConnectReturnCode.SERVER_UNAVAILABLE: ReasonCode.SERVER_UNAVAILABLE,
    ConnectReturnCode.BAD_USER_NAME_OR_PASSWORD: ReasonCode.BAD_USER_NAME_OR_PASSWORD,
    ConnectReturnCode.NOT_AUTHORIZED: ReasonCode.NOT_AUTHORIZED,
}


def connect_reason(code: int, version: int) -> int:
    """The code of a CONNACK as a reason code of 5.0."""
    return code if version == 5 else _RETURN_CODES.get(ConnectReturnCode(code), ReasonCode.SUCCESS)


def reason_text(reason: int) -> str:
    """A reason code in words, with its number."""
    try:
        return f"{ReasonCode(reason).name.replace('_', ' ').lower()} ({reason:#04x})"
    except ValueError:
        return f"reason code {reason:#04x}"
