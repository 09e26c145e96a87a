"""`tidemq serve`: a broker until a signal ends it."""

from __future__ import annotations

import asyncio
import logging
import signal
import sys
from collections.abc import Mapping
from pathlib import Path

from tidemq.broker import Broker
from tidemq.broker.sys_topics import broker_version
from tidemq.config import Config, load_config
from tidemq.errors import TideMQError

EXIT_FAILED = 1
EXIT_CONFIG = 2


def run_broker(config_path: Path | None, flags: Mapping[str, object]) -> int:
    """Gives the exit code: 0 after a signal, 2 for a wrong configuration, 1 for any other failure."""
    try:
        config = load_config(config_path, flags)
    except TideMQError as error:
        print(f"tidemq: {error}", file=sys.stderr)
        return EXIT_CONFIG
    logging.basicConfig(
        level=config.log_level.upper(), format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr
    )
    try:
        asyncio.run(_serve(config))
    except (TideMQError, OSError) as error:
        print(f"tidemq: {error}", file=sys.stderr)
        return EXIT_FAILED
    return 0


async def _serve(config: Config) -> None:
    ended = asyncio.Event()
    loop = asyncio.get_running_loop()

    def end(_number: int, _frame: object) -> None:
        # from the second one on there is nothing to do; ignored, it cannot kill the process while it ends
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_IGN)
        loop.call_soon_threadsafe(ended.set)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, end)
    async with Broker(config) as broker:
        hosts = (config.host, *(listener.host for listener in config.listeners))
        bracketed = (f"[{host}]" if ":" in host else host for host in hosts)
        addresses = ", ".join(f"{host}:{port}" for host, port in zip(bracketed, broker.ports, strict=True))
        print(f"TideMQ {broker_version()} is ready on {addresses}", flush=True)
        await ended.wait()
