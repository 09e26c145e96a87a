"""The nodes of a run, as processes, with links before them that can be cut."""

from __future__ import annotations

import asyncio
import os
import random
import re
import shutil
import signal
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from cluster.processes.clock import Clock, compile_clock
from cluster.processes.gaps import CLOCK_SET, TAKEN_FOR_DEAD
from crash.disk import Disk, compile_layer
from crash.history import NEVER, History, Split
from crash.server import Server

from tidemq.testing.links import Link, name_of_node
from tidemq.testing.ports import free_port

NATS_SERVER = "nats-server"
SILENT = re.compile(r"node ([0-9a-f]{16}) is not there")
APART = re.compile(r"node ([0-9a-f]{16}) and this one (part|go on)")
WATCH_S = 0.2
HEARD_S = 1.5  # until all that a split has done is known: they hear each other again, and part
MEET_S = 60.0


class Node:
    """One broker with its `nats-server`, and links to both: `clients` to the one, `peers` to the other."""

    def __init__(self, folder: Path, name: str, history: History) -> None:
        self.name, self.history = name, history
        self._nats_port = free_port()
        self.data = folder / name.replace(" ", "-")
        self.server = Server(folder, self.data, {}, history, name=name)
        self.clients = Link(lambda: self.server.port)
        self.peers = Link(lambda: self._nats_port, name_of_node)
        self.clock: Clock | None = None  # where it can be set
        self.disk: Disk | None = None  # where it can fail
        self.admin_port = free_port()

    def settle_in(self, password: Path, join: list[str], settings: dict[str, object]) -> None:
        """When the links of all have started."""
        self.server.settings |= {
            "durability": "sync",
            "cluster_name": "farm",
            "cluster_node": self.name,
            "cluster_listen": f"127.0.0.1:{self._nats_port}",
            "cluster_address": self.address,
            "cluster_join": join,
            "cluster_password_file": str(password),
            "admin_port": self.admin_port,
            **settings,
        }

    def place(self) -> tuple[str, int]:
        """As a client's `Setting` has it."""
        return self.name, self.clients.port

    @property
    def address(self) -> str:
        """Where others reach its `nats-server`."""
        return f"127.0.0.1:{self.peers.port}"

    def nats_server(self) -> int | None:
        """The process identifier of its `nats-server`; None: there is none now."""
        with suppress(OSError):
            for task in Path(f"/proc/{self.server.pid}/task").iterdir():
                for child in (task / "children").read_text().split():
                    if Path(f"/proc/{child}/comm").read_text().strip() == NATS_SERVER:
                        return int(child)
        return None

    def kill_nats_server(self) -> None:
        """`kill -9`, if there is one at this moment."""
        pid = self.nats_server()
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            self.history.fault("loses its nats-server", self.name)

    def get_clock(self, library: Path) -> None:
        """Before it is first started: one that can be set."""
        self.clock = Clock(library, self.data.with_suffix(".clock"))
        self._preload(self.clock.environment)

    def get_disk(self, library: Path) -> None:
        """Before it is first started: one that can fail, and lose its power, under its store."""
        folder = self.data.with_suffix(".disk")
        self.server.disk = self.disk = Disk(library, self.data / "rocksdb", folder, power=True)
        self._preload(self.disk.environment)

    def trace(self) -> None:
        """From its next start on."""
        tests = Path(__file__).resolve().parents[2]
        self.server.before = (
            f"import sys; sys.path.insert(0, {str(tests)!r}); "
            f"from cluster.processes.tracing import trace; trace({str(self.data.with_suffix('.trace'))!r}); "
        )

    def _preload(self, environment: dict[str, str]) -> None:
        libraries = [each["LD_PRELOAD"] for each in (self.server.environment, environment) if each]
        self.server.environment |= environment | {"LD_PRELOAD": ":".join(libraries)}

    def is_apart(self) -> bool:
        """Whether it has parted with another node, and has not gone on with it."""
        return "part" in dict(APART.findall(self.said())).values()

    def said(self) -> str:
        """All that it has logged since it was started last; nothing, as long as it does not serve."""
        return self.server.log.read_text(errors="replace") if self.server.serves else ""

    def set_clock(self, off_s: float) -> None:
        assert self.clock is not None
        self.clock.set(off_s)
        self.history.fault(f"{CLOCK_SET} {off_s:+.3f} s off", self.name)

    def delete_copies(self) -> None:
        """The directory of JetStream, whoever uses it."""
        shutil.rmtree(self.data / "nats" / "jetstream", ignore_errors=True)
        self.history.fault("loses its JetStream directory", self.name)


