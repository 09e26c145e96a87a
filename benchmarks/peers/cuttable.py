"""Nodes of a cluster whose links can be cut: here, each behind a proxy; or elsewhere, by the operator."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import subprocess
import sys
import threading
from collections.abc import Coroutine, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, TypeVar

from disk import size_bytes

from peers.durable import LIMITS, Broker
from peers.nodes import children
from tidemq.bench.peer.target import Target, local_target, parse_url
from tidemq.bench.process import cpu_s, resident_bytes_peak
from tidemq.cli.admin_request import Api
from tidemq.testing.links import Link, name_of_node
from tidemq.testing.ports import free_port

CLUSTER = "/api/v1/cluster"
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Place:
    """Where one node is asked, and where its clients are. `admin_url`: of its admin listener."""

    name: str
    admin_url: str
    api: Api
    target: Target


class Cuttable:
    """Nodes, the first half of them one side of a split, the others the other one. What is known of processes
    and disks is empty where they are elsewhere.
    """

    def __init__(self, places: Sequence[Place]) -> None:
        self.places = places
        half = (len(places) + 1) // 2
        self.sides = (places[:half], places[half:])
        self.is_cut = False

    def cut(self) -> None:
        """No side hears the other from now on."""
        raise NotImplementedError

    def heal(self) -> None:
        """They do."""
        raise NotImplementedError

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds used until now, by kind of process."""
        return {}

    def memory_bytes(self) -> dict[str, dict[str, int]]:
        """The most that the processes of each node have held, by kind."""
        return {}

    def disk_bytes(self) -> dict[str, int]:
        """What each node has on the disk."""
        return {}


