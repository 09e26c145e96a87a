"""The rules of a running broker: read from their file at the start, and again when it changes."""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from tidemq.broker.acl_formats import AclFormat, read_rules
from tidemq.broker.rules import AclRule, rows_of
from tidemq.broker.watched_file import file_version
from tidemq.engine.rule_row import RuleRow
from tidemq.errors import ConfigError

CHECK_S = 1.0  # between two looks whether the file has changed

_log = logging.getLogger("tidemq")


class AclFile:
    """Gives the engine its rules. ConfigError when the file is wrong at the start; later on what was read
    before goes on to count, and the log says what is wrong.
    """

    def __init__(self, path: Path, acl_format: AclFormat, set_rules: Callable[[list[RuleRow]], None]) -> None:
        self._path = path
        self._format = acl_format
        self._set_rules = set_rules
        self._version = file_version(self._path)
        self.counts: Counter[str] = Counter(acl_reloads=0, acl_reloads_failed=0)
        self.rules: tuple[AclRule, ...] = read_rules(path, acl_format)
        set_rules(rows_of(self.rules))

    async def reload(self) -> None:
        """Reads the file now. ConfigError where it is wrong; then nothing has changed."""
        self._version = file_version(self._path)
        try:
            rules = await asyncio.to_thread(read_rules, self._path, self._format)
        except ConfigError:
            self.counts["acl_reloads_failed"] += 1
            raise
        self.rules = rules
        self._set_rules(rows_of(rules))
        self.counts["acl_reloads"] += 1
        _log.info("%s was read again: %d rules", self._path, len(rules))

    async def watch(self) -> None:
        """Reads the file again whenever it has changed; never returns."""
        while True:
            await asyncio.sleep(CHECK_S)
            if file_version(self._path) == self._version:
                continue
            try:
                await self.reload()
            except ConfigError as error:
                _log.error("%s; the rules that were read before go on to count", error)