class Nodes:
    """All of a run. For `crash.run.conclude` they are its server."""

    def __init__(self, folder: Path, count: int, history: History) -> None:
        self._folder, self._history = folder, history
        self._have_failed = False  # to meet
        self.patience = True  # of clients who wait for the node that they were on
        self.all = [Node(folder, f"broker {number + 1}", history) for number in range(count)]

    def __iter__(self) -> Iterator[Node]:
        return iter(self.all)

    async def start(
        self, settings: dict[str, object], *, clocks: bool = False, disks: bool = False, traced: bool = False
    ) -> None:
        """All at once; returns when they serve clients. `clocks` can be set then, and `disks` can fail."""
        clock = compile_clock(self._folder) if clocks else None
        disk = compile_layer(self._folder) if disks else None
        password = self._folder / "password"
        password.touch(mode=0o600)
        password.write_text("b" * 40)
        for node in self:
            await node.peers.start()
            await node.clients.start()
        for node in self:
            if clock is not None:
                node.get_clock(clock)
            if disk is not None:
                node.get_disk(disk)
            if traced:
                node.trace()
            node.settle_in(password, [each.address for each in self], settings)
        await asyncio.gather(*(node.server.start() for node in self))

    async def stop(self) -> None:
        """In turn, as an operator does."""
        for node in self:
            await node.server.stop()

    async def close_links(self) -> None:
        for node in self:
            await node.clients.close()
            await node.peers.close()

    def kill(self) -> None:
        for node in self:
            node.server.kill()

    @property
    def starts(self) -> int:
        return sum(node.server.starts for node in self)

    def logged(self) -> str:
        """The ends of the logs."""
        return "\n".join(f"{node.name}: {node.server.logged()}" for node in self)

    def said(self) -> str:
        """All that all have logged since they were first started."""
        logs = sorted(self._folder.glob("broker-*.log"))
        return "\n".join(each.read_text(errors="replace") for each in logs)

    async def watch(self, suspect_s: float) -> None:
        """Notes who is taken for dead and is not, and when nodes have met again; for ever."""
        known = 0
        while True:
            await asyncio.sleep(WATCH_S)
            silent = SILENT.findall(self.said())
            for each in silent[known:]:
                for node in self:
                    there_s = time.monotonic() - node.server.serves_since_s
                    alive = node.server.serves and there_s > suspect_s + 2 * WATCH_S
                    if alive and not self._open_splits() and each == self.incarnation(node):
                        self._history.fault(TAKEN_FOR_DEAD, node.name)
            known = len(silent)
            self._see_who_has_met()

    @property
    def is_whole(self) -> bool:
        """Whether all are there, and nothing is done to them."""
        is_spared = all(each.ended_at < NEVER for each in self._history.faults)
        return is_spared and not self._open_splits() and all(node.server.serves for node in self)

    def _open_splits(self) -> list[Split]:
        return [each for each in self._history.splits if each.met_at == NEVER]

    def _see_who_has_met(self) -> None:
        open_splits = self._open_splits()
        if not open_splits or open_splits[-1].ended_at == NEVER:
            return
        healed_s = self._history.seconds_since(open_splits[-1].ended_at)
        if healed_s > HEARD_S and not any(node.is_apart() for node in self):
            at = self._history.note("brokers", "have met again")
            for each in open_splits:
                each.met_at = at
        elif healed_s > MEET_S and not self._have_failed:
            self._have_failed = True
            self._history.fail("stalled", f"nodes have not met {MEET_S} s after a split")

    def incarnation(self, node: Node) -> str:
        """As nodes spell it in their hellos and logs; empty while nobody has reached it."""
        found = re.search(rf"node ([0-9a-f]{{16}}) is reached at {re.escape(node.address)}\b", self.said())
        return found[1] if found else ""


class Route:
    """Where one client connects: to the node of last time, unless it likes to move (`moves`: how often), or
    that one is down and the client is not `patient`.
    """

    def __init__(self, nodes: Nodes, choose: random.Random, *, moves: float, patient: bool) -> None:
        self._nodes, self._choose = nodes, choose
        self._moves, self._patient = moves, patient
        self._at = choose.choice(nodes.all)

    def __call__(self) -> tuple[str, int]:
        """As a client's `Setting` has it."""
        stays = self._at.server.serves or (self._patient and self._nodes.patience)
        if self._choose.random() < self._moves or not stays:
            there = [each for each in self._nodes if each.server.serves]
            self._at = self._choose.choice(there or self._nodes.all)
        return self._at.place()
