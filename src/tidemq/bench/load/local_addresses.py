"""The addresses of this machine that connections come from: each has some 28,000 ports for one peer."""

from __future__ import annotations

import ipaddress
import os
import socket
import struct
from collections.abc import Sequence

from tidemq.bench.peer.target import Target
from tidemq.errors import UsageError

ADDRESSES_MAX = 4096

Address = ipaddress.IPv4Address | ipaddress.IPv6Address


def packed_sources(texts: Sequence[str], target: Target) -> tuple[bytes, ...]:
    """Addresses, or ranges FIRST-LAST of them, each as a struct sockaddr with port 0.

    UsageError for a text of another form, an address that is not this machine's, or one of another kind than
    the target's.
    """
    found: list[bytes] = []
    for text in texts:
        for address in parse_range(text):
            found.append(packed(address, target))
            if len(found) > ADDRESSES_MAX:
                raise UsageError(f"--source takes {ADDRESSES_MAX:,} addresses at most")
    return tuple(found)


def parse_range(text: str) -> list[Address]:
    """One address, or all from the first to the last of two with a hyphen between them."""
    first_text, hyphen, last_text = text.partition("-")
    try:
        first = ipaddress.ip_address(first_text.strip())
        last = ipaddress.ip_address((last_text if hyphen else first_text).strip())
    except ValueError as error:
        raise UsageError(f"--source must be an address or FIRST-LAST, not {text!r}") from error
    if first.version != last.version or not int(first) <= int(last) < int(first) + ADDRESSES_MAX:
        raise UsageError(f"--source {text}: that is no range of at most {ADDRESSES_MAX:,} addresses")
    return [type(first)(number) for number in range(int(first), int(last) + 1)]


def packed(address: Address, target: Target) -> bytes:
    """As a struct sockaddr, once it is certain that connections can come from it."""
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    if family != target.family:
        raise UsageError(f"--source {address}: connections to {target.url} cannot come from it")
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((str(address), 0))
        except OSError as error:
            reason = os.strerror(error.errno or 0).lower()
            raise UsageError(f"--source {address} is not an address of this machine: {reason}") from error
    head = struct.pack("=HH", family, 0)
    if family == socket.AF_INET:
        return head + address.packed + bytes(8)
    return head + bytes(4) + address.packed + bytes(4)
