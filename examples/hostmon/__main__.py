"""This machine as a device: `python examples/hostmon --url mqtt://localhost` publishes its readings.

Below `hosts/NAME`: `load`, `memory`, `disk/…`, `network/…` as JSON objects at QoS 1, every few seconds, and
`status`, which is retained: `{"online": 1}`, and `{"online": 0}` once the broker has noticed that the machine
is gone: at once where it says so, otherwise after one and a half times `--keep-alive`.
Watch them with `tidemq sub -t 'hosts/#' -v`. Needs psutil (`pip install psutil`).
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import sys
import time
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

import psutil

from tidemq.client import Client, Properties, ReasonCode, Will
from tidemq.errors import TideMQError

Values = Mapping[str, float]
JSON = Properties(content_type="application/json")


class Host:
    """Reads the machine. What is a rate is one since the reading before, so the first has none."""

    def __init__(self) -> None:
        self._cpu_seen = False
        self._sent_received: dict[str, tuple[float, int, int]] = {}

    def read(self) -> Iterator[tuple[str, Values]]:
        """Topic below the host's own, and the values of that moment."""
        yield "load", self.load()
        yield "memory", memory()
        yield from disks()
        yield from self.network()

    def load(self) -> Values:
        one, five, fifteen = os.getloadavg()
        values: dict[str, float] = {
            "load_1m": one,
            "load_5m": five,
            "load_15m": fifteen,
            "cores": os.cpu_count() or 1,
            "uptime_s": time.time() - psutil.boot_time(),
        }
        cpu_percent = psutil.cpu_percent()  # since the last call
        if self._cpu_seen:
            values["cpu_percent"] = cpu_percent
        self._cpu_seen = True
        return values

    def network(self) -> Iterator[tuple[str, Values]]:
        """Of each interface that is up, bytes since the machine's start and bytes a second."""
        now_s = time.monotonic()
        up = {name for name, state in psutil.net_if_stats().items() if state.isup}
        for name, counted in psutil.net_io_counters(pernic=True).items():
            if name not in up:
                continue
            values: dict[str, float] = {
                "sent_bytes": counted.bytes_sent,
                "received_bytes": counted.bytes_recv,
                "errors": counted.errin + counted.errout,
                "dropped": counted.dropin + counted.dropout,
            }
            if name in self._sent_received:
                before_s, sent, received = self._sent_received[name]
                passed_s = max(now_s - before_s, 1e-9)
                values["sent_bytes_per_s"] = (counted.bytes_sent - sent) / passed_s
                values["received_bytes_per_s"] = (counted.bytes_recv - received) / passed_s
            self._sent_received[name] = now_s, counted.bytes_sent, counted.bytes_recv
            yield f"network/{level(name)}", values


def memory() -> Values:
    main, swap = psutil.virtual_memory(), psutil.swap_memory()
    return {
        "total_bytes": main.total,
        "available_bytes": main.available,
        "used_percent": main.percent,
        "swap_total_bytes": swap.total,
        "swap_used_bytes": swap.used,
    }


def disks() -> Iterator[tuple[str, Values]]:
    """Of each file system on a device of its own; those that may not be looked at are left out."""
    for partition in psutil.disk_partitions():
        try:
            usage = psutil.disk_usage(partition.mountpoint)
        except OSError:
            continue
        values = {"total_bytes": usage.total, "free_bytes": usage.free, "used_percent": usage.percent}
        yield f"disk/{level(partition.mountpoint)}", values


def level(name: str) -> str:
    """A name as one level of a topic: `/` is `root`, `/var/lib` is `var-lib`."""
    return name.strip("/").translate(str.maketrans("/+#", "---")) or "root"


def payload(values: Values, at: datetime) -> str:
    """A reading with its time; numbers are shortened to what they are worth."""
    shortened = {name: round(value, 3) for name, value in values.items()}
    return json.dumps({"at": at.isoformat(timespec="milliseconds"), **shortened})


async def publish_readings(client: Client, root: str, interval_s: float, rounds: int) -> None:
    """`rounds` 0: until it is cancelled."""
    host = Host()
    done = 0
    while True:
        at = datetime.now(UTC)
        count = await client.publish_many(
            [(f"{root}/{topic}", payload(values, at)) for topic, values in host.read()],
            qos=1,
            properties=JSON,
        )
        done += 1
        print(f"{at:%H:%M:%S} {count} readings below {root}", flush=True)
        if done == rounds:
            return
        await asyncio.sleep(interval_s)


async def monitor(options: argparse.Namespace) -> None:
    """While the broker is away the client keeps trying, and keeps what it could not send."""
    root = f"hosts/{level(options.name)}"
    status = f"{root}/status"
    will = Will(topic=status, payload=b'{"online": 0}', qos=1, retain=True)
    async with Client(options.url, will=will, keep_alive_s=options.keep_alive) as client:
        await client.publish(status, '{"online": 1}', qos=1, retain=True)
        try:
            await publish_readings(client, root, options.every, options.rounds)
        finally:  # Ctrl-C too
            await client.disconnect(reason=ReasonCode.DISCONNECT_WITH_WILL)


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="hostmon", description=__doc__)
    parser.add_argument("--url", default="mqtt://localhost", help="the broker's (default: mqtt://localhost)")
    parser.add_argument("--name", default=platform.node(), help="of this machine in topics")
    parser.add_argument("--every", type=float, default=5.0, metavar="SECONDS", help="default: 5")
    parser.add_argument("--rounds", type=int, default=0, help="end after so many; 0: never")
    parser.add_argument("--keep-alive", type=int, default=20, metavar="SECONDS", help="of MQTT; default: 20")
    return parser.parse_args()


if __name__ == "__main__":
    try:
        asyncio.run(monitor(parse_options()))
    except TideMQError as error:
        sys.exit(f"hostmon: {error}")
    except KeyboardInterrupt:
        pass
