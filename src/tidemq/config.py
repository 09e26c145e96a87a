"""The broker's configuration: one model, read from flags, environment and a TOML file.

Precedence: flag, then `TIDEMQ_...` in the environment, then the file, then the default. A `Config` that a
program makes itself reads neither environment nor file; only `load_config` does. The limits' names and
defaults come from `limits.Limits`; here is only the range of each.
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import os
import socket
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_origin

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetPydanticSchema,
    StrictBool,
    StrictFloat,
    StrictInt,
    TypeAdapter,
    ValidationError,
    model_validator,
)
from pydantic_core import ErrorDetails, core_schema

from tidemq.bridge_config import Bridge, Bridges, BridgeTls, BridgeTopic
from tidemq.errors import ConfigError
from tidemq.limits import Limits

ENVIRONMENT_PREFIX = "TIDEMQ_"
# names that share the prefix and are not the broker's: of its clients, build, tests, benchmarks, `--config`
ENVIRONMENT_IGNORED = (
    "TIDEMQ_CONFIG",
    "TIDEMQ_ADMIN_URL",
    "TIDEMQ_ADMIN_TOKEN",
    "TIDEMQ_BUILD",
    "TIDEMQ_TEST_",
    "TIDEMQ_BENCH_",
    "TIDEMQ_FUZZ_",
)

REACTORS_MAX = 64  # the engine's
_U32_MAX = 0xFFFFFFFF
_DAY_S = 86_400

# limits that each listener may have for itself
LISTENER_RANGES: Mapping[str, tuple[int, int]] = {
    "client_messages_per_s": (0, 1_000_000_000),
    "client_bytes_per_s": (0, _U32_MAX),
    "listener_messages_per_s": (0, 1_000_000_000),
    "listener_bytes_per_s": (0, _U32_MAX),
    "connects_per_s": (0, 1_000_000),
    "connections_per_address_max": (0, 100_000_000),
}

LIMIT_RANGES: Mapping[str, tuple[int, int]] = {
    "packet_bytes_max": (1024, 268_435_460),  # the largest that a remaining length can say
    "payload_bytes_max": (0, 268_435_455),
    "topic_bytes_max": (1, 65_535),
    "topic_levels_max": (1, 65_535),
    "wildcard_ways_max": (1, 1 << 39),
    "client_id_bytes_max": (23, 65_535),  # a server must allow 23 [3.1.1 MQTT-3.1.3-5]
    "keep_alive_s_max": (0, 65_535),
    "topic_alias_max": (0, 65_535),
    "receive_max": (1, 65_535),
    "inflight_max": (1, 65_535),
    "ack_timeout_s": (0, _DAY_S),
    "subscriptions_max": (1, 100_000_000),
    "session_expiry_s_max": (0, _U32_MAX),
    "queued_messages_max": (1, 1_000_000_000),
    "queued_bytes_max": (1024, 1 << 40),
    "queue_window_messages": (1, 1_000_000),
    **LISTENER_RANGES,
    "flapping_connects_max": (0, 1_000_000),
    "flapping_window_s": (1, 3600),
    "flapping_ban_s": (1, _DAY_S),
    "flapping_clients_max": (16, 100_000_000),
    "connections_max": (1, 100_000_000),
    "sessions_max": (1, 1_000_000_000),
    "subscriptions_total_max": (1, 1_000_000_000),
    "replays_max": (0, 10_000),
    "compaction_bytes_max": (1 << 20, 1 << 30),
    "retained_messages_max": (0, 1_000_000_000),
    "retained_ttl_s": (0, _U32_MAX),
    "memory_bytes_max": (0, 1 << 50),
    "store_bytes_max": (0, 1 << 60),
    "connect_timeout_s": (1, 3600),
    "packet_s_max": (0, _DAY_S),
    "output_stalled_s_max": (0, _DAY_S),
    "tcp_keepalive_s": (0, 32_767),
    "tcp_keepalive_interval_s": (1, 32_767),
    "tcp_keepalive_probes": (1, 127),
    "tcp_user_timeout_s": (0, _DAY_S),
    "output_high_bytes": (4096, 1 << 31),
    "output_bytes_max": (4096, 1 << 32),
    "backpressure_s": (0, 3600),
    "shutdown_s": (0, 3600),
    "event_queue_max": (16, 100_000_000),
    "spans_per_s": (0, 10_000),
    "inbox_messages_max": (16, 100_000_000),
    "node_bytes_max": (65_536, 1 << 40),
    "cache_topics_max": (256, 1 << 30),
    "cache_receivers_max": (256, 1 << 40),
}


def _limits_schema(_kind: Any, _handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
    """Checks each limit against its range, naming the one that is wrong, and gives a `Limits`."""
    fields = {
        name: core_schema.typed_dict_field(
            core_schema.int_schema(strict=True, ge=low, le=high), required=False
        )
        for name, (low, high) in LIMIT_RANGES.items()
    }
    return core_schema.chain_schema(
        [
            core_schema.no_info_plain_validator_function(
                lambda value: dataclasses.asdict(value) if isinstance(value, Limits) else value
            ),
            core_schema.typed_dict_schema(fields, extra_behavior="forbid"),
            core_schema.no_info_plain_validator_function(lambda checked: _consistent(Limits(**checked))),
        ]
    )


def _consistent(limits: Limits) -> Limits:
    if limits.output_high_bytes > limits.output_bytes_max:
        raise ValueError("output_high_bytes no larger than output_bytes_max")
    return limits


def _range(limit: str) -> Any:
    low, high = LISTENER_RANGES[limit]
    return Field(strict=True, ge=low, le=high)


Port = Annotated[StrictInt, Field(ge=0, le=65_535)]
Options = Annotated[dict[str, Any], Field(repr=False)]  # for a provider; there may be secrets in it
LogArea = Literal["access", "admin", "alarms", "audit", "bridges", "clients", "host", "store", "streams"]
LogLevel = Literal["debug", "info", "warning", "error"]


QosMax = Annotated[StrictInt, Field(ge=0, le=2)]
ProtocolVersion = Literal["3.1", "3.1.1", "5.0"]


class Certificate(BaseModel):
    """A certificate for the names that a client may ask for (SNI); `*` stands for one label, the first."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    names: Annotated[tuple[str, ...], Field(min_length=1)]
    cert: Path
    key: Path | None = None


