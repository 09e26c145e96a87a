"""TideMQ: an MQTT broker with a compiled data plane. `from tidemq import Broker, Config`.

The names are imported when they are first used, so that a program that needs only the wire format loads no
more.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemq.broker import (
        Access,
        Acknowledged,
        AclRule,
        Authenticator,
        Authoriser,
        AuthRequest,
        Broker,
        Challenge,
        Connected,
        ConnectRequest,
        Decision,
        Disconnected,
        EnhancedAuthenticator,
        HeldMessage,
        Message,
        Plugin,
        Route,
        SessionForked,
        SubscribeRequest,
        Subscription,
        Verdict,
        hookimpl,
    )
    from tidemq.config import (
        Certificate,
        Config,
        Listener,
        PluginConfig,
        StreamConfig,
        TlsConfig,
        WebSocketConfig,
        load_config,
    )
    from tidemq.errors import (
        ConfigError,
        ProtocolError,
        RefusedError,
        StoreError,
        TideMQError,
        UsageError,
    )
    from tidemq.limits import Limits
    from tidemq.wire import Properties, ReasonCode

    __version__: str

_MODULES = {
    "PluginConfig": "tidemq.config",
    "Route": "tidemq.broker",
    "Plugin": "tidemq.broker",
    "HeldMessage": "tidemq.broker",
    "Decision": "tidemq.broker",
    "Acknowledged": "tidemq.broker",
    "Access": "tidemq.broker",
    "AclRule": "tidemq.broker",
    "AuthRequest": "tidemq.broker",
    "Authenticator": "tidemq.broker",
    "Authoriser": "tidemq.broker",
    "Broker": "tidemq.broker",
    "Certificate": "tidemq.config",
    "Challenge": "tidemq.broker",
    "Config": "tidemq.config",
    "ConfigError": "tidemq.errors",
    "ConnectRequest": "tidemq.broker",
    "Connected": "tidemq.broker",
    "Disconnected": "tidemq.broker",
    "EnhancedAuthenticator": "tidemq.broker",
    "Limits": "tidemq.limits",
    "Listener": "tidemq.config",
    "Message": "tidemq.broker",
    "Properties": "tidemq.wire",
    "ProtocolError": "tidemq.errors",
    "ReasonCode": "tidemq.wire",
    "RefusedError": "tidemq.errors",
    "SessionForked": "tidemq.broker",
    "StoreError": "tidemq.errors",
    "StreamConfig": "tidemq.config",
    "SubscribeRequest": "tidemq.broker",
    "Subscription": "tidemq.broker",
    "TideMQError": "tidemq.errors",
    "TlsConfig": "tidemq.config",
    "UsageError": "tidemq.errors",
    "Verdict": "tidemq.broker",
    "WebSocketConfig": "tidemq.config",
    "hookimpl": "tidemq.broker",
    "load_config": "tidemq.config",
}

__all__ = [
    "Access",
    "Acknowledged",
    "AclRule",
    "AuthRequest",
    "Authenticator",
    "Authoriser",
    "Broker",
    "Certificate",
    "Challenge",
    "Config",
    "ConfigError",
    "ConnectRequest",
    "Connected",
    "Decision",
    "Disconnected",
    "EnhancedAuthenticator",
    "HeldMessage",
    "Limits",
    "Listener",
    "Message",
    "Plugin",
    "PluginConfig",
    "Properties",
    "ProtocolError",
    "ReasonCode",
    "RefusedError",
    "Route",
    "SessionForked",
    "StoreError",
    "StreamConfig",
    "SubscribeRequest",
    "Subscription",
    "TideMQError",
    "TlsConfig",
    "UsageError",
    "Verdict",
    "WebSocketConfig",
    "hookimpl",
    "load_config",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        for distribution in ("tidemq", "tidemq-client"):
            try:
                return version(distribution)
            except PackageNotFoundError:
                continue
        return "unknown"  # the source tree alone
    if name not in _MODULES:
        raise AttributeError(f"module 'tidemq' has no attribute {name!r}")
    try:
        return getattr(import_module(_MODULES[name]), name)
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("tidemq."):
            raise
        raise ImportError(f"tidemq-client has no {name}: pip install tidemq, in its place") from error
