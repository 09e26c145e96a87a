"""Whether a client comes back, and when."""

from __future__ import annotations

import random

from tidemq.client.errors import ConnectError, DisconnectedError, ServerRefusedError
from tidemq.client.settings import Settings
from tidemq.wire import ReasonCode

# after these the client does not come back by itself
FINAL_REASONS = frozenset(
    {
        ReasonCode.UNSUPPORTED_PROTOCOL_VERSION,
        ReasonCode.CLIENT_IDENTIFIER_NOT_VALID,
        ReasonCode.BAD_USER_NAME_OR_PASSWORD,
        ReasonCode.NOT_AUTHORIZED,
        ReasonCode.BANNED,
        ReasonCode.BAD_AUTHENTICATION_METHOD,
        ReasonCode.SESSION_TAKEN_OVER,
    }
)


def comes_back(settings: Settings, error: Exception) -> bool:
    """After this end of a connection, or of an attempt at one."""
    if isinstance(error, ServerRefusedError):
        return settings.reconnect and error.reason not in FINAL_REASONS
    return settings.reconnect and isinstance(error, ConnectError | DisconnectedError)


def delay_s(settings: Settings, attempt: int) -> float:
    """Full jitter: anything from nothing to a bound that doubles."""
    bound_s = settings.backoff_s_min * 2.0 ** min(attempt - 1, 60)
    return random.uniform(0, min(settings.backoff_s_max, bound_s))