class TlsConfig(BaseModel):
    """TLS 1.2 and 1.3 at a listener. All files are PEM, and read again when they change."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    cert: Path  # with the chain up to the authority
    key: Path | None = None  # None: in the file of the certificate
    certificates: tuple[Certificate, ...] = ()  # for clients that ask for other names
    client_ca: Path | None = None  # authorities of clients' certificates
    client_cert: Literal["none", "optional", "required"] = "none"
    crl: Path | None = None  # of every authority in a client's chain
    version_min: Literal["1.2", "1.3"] = "1.2"


class WebSocketConfig(BaseModel):
    """MQTT in WebSocket at a listener (RFC 6455, MQTT 5.0 section 6)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    path: Annotated[str, Field(pattern=r"^(/[!-~]*|\*)$")] = "/mqtt"  # "*": any
    origins: tuple[str, ...] = ()  # of pages on other hosts that may connect; "*": all


class Listener(BaseModel):
    """Where clients come in: an address or, with `path`, a Unix socket. Port 0 picks a free one."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = "0.0.0.0"
    port: Port = 1883
    name: str = ""  # for logs and providers; empty: the address
    path: Path | None = None  # of a Unix socket, instead of host and port
    mode: Annotated[str, Field(pattern=r"^0?[0-7]{3}$")] = "0600"  # of that socket
    tls: TlsConfig | None = None
    websocket: WebSocketConfig | None = None
    proxy_protocol: StrictBool = False  # clients come through a proxy that says where from (version 1 or 2)
    protocol_versions: Annotated[tuple[ProtocolVersion, ...], Field(min_length=1)] = ("3.1", "3.1.1", "5.0")
    authenticator: str | None = None  # None: the broker's
    authenticator_options: dict[str, Any] = {}
    qos_max: QosMax | None = None  # this and the next two: None: the broker's
    retain_available: StrictBool | None = None
    client_id_required: StrictBool | None = None
    connections_max: Annotated[StrictInt, Field(ge=0, le=100_000_000)] = 0  # 0: as many as the broker takes
    # None: the broker's limit of that name; 0: none
    client_messages_per_s: Annotated[int | None, _range("client_messages_per_s")] = None
    client_bytes_per_s: Annotated[int | None, _range("client_bytes_per_s")] = None
    listener_messages_per_s: Annotated[int | None, _range("listener_messages_per_s")] = None
    listener_bytes_per_s: Annotated[int | None, _range("listener_bytes_per_s")] = None
    connects_per_s: Annotated[int | None, _range("connects_per_s")] = None
    connections_per_address_max: Annotated[int | None, _range("connections_per_address_max")] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.tls is not None and self.tls.client_cert != "none" and self.tls.client_ca is None:
            raise ValueError(
                "client_ca, the authorities that clients' certificates are from, with client_cert"
            )
        if self.authenticator_options and self.authenticator is None:
            raise ValueError("authenticator_options only with an authenticator of the listener's own")
        return self


class StreamConfig(BaseModel):
    """A stream: messages on its filters are kept on disk, to be read again. 0: no bound."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")]
    filters: Annotated[tuple[str, ...], Field(min_length=1, max_length=1000)]
    retention_s: Annotated[StrictFloat, Field(ge=0, le=100 * 365 * _DAY_S)] = 7 * _DAY_S
    retention_bytes: Annotated[StrictInt, Field(ge=0, le=1 << 60)] = 10 << 30
    compression: Literal["none", "lz4", "zstd"] = "lz4"  # of its files
    last: StrictBool = False  # only the newest message of each topic is kept

    @model_validator(mode="before")
    @classmethod
    def _keep_the_last(cls, given: Any) -> Any:
        """What is the newest of its topic is not too old, unless somebody says so."""
        if isinstance(given, dict) and given.get("last") is True:
            return {"retention_s": 0.0, "retention_bytes": 0} | given
        return given


