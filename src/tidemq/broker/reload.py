"""What a running broker reads again when SIGHUP, or POST /reload on the admin listener, tells it to."""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable

from tidemq.errors import TideMQError

_log = logging.getLogger("tidemq")

Act = Callable[[], Awaitable[None] | None]
"""Reads a part's files again. One that raises has kept what it had."""


class Reloads:
    """The parts of a broker that can be read again, by name. Belongs to the broker's event loop."""

    def __init__(self) -> None:
        self._acts: dict[str, Act] = {}
        self._lock = asyncio.Lock()  # two at a time would each believe to be the last

    def add(self, name: str, act: Act) -> None:
        """From now on `run` calls this, too."""
        self._acts[name] = act

    async def run(self) -> dict[str, str]:
        """Reads all parts again, each whatever becomes of the others, and logs it. Gives for each part what
        was wrong; empty: nothing.
        """
        found: dict[str, str] = {}
        async with self._lock:
            for name, act in self._acts.items():
                try:
                    done = act()
                    if inspect.isawaitable(done):
                        await done
                except (TideMQError, OSError) as error:
                    found[name] = str(error)
                    _log.error("reload: %s: %s; the old content stays in force", name, error)
                except Exception as error:  # noqa: BLE001 - a provider may raise anything
                    found[name] = f"it failed with {type(error).__name__}"  # its text may be anything
                    _log.exception("reload: %s failed", name)
                else:
                    found[name] = ""
                    _log.info("reload: %s was read again", name)
        return found
