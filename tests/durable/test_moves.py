"""Publishers whose sessions are kept move between reactors: what is on its way for them, and the order of
what they publish, is as if they had not.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from conformance.kit import Client, connected, kept
from conformance.packets import PUBACK, PUBCOMP, PUBLISH, PUBREC, PUBREL, acknowledge, publish, unsubscribe
from waiting import WAIT_S

if TYPE_CHECKING:
    from durable.conftest import Servers
    from durable.server import Server

MOVES_AFTER = 256  # messages that all went to one other reactor

# of the threads that wait in epoll, but for the process's first, the second one's clock is late
LATE_CLOCK = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdatomic.h>
#include <sys/epoll.h>
#include <time.h>
#include <unistd.h>

static atomic_int reactors;
static _Thread_local int number = -1;

int epoll_wait(int fd, struct epoll_event *events, int most, int wait_ms) {
    static int (*next)(int, struct epoll_event *, int, int);
    if (!next) next = dlsym(RTLD_NEXT, "epoll_wait");
    if (number < 0) number = gettid() == getpid() ? 0 : atomic_fetch_add(&reactors, 1);
    return next(fd, events, most, wait_ms);
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*next)(clockid_t, struct timespec *);
    if (!next) next = dlsym(RTLD_NEXT, "clock_gettime");
    int result = next(clock, now);
    if (clock == CLOCK_MONOTONIC && number == 1 && (now->tv_nsec -= 40000000) < 0) {
        now->tv_nsec += 1000000000;
        now->tv_sec -= 1;
    }
    return result;
}
"""