class PluginConfig(BaseModel):
    """A plugin by the name of its entry point in `tidemq.plugins`, and how it is called."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: Annotated[str, Field(min_length=1)]
    options: Options = {}
    # topics whose messages `publish` is asked about, and whose acknowledgements `delivered` is told of; None:
    # those that the plugin itself names
    filters: tuple[str, ...] | None = None
    delivered_filters: tuple[str, ...] | None = None
    timeout_s: Annotated[StrictFloat, Field(gt=0, le=300)] = 5.0  # of a call
    on_failure: Literal["refuse", "pass"] = "refuse"  # what becomes of messages that it has not decided on
    failures_max: Annotated[StrictInt, Field(ge=1, le=1000)] = 5  # in a row; then it is not called
    open_s: Annotated[StrictFloat, Field(ge=0, le=_DAY_S)] = 30.0  # for so long
    batch_max: Annotated[StrictInt, Field(ge=1, le=100_000)] = 1000  # messages of a call
    # seconds between two calls of `tick`; None: as the plugin says
    tick_s: Annotated[StrictFloat, Field(gt=0, le=_DAY_S)] | None = None


class Config(BaseModel):
    """Everything that `tidemq serve` can be told. Raises pydantic's ValidationError on a wrong value."""

    model_config = ConfigDict(extra="forbid", frozen=True, hide_input_in_errors=True)

    host: str = Listener().host
    port: Port = Listener().port
    plain: StrictBool = True  # listen at host and port, without TLS
    listeners: tuple[Listener, ...] = ()  # further ones
    reactors: Annotated[StrictInt, Field(ge=0, le=REACTORS_MAX)] = 0  # 0: one per core
    qos_max: QosMax = 2  # at which clients publish, and which subscriptions are granted
    retain_available: StrictBool = True  # whether clients may have messages retained
    client_id_required: StrictBool = False  # whether a client without an identifier is refused

    user: str = ""  # that a broker started as root becomes; empty: it stays who it is
    group: str = ""  # of it; empty: the user's own

    store: str = "rocksdb"  # name of an entry point in `tidemq.stores`, and so on
    store_options: Options = {}
    data: Path = Path("tidemq-data")  # directory of stores that keep files
    store_strict: StrictBool = False  # refuse to start on damaged data, rather than set it aside
    durability: Literal["sync", "interval", "os"] = "sync"  # when a commit is forced to the disk
    durability_interval_ms: Annotated[StrictInt, Field(ge=1, le=60_000)] = 100  # of `interval`
    queue_full: Literal["drop_oldest", "drop_newest", "reject"] = "drop_newest"  # beyond a queue's limits
    streams: tuple[StreamConfig, ...] = ()
    plugins: tuple[PluginConfig, ...] = ()
    bridges: Bridges = ()
    cluster_name: str = ""  # of the cluster whose node this broker is; empty: none
    cluster_node: str = ""  # this node's name; empty: the machine's
    cluster_listen: str = "127.0.0.1:4222"  # where its nats-server listens; port 0 for any
    cluster_address: str = ""  # where other nodes reach that; empty: the same
    cluster_join: tuple[str, ...] = ()  # addresses of other nodes
    cluster_password_file: str = ""  # that all nodes have
    cluster_ca: str = ""  # PEM, for TLS between nodes; empty: none, and then on this machine alone
    cluster_certificate: str = ""
    cluster_key: str = ""
    cluster_ack: Literal["one", "two"] = "two"  # copies before a message is acknowledged
    # what becomes of one without a second
    cluster_degraded: Literal["acknowledge", "refuse"] = "acknowledge"
    cluster_skew_s_max: Annotated[StrictFloat, Field(gt=0, le=3600)] = 5.0  # between clocks of nodes
    # whose members a message of a shared group goes to: all alike, or those here as long as any is online
    cluster_shared: Literal["all", "here"] = "all"
    # without a word of a node, until it counts as dead
    cluster_suspect_s: Annotated[StrictFloat, Field(ge=0.5, le=300)] = 1.5
    # what becomes of a split: all sides go on, and merge; or only one that has more than half of the nodes
    cluster_split: Literal["go_on", "pause_minority"] = "go_on"
    # for how long records wait for a node that is absent, and how many bytes of them, until it is struck off
    cluster_absent_s: Annotated[StrictFloat, Field(ge=1, le=31_536_000)] = 604_800.0
    cluster_log_bytes_max: Annotated[StrictInt, Field(ge=65_536, le=1 << 50)] = 16 << 30
    nats_url: str = ""  # host:port of a nats-server that runs already, in place of one that is started
    authenticator: str = "anonymous"
    authenticator_options: Options = {}
    authoriser: str = "allow"
    authoriser_options: Options = {}
    acl_file: Path | None = None  # rules of who may publish and subscribe to what; none: no rules
    acl_format: Literal["tidemq", "mosquitto"] = "tidemq"
    bans_file: Path | None = None  # TOML: who may not connect; none: those of the admin API alone
    topic_rules_file: Path | None = None  # TOML: new names, retention, subscriptions at CONNECT and so on
    decision_s: Annotated[StrictFloat, Field(gt=0, le=300)] = (
        5.0  # for one decision of a provider or hook; then refused
    )
    failed_login_delay_s: Annotated[StrictFloat, Field(ge=0, le=60)] = (
        0.1  # of the first refusal; then it doubles
    )
    failed_login_delay_max_s: Annotated[StrictFloat, Field(ge=0, le=300)] = 10.0
    failed_login_half_life_s: Annotated[StrictFloat, Field(ge=1, le=_DAY_S)] = 60.0  # of a count of failures
    failed_logins_max: Annotated[StrictInt, Field(ge=0, le=1_000_000)] = (
        50  # of a source; then it is not asked
    )
    decisions_max: Annotated[StrictInt, Field(ge=1, le=100_000)] = 256  # decisions under way at a time
    decisions_waiting_max: Annotated[StrictInt, Field(ge=0, le=10_000_000)] = (
        10_000  # beyond: refused at once
    )

    decision_cache_s: Annotated[StrictFloat, Field(ge=0, le=_DAY_S)] = (
        5.0  # an authoriser's answer; 0: not remembered
    )
    decision_cache_max: Annotated[StrictInt, Field(ge=0, le=100_000_000)] = 100_000  # of these answers

    alarm_drops_per_s: Annotated[StrictFloat, Field(ge=0, le=1e9)] = 100.0  # above: an alarm; 0: never

    watched_topics: Annotated[tuple[str, ...], Field(max_length=100)] = ()  # filters that are counted

    @property
    def node_name(self) -> str:
        """By which others know this node of a cluster; empty: it is none."""
        return (self.cluster_node or socket.gethostname()) if self.cluster_name else ""

    log_level: LogLevel = "info"
    log_levels: dict[LogArea, LogLevel] = {}  # of areas that are to have another
    log_format: Literal["text", "json"] = "text"
    fault_lines_max: Annotated[StrictInt, Field(ge=0, le=100_000)] = (
        20  # log lines on clients' faults a second
    )
    admin_host: str = "127.0.0.1"
    admin_port: Port = 0  # 0: off
    admin_token_file: str = ""  # whoever asks it has to know what the file holds; empty: loopback only
    admin_tokens_file: str = ""  # TOML: digests of tokens, each with a name and a role
    audit_file: str = ""  # JSON lines: who had what changed; empty: in the log alone
    admin_cert: str = ""  # PEM, for HTTPS; empty: HTTP
    admin_key: str = ""  # empty: in the file of the certificate
    sys_interval_s: Annotated[StrictFloat, Field(ge=0, le=_DAY_S)] = (
        10.0  # between two publications of $SYS; 0: off
    )

    limits: Annotated[Limits, GetPydanticSchema(_limits_schema)] = Limits()


