"""What a start reads, read without starting: are a configuration and the files that it names right?"""

from __future__ import annotations

from tidemq.broker.access.ban_file import read_bans
from tidemq.broker.access.file_formats import read_rules
from tidemq.broker.bridging.bridges import check_bridge
from tidemq.broker.host.privileges import find_identity
from tidemq.broker.listeners import configured_listeners, make_scheme_of
from tidemq.broker.own_plugins import OwnPlugins
from tidemq.broker.own_providers import OwnProviders
from tidemq.broker.providers import find_factory
from tidemq.broker.reload import Reloads
from tidemq.broker.topic_rules import read_topic_rules
from tidemq.config import Config, refused
from tidemq.wire.faults import fault_text
from tidemq.wire.topics import topic_filter_fault


async def check_files(config: Config) -> None:
    """Raises for a wrong configuration what `Broker.start` raises: ConfigError, in the same order. Nothing is
    bound or written, the store is not opened, and no other server is asked.
    """
    find_identity(config.user, config.group)
    listeners = configured_listeners(config)
    for bridge in config.bridges:
        check_bridge(bridge, config.limits)
    plugins = OwnPlugins(config, ())
    providers = OwnProviders(config, Reloads())
    try:
        plugins.load()
        providers.make("authoriser", config.authoriser, config.authoriser_options)
        find_factory("store", config.store)
        providers.authenticators(listeners, None)
        for name, listener in listeners.items():
            make_scheme_of(name, listener)
        if config.admin_port:
            _check_admin(config)
        if config.streams and config.store == "memory":
            raise refused("configuration", "streams", "they need a store on disk", ["store = rocksdb"])
        _check_filters(config)
        if config.acl_file is not None:
            read_rules(config.acl_file, config.acl_format)
        if config.bans_file is not None:
            read_bans(config.bans_file)
        if config.topic_rules_file is not None:
            read_topic_rules(config.topic_rules_file, config.limits.topic_levels_max)
    finally:
        await plugins.close()
        await providers.close()


def _check_filters(config: Config) -> None:
    """Those that are watched, and those of streams."""
    named = {"watched_topics": config.watched_topics}
    named |= {f"streams.{each.name}.filters": each.filters for each in config.streams}
    for key, filters in named.items():
        taking = ("$share/", "$exclusive/") if key == "watched_topics" else ("$share/",)
        for topic_filter in filters:
            fault = topic_filter_fault(topic_filter, config.limits.topic_levels_max)
            problem = f"{topic_filter!r}: {fault_text(fault)}" if fault else ""
            if not fault and topic_filter.startswith(taking):
                problem = f"{topic_filter!r}: accepted is the filter of topics that is behind that"
            if problem:
                raise refused("configuration", key, problem, ["topic filters, as plant/+/state"])


def _check_admin(config: Config) -> None:
    try:
        from tidemq.broker.admin.server import check_admin
    except ImportError as error:
        text = f"it needs the package {error.name}"
        raise refused("configuration", "admin_port", text, ["0", "pip install 'tidemq[admin]'"]) from error
    check_admin(config)