class SkewedBroker:
    """`tidemq serve` with two reactors, one of which has its clock 40 ms behind the other's; `port`."""

    def __init__(self, folder: Path) -> None:
        source, library, log = folder / "late.c", folder / "late.so", folder / "log"
        source.write_text(LATE_CLOCK)
        subprocess.run(["gcc", "-O1", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        command = [sys.executable, "-c", "from tidemq.cli import main; main()", "serve", "--port", "0"]
        command += ["--host", "127.0.0.1", "--data", str(folder / "data"), "--reactors", "2"]
        environment = os.environ | {"LD_PRELOAD": str(library), "TIDEMQ_DURABILITY": "os"}
        with log.open("wb") as output:
            self.process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
        deadline = time.monotonic() + WAIT_S
        while not (found := re.search(r"is ready on \S*:(\d+)", log.read_text())):
            assert self.process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.02)
        self.port = int(found[1])


@pytest.fixture
def skewed(tmp_path: Path) -> Iterator[SkewedBroker]:
    if not shutil.which("gcc"):
        pytest.skip("the late clock needs gcc")
    broker = SkewedBroker(tmp_path)
    yield broker
    broker.process.kill()
    broker.process.wait()


def test_what_a_publisher_sends_after_its_move_comes_after_what_it_sent_before(skewed: SkewedBroker) -> None:
    """Though the clock of the reactor that it comes to is behind, and the order of a queue is that of ids."""
    count = 3 * MOVES_AFTER
    away = []
    for number in range(16):  # on whatever reactor each lands: of so many some move to the late one
        receiver = connected(skewed, **kept(5))
        receiver.subscribe(f"t/{number}", 1)
        receiver.disconnect()
        away.append(receiver.client_id)
    for number in range(len(away)):
        publisher = connected(skewed)
        publisher.send(*(publish(f"t/{number}", b"%d" % n, 1, n + 1) for n in range(count)))
        for _ in range(count):
            publisher.expect(PUBACK)
    for number, client_id in enumerate(away):
        receiver = connected(skewed, client_id=client_id, **kept(5))
        for n in range(count):
            receiver.expect_message(f"t/{number}", b"%d" % n, 1)


def test_who_is_offered_a_message_stays_until_it_has_it(servers: Servers) -> None:
    """An offer at QoS 2 names the queue on the reactor that it was made to. Its client has unsubscribed
    meanwhile, and feeds another reactor: nothing else keeps it here.
    """
    server = servers("memory", 2)
    far = server.connected_on(1)
    far.subscribe("far", 0)
    publisher = server.connected_on(1, **kept(5))
    filler = server.connected_on(0)
    for trial in range(12):
        client = server.connected_on(0, **kept(5))
        client.subscribe("offer", 2)
        server.store.hold()
        filler.send(publish("filler", b"", 1, 1, retain=True))
        assert server.store.at_gate.wait(WAIT_S)
        publisher.send(publish("offer", b"%d" % trial, 2, trial + 1))
        publisher.ping()
        time.sleep(0.02)  # the offer is made, and answered
        client.send(unsubscribe(77, "offer"))
        client.send(*(publish("far", b"", 0) for _ in range(2 * MOVES_AFTER)))
        for _ in range(MOVES_AFTER):
            far.expect(PUBLISH)
        server.store.let_go()
        filler.expect(PUBACK)
        publisher.expect(PUBREC, packet_id=trial + 1)
        publisher.send(acknowledge(PUBREL, trial + 1))
        publisher.expect(PUBCOMP)
        packets = [client.receive() for _ in range(2)]
        offered = next(each for each in packets if each.kind == PUBLISH)
        assert offered.payload == b"%d" % trial
        client.acknowledge(offered)
        for _ in range(MOVES_AFTER):
            far.expect(PUBLISH)
        client.disconnect()


def test_who_moves_has_been_told_first_what_is_kept(servers: Servers) -> None:
    """And what it sends meanwhile is in order all the same."""
    server = servers("memory", 2)
    count = 3 * MOVES_AFTER
    far = server.connected_on(1, **kept(5))
    far.subscribe("far", 1)
    publisher = server.connected_on(0, **kept(5))
    publisher.send(*(publish("far", b"%d" % number, 1, number + 1) for number in range(count)))
    for number in range(count):
        publisher.expect(PUBACK, packet_id=number + 1, reason=0)
    for number in range(count):
        far.expect_message("far", b"%d" % number, 1)


class Counted:
    """Two reactors, and how many sections of rows each has given to the store: what is done here one after
    the other is a section each.
    """

    def __init__(self, server: Server) -> None:
        self.server = server
        self.sections = [0, 0]
        self.others: list[Client] = []
        self.publishers = [server.connected_on(reactor) for reactor in (0, 1)]
        for reactor in (0, 1):
            away = self.kept_on(reactor)
            away.subscribe(f"fill/{reactor}", 1)
            self.sections[reactor] += 2  # and that it goes
            away.disconnect()

    def kept_on(self, reactor: int) -> Client:
        """A client with a session that is kept; those that land on the other reactor stay there."""
        while True:
            client = connected(self.server, **kept(5))
            found = self.server.reactor_of(client)
            self.sections[found] += 1
            self.others.append(client)
            if found == reactor:
                return client

    def fill(self, reactor: int, until: int) -> None:
        while self.sections[reactor] < until:
            self.publishers[reactor].publish(f"fill/{reactor}", b"", 1)
            self.sections[reactor] += 1


def test_what_waits_for_the_store_is_sent_after_a_move(servers: Servers) -> None:
    """Though the client has waited for a section of the same number on the reactor that it comes from: among
    these clients there is one for each number around that of the section that all of them wait for.
    """
    count = 24
    server = servers("memory", 2)
    far = server.connected_on(1)
    far.subscribe("far", 0)
    reactors = Counted(server)
    clients = [reactors.kept_on(0) for _ in range(count)]
    for number, client in enumerate(clients):
        client.subscribe(f"own/{number}", 2)
        reactors.sections[0] += 1
    reactors.fill(0, reactors.sections[1] + 3 * count)
    middle = reactors.sections[0] + count // 2
    messages = []
    for number, client in enumerate(clients):
        reactors.publishers[0].publish(f"own/{number}", b"", 2)
        messages.append(client.expect(PUBLISH))
    for number, client in enumerate(clients):
        client.acknowledge(messages[number])
        client.unsubscribe(f"own/{number}")
        client.send(*(publish("far", b"", 0) for _ in range(2 * MOVES_AFTER)))
        for _ in range(2 * MOVES_AFTER):
            far.expect(PUBLISH)
    assert server.count("publishers_moved") == count
    for client in clients:
        client.subscribe("all", 2)
        reactors.sections[1] += 1
    reactors.fill(1, middle)
    reactors.publishers[1].publish("all", b"", 2)
    for client in clients:
        client.expect_message("all", b"", 2)