class EnvironmentText(str):
    """A value of the environment, where all is text."""

    __slots__ = ()


# what text may stand for: elsewhere a number is a number, and nothing else
_OF_TEXT: Mapping[object, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (int, float, bool)}


def _of_text(kind: object, value: object) -> object:
    """What a text of the environment says, where a number or a bool is wanted; else as it is."""
    if not isinstance(value, EnvironmentText) or kind not in _OF_TEXT:
        return value
    try:
        return _OF_TEXT[kind].validate_python(str(value))
    except ValidationError:
        return str(value)


def read_text(model: type[BaseModel], values: Mapping[str, Any]) -> dict[str, Any]:
    """A model's values, those that the environment gives as text in their fields' types."""
    kinds = {name: field.annotation for name, field in model.model_fields.items()}
    return {name: _of_text(kinds.get(name), value) for name, value in values.items()}


def _typed_environment(values: Mapping[str, Any]) -> dict[str, Any]:
    """What providers' options are only the provider knows: they are marked, and it calls `read_text`."""

    def marked(value: object) -> object:
        return EnvironmentText(value) if isinstance(value, str) else value

    typed = read_text(Config, {name: marked(value) for name, value in values.items()})
    for name, table in typed.items():
        if name.endswith("_options") and isinstance(table, dict):
            typed[name] = {key: marked(value) for key, value in table.items()}
        elif name == "limits" and isinstance(table, dict):
            typed[name] = {key: _of_text(int, marked(value)) for key, value in table.items()}
    return typed


