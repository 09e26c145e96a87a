"""What `tidemq serve` runs: a broker until a signal ends it."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from importlib.util import find_spec
from pathlib import Path

import tidemq
from tidemq.broker import Broker
from tidemq.broker.clustering import Clustering
from tidemq.broker.host.secret_files import warn_of
from tidemq.broker.host.systemd import Notifier, inherited_sockets
from tidemq.broker.logs import write_log
from tidemq.cli.exit_codes import EXIT_FAILED
from tidemq.config import Config, load_config, read_layers
from tidemq.errors import ConfigError, StoreError, TideMQError

EXIT_CONFIG = 2
DASHBOARD_PORT = 18083
# A keeper makes many objects for each batch, none of which is garbage. By default Python looks for it at each
# 700, which took a tenth of a node's time (`python benchmarks/cluster.py --parts copies`).
OBJECTS_LOOKED_AT = (100_000, 20, 50)

_log = logging.getLogger("tidemq")


def run_broker(config_path: Path | None, flags: Mapping[str, object]) -> int:
    """Gives the exit code: 0 after a signal, 2 for a wrong configuration, 1 for any other failure."""
    try:
        config = load_config(config_path, flags)
    except TideMQError as error:
        print(f"tidemq: {error}", file=sys.stderr)
        return EXIT_CONFIG
    write_log(config, sys.stderr)
    os.umask(0o077)  # RocksDB and SQLite give their files what it leaves
    # batches of streams are made and freed by threads that come and go: Arrow's own pool keeps 200 MB of that
    os.environ.setdefault("ARROW_DEFAULT_MEMORY_POOL", "system")
    if config.authenticator == "static" and config_path is not None:
        warn_of([config_path])
    _warn_of_other_data(config_path, flags)
    if os.geteuid() == 0 and not config.user:
        _log.warning('the broker runs as root: name a user that it becomes, such as user = "tidemq"')
    try:
        asyncio.run(_serve(config, config_path, lambda: load_config(config_path, flags)))
    except ConfigError as error:
        print(f"tidemq: {error}", file=sys.stderr)
        return EXIT_CONFIG
    except (TideMQError, OSError) as error:
        print(f"tidemq: {error}", file=sys.stderr)
        return EXIT_FAILED
    return 0


def _warn_of_other_data(config_path: Path | None, flags: Mapping[str, object]) -> None:
    """Where the file names a directory, and another one is used: a unit's or a container's, without a message
    of those that came along in the file's.
    """
    given, environment, file = read_layers(config_path, flags)
    used = given.get("data") or environment.get("data")
    if used and "data" in file and Path(str(used)) != Path(str(file["data"])):
        text = "messages are kept in %s, and not in %s, which %s names: a flag or TIDEMQ_DATA goes before it"
        _log.warning(text, used, file["data"], config_path)


def _wants_dashboard(config: Config, config_path: Path | None) -> bool:
    """For who tries a broker out: there is no file, nothing says whether one is wanted, and programs on this
    machine may do as they like with its messages anyway.
    """
    given = config.model_fields_set
    if config_path is not None or "admin_port" in given or "authenticator" in given:
        return False
    if find_spec("aiohttp") is None or find_spec("prometheus_client") is None:
        _log.info("there is no dashboard: it needs pip install 'tidemq[admin]'")
        return False
    return True


def _cluster_of(config: Config) -> Clustering | None:
    """What makes the broker a node of a cluster, where it is to be one: else nothing of it is loaded."""
    if not config.cluster_name:
        return None
    from tidemq.cluster.host import ClusterHost

    return ClusterHost(config)


async def _serve(config: Config, config_path: Path | None, reread: Callable[[], Config]) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end(_number: int, _frame: object) -> None:
        # from the second one on there is nothing to do; ignored, it cannot kill the process while it ends
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        loop.call_soon_threadsafe(ended.set)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)  # until there is something to reload
    notifier = Notifier()
    has_dashboard = _wants_dashboard(config, config_path)
    if has_dashboard:
        config = config.model_copy(update={"admin_port": DASHBOARD_PORT})
    sockets = inherited_sockets()
    cluster = _cluster_of(config)
    async with Broker(
        config, sockets=sockets, reread=reread, any_admin_port=has_dashboard, cluster=cluster
    ) as broker:
        addresses = ", ".join(broker.addresses.values())
        status = f"clients are served on {addresses}"
        async with _reloading(broker, notifier, status):
            said = f"TideMQ {tidemq.__version__} is ready on {addresses}\n"
            if broker.admin_url:
                said += f"dashboard: {broker.admin_url}\n"
            # in one piece: without a buffer the end of a line is written by itself, after what others log
            print(said, end="", flush=True)
            notifier.ready(status)
            gc.freeze()  # what is here stays
            gc.set_threshold(*OBJECTS_LOOKED_AT)
            failure = await _wait_for_the_end(broker, ended)
        notifier.stopping(failure or "the last messages are written")
        if failure:
            raise StoreError(failure)


async def _wait_for_the_end(broker: Broker, ended: asyncio.Event) -> str:
    """Gives why the broker cannot go on; empty: a signal has come."""
    failing, ending = asyncio.create_task(broker.wait_failed()), asyncio.create_task(ended.wait())
    done, waiting = await asyncio.wait((failing, ending), return_when=asyncio.FIRST_COMPLETED)
    for task in waiting:
        task.cancel()
    return failing.result() if failing in done else ""


@asynccontextmanager
async def _reloading(broker: Broker, notifier: Notifier, status: str) -> AsyncIterator[None]:
    """Reloads at each SIGHUP; of several that come meanwhile, once more."""
    loop = asyncio.get_running_loop()
    wanted = asyncio.Event()

    async def reload() -> None:
        while await wanted.wait():
            wanted.clear()
            notifier.reloading()
            wrong = sorted(name for name, text in (await broker.reload()).items() if text)
            notifier.ready(f"{status}; not reloaded: {', '.join(wrong)}" if wrong else status)

    loop.add_signal_handler(signal.SIGHUP, wanted.set)
    task = asyncio.create_task(reload())
    try:
        yield
    finally:
        loop.remove_signal_handler(signal.SIGHUP)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # it must not kill the process while it ends
        task.cancel()
