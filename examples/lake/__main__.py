"""From devices to tables, an alarm and a plot, in a minute or two: `make demo`, or `python examples/lake`.

Devices (`examples/hostmon`) publish readings, the broker keeps them in a stream, Spark brings them into Delta
tables and watches for a device that goes away, paho-mqtt gets the alarm, DuckDB reads the tables. Code 0:
all that was acknowledged is in the tables once, and the alarm was raised and cleared.

That a device is gone the broker says, by its will, and not the time that passes: on a busy machine, who is
there may be silent for long.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from datetime import datetime
from pathlib import Path
from threading import Thread
from typing import Any

import duckdb
import paho.mqtt.client as paho
from deltalake import DeltaTable
from matplotlib.figure import Figure
from paho.mqtt.enums import CallbackAPIVersion
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from tidemq import Broker, Config
from tidemq.client.streams import StreamReader
from tidemq.config import StreamConfig
from tidemq.pipeline.alerts.alert_rules import load_alert_rules
from tidemq.pipeline.alerts.watching import Alerts, run_alerts
from tidemq.pipeline.decode.payload_rules import load_rules
from tidemq.pipeline.lake.ingest import Ingest, run_ingest
from tidemq.pipeline.sources.mqtt_target import Target
from tidemq.pipeline.spark.session import spark_session

HERE = Path(__file__).parent  # with the rules
STREAM = StreamConfig(name="hosts", filters=("hosts/+/load", "hosts/+/memory", "hosts/+/+/+"))
PRESENCE = StreamConfig(name="presence", filters=("hosts/+/status",))
SUMMARY = (
    'SELECT device, count(*) AS messages, round(avg(cpu_percent), 1) AS "CPU %" FROM readings GROUP BY 1'
)
STAGES = ("acknowledged", "in the stream", "in bronze", "in silver")
PATIENCE_S = 900.0  # without anything new
KEEP_ALIVE_S = 600  # who is only slow is not gone
Counts = tuple[int, ...]  # messages by stage


class Shown:
    """How far each stage is: bars on a terminal; elsewhere lines, when something is new, seconds apart."""

    def __init__(self, console: Console, every_s: float = 5.0) -> None:
        self.console, self.every_s = console, every_s
        columns = (TextColumn("{task.description:14}"), BarColumn(None), MofNCompleteColumn())
        self.bars = Progress(*columns, console=console, disable=not console.is_terminal)
        self.tasks = [self.bars.add_task(stage, total=None) for stage in STAGES]
        self.said: Counts = ()
        self.due_s = 0.0

    def update(self, counts: Counts) -> None:
        """With the counts of now."""
        for task, count in zip(self.tasks, counts, strict=True):
            self.bars.update(task, completed=count, total=max(counts))
        if not self.console.is_terminal and counts != self.said and time.monotonic() >= self.due_s:
            self.said, self.due_s = counts, time.monotonic() + self.every_s
            self.console.print(", ".join(f"{n} {stage}" for n, stage in zip(counts, STAGES, strict=True)))


class Lake:
    """The stages between devices and tables, and how far each has got."""

    def __init__(self, mqtt: str, admin: str, folder: Path) -> None:
        rules, watched = load_rules(HERE / "rules.toml"), load_alert_rules(HERE / "alerts.toml")
        self.mqtt, self.folder, self.console = mqtt, folder, Console()
        self.stream = StreamReader(admin, "hosts")
        self.ingest = Ingest(url=admin, stream="hosts", tables=f"{folder}/tables", rules=rules)
        self.silver = self.ingest.silver(rules[0])
        self.alerts = Alerts(
            url=admin,
            stream="presence",
            mqtt=Target(mqtt),
            rules=watched,
            checkpoint=f"{folder}/alerts",
            start="earliest",
        )
        self.devices: list[subprocess.Popen[bytes]] = []
        self.alarms: dict[tuple[str, str], float] = {}  # device and what happened: when, since 1970
        self.samples: list[tuple[float, Counts]] = []  # with their times

    def run(self, rounds: int) -> bool:
        """Whether everything came through, and the alarm was raised and cleared."""
        with ExitStack() as stack:
            self.subscribe(stack)
            self.console.print("Spark starts")
            spark = stack.enter_context(spark_session("local[*]", "lake", {"spark.ui.enabled": "false"}))
            jobs = [Thread(target=run_ingest, args=(spark, self.ingest), daemon=True)]
            jobs += [Thread(target=run_alerts, args=(spark, self.alerts), daemon=True)]
            for job in jobs:
                job.start()
            shown = Shown(self.console)
            stack.enter_context(shown.bars)

            def comes(expected: Callable[[Counts], bool]) -> bool:
                """Waits for it while anything new comes at all, and shows how far each stage is."""
                newest: Counts = ()
                given_up_s = 0.0
                while all(job.is_alive() for job in jobs):
                    counts = self.count()
                    shown.update(counts)
                    if expected(counts):
                        return True
                    if counts != newest:
                        newest, given_up_s = counts, time.monotonic() + PATIENCE_S
                    if time.monotonic() >= given_up_s:
                        self.console.print(f"Nothing new for {PATIENCE_S:.0f} s")
                        return False
                    time.sleep(0.4)
                self.console.print("A job has ended; spark.log says why")
                return False

            self.start("spare", 1, stack)  # for Spark's first batches, which take longer
            if not comes(lambda n: len(set(n)) == 1 and ("spare", "raised") in self.alarms):
                return False
            self.samples.clear()
            self.console.print("Three devices publish; the press will go away until an alarm is raised")
            for name, part in (("lathe", rounds), ("mill", rounds), ("press", rounds // 5)):
                self.start(name, part, stack)
            raised = comes(lambda _: ("press", "raised") in self.alarms)
            self.start("press", rounds // 5, stack)
            cleared = comes(lambda _: ("press", "cleared") in self.alarms)
            ended = comes(lambda n: len(set(n)) == 1 and all(device.poll() == 0 for device in self.devices))
            for query in spark.streams.active:
                query.stop()
            return raised and cleared and ended

    def start(self, name: str, rounds: int, stack: ExitStack) -> None:
        """A device, whose log says how many readings were acknowledged."""
        options = f"--url {self.mqtt} --name {name} --every 0.5 --rounds {rounds} --keep-alive {KEEP_ALIVE_S}"
        command = [sys.executable, str(HERE.parent / "hostmon"), *options.split()]
        with (self.folder / f"device-{len(self.devices)}.log").open("wb") as log:
            device = subprocess.Popen(command, stdout=log, stderr=log)
        stack.callback(device.kill)
        self.devices.append(device)

    def subscribe(self, stack: ExitStack) -> None:
        """Alerts are received by paho-mqtt, and shown."""

        def show(_client: paho.Client, _data: Any, message: paho.MQTTMessage) -> None:
            alert = json.loads(message.payload)
            event = alert["topic"].split("/")[1], alert["state"]
            self.alarms.setdefault(event, datetime.fromisoformat(alert["time"]).timestamp())
            self.console.print(f"{alert['state']:8}{message.topic}")

        client = paho.Client(CallbackAPIVersion.VERSION2, protocol=paho.MQTTv5)
        client.on_message = show
        client.connect("127.0.0.1", int(self.mqtt.rpartition(":")[2]))
        client.subscribe("alerts/#", qos=1)
        client.loop_start()
        stack.callback(client.disconnect)

    def count(self) -> Counts:
        """Messages by stage; the last stage is looked at first, so that none seems to be ahead."""
        silver, bronze = (table(each.uri).shape[0] for each in (self.silver, self.ingest.bronze))
        kept = self.stream.describe().next_offset
        said = "".join(log.read_text() for log in self.folder.glob("device-*.log"))
        acknowledged = sum(map(int, re.findall(r" (\d+) readings below", said)))
        self.samples.append((time.time(), (acknowledged, kept, bronze, silver)))
        return self.samples[-1][1]

    def report(self, picture: Path) -> bool:
        """What DuckDB finds in the tables, and the plot; whether each message is in bronze once."""
        columns = "split_part(topic, '/', 2) AS device, epoch(\"at\") AS at_s, cpu_percent"
        readings = table(self.silver.uri).select(columns)
        self.console.print(readings.query("readings", SUMMARY))
        above, below = (figure := Figure((8, 6), layout="constrained")).subplots(2, sharex=True)
        begun_s = self.samples[0][0]
        for name in ("lathe", "mill", "press"):
            points = readings.filter(f"device = '{name}' AND cpu_percent IS NOT NULL")
            rows = points.select(f"at_s - {begun_s}, cpu_percent").fetchall()
            above.plot(*zip(*rows, strict=True), ".", label=name)
        silent_s = (self.alarms["press", state] - begun_s for state in ("raised", "cleared"))
        above.axvspan(*silent_s, color="tab:red", alpha=0.2, label="the press is gone")
        times = [at - begun_s for at, _ in self.samples]
        for number, stage in enumerate(STAGES):
            below.plot(times, [counts[number] for _, counts in self.samples], label=stage, lw=4 - number)
        above.set(ylabel="CPU, %", ylim=(0, 105))
        below.set(xlabel="seconds", ylabel="messages")
        above.legend()
        below.legend()
        figure.savefig(picture, dpi=80)
        acknowledged = self.samples[-1][1][0]
        found = table(self.ingest.bronze.uri).select('epoch, "offset"').fetchall()
        self.console.print(f"{acknowledged} acknowledged, {len(found)} in bronze; the plot is {picture}")
        return acknowledged == len(found) == len(set(found)) > 0


def table(uri: str) -> duckdb.DuckDBPyRelation:
    """A Delta table as DuckDB reads it; without rows where there is none yet."""
    files = DeltaTable(uri).file_uris() if DeltaTable.is_deltatable(uri) else []
    paths = [file.removeprefix("file://") for file in files]
    return duckdb.read_parquet(paths) if paths else duckdb.table_function("range", [0])


async def demonstrate(folder: Path, rounds: int) -> bool:
    """With a broker in this process; what Spark says on standard error is in a log."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port = probe.getsockname()[1]
    streams = (STREAM, PRESENCE)
    config = Config(host="127.0.0.1", port=0, admin_port=port, data=folder / "broker", streams=streams)
    with (folder / "spark.log").open("wb") as log:
        os.dup2(log.fileno(), sys.stderr.fileno())
    async with Broker(config) as broker:
        lake = Lake(f"mqtt://127.0.0.1:{broker.port}", f"http://127.0.0.1:{port}", folder)
        complete = await asyncio.to_thread(lake.run, rounds)
    lake.console.print(f"The tables and all logs are in {folder}")
    return complete and lake.report(Path("lake.png"))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="lake", description=__doc__)
    parser.add_argument("--rounds", type=int, default=60, help="of readings, two a second (default: 60)")
    options = parser.parse_args()
    shown = demonstrate(Path(tempfile.mkdtemp(prefix="tidemq-lake-")), options.rounds)
    sys.exit(0 if asyncio.run(shown) else 1)
