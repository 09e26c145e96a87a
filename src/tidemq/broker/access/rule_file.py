"""The rules of a running broker: read from their file at the start, and again when it changes."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from tidemq.broker.access.cuts import find_cuts
from tidemq.broker.access.file_formats import AclFormat, read_rules
from tidemq.broker.acl_rules import AclRule, rows_of
from tidemq.broker.host.watched_files import WatchedFiles
from tidemq.engine.door.rule_row import RuleRow
from tidemq.errors import TideMQError

WARNINGS_MAX = 10  # of one reading

_log = logging.getLogger("tidemq.access")


class AclFile:
    """Gives the engine its rules. ConfigError when the file is wrong at the start; later on the old
    rules stay in force, and the log says what is wrong.
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
            rules = read_rules(self._path, self._format)
        except TideMQError:
            self.counts["acl_reloads_failed"] += 1
            raise
        if self._format == "mosquitto":
            self._warn(rules)
        return rows_of(rules)

    def _warn(self, rules: Sequence[AclRule]) -> None:
        """Of what Mosquitto would grant, with the same file, and leave out at delivery."""
        cuts = find_cuts(rules)
        for cut in cuts[:WARNINGS_MAX]:
            _log.warning("%s, %s; Mosquitto would leave out such messages", self._path, cut)
        if len(cuts) > WARNINGS_MAX:
            text = "%s: %d more such filters; `tidemq acl check %s --mosquitto` lists them"
            _log.warning(text, self._path, len(cuts) - WARNINGS_MAX, self._path)

    def _use(self, rows: list[RuleRow]) -> None:
        self._set_rules(rows)
        self.counts["acl_reloads"] += 1
        _log.info("%s was read again: %d rules", self._path, len(rows))
