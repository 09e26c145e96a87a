"""The files beside its configuration that a broker reads again while it runs: rules, bans, topic rules."""

from __future__ import annotations

from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import TYPE_CHECKING, Any

from tidemq.broker.access.ban_file import BanFile, Connection
from tidemq.broker.access.bans import Bans
from tidemq.broker.access.decisions import Decisions
from tidemq.broker.access.rule_file import AclFile
from tidemq.broker.providers import ADMINISTRATIVE_ACTION
from tidemq.broker.reload import Reloads
from tidemq.broker.topic_rules import TopicRuleFile
from tidemq.config import Config

if TYPE_CHECKING:
    from tidemq.broker.monitoring.monitor import Monitor
    from tidemq.engine import Engine


class OwnFiles:
    """Of one broker. Reads them at once: ConfigError for a wrong one."""

    def __init__(
        self, config: Config, engine: Engine, decisions: Decisions, monitor: Monitor, reloads: Reloads
    ) -> None:
        self._files: list[AclFile | BanFile | TopicRuleFile] = []

        def use_bans(bans: Bans) -> None:
            decisions.file_bans = bans
            decisions.follow_bans()

        async def connected() -> AsyncIterator[Connection]:
            async for each in monitor.clients.connected():
                yield Connection(each.client_id, each.username, each.peer)

        def disconnect(client_id: str) -> None:
            engine.disconnect(client_id, ADMINISTRATIVE_ACTION)

        if config.acl_file is not None:
            rules = AclFile(config.acl_file, config.acl_format, engine.set_rules)
            self._files.append(rules)
            reloads.add("rules", rules.reload)
        if config.bans_file is not None:
            bans = BanFile(config.bans_file, use_bans, connected, disconnect)
            self._files.append(bans)
            reloads.add("bans", bans.reload)
        if config.topic_rules_file is not None:
            levels_max = config.limits.topic_levels_max
            topics = TopicRuleFile(config.topic_rules_file, levels_max, monitor.view.change_topic_rules)
            self._files.append(topics)
            reloads.add("topic rules", topics.reload)

    def watch(self) -> list[Coroutine[Any, Any, None]]:
        """Each reads a file again whenever it has changed, and never returns."""
        return [each.watch() for each in self._files]

    def counts(self) -> list[Mapping[str, int]]:
        """Of each."""
        return [each.counts for each in self._files]
