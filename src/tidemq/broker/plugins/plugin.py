"""A plugin, and how it is called."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic import ValidationError

from tidemq.config import PluginConfig
from tidemq.errors import UsageError


class Plugin:
    """An object with hooks, and how they are called; the settings are the keys of `[[plugins]]`.

    What it may have besides, for settings that are left out: `filters`, `delivered_filters` (topic filters)
    and `tick_s`. Raises UsageError for a wrong setting.
    """

    def __init__(self, implementation: object, **settings: Any) -> None:
        self.implementation = implementation
        self._turns: dict[str, asyncio.Lock] = {}
        try:
            self.config = PluginConfig.model_validate({"name": type(implementation).__name__, **settings})
        except ValidationError as error:
            detail = error.errors(include_input=False, include_url=False)[0]
            key = ".".join(str(part) for part in detail["loc"])
            raise UsageError(f"plugin refused: {key}: {detail['msg']}") from error

    @property
    def name(self) -> str:
        """For logs and errors."""
        return self.config.name

    def turn(self, hook: str) -> asyncio.Lock:
        """One call of a hook at a time: also while others come and go, and what is under way is drained."""
        return self._turns.setdefault(hook, asyncio.Lock())

    @property
    def filters(self) -> tuple[str, ...]:
        """Of topics whose messages `publish` decides on."""
        return self._setting("filters") or ()

    @property
    def delivered_filters(self) -> tuple[str, ...]:
        """Of topics whose acknowledgements `delivered` is told of."""
        return self._setting("delivered_filters") or ()

    @property
    def tick_s(self) -> float | None:
        """Between two calls of `tick`."""
        found: float | None = self._setting("tick_s")
        return found

    def _setting(self, key: str) -> Any:
        given = getattr(self.config, key)
        return getattr(self.implementation, key, None) if given is None else given
