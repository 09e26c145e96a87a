"""The rules of a running broker: read from their file at the start, and again when it changes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tidemq.broker.acl_formats import AclFormat, read_rules
from tidemq.broker.rules import rows_of
from tidemq.broker.watched_file import WatchedFiles
from tidemq.engine.rule_row import RuleRow
from tidemq.errors import TideMQError

_log = logging.getLogger("tidemq")


class AclFile:
    """Gives the engine its rules. ConfigError when the file is wrong at the start; later on what was read
    before goes on to count, and the log says what is wrong.
    """

    def __init__(self, path: Path, acl_format: AclFormat, set_rules: Callable[[list[RuleRow]], None]) -> None:
        self._path = path
        self._format = acl_format
        self._set_rules = set_rules
        self.counts: Counter[str] = Counter(acl_reloads=0, acl_reloads_failed=0)
        self._file = WatchedFiles([path], self._read, self._use)
        set_rules(self._file.value)

    async def reload(self) -> None:
        """Reads the file now. ConfigError where it is wrong; then nothing has changed."""
        await self._file.reload()

    async def watch(self) -> None:
        """Reads the file again whenever it has changed; never returns."""
        await self._file.watch()

    def _read(self) -> list[RuleRow]:
        try:
            return rows_of(read_rules(self._path, self._format))
        except TideMQError:
            self.counts["acl_reloads_failed"] += 1
            raise

    def _use(self, rows: list[RuleRow]) -> None:
        self._set_rules(rows)
        self.counts["acl_reloads"] += 1
        _log.info("%s was read again: %d rules", self._path, len(rows))
