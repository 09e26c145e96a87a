"""Every exception that TideMQ raises on purpose, below one root. Broken invariants are assertions."""

from __future__ import annotations


class TideMQError(Exception):
    """Anything that TideMQ refuses or cannot do. Caught by programs that want to catch all of it."""


class ProtocolError(TideMQError):
    """The peer broke MQTT. Caught by whoever owns the connection, who answers and closes it.

    `reason` is the 5.0 reason code to answer with, `tag` the broken statement of the specification (empty
    where the rule has no number), `fault` the `tidemq.wire.Fault`.
    """

    def __init__(self, message: str, *, reason: int, tag: str, fault: int) -> None:
        super().__init__(message, reason, tag, fault)
        self.message = message
        self.reason = reason
        self.tag = tag
        self.fault = fault

    def __str__(self) -> str:
        return f"{self.message} [{self.tag}]" if self.tag else self.message


class UsageError(TideMQError):
    """Our caller asked for what the interface does not allow. Not to be caught: the call is to be mended."""


class RefusedError(TideMQError):
    """Policy said no: not authorised, over a quota. Caught by the caller, who may ask for less."""


class StoreError(TideMQError):
    """Durability is in doubt, or stored data cannot be read. Caught by the broker, which acknowledges nothing
    until a write has succeeded again."""


class StoreFullError(StoreError):
    """There is no room for a write. Caught as StoreError; told apart to say why."""


class ClusterError(TideMQError):
    """Other nodes cannot be reached or do not agree. Caught by the broker, which goes on alone if it may."""


class ConfigError(TideMQError):
    """The configuration has a key or a value not accepted. Caught by the command line, which prints it.

    Its text names the file (or the flag, or the environment variable), the key, and what would be accepted.
    """


class PrivilegeError(TideMQError):
    """Rights of root could not be given up. Caught by the command line, which ends: nothing may be served."""
