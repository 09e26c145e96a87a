"""The providers that a broker makes because its configuration names them, and closes when it stops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from tidemq.broker.providers import (
    Authenticator,
    Options,
    Reloadable,
    close_provider,
    counts_of,
    find_provider,
)
from tidemq.broker.reload import Reloads
from tidemq.config import Config, Listener


class OwnProviders:
    """Of one broker. Those that can be are read again with its other parts."""

    def __init__(self, config: Config, reloads: Reloads) -> None:
        self._config = config
        self._reloads = reloads
        self._made: list[object] = []

    def make(self, kind: Literal["authenticator", "authoriser"], name: str, options: Options) -> Any:
        """One that is closed at the end. ConfigError where it is unknown, or its options are wrong."""
        provider = find_provider(kind, name, options, self._config)
        self._made.append(provider)
        if isinstance(provider, Reloadable):
            self._reloads.add(f"{kind} {name}", provider.reload)
        return provider

    def authenticators(
        self, listeners: Mapping[str, Listener], common: Authenticator | None
    ) -> dict[str, Authenticator | None]:
        """That of each listener, by its name. `common`: the broker's; None: made where it is needed."""
        config = self._config
        if common is None and any(each.authenticator is None for each in listeners.values()):
            common = self.make("authenticator", config.authenticator, config.authenticator_options)
        return {
            name: common
            if each.authenticator is None
            else self.make("authenticator", each.authenticator, each.authenticator_options)
            for name, each in listeners.items()
        }

    def counts(self) -> list[Mapping[str, int]]:
        """Of each."""
        return [counts_of(provider) for provider in self._made]

    async def close(self) -> None:
        """Closes all of them."""
        for provider in self._made:
            await close_provider(provider)
