"""What programs may give as a payload, and the bytes that it is."""

from __future__ import annotations

from tidemq.errors import UsageError

# text is sent as UTF-8, a number as its text, None as nothing
Payload = bytes | bytearray | memoryview | str | int | float | None


def payload_bytes(payload: Payload) -> bytes:
    """`UsageError` for anything else, and for text that has no UTF-8 form."""
    if isinstance(payload, bytes | bytearray | memoryview):
        return bytes(payload)
    if isinstance(payload, str):
        try:
            return payload.encode()
        except UnicodeEncodeError as error:
            raise UsageError(f"payload has no UTF-8 form: {error}") from error
    if payload is None:
        return b""
    if isinstance(payload, int | float) and not isinstance(payload, bool):
        return str(payload).encode()
    raise UsageError(
        f"payload is {payload!r}; accepted: bytes, bytearray, memoryview, str, int, float and None"
    )