def load_config(path: Path | None = None, flags: Mapping[str, Any] | None = None) -> Config:
    """Reads flags over environment over the file at `path`; ConfigError names the first key that is wrong.

    A flag that is None was not given.
    """
    given, environment, file = read_layers(path, flags)
    return _check(_over(given, _over(environment, file)), given, path)


def check_values(values: Mapping[str, Any], path: Path) -> Config:
    """A configuration of these values alone, which come from the file at `path`, whatever its form; errors as
    of `load_config`.
    """
    return _check(values, {}, path)


def _check(values: Mapping[str, Any], flags: Mapping[str, Any], path: Path | None) -> Config:
    try:
        return Config.model_validate(values)
    except ValidationError as error:
        raise _explain(error.errors()[0], flags, path) from error


def read_layers(
    path: Path | None, flags: Mapping[str, Any] | None = None
) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """What flags, environment and file say, unchecked, each by key; ConfigError where one cannot be read."""
    given = {key: value for key, value in (flags or {}).items() if value is not None}
    file = _read_file(path)
    _refuse_unknown_environment()
    return given, _typed_environment(_read_environment()), file


def _over(upper: Mapping[str, Any], lower: Mapping[str, Any]) -> dict[str, Any]:
    """Both layers; where they have the same key the upper one's value, but tables key by key."""
    both = dict(lower) | dict(upper)
    for key in lower.keys() & upper.keys():
        if isinstance(lower[key], Mapping) and isinstance(upper[key], Mapping):
            both[key] = _over(upper[key], lower[key])
    return both


def _read_environment() -> dict[str, Any]:
    """What it says, by key: text, or JSON where a table or a list is wanted. `TIDEMQ_LIMITS__INFLIGHT_MAX` is
    one key of a table, and goes before what the JSON of the table says.
    """
    given = {name.lower(): text for name, text in os.environ.items()}
    values: dict[str, Any] = {}
    for key, field in Config.model_fields.items():
        variable = f"{ENVIRONMENT_PREFIX}{key}".lower()
        is_table = field.annotation is Limits or get_origin(field.annotation) is dict
        if variable in given:
            is_json = is_table or get_origin(field.annotation) is tuple
            values[key] = _parse_json(key, given[variable]) if is_json else given[variable]
        if not is_table or not isinstance(values.get(key, {}), dict):
            continue
        for name in sorted(given):  # a table before what is in it
            if name.startswith(f"{variable}__"):
                *tables, last = name.removeprefix(f"{variable}__").split("__")
                target = values.setdefault(key, {})
                for table in tables:
                    if not isinstance(target.get(table), dict):
                        target[table] = {}
                    target = target[table]
                target[last] = given[name]
    return values


