"""Where a client is: what the text of its peer's address says."""

from __future__ import annotations

from functools import lru_cache
from ipaddress import IPv4Address, IPv6Address, ip_address

_UNIX = "unix"  # peers at a Unix socket begin with it
_IPV6_PREFIX_BITS = 64  # what one subscriber has at least


def source_of(peer: str) -> str:
    """What counts as one source: an IPv4 address, an IPv6 network of 64 bits, all of this machine's Unix
    sockets."""
    return _known(_host(peer))[0]


def address_of(peer: str) -> IPv4Address | IPv6Address | None:
    """Of a client; that of IPv4 where a listener is for both. None: it has come by a Unix socket."""
    try:
        address = ip_address(_host(peer).strip("[]").partition("%")[0])
    except ValueError:
        return None
    return getattr(address, "ipv4_mapped", None) or address


def is_local(peer: str) -> bool:
    """Whether the client is on this machine: 127.0.0.0/8, ::1, or a Unix socket."""
    return _known(_host(peer))[1]


def _host(peer: str) -> str:
    host, colon, _ = peer.rpartition(":")
    return host if colon else peer


@lru_cache(maxsize=8192)
def _known(host: str) -> tuple[str, bool]:
    if host.startswith(_UNIX):
        return _UNIX, True
    try:
        address: IPv4Address | IPv6Address = ip_address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host, False
    if isinstance(address, IPv6Address):
        if address.ipv4_mapped is None:
            network = int(address) >> 128 - _IPV6_PREFIX_BITS << 128 - _IPV6_PREFIX_BITS
            return f"{IPv6Address(network)}/{_IPV6_PREFIX_BITS}", address.is_loopback
        address = address.ipv4_mapped
    return str(address), address.is_loopback
