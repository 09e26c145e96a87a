"""TideMQ: an MQTT broker with a compiled data plane. `from tidemq import Broker, Config`.

The names are imported when they are first used, so that a program that needs only the wire format loads no
more.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidemq.broker import Broker, Message, Subscription, hookimpl
    from tidemq.config import Config, Listener, load_config
    from tidemq.errors import TideMQError
    from tidemq.limits import Limits

    __version__: str

_MODULES = {
    "Broker": "tidemq.broker",
    "Config": "tidemq.config",
    "Limits": "tidemq.limits",
    "Listener": "tidemq.config",
    "Message": "tidemq.broker",
    "Subscription": "tidemq.broker",
    "TideMQError": "tidemq.errors",
    "hookimpl": "tidemq.broker",
    "load_config": "tidemq.config",
}

__all__ = [
    "Broker",
    "Config",
    "Limits",
    "Listener",
    "Message",
    "Subscription",
    "TideMQError",
    "hookimpl",
    "load_config",
]


def __getattr__(name: str) -> object:
    if name == "__version__":
        from importlib.metadata import PackageNotFoundError, version

        try:
            return version("tidemq")
        except PackageNotFoundError:  # the source tree alone
            return "unknown"
    if name not in _MODULES:
        raise AttributeError(f"module 'tidemq' has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)
