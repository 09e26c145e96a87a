"""What a client may be told, with units, defaults and limits; checked when the client is made."""

from __future__ import annotations

import difflib
import re
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Literal, TypedDict

from tidemq.client.authentication import Authentication
from tidemq.client.callbacks import ConnectionCallback
from tidemq.errors import UsageError
from tidemq.wire import NO_PROPERTIES, Properties, Will

BufferFull = Literal["wait", "reject", "drop_oldest"]
Acknowledge = Literal["auto", "manual"]

PACKET_BYTES_MAX = 268_435_460  # the largest that MQTT has


def random_client_id() -> str:
    """One that nobody else has."""
    return f"tidemq-{secrets.token_hex(8)}"  # 23 characters: every server must take it


class Options(TypedDict, total=False):
    """The keyword arguments of a client: the fields of `Settings`, none of them required."""

    client_id: str
    version: Literal[3, 4, 5]
    clean_start: bool
    session_expiry_s: int
    username: str | None
    password: bytes | str | None
    will: Will | None
    properties: Properties
    auth: Authentication | None
    tls: ssl.SSLContext | None
    tls_server_name: str | None
    headers: Mapping[str, str]
    proxy: str | None
    connect_timeout_s: float
    on_connection: ConnectionCallback | None
    keep_alive_s: int
    ping_timeout_s: float
    close_timeout_s: float
    reconnect: bool
    retry_first: bool
    backoff_s_min: float
    backoff_s_max: float
    buffer_full: BufferFull
    buffer_messages_max: int
    buffer_bytes_max: int
    inflight_max: int | None
    topic_aliases_max: int
    outbox: Path | str | None
    acknowledge: Acknowledge
    queue_messages_max: int
    queue_bytes_max: int
    receive_max: int
    packet_bytes_max: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Of one client. Sizes are bytes, times are seconds. `UsageError` names a wrong one."""

    # who it is
    client_id: str = ""  # empty: a random one, or that of the outbox
    version: Literal[3, 4, 5] = 5  # 5: MQTT 5.0, 4: 3.1.1, 3: 3.1
    clean_start: bool = True  # of the first connection; clean session below 5.0; without an outbox
    session_expiry_s: int = 300  # 5.0: how long the server keeps the session of a lost connection
    username: str | None = None
    password: bytes | str | None = field(default=None, repr=False)
    will: Will | None = None
    properties: Properties = NO_PROPERTIES  # of CONNECT; 5.0
    auth: Authentication | None = None  # 5.0: instead of a password
    tls: ssl.SSLContext | None = None  # for mqtts and wss; None: the system's certificates
    tls_server_name: str | None = None  # that the server's certificate has to have; None: the URL's host
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)  # of the request for a WebSocket
    proxy: str | None = field(default=None, repr=False)  # http://user:password@host:3128, or socks5://
    # the connection
    connect_timeout_s: float = 10.0  # to CONNACK
    keep_alive_s: int = 60  # idle time, either way, after which the other side is asked; 0: never
    ping_timeout_s: float = 10.0  # for its answer
    on_connection: ConnectionCallback | None = None  # told when it is made, lost, made again
    close_timeout_s: float = 5.0  # at a clean end, for what is unsent and unacknowledged
    reconnect: bool = True
    retry_first: bool = False  # also where the first attempt fails
    backoff_s_min: float = 0.5  # before the second attempt, at most; doubled for each further one
    backoff_s_max: float = 60.0
    # what is sent
    buffer_full: BufferFull = "wait"  # what `publish` does when the buffer is full
    buffer_messages_max: int = 100_000  # unsent and unacknowledged
    buffer_bytes_max: int = 64 << 20
    inflight_max: int | None = None  # None: as the 5.0 server says; 20 below
    topic_aliases_max: int = 0  # 5.0: that the client sets, as far as the server allows
    outbox: Path | str | None = None  # a file for unacknowledged messages of QoS 1 and 2
    # what is received
    acknowledge: Acknowledge = "auto"
    queue_messages_max: int = 65_536  # received, not taken; then nothing more is read
    queue_bytes_max: int = 64 << 20
    receive_max: int = 1024  # 5.0: unacknowledged at a time
    packet_bytes_max: int = PACKET_BYTES_MAX

    def __post_init__(self) -> None:
        self._check_choices()
        self._check_ranges()
        for name, value in self.headers.items():
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or re.search(r"[\r\n\0]", value):
                raise UsageError(f"{name!r} and its value are no header of HTTP")
        if self.auth is not None and self.version != 5:
            raise UsageError("auth needs MQTT 5.0")

    def connect_properties(self) -> Properties:
        """What the settings say, over what was given as properties."""
        if self.version != 5:
            return self.properties
        packet_bytes_max = None if self.packet_bytes_max == PACKET_BYTES_MAX else self.packet_bytes_max
        return replace(
            self.properties,
            session_expiry_s=self.session_expiry_s or None,
            receive_maximum=self.receive_max,
            topic_alias_maximum=self.topic_aliases_max or None,
            maximum_packet_size=packet_bytes_max,
        )

    def _check_choices(self) -> None:
        choices = (
            ("version", self.version, (3, 4, 5)),
            ("buffer_full", self.buffer_full, ("wait", "reject", "drop_oldest")),
            ("acknowledge", self.acknowledge, ("auto", "manual")),
        )
        for name, value, accepted in choices:
            if value not in accepted:
                raise UsageError(f"{name} is {value!r}; accepted: {', '.join(map(repr, accepted))}")

    def _check_ranges(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if value is not None and not low <= value <= high:
                raise UsageError(f"{name} is {value}; accepted: {low:g} to {high:g}")


def make_settings(options: Options) -> Settings:
    """Those of a client's keyword arguments. `UsageError` names what is none, with the nearest that is."""
    known = [each.name for each in fields(Settings)]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, known, 1, 0.5)
            hint = f"; did you mean {near[0]}?" if near else f"; accepted: {', '.join(known)}"
            raise UsageError(f"a client has no setting {name!r}{hint}")
    return Settings(**options)


_RANGES = (
    ("session_expiry_s", 0, 0xFFFFFFFF),
    ("connect_timeout_s", 0.001, 86_400),
    ("keep_alive_s", 0, 0xFFFF),
    ("ping_timeout_s", 0.001, 86_400),
    ("close_timeout_s", 0, 86_400),
    ("backoff_s_min", 0.001, 86_400),
    ("backoff_s_max", 0.001, 86_400),
    ("buffer_messages_max", 1, 1 << 31),
    ("buffer_bytes_max", 1024, 1 << 40),
    ("inflight_max", 1, 0xFFFF),
    ("topic_aliases_max", 0, 0xFFFF),
    ("queue_messages_max", 1, 1 << 31),
    ("queue_bytes_max", 1024, 1 << 40),
    ("receive_max", 1, 0xFFFF),
    ("packet_bytes_max", 64, PACKET_BYTES_MAX),
)