class Links:
    """A proxy before each node's `nats-server`, all on one thread."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="links", daemon=True)
        self._all = [Link(lambda port=port: port, name_of_node) for port in ports]  # type: ignore[misc]

    def __enter__(self) -> Links:
        self._thread.start()
        for each in self._all:
            self._do(each.start())
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._all:
            self._do(each.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    @property
    def addresses(self) -> list[str]:
        """Where nodes reach each other."""
        return [f"127.0.0.1:{each.port}" for each in self._all]

    def cut(self, number: int, names: Sequence[str]) -> None:
        """Who has one of these names does not reach this node any more."""

        async def act() -> None:
            self._all[number].cut(*names)

        self._do(act())

    def heal(self) -> None:
        """All reach all."""

        async def act() -> None:
            for each in self._all:
                each.heal()

        self._do(act())


class Local(Cuttable):
    """On this machine; they run."""

    def __init__(self, places: Sequence[Place], brokers: Sequence[Broker], links: Links) -> None:
        super().__init__(places)
        self.brokers, self._links = brokers, links

    def cut(self) -> None:
        names = [own_incarnation(each.api) for each in self.places]
        half = len(self.sides[0])
        for number in range(len(self.places)):
            self._links.cut(number, names[half:] if number < half else names[:half])
        self.is_cut = True

    def heal(self) -> None:
        self._links.heal()
        self.is_cut = False

    def _processes(self) -> Iterator[tuple[str, str, int]]:
        """Node, kind and id of each."""
        for place, broker in zip(self.places, self.brokers, strict=True):
            pid = broker.running.pid
            yield place.name, "broker", pid
            for child in children([pid]):
                yield place.name, "nats-server", child

    def cpu_s(self) -> dict[str, float]:
        used = {"broker": 0.0, "nats-server": 0.0}
        for _, kind, pid in self._processes():
            used[kind] += cpu_s(pid)
        return used

    def memory_bytes(self) -> dict[str, dict[str, int]]:
        found: dict[str, dict[str, int]] = {each.name: {} for each in self.places}
        for name, kind, pid in self._processes():
            found[name][kind] = resident_bytes_peak(pid)
        return found

    def disk_bytes(self) -> dict[str, int]:
        pairs = zip(self.places, self.brokers, strict=True)
        return {place.name: size_bytes(broker.data) for place, broker in pairs}


class Elsewhere(Cuttable):
    """They run already. Commands cut their network and heal it; without them the operator is told when to."""

    def __init__(self, places: Sequence[Place], cut: str = "", heal: str = "") -> None:
        super().__init__(places)
        self._cut, self._heal = cut, heal

    def cut(self) -> None:
        one, other = (", ".join(each.name for each in side) for side in self.sides)
        self._have_done(self._cut, f"cut the network between {one} and {other}")
        self.is_cut = True

    def heal(self) -> None:
        self._have_done(self._heal, "heal the network")
        self.is_cut = False

    def _have_done(self, command: str, what: str) -> None:
        """RuntimeError where the command fails."""
        if not command:
            input(f"{what}, then press Enter: ")
        elif code := subprocess.run(shlex.split(command), check=False).returncode:
            raise RuntimeError(f"{command!r} ended with status {code}")


def own_incarnation(api: Api) -> str:
    """Of the node that is asked."""
    members = api.ask("GET", CLUSTER)["members"]
    return next(str(each["incarnation"]) for each in members if each["is_self"])


def elsewhere(admin: Sequence[str], mqtt: Sequence[str], token_file: str, cafile: str) -> list[Place]:
    """Nodes by the URLs of their admin listeners and, in the same order, of their listeners for clients;
    RequestError where one of them does not answer.
    """
    places = []
    for admin_url, mqtt_url in zip(admin, mqtt, strict=True):
        api = Api(admin_url, token_file, cafile)
        members = api.ask("GET", CLUSTER)["members"]
        name = next((each["name"] or each["incarnation"] for each in members if each["is_self"]), admin_url)
        places.append(Place(name, admin_url, api, parse_url(mqtt_url)))
    return places


@contextmanager
def started(count: int, parent: Path, *, reactors: int = 0, suspect_s: float = 0) -> Iterator[Local]:
    """So many run while the block does, with empty directories below `parent`; RuntimeError if they do not.
    `reactors`: each node's; 0: all together have as many as there are cores. `suspect_s` 0: as they have it.
    """
    reactors = reactors or max(1, len(os.sched_getaffinity(0)) // count)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(dir=parent, prefix="split-")))
        password = folder / "password"
        password.touch(mode=0o600)
        password.write_text(os.urandom(16).hex())
        ports = [free_port() for _ in range(count)]
        links = stack.enter_context(Links(ports))
        places, brokers = [], []
        for number, port in enumerate(ports):
            name, admin, clients = f"node{number + 1}", free_port(), free_port()
            settings: dict[str, object] = {
                "host": "127.0.0.1",
                "port": clients,
                "admin_port": admin,
                "log_level": "error",
                "data": str(folder / name),
                "reactors": reactors,
                "durability": "sync",
                "decision_s": 60.0,  # hundreds of sessions move at once, and a busy machine takes its time
                "cluster_name": "bench",
                "cluster_node": name,
                "cluster_listen": f"127.0.0.1:{port}",
                "cluster_address": links.addresses[number],
                "cluster_join": links.addresses[:1] if number else [],
                "cluster_password_file": str(password),
            }
            if suspect_s:
                settings["cluster_suspect_s"] = suspect_s
            text = "".join(f"{key} = {json.dumps(value)}\n" for key, value in settings.items())
            (folder / f"{name}.toml").write_text(text + LIMITS)
            command = [str(Path(sys.executable).parent / "tidemq"), "serve"]
            command += ["--config", str(folder / f"{name}.toml")]
            broker = Broker(command, clients, folder / name)
            stack.callback(broker.kill)
            broker.start()
            brokers.append(broker)
            admin_url = f"http://127.0.0.1:{admin}"
            places.append(Place(name, admin_url, Api(admin_url, "", ""), local_target(clients)))
        yield Local(places, brokers, links)
