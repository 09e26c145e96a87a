"""Which hosts can be reached: `python examples/pingmq watch 192.168.1.0/24 example.org` pings them and
publishes what comes of it; `python examples/pingmq show`, anywhere else, prints what changes.

Below `ping/WATCHER/HOST`: `echo`, a JSON object for each ping, at QoS 0; `status`, retained, at QoS 1, only
when it changes: `up` or `down`. `ping/WATCHER/status` says whether the watcher is `online` or `offline`.
Needs icmplib (`pip install icmplib`), and root or a `net.ipv4.ping_group_range` that lets its user ping.
"""

from __future__ import annotations

import argparse
import asyncio
import ipaddress
import json
import platform
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from icmplib import (  # type: ignore[import-untyped]
    ICMPLibError,
    NameLookupError,
    SocketPermissionError,
    async_ping,
)

from tidemq.client import Client, Properties, ReasonCode, Will
from tidemq.errors import TideMQError

HOSTS_MAX = 4096  # a /20
PINGS_MAX = 100  # under way at a time, each with a socket
JSON = Properties(content_type="application/json")


class WrongHostsError(Exception):
    """What was asked for can't be pinged; caught by the program, which prints it."""


@dataclass
class Echo:
    """What came of one ping."""

    host: str
    at: datetime
    rtt_ms: float | None  # None: no answer
    error: str = ""  # why there was nothing to wait for

    @property
    def status(self) -> str:
        return "down" if self.rtt_ms is None else "up"

    def payload(self) -> str:
        values = {"at": self.at.isoformat(timespec="milliseconds"), "status": self.status}
        if self.rtt_ms is not None:
            return json.dumps(values | {"rtt_ms": round(self.rtt_ms, 3)})
        return json.dumps(values | ({"error": self.error} if self.error else {}))


class Pinger:
    """Sends echo requests, by the kind of socket that this user may open."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._privileged = False
        self._slots = asyncio.Semaphore(PINGS_MAX)

    async def prepare(self) -> None:
        """Finds that kind. Raises SocketPermissionError when there is none."""
        try:
            await async_ping("127.0.0.1", count=1, timeout=0, privileged=False)
        except SocketPermissionError:
            await async_ping("127.0.0.1", count=1, timeout=0, privileged=True)
            self._privileged = True

    async def ping(self, host: str) -> Echo:
        async with self._slots:
            at = datetime.now(UTC)
            try:
                found = await async_ping(host, count=1, timeout=self._timeout_s, privileged=self._privileged)
            except NameLookupError:
                return Echo(host, at, None, "the name is unknown")
            except (ICMPLibError, OSError) as error:
                return Echo(host, at, None, str(error))
        return Echo(host, at, found.avg_rtt if found.is_alive else None)


def hosts_of(places: list[str]) -> Iterator[str]:
    """Addresses and names as they are, networks host by host."""
    for place in places:
        try:
            network = ipaddress.ip_network(place, strict=False)
        except ValueError:
            yield place
            continue
        if network.num_addresses > HOSTS_MAX:
            raise WrongHostsError(f"{place} has {network.num_addresses} addresses; at most {HOSTS_MAX}")
        yield from (str(address) for address in network.hosts())


async def publish_rounds(client: Client, root: str, hosts: list[str], options: argparse.Namespace) -> None:
    """Pings all hosts, publishes what came of it, and again; `options.rounds` 0: until it is cancelled."""
    pinger = Pinger(options.timeout)
    await pinger.prepare()
    known: dict[str, str] = {}
    done = 0
    while True:
        due = asyncio.get_running_loop().time() + options.every
        echoes = await asyncio.gather(*(pinger.ping(host) for host in hosts))
        await client.publish_many(
            [(f"{root}/{level(echo.host)}/echo", echo.payload()) for echo in echoes], properties=JSON
        )
        changed = [echo for echo in echoes if known.get(echo.host) != echo.status]
        await client.publish_many(
            [(f"{root}/{level(echo.host)}/status", echo.status) for echo in changed], qos=1, retain=True
        )
        known |= {echo.host: echo.status for echo in changed}
        up = sum(echo.status == "up" for echo in echoes)
        print(f"{datetime.now(UTC):%H:%M:%S} {up} of {len(echoes)} up, {len(changed)} changed", flush=True)
        done += 1
        if done == options.rounds:
            return
        await asyncio.sleep(max(0.0, due - asyncio.get_running_loop().time()))


async def watch(options: argparse.Namespace) -> None:
    hosts = list(dict.fromkeys(hosts_of(options.hosts)))
    if len(hosts) > HOSTS_MAX:
        raise WrongHostsError(f"{len(hosts)} hosts; at most {HOSTS_MAX}")
    root = f"ping/{level(options.name)}"
    will = Will(topic=f"{root}/status", payload=b"offline", qos=1, retain=True)
    async with Client(options.url, will=will, keep_alive_s=20) as client:
        await client.publish(f"{root}/status", "online", qos=1, retain=True)
        try:
            await publish_rounds(client, root, hosts, options)
        finally:  # Ctrl-C too
            await client.disconnect(reason=ReasonCode.DISCONNECT_WITH_WILL)


async def show(options: argparse.Namespace) -> None:
    """First what is known, then what changes, a line each."""
    async with Client(options.url) as client:
        for topic_filter in ("ping/+/status", "ping/+/+/status"):
            await client.subscribe(topic_filter, qos=1)
        async for message in client.messages:
            name = message.topic.removeprefix("ping/").removesuffix("/status")
            known = " (known before)" if message.retain else ""
            print(f"{datetime.now(UTC):%H:%M:%S} {name} {bytes(message.payload).decode()}{known}", flush=True)


def level(name: str) -> str:
    """A name as one level of a topic."""
    return name.translate(str.maketrans("/+#", "---"))


def parse_options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="pingmq", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    watching = commands.add_parser("watch", help="ping hosts and publish what comes of it")
    showing = commands.add_parser("show", help="print what changes, of all watchers")
    for command in (watching, showing):
        command.add_argument("--url", default="mqtt://localhost", help="the broker's (mqtt://localhost)")
    watching.add_argument("hosts", nargs="+", metavar="HOST", help="address, name, or network (10.0.0.0/24)")
    watching.add_argument("--name", default=platform.node(), help="of this watcher in topics")
    watching.add_argument("--every", type=float, default=10.0, metavar="SECONDS", help="default: 10")
    watching.add_argument("--timeout", type=float, default=2.0, metavar="SECONDS", help="for an answer (2)")
    watching.add_argument("--rounds", type=int, default=0, help="end after so many; 0: never")
    return parser.parse_args()


if __name__ == "__main__":
    options = parse_options()
    try:
        asyncio.run(watch(options) if options.command == "watch" else show(options))
    except (TideMQError, WrongHostsError) as error:
        sys.exit(f"pingmq: {error}")
    except SocketPermissionError:
        sys.exit("pingmq: this user may not ping: run it as root, or widen net.ipv4.ping_group_range")
    except KeyboardInterrupt:
        pass