def _parse_json(key: str, text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        variable = f"environment {ENVIRONMENT_PREFIX}{key.upper()}"
        raise refused(variable, key, f"it cannot be read: {error}", ["JSON"]) from error


def _read_file(path: Path | None) -> dict[str, Any]:
    if path is None:
        return {}
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise refused(str(path), "the file", str(error.strerror), ["a readable file"]) from error
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise refused(str(path), "the file", str(error), ["TOML"]) from error


def _refuse_unknown_environment() -> None:
    """A misspelt variable would silently leave its default, so it is refused."""
    tables = ("limits", *(name for name in Config.model_fields if name.endswith("_options")))
    for name in os.environ:
        if not name.startswith(ENVIRONMENT_PREFIX) or name.startswith(ENVIRONMENT_IGNORED):
            continue
        key, _, rest = name.removeprefix(ENVIRONMENT_PREFIX).lower().partition("__")
        if key not in Config.model_fields or (rest and key not in tables):
            raise unknown_name("environment", name, key, Config.model_fields)
        if key == "limits" and rest and rest not in LIMIT_RANGES:
            raise unknown_name("environment", name, rest, LIMIT_RANGES)


def refused(file: str, key: str, problem: str, accepted: Iterable[str]) -> ConfigError:
    """The error for one key. `file` may also be a flag or the environment."""
    return ConfigError(f"{file}: {key}: {problem}; accepted: {', '.join(accepted) or 'none'}")


def unknown_name(file: str, key: str, given: str, known: Iterable[str]) -> ConfigError:
    """The error for a name that is not among the known ones; suggests the nearest."""
    names = sorted(known)
    nearest = difflib.get_close_matches(given, names, n=1)
    hint = f", did you mean {nearest[0]}?" if nearest else ""
    return refused(file, key, f"{given!r} is unknown{hint}", names)


def _explain(detail: ErrorDetails, flags: Mapping[str, Any], path: Path | None) -> ConfigError:
    """Where a wrong value came from, its key, what was given, what is accepted."""
    location = [str(part) for part in detail["loc"]]
    file = _origin(location, flags, path)
    key = ".".join(location)
    if detail["type"] == "extra_forbidden":
        return unknown_name(file, key, location[-1], _known_names(location))
    if location[0] == "limits" and len(location) > 1:
        low, high = LIMIT_RANGES[location[1]]
        accepted = f"{low} to {high}"
    elif detail["type"] in ("model_type", "dict_type"):
        accepted = "a table, which may be empty: {}"
    else:
        accepted = detail["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    return refused(file, key, f"{_shown(location, detail['input'])} is refused", [accepted])


def _shown(location: list[str], value: object) -> str:
    """A refused value as a message quotes it: not one that may hold a secret."""
    # a wrong address may have a password in it
    if any(part.endswith("options") or part == "addresses" for part in location):
        return "what it is"
    if isinstance(value, Mapping | list | tuple | BaseModel):  # there may be options in it
        return f"this {'list' if isinstance(value, list | tuple) else 'table'}"
    return repr(value)


def _known_names(location: list[str]) -> Iterable[str]:
    if location[0] == "limits":
        return LIMIT_RANGES
    models: dict[str, type[BaseModel]] = {
        "listeners": Listener,
        "tls": TlsConfig,
        "certificates": Certificate,
        "websocket": WebSocketConfig,
        "streams": StreamConfig,
        "plugins": PluginConfig,
        "bridges": Bridge,
        "topics": BridgeTopic,
    }
    if location[0] == "bridges":
        models["tls"] = BridgeTls
    tables = [models[part] for part in location[:-1] if part in models]
    return (tables[-1] if tables else Config).model_fields


def _origin(location: list[str], flags: Mapping[str, Any], path: Path | None) -> str:
    if location[0] in flags:
        return f"flag --{location[0].replace('_', '-')}"
    for variable in ("__".join(location), location[0]):
        name = ENVIRONMENT_PREFIX + variable.upper()
        if name in os.environ:
            return f"environment {name}"
    return str(path) if path is not None else "configuration"
