"""A bridge to another broker, as `[[bridges]]` of the configuration describes it, in Mosquitto's terms.

Checked whole when the file is read: a broker with a bridge that is wrong does not start. What a bridge does:
docs/bridge.md.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    field_validator,
    model_validator,
)

BRIDGES_MAX = 64
TOPICS_MAX = 1000  # of one bridge
ADDRESSES_MAX = 16
_ADDRESS = re.compile(r"(mqtt|mqtts|ws|wss)://(\[[0-9A-Fa-f:.]+\]|[^\s/@:?#\[\]]+)(:\d{1,5})?(/[!-~]*)?")
_DAY_S = 86_400.0
_NOT_TOPICS = ("$share/", "$exclusive/", "$stream/", "$queue/")  # which filters begin with
_NO_PSK = (
    "certificates (certificate, key): pre-shared keys are not taken, because Python's ssl has none for "
    "clients before 3.13"
)


def _address(text: str) -> str:
    """A URL without user and password, which have keys of their own."""
    found = _ADDRESS.fullmatch(text)
    if found is None or (found[3] and not 0 < int(found[3][1:]) <= 65_535):
        raise ValueError("scheme://host:port, where the scheme is mqtt, mqtts, ws or wss")
    if found[1] in ("mqtt", "mqtts") and found[4] not in (None, "/"):
        raise ValueError(f"an address without a path: {found[1]} has none")
    return text


def _plain(text: str) -> str:
    """The beginning of topics: neither wildcards nor NUL."""
    if re.search(r"[+#\x00]", text):
        raise ValueError("a text without '+', '#' and NUL")
    return text


def _filter(text: str) -> str:
    """A topic filter; empty where the prefixes are whole topics."""
    levels = text.split("/")
    whole = all(level in ("+", "#") or not re.search(r"[+#\x00]", level) for level in levels)
    if not whole or "#" in levels[:-1]:
        raise ValueError("a topic filter, '+' and '#' each a level of its own, '#' the last")
    return text


Plain = Annotated[str, Field(max_length=65_535), AfterValidator(_plain)]
PSK_KEYS = frozenset({"psk", "psk_identity", "psk_file", "identity", "bridge_psk", "bridge_identity"})


class BridgeTls(BaseModel):
    """TLS towards the other side, for `mqtts` and `wss`. All files are PEM."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    ca: Path | None = None  # authorities that the other side's certificate may be from; None: the system's
    certificate: Path | None = None  # of this broker, where the other side asks for one
    key: Path | None = None  # None: in the file of the certificate
    server_name: str = ""  # that the other side's certificate has to have; empty: the address's host
    insecure: StrictBool = False  # any certificate will do: no protection against who is in between
    alpn: str = ""  # protocol to ask for; empty: none

    @model_validator(mode="before")
    @classmethod
    def _refuse_psk(cls, given: Any) -> Any:
        if isinstance(given, dict) and (found := sorted(PSK_KEYS & given.keys())):
            raise ValueError(f"{_NO_PSK}; take out {', '.join(found)}")
        return given

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.key is not None and self.certificate is None:
            raise ValueError("certificate, to which the key belongs")
        if len(self.alpn.encode()) > 255:
            raise ValueError("alpn of at most 255 bytes")
        return self


