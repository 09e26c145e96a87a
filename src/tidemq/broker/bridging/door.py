"""How bridges come into their own broker: by a listener that nobody else gets in at.

It is an abstract Unix socket, which leaves no file behind, and takes only who knows a secret of this process.
What comes in there has a client identifier that the engine gives to nobody else (`connecting`), so that no
client can take a bridge's queue. Neither rules nor authorisers are asked about bridges: whoever writes the
configuration decides what crosses.
"""

from __future__ import annotations

import hmac
import secrets
import socket
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tidemq.broker.access.decisions import Decisions
from tidemq.broker.acl_rules import AclRule, rows_of
from tidemq.broker.providers import NOT_AUTHORIZED, SUCCESS
from tidemq.engine.door.events import ConnectRequest, PublishRequest, SubscribeRequest
from tidemq.engine.door.listeners import LISTEN_BACKLOG, ListenerRates, ListenerSettings

if TYPE_CHECKING:
    from tidemq.engine import Engine

LISTENER = "$bridge"  # known to the engine
PREFIX = "$bridge/"  # of client identifiers, likewise
ANSWER_TTL_S = 3600.0  # for which the engine need not ask again about a bridge's messages to a topic


class BridgeDoor:
    """Of one broker. Belongs to its event loop."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._filters: dict[str, tuple[str, ...]] = {}  # that rules would not allow, by client identifier
        self.secret = secrets.token_bytes(32)
        self.path = f"\0tidemq-bridge-{secrets.token_hex(16)}"

    def open(self) -> None:
        """Listens; before the engine starts."""
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listening.bind(self.path)
        listening.listen(LISTEN_BACKLOG)
        listening.setblocking(False)
        unbounded = ListenerRates()  # what comes in here has waited at the other side
        settings = ListenerSettings(name=LISTENER, versions=(5,), asks=True, rates=unbounded)
        self._engine.listen([listening], settings)

    def expect(self, client_id: str, filters: Iterable[str]) -> None:
        """A bridge will come under this identifier, and subscribe to these."""
        self._filters[client_id] = tuple(filters)

    def on_connect(self, request: ConnectRequest, decisions: Decisions) -> None:
        """Answers the CONNECT of a bridge; what comes in elsewhere is for others to decide on."""
        if request.listener != LISTENER:
            decisions.on_connect(request)
            return
        known = hmac.compare_digest(request.password or b"", self.secret)
        if not known or request.client_id not in self._filters:
            self._engine.answer_connect(request.connection, NOT_AUTHORIZED)
            return
        rules = [AclRule(True, "all", "#", fills_in=False)]
        dollars = [each for each in self._filters[request.client_id] if each.startswith("$")]
        rules += [AclRule(True, "subscribe", each, fills_in=False) for each in dollars]
        self._engine.answer_connect(
            request.connection, SUCCESS, client_id=request.client_id, rules=rows_of(rules)
        )

    def on_subscribe(self, request: SubscribeRequest, decisions: Decisions) -> None:
        """Answers a bridge's SUBSCRIBE."""
        if request.client_id.startswith(PREFIX):
            self._engine.answer_subscribe(
                request.connection, list(request.reasons) or [SUCCESS] * len(request.filters)
            )
        else:
            decisions.on_subscribe(request)

    def on_publish(self, request: PublishRequest, decisions: Decisions) -> None:
        """Answers a bridge's PUBLISH."""
        if request.client_id.startswith(PREFIX):
            self._engine.answer_publish(request.connection, SUCCESS, ttl_s=ANSWER_TTL_S)
        else:
            decisions.on_publish(request)
