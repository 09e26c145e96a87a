"""The engine's side of the doors that `load` comes in at: listeners, and certificates that are replaced."""

from __future__ import annotations

import dataclasses
import random
import time
from collections.abc import Mapping
from pathlib import Path

import trustme
from adversity.doors import SERVER_NAMES, Door

from tidemq.engine import Engine
from tidemq.engine.door.listeners import ListenerRates, ListenerSettings, tcp_sockets
from tidemq.net.server_tls import ServerTls
from tidemq.net.server_upgrade import WebSocketTerms
from tidemq.net.transport import ServerScheme


class Entrances:
    """A plain listener, one with TLS, where all are asked about, one with WebSocket, whose socket the
    reactors share, and one with all of it behind a proxy. `rates`: by name. The folder is for certificates.
    """

    def __init__(
        self, engine: Engine, reactors: int, folder: Path, rates: Mapping[str, ListenerRates]
    ) -> None:
        self.engine = engine
        self.files = issue(folder)
        secured = Door(name="TLS", authority=self.files["authority"], certificate=self.files["client"])
        kinds = [
            Door(name="plain"),
            secured,
            Door(name="WebSocket", websocket=True),
            dataclasses.replace(secured, name="PROXY", websocket=True, proxied=True),
        ]
        self.doors: list[Door] = []
        self.schemes: list[ServerScheme | None] = []
        self.replaced: list[tuple[float, ServerScheme | None]] = []  # and until when they are held
        for door in kinds:
            self.schemes.append(None if door.name == "plain" else self.scheme(door))
            settings = ListenerSettings(
                name=door.name,
                scheme=self.schemes[-1],
                rates=rates.get(door.name),
                asks=door.name == "TLS",
            )
            sockets = tcp_sockets("127.0.0.1", 0, 1 if door.name == "WebSocket" else reactors)
            engine.listen(sockets, settings)
            self.doors.append(dataclasses.replace(door, port=sockets[0].getsockname()[1]))

    def scheme(self, door: Door) -> ServerScheme:
        tls = ServerTls(
            self.files[SERVER_NAMES[0]],
            "",
            client_ca=self.files["authority"],
            client_cert="optional",
            others=[([SERVER_NAMES[1]], self.files[SERVER_NAMES[1]], "")],
        )
        return ServerScheme(
            tls=tls if door.authority else None,
            websocket=WebSocketTerms() if door.websocket else None,
            proxy_protocol=door.proxied,
        )

    def replace(self, dice: random.Random, held_s: float) -> None:
        """New terms for one of them; the old ones are held for a time, as long as handshakes may last."""
        number = dice.randrange(1, len(self.doors))
        scheme = self.scheme(self.doors[number])
        self.engine.replace_scheme(number, scheme)
        now = time.monotonic()
        self.replaced = [(until, old) for until, old in self.replaced if until > now]
        self.replaced.append((now + held_s, self.schemes[number]))
        self.schemes[number] = scheme


def issue(folder: Path) -> dict[str, str]:
    """Files with the authority's certificate, the server's by name, and a client's; each with its key."""
    authority = trustme.CA(key_type=trustme.KeyType.ECDSA)
    files = {name: str(folder / f"{name}.pem") for name in ("authority", "client", *SERVER_NAMES[:2])}
    authority.cert_pem.write_to_path(files["authority"])
    for name in ("client", *SERVER_NAMES[:2]):
        made = authority.issue_cert(name, key_type=trustme.KeyType.ECDSA)
        made.private_key_and_cert_chain_pem.write_to_path(files[name])
    return files
