"""Nodes of a TideMQ cluster on this machine, each with its `nats-server`; or one broker without a cluster."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

from peers.durable import LIMITS, Broker
from peers.peer import Running
from tidemq.bench.process import cpu_s
from tidemq.cluster.transport.server import NatsServer, ServerSettings
from tidemq.cluster.transport.settings import Security
from tidemq.testing.ports import free_port

REST_S = 0.25
REST_SHARE = 0.1  # of a core that all processes together use at rest: heartbeats
REST_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True)
class Setup:
    """How many nodes, 1: no cluster; and whether their servers sync each copy before they acknowledge it."""

    name: str
    nodes: int
    synced: bool = False


ONE = Setup("one node", 1)
TWO = Setup("two nodes", 2)
TWO_SYNCED = Setup("two nodes, synced copies", 2, synced=True)


class Nodes:
    """They run. `brokers`: the first is where publishers are."""

    def __init__(self, brokers: Sequence[Broker], servers: Sequence[NatsServer]) -> None:
        self.brokers = brokers
        self._servers = servers

    @property
    def first(self) -> Running:
        return self.brokers[0].running

    @property
    def last(self) -> Running:
        """The node furthest from the publishers; of one node, that one."""
        return self.brokers[-1].running

    @property
    def processes(self) -> dict[str, list[int]]:
        """The ids of all that run, by what they are."""
        brokers = [each.running.pid for each in self.brokers if each.process is not None]
        servers = [each.pid for each in self._servers if each.pid is not None]
        return {"brokers": brokers, "nats-servers": servers + children(brokers)}

    def cpu_s(self) -> dict[str, float]:
        """CPU seconds that they have used, by what they are."""
        return {what: sum(map(cpu_s, pids)) for what, pids in self.processes.items()}

    def rest(self) -> bool:
        """Waits until nothing is left to be done; False: it went on and on."""
        deadline = time.monotonic() + REST_LIMIT_S
        while time.monotonic() < deadline:
            before = sum(self.cpu_s().values())
            time.sleep(REST_S)
            if sum(self.cpu_s().values()) - before < REST_SHARE * REST_S:
                return True
        return False


def children(parents: Sequence[int]) -> list[int]:
    """Processes that these have started."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue
            if parent in parents:
                found.append(int(entry.name))
    return found


@contextmanager
def started(setup: Setup, parent: Path, *, reactors: int = 0) -> Iterator[Nodes]:
    """They run while the block does, with empty directories below `parent`; RuntimeError if they do not.
    `reactors`: each node's; 0: all together have as many as there are cores.
    """
    reactors = reactors or max(1, len(os.sched_getaffinity(0)) // setup.nodes)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(TemporaryDirectory(dir=parent, prefix="nodes-")))
        password = folder / "password"
        password.touch(mode=0o600)
        password.write_text(os.urandom(16).hex())
        settings = folder / "settings"
        settings.write_text(LIMITS)
        addresses = [f"127.0.0.1:{free_port()}" for _ in range(setup.nodes)]
        servers: list[NatsServer] = []
        for address in addresses if setup.synced else ():
            security = Security(password_file=password)
            server = NatsServer(
                ServerSettings(
                    folder=folder / f"nats-{len(servers)}", listen=address, security=security, sync_s=0
                )
            )
            server.start()
            stack.callback(server.stop)
            servers.append(server)
        brokers = []
        for number, address in enumerate(addresses):
            port, data = free_port(), folder / f"node{number}"
            command = [str(Path(sys.executable).parent / "tidemq"), "serve", "--config", str(settings)]
            command += ["--host", "127.0.0.1", "--port", str(port), "--log-level", "error"]
            command += ["--data", str(data), "--reactors", str(reactors)]
            if setup.nodes > 1:
                command += ["--cluster-name", "bench", "--cluster-password-file", str(password)]
                command += ["--nats-url" if setup.synced else "--cluster-listen", address]
                command += ["--join", addresses[0]]
            broker = Broker(command, port, data)
            stack.callback(broker.kill)
            broker.start()
            brokers.append(broker)
        nodes = Nodes(brokers, servers)
        nodes.rest()
        yield nodes