class BridgeTopic(BaseModel):
    """Messages that cross: here on `local_prefix` and the filter, there on `remote_prefix` and the filter."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    filter: Annotated[str, Field(max_length=65_535), AfterValidator(_filter)]
    direction: Literal["out", "in", "both"] = "out"
    qos: Annotated[StrictInt, Field(ge=0, le=2)] = 0  # at most
    local_prefix: Plain = ""
    remote_prefix: Plain = ""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.filter and not (self.local_prefix and self.remote_prefix):
            raise ValueError("an empty filter only where local_prefix and remote_prefix are topics")
        for each in (self.local_filter, self.remote_filter):
            if each.startswith(_NOT_TOPICS):
                raise ValueError(
                    f"a filter of topics; messages have none that begins with {', '.join(_NOT_TOPICS)}"
                )
        if self.is_inward and self.local_filter.startswith("$"):
            raise ValueError("direction out, or a local topic without '$' first: nobody may publish there")
        return self

    @property
    def local_filter(self) -> str:
        return self.local_prefix + self.filter

    @property
    def remote_filter(self) -> str:
        return self.remote_prefix + self.filter

    @property
    def is_outward(self) -> bool:
        return self.direction != "in"

    @property
    def is_inward(self) -> bool:
        return self.direction != "out"


class Bridge(BaseModel):
    """A connection to another broker that this one makes and keeps."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    addresses: Annotated[
        tuple[Annotated[str, AfterValidator(_address)], ...], Field(min_length=1, max_length=ADDRESSES_MAX)
    ]
    protocol_version: Literal["3.1.1", "5.0"] = "5.0"
    client_id: Plain = ""  # to the other side; empty: tidemq-HOSTNAME-NAME
    username: str = ""
    password_file: str = ""  # holds the password; read for each connection
    clean_session: StrictBool = False  # neither side keeps anything for the other while they are apart
    keep_alive_s: Annotated[StrictInt, Field(ge=5, le=65_535)] = 60
    reconnect_s: Annotated[StrictFloat, Field(ge=0.1, le=3600)] = (
        1.0  # before the second attempt; then it doubles
    )
    reconnect_max_s: Annotated[StrictFloat, Field(ge=0.1, le=_DAY_S)] = 30.0
    round_robin: StrictBool = False  # after a connection is lost, the next address; else the first again
    try_private: StrictBool = True  # say that a bridge connects (3.1.1)
    notifications: StrictBool = True  # 1 or 0, retained, for whether the bridge is connected
    notification_topic: Plain = ""  # empty: $SYS/broker/connection/CLIENT_ID/state
    notifications_local_only: StrictBool = False
    outgoing_retain: StrictBool = True  # false: RETAIN is never set on messages to the other side
    inflight_max: Annotated[StrictInt, Field(ge=1, le=65_535)] = 1024  # QoS 1 and 2, each way, unacknowledged
    packet_bytes_max: Annotated[StrictInt, Field(ge=0, le=268_435_455)] = 0  # to there; 0: as it says
    refused_retry_s: Annotated[StrictFloat, Field(ge=0, le=_DAY_S)] = 0.0  # of one message; 0: for ever
    hops_max: Annotated[StrictInt, Field(ge=1, le=99)] = 8  # brokers that a message may cross to (5.0)
    tls: BridgeTls | None = None
    topics: Annotated[tuple[BridgeTopic, ...], Field(min_length=1, max_length=TOPICS_MAX)]

    @model_validator(mode="before")
    @classmethod
    def _refuse_psk(cls, given: Any) -> Any:
        if isinstance(given, dict) and (found := sorted(PSK_KEYS & given.keys())):
            raise ValueError(f"tls with {_NO_PSK}; take out {', '.join(found)}")
        return given

    @field_validator("username", "client_id")
    @classmethod
    def _printable(cls, text: str) -> str:
        if "\x00" in text or len(text.encode()) > 65_535:
            raise ValueError("a text without NUL, of at most 65,535 bytes")
        return text

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.reconnect_max_s < self.reconnect_s:
            raise ValueError("reconnect_max_s of at least reconnect_s")
        if self.password_file and not self.username and self.protocol_version == "3.1.1":
            raise ValueError("username with password_file: MQTT 3.1.1 has no password without one")
        if self.tls is not None and not any(each.startswith(("mqtts:", "wss:")) for each in self.addresses):
            raise ValueError("tls only with an address of mqtts:// or wss://")
        return self


def _distinct(bridges: tuple[Bridge, ...]) -> tuple[Bridge, ...]:
    names = [each.name for each in bridges]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"a name of its own for each bridge; {twice[0]!r} is there twice")
    return bridges


Bridges = Annotated[tuple[Bridge, ...], Field(max_length=BRIDGES_MAX), AfterValidator(_distinct)]
