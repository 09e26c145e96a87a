"""What the transport says of its connections, as it is shown."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tidemq.broker.clustering import Copies, MemberFigures


def copies_of(peers: Sequence[Mapping[str, Any]]) -> dict[str, Copies]:
    """By incarnation, of `Transport.status()["peers"]`: who has, or gets, copies of this node's log."""
    return {
        each["incarnation"]: Copies(
            each["state"], each["copied"], each["copies_waiting_bytes"], each["last_error"]
        )
        for each in peers
        if each["incarnation"] is not None
    }


def unreached(status: Mapping[str, Any], members: Sequence[MemberFigures]) -> list[str]:
    """Of `Transport.status()`: servers that should be reached and are not, in words."""
    found = []
    if status["state"] != "connected":
        found.append(f"the own nats-server at {status['address']} is not reached: {status['last_error']}")
    states = {each["address"]: (each["state"], each["last_error"]) for each in status["peers"]}
    for member in members:
        state, error = states.get(member.address, ("", ""))
        if (
            not member.is_self
            and member.state in ("alive", "joining")
            and state not in ("connected", "twice")
        ):
            found.append(f"{member.name} is heard, and not reached at {member.address}: {error or 'not yet'}")
    return found
