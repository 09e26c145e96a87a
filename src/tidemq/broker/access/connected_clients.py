"""Who the connected clients are, as their authenticators said: user name, groups, how long they may stay.

What an authenticator says of a CONNECT is kept apart until the engine reports that the client is connected.
Meanwhile nobody is known under its identifier: reports can be lost, and what was said of an earlier
connection must not hold for this one. Client and address name the connection; its number does not, for a
connection changes reactors.

A lost report lets nobody stay beyond the time: a client that may stay for a time and was not reported within
`WAIT_S` is ended then; and when a time is over, whoever has the identifier is ended. (Not one whose
identifier the engine has made up and not reported: nobody here knows it.)
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

from tidemq.broker.providers import Verdict
from tidemq.engine.door.events import AuthRequest, Connected, ConnectRequest, Disconnected

WAIT_S = 60.0  # for the report of a connection; the client has gone meanwhile

_log = logging.getLogger("tidemq.access")


@dataclass(slots=True)
class Client:
    """One connected client, or one that is about to be."""

    username: str | None
    groups: tuple[str, ...]
    peer: str
    ends_at: float | None  # monotonic
    begun_at: float
    superseded: bool = False  # another connection of the same client has been accepted
    timer: asyncio.TimerHandle | None = None

    def stop_timer(self) -> None:
        """It ends nothing any more."""
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Clients:
    """Those that an authenticator has accepted. `end(client_id)` is called when one's time is over. At most
    `clients_max` are known, as many as can be connected; where reports of ends were lost, the oldest go.
    """

    def __init__(self, end: Callable[[str], None], clients_max: int) -> None:
        self._end = end
        self._clients_max = clients_max
        self._coming: OrderedDict[tuple[str, str], Client] = OrderedDict()  # by address and client identifier
        self._connected: dict[str, Client] = {}

    def accept(self, request: ConnectRequest, verdict: Verdict) -> None:
        """An authenticator has accepted a CONNECT."""
        now = time.monotonic()
        while self._coming and next(iter(self._coming.values())).begun_at < now - WAIT_S:
            self._give_up(next(iter(self._coming)))
        client_id = verdict.client_id or request.client_id
        username = request.username if verdict.username is None else verdict.username
        ends_at = None if verdict.expires_s is None else now + verdict.expires_s
        key = (request.peer, client_id)
        before = self._connected.get(client_id)
        if before is not None:
            before.superseded = True
        self._take(key)
        client = self._coming[key] = Client(username, verdict.groups, request.peer, ends_at, now)
        if ends_at is not None:
            client.timer = asyncio.get_running_loop().call_later(WAIT_S, self._give_up, key)

    def on_connected(self, event: Connected) -> None:
        """The engine has let the client in. An identifier that it was given is not what it asked for."""
        self._forget(event.client_id)  # whoever it was, it is another now
        client = self._take((event.peer, event.client_id)) or self._take((event.peer, ""))
        if client is None:
            return
        self._connected[event.client_id] = client
        self._set_timer(event.client_id, client)
        if len(self._connected) > self._clients_max:
            oldest = next(iter(self._connected))
            if self._connected[oldest].ends_at is None:
                self._forget(oldest)
            else:
                self._end_time(oldest)

    def on_disconnected(self, event: Disconnected) -> None:
        """The connection has ended; another one of the same client stays."""
        client = self._connected.get(event.client_id)
        if client is not None and client.peer == event.peer:
            self._forget(event.client_id)

    def find(self, client_id: str) -> Client | None:
        """None: not connected, as far as the engine has reported, or no longer that one."""
        client = self._connected.get(client_id)
        return None if client is None or client.superseded else client

    def renew(self, request: AuthRequest, verdict: Verdict) -> bool:
        """A connected client has authenticated again. False: as somebody else, which must not be; or for a
        time, and nobody knows that it is connected."""
        client_id = request.client_id
        client = self.find(client_id)
        if verdict.client_id not in ("", client_id):
            return False
        if client is None or client.peer != request.peer:
            return verdict.username is None and verdict.expires_s is None
        if verdict.username not in (None, client.username):
            return False
        client.groups = verdict.groups
        client.ends_at = None if verdict.expires_s is None else time.monotonic() + verdict.expires_s
        self._set_timer(client_id, client)
        return True

    def close(self) -> None:
        """Ends the timers."""
        for client in (*self._connected.values(), *self._coming.values()):
            client.stop_timer()

    def _take(self, key: tuple[str, str]) -> Client | None:
        """One that is about to be connected, and is no longer."""
        client = self._coming.pop(key, None)
        if client is not None:
            client.stop_timer()
        return client

    def _give_up(self, key: tuple[str, str]) -> None:
        """It has not been reported: it was gone before, or the report was lost."""
        client = self._take(key)
        client_id = key[1]
        if client is not None and client.ends_at is not None and client_id and self.find(client_id) is None:
            self._end(client_id)

    def _end_time(self, client_id: str) -> None:
        self._forget(client_id)  # nobody may report its end
        self._end(client_id)

    def _forget(self, client_id: str) -> None:
        client = self._connected.pop(client_id, None)
        if client is not None:
            client.stop_timer()

    def _set_timer(self, client_id: str, client: Client) -> None:
        client.stop_timer()
        if client.ends_at is not None:
            left_s = max(0.0, client.ends_at - time.monotonic())
            client.timer = asyncio.get_running_loop().call_later(left_s, self._end_time, client_id)
