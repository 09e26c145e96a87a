"""The configuration of a running broker, and what of it changes without a restart: some limits, and levels of
the log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace

from pydantic import ValidationError

from tidemq.broker.logs import set_levels
from tidemq.config import Config
from tidemq.errors import UsageError
from tidemq.limits import CHANGEABLE, Limits

_log = logging.getLogger("tidemq")

LOG_KEYS = ("log_level", "log_levels")
ELSEWHERE = (
    "plugins",
    "bridges",
)  # keys that another part of the broker follows, when it is read again after this one


class Settings:
    """Of one broker; belongs to its event loop."""

    def __init__(
        self, config: Config, apply: Callable[[Limits], None], reread: Callable[[], Config] | None
    ) -> None:
        """`apply` has the engine follow new limits; `reread` reads the configuration again, None: it is a
        program's.
        """
        self.read = config  # as it was read last
        self._apply = apply
        self._reread = reread
        self.limits = config.limits  # in force
        self.changed: list[str] = []  # by the last reload: keys whose new values are in force
        self.needs_restart: list[str] = []  # keys whose values in the file are not

    @property
    def can_reload(self) -> bool:
        """Whether there is something to read again."""
        return self._reread is not None

    def change_limits(self, wanted: Mapping[str, int]) -> None:
        """From now on; UsageError for one that only a restart changes, or that is wrong."""
        for name in wanted:
            if name not in CHANGEABLE:
                raise UsageError(f"{name} needs a restart; accepted: {', '.join(CHANGEABLE)}")
        limits = replace(self.limits, **dict(wanted))
        try:
            Config(limits=limits)
        except ValidationError as error:
            first = error.errors()[0]
            raise UsageError(f"{first['loc'][-1]}: {first['msg']}") from error
        self._apply(limits)
        self.limits = limits

    def reload(self) -> None:
        """Reads the configuration again. What has changed in it since it was last read comes into force, as
        far as it can; what was changed otherwise meanwhile, stays. ConfigError where it is wrong.
        """
        assert self._reread is not None
        found = self._reread()
        changed = set(_differences(self.read, found))
        names = [name for name in CHANGEABLE if f"limits.{name}" in changed]
        self.change_limits({name: getattr(found.limits, name) for name in names})
        if changed.intersection(LOG_KEYS):
            set_levels(found)
        alive = {*LOG_KEYS, *ELSEWHERE, *(f"limits.{name}" for name in CHANGEABLE)}
        self.changed = sorted(changed & alive)
        # since the start, not since the last reload: it stays true until the restart
        self.needs_restart = sorted({*self.needs_restart, *(changed - alive)})
        self.read = found
        if self.changed or self.needs_restart:
            text = "the configuration has changed: in force now: %s; needs a restart: %s"
            _log.info(text, ", ".join(self.changed) or "-", ", ".join(self.needs_restart) or "-")


def _differences(before: Config, now: Config) -> list[str]:
    """Keys with another value; those of limits each by itself. Never the values: they may be secrets."""
    names = [name for name in Config.model_fields if name != "limits"]
    found = [name for name in names if getattr(before, name) != getattr(now, name)]
    old = asdict(before.limits)
    return found + [f"limits.{name}" for name, value in asdict(now.limits).items() if value != old[name]]
