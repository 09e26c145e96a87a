"""Who may not connect, by client identifier, user name or address, until an operator or the time ends it."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from ipaddress import IPv4Address, IPv6Address, ip_network
from typing import Literal

from tidemq.broker.access.peer_address import address_of

FAMILY, PREFIX = "meta", b"ban/"  # where a store has them
BANS_MAX = 10_000

Kind = Literal["client_id", "username", "address"]


@dataclass(frozen=True, slots=True)
class Ban:
    """One. `value`: of an address also a network, `10.0.0.0/8`. Times are of the wall clock, in seconds."""

    kind: Kind
    value: str
    reason: str
    by: str
    since_s: float
    until_s: float | None  # None: until it is ended

    @property
    def key(self) -> bytes:
        """Of its row in the store."""
        return PREFIX + f"{self.kind}/{self.value}".encode("utf-8", "surrogatepass")

    @property
    def text(self) -> bytes:
        """Of its row in the store."""
        return json.dumps(asdict(self)).encode()

    def is_over(self, now_s: float) -> bool:
        """Whether its time has ended."""
        return self.until_s is not None and self.until_s <= now_s


def ban_of(text: bytes) -> Ban:
    """From its row in the store; ValueError where it is none."""
    try:
        return Ban(**json.loads(text))
    except TypeError as error:
        raise ValueError(str(error)) from error


class Bans:
    """Those of one broker that have one origin; belongs to its event loop. A look-up takes as long with
    10,000 as with one.
    """

    def __init__(self) -> None:
        self._by_name: dict[tuple[Kind, str], Ban] = {}
        # those of more than one address, by version and length of the prefix, then by the first address
        self._networks: dict[tuple[int, int], dict[int, Ban]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_name)

    def __len__(self) -> int:
        return len(self._by_name)

    def load(self, found: Iterable[Ban]) -> None:
        """Takes what a store has."""
        for ban in found:
            self.add(ban)

    def add(self, ban: Ban) -> None:
        """Takes the place of one for the same."""
        self._by_name[ban.kind, ban.value] = ban
        if ban.kind == "address" and "/" in ban.value:
            network = ip_network(ban.value)
            same = self._networks.setdefault((network.version, network.prefixlen), {})
            same[int(network.network_address)] = ban

    def get(self, kind: Kind, value: str) -> Ban | None:
        """None: there is none."""
        return self._by_name.get((kind, value))

    def remove(self, kind: Kind, value: str) -> None:
        """Where there is one."""
        if kind == "address" and "/" in value:
            network = ip_network(value)
            self._networks.get((network.version, network.prefixlen), {}).pop(
                int(network.network_address), None
            )
        self._by_name.pop((kind, value), None)

    def all(self) -> list[Ban]:
        """The oldest first."""
        return sorted(self._by_name.values(), key=lambda each: each.since_s)

    def over(self) -> list[Ban]:
        """Those whose time has ended."""
        now_s = time.time()
        return [each for each in self._by_name.values() if each.is_over(now_s)]

    def find(self, *, client_id: str = "", username: str | None = None, peer: str = "") -> Ban | None:
        """What keeps a client out; None: nothing."""
        if not self._by_name:
            return None
        address = address_of(peer)
        names: list[tuple[Kind, str]] = [("client_id", client_id)]
        if username is not None:
            names.append(("username", username))
        if address is not None:
            names.append(("address", str(address)))
        found = [self._by_name.get(name) for name in names]
        if address is not None:
            found += self._of_networks(address)
        now_s = time.time()
        return next((ban for ban in found if ban is not None and not ban.is_over(now_s)), None)

    def _of_networks(self, address: IPv4Address | IPv6Address) -> list[Ban | None]:
        number = int(address)
        found = []
        for (version, prefix), networks in self._networks.items():
            if version == address.version:
                rest = address.max_prefixlen - prefix
                found.append(networks.get(number >> rest << rest))
        return found


def address_or_network(text: str) -> str:
    """As bans have it; ValueError for what is neither. A network of one address is that address."""
    network = ip_network(text)
    return str(network.network_address if network.num_addresses == 1 else network)
