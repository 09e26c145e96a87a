"""Measure how soon a cluster is one again after a split in which both sides have filled queues.

    python benchmarks/cluster_split.py [--nodes 4] [--messages 3000000] [--queues 1000] [--payload 16]
    python benchmarks/cluster_split.py --admin http://a:18083,http://b:18083 --mqtt mqtt://a,mqtt://b \
        --cut "ssh a cut-off b" --heal "ssh a join b"

Sessions are made whose clients are away. The nodes are cut in two halves, and both sides get half of the
messages each, at the same time. Then the links are healed, and the clock runs: until all nodes have all
records of all, and until `tidemq cluster verify` says that they have stored the same. Writes a page, all
samples, and a plot.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import asdict, replace
from datetime import date
from functools import partial
from itertools import pairwise
from pathlib import Path

import cluster_split_report as report
import machine
import pages
from cluster_split_report import Found, Split
from cluster_split_watch import Watch, are_one, are_sides, queue_lengths
from disk import measure_disk
from measurement import bare, busy_cpu_s
from peers import cuttable
from peers.cuttable import CLUSTER, Cuttable, Elsewhere, Place
from workloads import PAIRS_ABSENT

from tidemq.bench.load.board import Board
from tidemq.bench.load.generator import Generator
from tidemq.bench.load.share import Share
from tidemq.bench.shares.sharing import merge_outcomes
from tidemq.bench.workload import Outcome, Workload, check_workload
from tidemq.errors import TideMQError

RESULTS = Path(__file__).parent / "results"
CONNECT_S = 120.0
IDLE_S = 60.0  # without an acknowledgement: the rest is lost
MEET_S = 60.0  # until nodes that begin, or are cut, know who is there
VERIFY_LOOK_S = 0.25
COUNT_S = 20.0  # until each session is at one node alone, when all have stored the same
DISK_RECORDS = 500


class Course:
    """One split, from its sessions to the count of what their queues have."""

    def __init__(self, cluster: Cuttable, split: Split, watch: Watch, limit_s: float) -> None:
        """`limit_s`: for each step that takes longer with more messages."""
        self.cluster, self.split, self.watch, self.limit_s = cluster, split, watch, limit_s
        self.found = Found(split)

    def play(self) -> None:
        """RuntimeError where it does not go on."""
        self.watch.until(are_one, "all nodes hear each other", MEET_S)
        self._load(self.cluster.places, replace(self.split.workload, part="whole", messages=1))
        self.watch.until(are_one, "all nodes know all sessions", MEET_S)
        self.cluster.cut()
        self._mark("cut")
        are_apart = partial(are_sides, sides=self.cluster.sides)
        self.watch.until(are_apart, "each side has the sessions of the other", MEET_S)
        time.sleep(self.split.apart_s)
        self._fill()
        self.watch.until(are_apart, "the nodes of each side have the same", self.limit_s)
        self._heal()
        self._count()
        self.found.memory_bytes = self.cluster.memory_bytes()
        self.found.disk_bytes = self.cluster.disk_bytes()

    def _mark(self, what: str, at: float | None = None) -> None:
        at = self.watch.now if at is None else at
        self.found.marks[what] = at
        print(f"{at:8.1f} s: {what}", flush=True)

    def _fill(self) -> None:
        """Both sides at once."""
        self._mark("filling")
        used = self.cluster.cpu_s()
        with ThreadPoolExecutor(2) as pool:
            load = partial(self._load, workload=self.split.workload)
            self.found.filled = list(pool.map(load, self.cluster.sides))
        self.found.cpu_s["filling"] = since(used, self.cluster.cpu_s())
        self._mark("filled")

    def _load(self, places: Sequence[Place], workload: Workload) -> Outcome:
        """The workload, shared among these nodes; RuntimeError where not all is acknowledged."""
        outcome = run_shared(workload, places)
        received = workload.deliveries if workload.part == "whole" else 0
        counts = (outcome.sent, outcome.received, outcome.ack_errors)
        all_sent = workload.publishers * workload.messages
        if outcome.end != "complete" or counts != (all_sent, received, 0):
            raise RuntimeError(f"at {', '.join(each.name for each in places)}: {outcome}")
        return outcome

    def _heal(self) -> None:
        """The clock runs."""
        samples = self.watch.samples[-1].nodes.items()
        self.found.log = {name: (each.log_records, each.log_bytes) for name, each in samples if each}
        used, own, busy = self.cluster.cpu_s(), time.process_time(), busy_cpu_s()
        self.cluster.heal()
        self._mark("healed")
        self._mark("same vectors", self.watch.until(are_one, "all have all records", self.limit_s).at)
        met = self.cluster.cpu_s()
        answer = verified(self.cluster.places[0], self.limit_s)
        self._mark("equal digests")
        all_used = since(used, self.cluster.cpu_s())
        self.found.cpu_s["to same vectors"] = since(used, met)
        self.found.cpu_s["to equal digests"] = all_used
        self.found.own_cpu_s = time.process_time() - own
        self.found.others_cpu_s = busy_cpu_s() - busy - self.found.own_cpu_s - sum(all_used.values())
        self.found.verdict, self.found.rows = answer
        if self.found.verdict != "equal":
            raise RuntimeError(f"the nodes have not stored the same: {answer}")

    def _count(self) -> None:
        """What each session has, at the node where it is."""
        deadline = time.monotonic() + COUNT_S
        while True:
            found = [queue_lengths(place) for place in self.cluster.places]
            times = Counter(client for each in found for client in each)
            lengths = [length for each in found for length in each.values()]
            self.found.queues = len(times)
            self.found.queued = sum(lengths)
            self.found.wrong = sum(length != self.split.in_queue for length in lengths)
            self.found.homes = max(times.values(), default=0)
            if self.found.is_whole:
                return
            if time.monotonic() > deadline:
                self.found.failures.append(report.what_is_wrong(self.found))
                return
            time.sleep(1.0)


def since(before: dict[str, float], now: dict[str, float]) -> dict[str, float]:
    """By kind of process; one that was started since counts from its start."""
    return {kind: used - before.get(kind, 0.0) for kind, used in now.items()}


def run_shared(workload: Workload, places: Sequence[Place]) -> Outcome:
    """All pairs of a workload, as many at each of these nodes, a thread each; ConnectionError when it cannot
    be set up.
    """
    cuts = [workload.publishers * number // len(places) for number in range(len(places) + 1)]
    parts = [range(first, last) for first, last in pairwise(cuts)]
    board = Board(workload, [Share(each, each, range(0)) for each in parts])
    generators = [Generator(workload, each.target, board, at) for at, each in enumerate(places)]
    with ThreadPoolExecutor(len(generators)) as pool:
        try:
            for _ in pool.map(lambda each: each.connect(CONNECT_S), generators):
                pass
            outcomes = list(pool.map(lambda each: each.run(IDLE_S), generators))
        finally:
            for generator in generators:
                generator.close()
    return bare(merge_outcomes(workload, outcomes))


def verified(place: Place, limit_s: float) -> tuple[str, int]:
    """What `tidemq cluster verify` says at this node, and how many rows were read; RuntimeError where it says
    nothing in time.
    """
    deadline = time.monotonic() + limit_s
    answer = place.api.ask("POST", f"{CLUSTER}/verify", body={"wait_s": min(limit_s, 3600.0)})
    while answer["outcome"] == "running":
        if time.monotonic() > deadline:
            raise RuntimeError(f"not within {limit_s:g} s: all have stored the same")
        time.sleep(VERIFY_LOOK_S)
        answer = place.api.ask("GET", f"{CLUSTER}/verify")
    if answer["outcome"] != "equal":
        print(answer, flush=True)
    return answer["outcome"], answer["rows"]


@contextmanager
def nodes_of(options: argparse.Namespace) -> Iterator[Cuttable]:
    """Those that are asked for."""
    if options.admin:
        urls = (options.admin.split(","), options.mqtt.split(","))
        places = cuttable.elsewhere(*urls, options.token_file, options.cafile)
        yield Elsewhere(places, options.cut, options.heal)
        return
    with cuttable.started(options.nodes, options.data, reactors=options.reactors) as cluster:
        yield cluster


def run(options: argparse.Namespace) -> Found:
    """The whole course; what kept it from its end is noted."""
    each = options.messages // (2 * options.queues)
    size = {"publishers": options.queues, "subscribers": options.queues, "payload_bytes": options.payload}
    workload = replace(PAIRS_ABSENT.workload, name="split", messages=each, **size)
    check_workload(workload)
    average = os.getloadavg()[0]
    disk = measure_disk(options.data, DISK_RECORDS) if not options.admin else None
    with nodes_of(options) as cluster, Watch(cluster) as watch:
        course = Course(cluster, Split(len(cluster.places), workload, options.apart), watch, options.limit)
        found = course.found
        found.load, found.disk, found.here = average, disk, not options.admin
        try:
            course.play()
        except (OSError, RuntimeError, TideMQError) as error:
            found.failures.append(str(error))
            print(found.failures[-1], flush=True)
        except KeyboardInterrupt:  # what was seen until then is shown
            found.failures.append("interrupted")
        found.samples = watch.samples
    return found


def parse_options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add: Callable[..., object] = parser.add_argument
    add("--nodes", type=int, default=4, help="that are started here")
    add("--messages", type=int, default=3_000_000, help="of both sides together")
    add("--queues", type=int, default=1000)
    add("--payload", type=int, default=16, help="bytes of a message")
    add("--apart", type=float, default=0.0, help="seconds that the sides are apart before messages come")
    add("--reactors", type=int, default=0, help="of each node; 0: together one for each core")
    add("--limit", type=float, default=3600.0, help="seconds for each step")
    temporary = Path(tempfile.gettempdir())
    add("--data", type=Path, default=temporary, help="where nodes keep their data meanwhile; on a disk")
    elsewhere = parser.add_argument_group("nodes that run elsewhere")
    add = elsewhere.add_argument
    add("--admin", default="", help="URLs of their admin listeners, with commas; first all of one side")
    add("--mqtt", default="", help="of their listeners for clients, in the same order")
    add("--token-file", default="", help="with the token of the admin listeners")
    add("--cafile", default="", help="authorities that may sign their certificates")
    add("--cut", default="", help="command that cuts the network; none: you are told when to")
    add("--heal", default="", help="command that heals it")
    add = parser.add_argument
    add("--output", type=Path, help="stem of the files to write; default: results/DATE-split-COMMIT")
    options = parser.parse_args(arguments)
    if not options.admin and options.nodes < 2:
        parser.error("a split needs two nodes")
    if options.admin.count(",") != options.mqtt.count(",") or bool(options.admin) != bool(options.mqtt):
        parser.error("--admin and --mqtt have a URL for each node")
    if options.messages < 2 * options.queues:
        parser.error("each queue gets a message on each side, at least")
    return options


def main(arguments: Sequence[str]) -> None:
    options = parse_options(arguments)
    here = machine.describe()
    found = run(options)
    stem = options.output or RESULTS / f"{date.today()}-split-{here.commit.rstrip('+')}"
    plot = report.plot_beside(stem)
    text = report.markdown(found, here, plot)
    print(text)
    pages.write(stem, text, here, {**asdict(found), "samples": [each.shown for each in found.samples]})
    if plot is not None:
        import cluster_split_plot

        cluster_split_plot.draw(found.samples, found.marks, plot)
    if found.failures:
        raise SystemExit(1)


if __name__ == "__main__":
    main(sys.argv[1:])
