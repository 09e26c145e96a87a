"""Every option of mosquitto.conf(5), of 2.0 and as far as known of 2.1, with what becomes of it.

docs/from-mosquitto.md has this table, and a test holds the two together. What is said here of an option is
what usually becomes of it; the report says what became of each line.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from tidemq.migration.report import Fate

Scope = Literal["broker", "access", "listener", "bridge"]
"""Whose an option is. `access`: the broker's, and with `per_listener_settings` a listener's."""


@dataclass(frozen=True, slots=True)
class Option:
    """One option. `text`: what becomes of it, or why nothing does."""

    scope: Scope
    fate: Fate
    text: str
    same: frozenset[str] = frozenset()  # values with which TideMQ does the same anyway
    secret: bool = False  # its value is shown nowhere


def _group(scope: Scope, fate: Fate, texts: dict[str, str]) -> dict[str, Option]:
    return {name: Option(scope, fate, text) for name, text in texts.items()}


def _same(scope: Scope, fate: Fate, values: dict[str, tuple[str, str]]) -> dict[str, Option]:
    """By name: the values that need nothing, parted by spaces, and the text for the others."""
    return {
        name: Option(scope, fate, text, same=frozenset(same.split())) for name, (same, text) in values.items()
    }


_BROKER = {
    **_group("broker", "taken", {
        "include_dir": "its files are read in Mosquitto's order",
        "per_listener_settings": "users and `allow_anonymous` become the listener's own `authenticator`",
        "connection_messages": "`false`: `log_levels.clients = \"warning\"`",
        "log_type": "`log_level`: the most detailed of the types that are named",
        "max_inflight_messages": "`limits.inflight_max`",
        "max_keepalive": "`limits.keep_alive_s_max`; 5.0 clients are told",
        "max_packet_size": "`limits.packet_bytes_max`; at least 1024",
        "max_queued_bytes": "`limits.queued_bytes_max`",
        "max_queued_messages": "`limits.queued_messages_max`; messages in flight count, too",
        "memory_limit": "`limits.memory_bytes_max`",
        "message_size_limit": "`limits.payload_bytes_max`; a larger message is dropped, and counted",
        "persistence": "`true`: `store = \"rocksdb\"`, on disk before it is acknowledged; `false`: "
        "`store = \"memory\"`",
        "persistent_client_expiration": "`limits.session_expiry_s_max`",
        "retained_persistence": "as `persistence`",
        "global_max_connections": "`limits.connections_max`",
        "global_max_clients": "`limits.sessions_max`",
        "retain_available": "`retain_available`; 5.0 clients are told, and who retains is disconnected",
        "sys_interval": "`sys_interval_s`",
        "user": "`user`, to whom the directory is given; start TideMQ as root or as this user. `root` is "
        "left out: TideMQ stays whoever starts it",
        "set_tcp_nodelay": "always: TideMQ gathers a turn's output itself",
    }),
    **_group("broker", "changed", {
        "allow_duplicate_messages": "overlapping subscriptions get one copy, whatever it says (5.0 "
        "section 3.3.4)",
        "autosave_interval": "not needed: nothing that is acknowledged is only in memory",
        "autosave_on_changes": "not needed: nothing that is acknowledged is only in memory",
        "log_dest": "the log goes to standard error; `systemd` or a shell sends it elsewhere",
        "log_facility": "standard error has none; `systemd` sets it",
        "log_timestamp": "each line has its time; `log_format = \"json\"` for programs",
        "log_timestamp_format": "each line has its time in ISO 8601",
        "max_topic_alias_broker": "`limits.topic_alias_max`",
        "persistence_file": "`--data FILE` imports it; TideMQ keeps a directory, `data`",
        "persistence_location": "`--data FILE` imports what is there; TideMQ keeps a directory, `data`",
        "pid_file": "`systemd` knows the process; TideMQ writes no such file",
        "retry_interval": "Mosquitto ignores it; MQTT sends again on reconnection",
        "store_clean_interval": "Mosquitto ignores it",
        "websockets_log_level": "`log_level` is for all",
        "websockets_headers_size": "a request may have 8 KiB",
        "packet_buffer_size": "buffers grow as needed, within `limits.memory_bytes_max`",
    }),
    **_same("broker", "not taken", {
        "check_retain_source": ("false", "who may no longer publish to a topic leaves there what was "
        "retained: the rules are asked when a message is published. Remove such messages by the admin API"),
        "max_inflight_bytes": ("0", "what is in flight is bounded by `limits.inflight_max`, what waits for a "
        "socket by `limits.output_bytes_max`"),
        "queue_qos0_messages": ("false", "messages of QoS 0 are not kept for clients that are away"),
        "upgrade_outgoing_qos": ("false", "a message goes out at the lower of its QoS and the "
        "subscription's, as the standard says"),
        "enable_control_api": ("false", "there is no `$CONTROL`; the admin API does this"),
        "retain_expiry_interval": ("0", "set `limits.retained_ttl_s`, in seconds"),
    }),
}  # fmt: skip

_ACCESS = {
    **_group("access", "taken", {
        "acl_file": "`acl_file`, copied, with `acl_format = \"mosquitto\"`; a filter of which a part is "
        "refused is refused whole. Files that differ by listener are not taken: every action is refused",
        "allow_anonymous": "`authenticator = \"anonymous\"`, for clients without a user name",
        "allow_zero_length_clientid": "`false`: `client_id_required = true`",
        "password_file": "`authenticator = \"password_file\"`, copied with its hashes",
    }),
    **_group("access", "changed", {
        "auto_id_prefix": "the identifier that the broker gives has a form of its own",
        "plugin": "dynamic security: users, groups and roles become users and rules in files. Another plugin "
        "is not taken, and nobody is let in at its listeners",
        "auth_plugin": "as `plugin`",
        "global_plugin": "as `plugin`",
        "plugin_opt_config_file": "the users and roles of dynamic security",
        "auth_opt_config_file": "the users and roles of dynamic security",
        "auth_plugin_deny_special_chars": "who has + or # in a name is refused by rules with %u and %c only",
    }),
    **_group("access", "not taken", {
        "psk_file": "pre-shared keys are not supported: use certificates",
        "plugin_opt_*": "options of a plugin that is not taken",
        "auth_opt_*": "options of a plugin that is not taken",
        "plugin_load": "name the plugin by `plugin`; of plugins only dynamic security is taken",
        "plugin_use": "name the plugin by `plugin`; of plugins only dynamic security is taken",
    }),
}  # fmt: skip

_LISTENER = {
    **_group("listener", "taken", {
        "listener": "a table `[[listeners]]`: port and host, or the path of a Unix socket",
        "port": "a table `[[listeners]]`",
        "bind_address": "`host`",
        "socket_domain": "`host`: 0.0.0.0 or ::",
        "protocol": "`websockets`: a table `websocket`, on any path",
        "accept_protocol_versions": "`protocol_versions`",
        "max_connections": "`connections_max` of the listener",
        "max_qos": "`qos_max` of the listener; 5.0 clients are told",
        "maximum_qos": "as `max_qos`",
        "enable_proxy_protocol": "`proxy_protocol`; both versions are taken",
        "websockets_origin": "`websocket.origins`",
        "listener_allow_anonymous": "as `allow_anonymous`, of the listener",
        "certfile": "`tls.cert`",
        "keyfile": "`tls.key`",
        "cafile": "`tls.client_ca`, where client certificates are asked for",
        "capath": "its files are put together in one, `tls.client_ca`",
        "crlfile": "`tls.crl`",
        "require_certificate": "`tls.client_cert = \"required\"`",
        "tls_version": "`tls.version_min`; below 1.2 there is none",
        "use_identity_as_username": "`authenticator = \"certificate\"`, `identity = \"cn\"`",
        "use_subject_as_username": "`authenticator = \"certificate\"`, `identity = \"subject\"`",
    }),
    **_group("listener", "changed", {
        "max_topic_alias": "`limits.topic_alias_max`, of all listeners: the highest",
        "dhparamfile": "keys are agreed on by elliptic curves alone",
        "tls_keyform": "`pem` is what TideMQ reads",
        "listener_auto_id_prefix": "the identifier that the broker gives has a form of its own",
    }),
    **_group("listener", "not taken", {
        "mount_point": "a listener has no prefix for its topics, and nobody is let in at it: put the prefix "
        "into the clients' topics, or start a broker for each, bridged",
        "bind_interface": "a listener has an address: give the interface's as `host`. Without one it is "
        "127.0.0.1",
        "ciphers": "the ciphers are fixed: those of TLS 1.2 and 1.3 with forward secrecy",
        "ciphers_tls1.3": "the ciphers are fixed: those of TLS 1.2 and 1.3 with forward secrecy",
        "clientid_prefixes": "nobody is let in: give clients rules by their identifier, "
        "`allow client PREFIX* …`, and leave it out",
        "http_dir": "a broker serves no files: a web server does",
        "psk_hint": "pre-shared keys are not supported, and nobody is let in at the listener: use "
        "certificates",
        "tls_engine": "keys are files",
        "tls_engine_kpass_sha1": "keys are files",
        "use_username_as_clientid": "with passwords a client chooses its identifier; with certificates "
        "`client_id = \"replace\"`",
        "disable_client_cert_date_checks": "an expired certificate is refused",
        "proxy_protocol_v2_require_tls": "what stands before a proxy is the proxy's to demand",
    }),
}  # fmt: skip

_BRIDGE = {
    **_group("bridge", "taken", {
        "connection": "a table `[[bridges]]` of this name",
        "address": "`addresses`",
        "addresses": "`addresses`",
        "topic": "a table `[[bridges.topics]]`",
        "bridge_protocol_version": "`protocol_version`; `mqttv31` becomes 3.1.1",
        "remote_clientid": "`client_id`; without it the name that Mosquitto makes, HOST.NAME",
        "clientid": "as `remote_clientid`",
        "remote_username": "`username`",
        "username": "as `remote_username`",
        "cleansession": "`clean_session`",
        "keepalive_interval": "`keep_alive_s`",
        "restart_timeout": "`reconnect_s` and `reconnect_max_s`",
        "round_robin": "`round_robin`",
        "try_private": "`try_private`",
        "notifications": "`notifications`",
        "notification_topic": "`notification_topic`",
        "notifications_local_only": "`notifications_local_only`",
        "bridge_outgoing_retain": "`outgoing_retain`",
        "bridge_max_packet_size": "`packet_bytes_max`",
        "bridge_cafile": "`tls.ca`",
        "bridge_capath": "its files are put together in one, `tls.ca`",
        "bridge_certfile": "`tls.certificate`",
        "bridge_keyfile": "`tls.key`",
        "bridge_insecure": "`tls.insecure`",
        "bridge_alpn": "`tls.alpn`",
        "bridge_tls_use_os_certs": "a table `tls` without `ca`",
    }),
    **{
        name: Option("bridge", "taken", "`password_file`, a file of its own that only its owner reads",
                     secret=True)
        for name in ("remote_password", "password")
    },
    "local_password": Option("bridge", "changed", "the bridge is a part of the broker and needs none",
                             secret=True),
    "bridge_psk": Option("bridge", "not taken", "pre-shared keys are not supported: use certificates",
                         secret=True),
    **_group("bridge", "changed", {
        "local_clientid": "the bridge is a part of the broker and has no client identifier here",
        "local_username": "the bridge is a part of the broker; no rules hold for it here",
        "local_cleansession": "what waits for the other side is kept",
        "start_type": "a bridge is always connected; with `once` or `lazy` it is more often than before",
        "idle_timeout": "a bridge is always connected",
        "threshold": "a bridge is always connected",
        "bridge_attempt_unsubscribe": "not needed: subscriptions follow the table",
        "bridge_tls_version": "TLS 1.2 or 1.3, whichever both sides have",
        "bridge_reload_type": "a table that has changed is connected anew",
    }),
    **_group("bridge", "not taken", {
        "bridge_bind_address": "the system chooses the address of the bridge's side",
        "bridge_receive_maximum": "the other side's holds",
        "bridge_max_topic_alias": "a bridge uses none",
        "bridge_session_expiry_interval": "the other side keeps the session for ever, or as long as it likes",
        "bridge_tcp_keepalive": "`keep_alive_s` does this",
        "bridge_tcp_user_timeout": "`keep_alive_s` does this",
        "bridge_ciphers": "the ciphers are those of Python's TLS",
        "bridge_ciphers_tls1.3": "the ciphers are those of Python's TLS",
        "bridge_identity": "pre-shared keys are not supported: use certificates",
        "bridge_require_ocsp": "OCSP is not supported",
    }),
}  # fmt: skip

OPTIONS: dict[str, Option] = {**_BROKER, **_ACCESS, **_LISTENER, **_BRIDGE}
_PREFIXES = ("plugin_opt_", "auth_opt_")  # of options that belong to a plugin, whatever follows


def option_name(name: str) -> str:
    """As the table has it; of a plugin's options one stands for all."""
    if name in OPTIONS:
        return name
    prefix = next((each for each in _PREFIXES if name.startswith(each)), None)
    return f"{prefix}*" if prefix else name
