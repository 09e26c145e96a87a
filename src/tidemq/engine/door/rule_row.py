"""One rule as the engine takes it, see `Engine.set_rules`."""

from __future__ import annotations

from typing import NamedTuple

PUBLISH = 1  # the actions
SUBSCRIBE = 2
USER_MARK = b"\xfe"  # stands for the user's name in a filter; no byte of UTF-8
CLIENT_MARK = b"\xff"
NAMES_USER = 1
NAMES_CLIENT = 2
EVERY_MESSAGE = 0x3F  # bit QoS, and bit QoS + 3 for retained ones


class RuleRow(NamedTuple):
    """A rule that allows or refuses some actions on a filter; None: whoever it is.

    ``no_user``: of clients without a user name only. ``network``: 16 bytes, IPv4 as ::ffff:0:0/96, and
    ``prefix`` of its bits.
    """

    allows: bool
    actions: int
    filter: bytes
    messages: int = EVERY_MESSAGE
    user: bytes | None = None
    no_user: bool = False
    group: bytes | None = None
    client: bytes | None = None
    network: bytes | None = None
    prefix: int = 0
