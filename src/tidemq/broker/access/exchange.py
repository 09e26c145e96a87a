"""One client's authentication, step by step, towards the engine."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from tidemq.broker.acl_rules import rows_of
from tidemq.broker.providers import (
    BAD_AUTHENTICATION_METHOD,
    BAD_USER_NAME_OR_PASSWORD,
    CONTINUE_AUTHENTICATION,
    NOT_AUTHORIZED,
    SERVER_BUSY,
    SERVER_UNAVAILABLE,
    SUCCESS,
    Verdict,
)
from tidemq.engine.door.events import AuthRequest, ConnectRequest

if TYPE_CHECKING:
    from tidemq.engine import Engine

# where a connected client is refused, and DISCONNECT does not have the code that CONNACK has
_OF_DISCONNECT = {
    BAD_USER_NAME_OR_PASSWORD: NOT_AUTHORIZED,
    BAD_AUTHENTICATION_METHOD: NOT_AUTHORIZED,
    SERVER_UNAVAILABLE: SERVER_BUSY,
}


def of_disconnect(reason: int) -> int:
    """The code that DISCONNECT has in place of one of CONNACK."""
    return _OF_DISCONNECT.get(reason, reason)


class Exchange:
    """One client's authentication: sends it challenges and, at last, the verdict."""

    def __init__(
        self,
        engine: Engine,
        replies: dict[int, asyncio.Future[bytes | None]],
        replies_max: int,
        request: ConnectRequest | AuthRequest,
    ) -> None:
        self._engine = engine
        self._replies = replies
        self._replies_max = replies_max
        self._connection = request.connection
        self._client_id = request.client_id
        self._is_connected = self._answers_auth = isinstance(request, AuthRequest)

    async def challenge(self, data: bytes | None) -> bytes | None:
        """Sends the data in an AUTH packet and returns the data of the client's. Where too many clients are
        waited for, the one that has kept us waiting for longest is late: TimeoutError."""
        replies = self._replies
        if len(replies) >= self._replies_max:
            oldest = replies.pop(next(iter(replies)))
            if not oldest.done():
                oldest.set_exception(TimeoutError())
        reply: asyncio.Future[bytes | None] = asyncio.get_running_loop().create_future()
        replies[self._connection] = reply
        self.answer(Verdict(CONTINUE_AUTHENTICATION, auth_data=data))
        try:
            return await reply
        finally:
            if replies.get(self._connection) is reply:
                del replies[self._connection]

    def answer(self, verdict: Verdict) -> None:
        """Answers what the client sent last: its CONNECT or, after a challenge, its AUTH."""
        if self._answers_auth:
            reason = verdict.reason
            if reason == SUCCESS and verdict.client_id not in ("", self._client_id):
                reason = NOT_AUTHORIZED  # too late: after an AUTH the engine takes the client's own
            reason = of_disconnect(reason) if self._is_connected else reason
            self._engine.answer_auth(
                self._connection,
                reason,
                verdict.auth_data,
                username=verdict.username,
                groups=verdict.groups,
                rules=None if verdict.rules is None else rows_of(verdict.rules),
            )
        else:
            self._engine.answer_connect(
                self._connection,
                verdict.reason,
                client_id=verdict.client_id or self._client_id,
                auth_data=verdict.auth_data,
                reason_string=verdict.reason_string,
                username=verdict.username,
                groups=verdict.groups,
                rules=None if verdict.rules is None else rows_of(verdict.rules),
            )
        self._answers_auth = True
