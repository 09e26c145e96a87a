"""A broker that serves for long: loads by clients of all kinds at all listeners, and a rest after each."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from urllib.request import Request, urlopen

from adversity.doors import Door
from adversity.entrances import issue
from collector import collecting
from soak.growth import Sample, growing, held, left_behind, take_sample
from soak.onlookers import Onlookers, drifting
from waiting import WAIT_S

from tidemq.testing.ports import free_port

TESTS = Path(__file__).resolve().parents[1]
REST_S = 45.0  # at most: sessions expire after 5 s, what is retained after 3 s, and is swept every 5 s
SETTINGS = """
host = "127.0.0.1"
port = {plain}
reactors = 2
data = "{folder}/data"
store = "{store}"
admin_port = {admin}
sys_interval_s = 1
alarm_drops_per_s = 0.0  # the loads are dropped in plenty, and an alarm is a retained message
log_level = "error"
log_format = "json"
authenticator = "chain"
acl_file = "{folder}/rules.acl"

[[authenticator_options.of]]
authenticator = "static"
users = {{ ann = "a password that no client has" }}

[[authenticator_options.of]]
authenticator = "anonymous"
remote = true

[limits]
session_expiry_s_max = 5
retained_ttl_s = 3
connect_timeout_s = 2
packet_s_max = 5
output_high_bytes = 100_000
output_bytes_max = 1_000_000
backpressure_s = 1
queued_messages_max = 2000
flapping_connects_max = 200
connections_per_address_max = 500
spans_per_s = 20

[[streams]]
name = "load"
filters = ["load/#"]
retention_bytes = 4_194_304

[[listeners]]
name = "tls"
host = "127.0.0.1"
port = {tls}
tls = {{ cert = "{folder}/localhost.pem", client_ca = "{folder}/authority.pem", client_cert = "optional" }}

[[listeners]]
name = "websocket"
host = "127.0.0.1"
port = {websocket}
websocket = {{}}

[[listeners]]
name = "proxied"
host = "127.0.0.1"
port = {proxied}
proxy_protocol = true
websocket = {{}}
tls = {{ cert = "{folder}/localhost.pem", client_ca = "{folder}/authority.pem", client_cert = "optional" }}
client_messages_per_s = 2000
"""
RULES = "deny publish load/+/%c\nallow all #\n"
MUST_BE_SEEN = [
    *("received at QoS 0", "received at QoS 1", "received at QoS 2", "retained", "resumed", "replayed"),
    *("came in by plain", "came in by TLS", "came in by WebSocket", "came in by PROXY", "TLS resumed"),
]
MUST_NOT_BE_COUNTED = ["store_failures", "store_corrupt_rows", "refused_store", "stream_messages_damaged"]


@dataclass
class Outcome:
    """What a soak has come to."""

    samples: list[Sample] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)
    problems: list[str] = field(default_factory=list)
    p99_s: list[float] = field(default_factory=list)  # of a message of QoS 1, in each round


@dataclass
class Soaked:
    """The broker, as the soak sees it."""

    process: subprocess.Popen[bytes]
    folder: Path
    admin: int
    doors: list[Door]

    @property
    def log(self) -> str:
        return (self.folder / "broker.log").read_text()

    def has_begun(self) -> bool:
        """Its own messages, in $SYS, are retained, all of them: there are no more a moment later."""
        first = self.counters()["retained"]
        time.sleep(0.5)
        return 0 < first == self.counters()["retained"]

    def counters(self) -> dict[str, int]:
        with urlopen(f"http://127.0.0.1:{self.admin}/counters", timeout=30) as answer:
            counted: dict[str, int] = json.load(answer)
        return counted

    def reload(self) -> None:
        """Has it read other certificates, and its rules, again."""
        write_files(self.folder)
        url, head = f"http://127.0.0.1:{self.admin}/reload", {"Content-Type": "application/json"}
        urlopen(Request(url, b"{}", head, method="POST"), timeout=30).close()

    def rest(self, before: dict[str, int]) -> None:
        """Waits until the engine holds no more than before; AssertionError when that does not come."""
        deadline = time.monotonic() + REST_S
        while more := left_behind(before, held(self.counters())):
            assert time.monotonic() < deadline, f"after {REST_S:.0f} s there is more than before: {more}"
            time.sleep(0.2)

    def load(self, seconds: float, seed: int) -> Counter[str]:
        """What clients have seen; AssertionError when they have seen what no broker may do."""
        doors = json.dumps([asdict(door) for door in self.doors])
        command = [sys.executable, "-m", "adversity.load", doors]
        done = subprocess.run(
            [*command, "--seconds", str(seconds), "--seed", str(seed)],
            capture_output=True,
            env=os.environ | {"PYTHONPATH": str(TESTS)},
            timeout=seconds + 120,
            check=False,
        )
        assert done.returncode == 0, done.stderr.decode()
        return Counter(json.loads(done.stdout))


def write_files(folder: Path) -> dict[str, str]:
    """Certificates of a new authority, as `issue` gives them, and the rules; each file is replaced whole."""
    made = folder / "made"
    made.mkdir(exist_ok=True)
    (made / "rules.acl").write_text(RULES)
    files = issue(made)
    for path in made.iterdir():
        path.replace(folder / path.name)
    return {name: str(folder / Path(path).name) for name, path in files.items()}


@contextmanager
def soaked(folder: Path, store: str, collector: str) -> Iterator[Soaked]:
    """A broker with an empty data directory, which sends spans to this URL; killed where it does not end by
    itself.
    """
    files = write_files(folder)
    ports = {name: free_port() for name in ("plain", "tls", "websocket", "proxied", "admin")}
    config = folder / "tidemq.toml"
    config.write_text(SETTINGS.format(folder=folder, store=store, **ports))
    secured = Door(name="TLS", port=ports["tls"], authority=files["authority"], certificate=files["client"])
    doors = [
        Door(name="plain", port=ports["plain"]),
        secured,
        Door(name="WebSocket", port=ports["websocket"], websocket=True),
        replace(secured, name="PROXY", port=ports["proxied"], websocket=True, proxied=True),
    ]
    command = [sys.executable, "-c", "from tidemq.cli import main; main()", "serve", "--config", str(config)]
    with (folder / "broker.log").open("wb") as log:
        process = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | {"OTEL_EXPORTER_OTLP_ENDPOINT": collector},
        )
    broker = Soaked(process, folder, ports["admin"], doors)
    try:
        deadline = time.monotonic() + WAIT_S
        while "is ready on" not in broker.log or not broker.has_begun():
            assert process.poll() is None, broker.log
            assert time.monotonic() < deadline, broker.log
            time.sleep(0.05)
        yield broker
    finally:
        process.kill()
        process.wait()


def soak(folder: Path, *, rounds: int, load_s: float, seed: int, store: str = "rocksdb") -> Outcome:
    """So many loads, each followed by a rest. Ends with the first round that fails."""
    outcome = Outcome()
    with collecting() as collector, soaked(folder, store, collector.url) as broker:
        onlookers = Onlookers(broker.doors[0].port, broker.admin, collector)
        try:
            with onlookers.looking():
                serve_rounds(broker, outcome, onlookers, rounds=rounds, load_s=load_s, seed=seed)
            outcome.problems += [*onlookers.problems, *drifting(outcome.p99_s), *judge(broker, outcome)]
        except AssertionError as error:
            outcome.problems += [str(error), *onlookers.problems]
    return outcome


def serve_rounds(
    broker: Soaked, outcome: Outcome, onlookers: Onlookers, *, rounds: int, load_s: float, seed: int
) -> None:
    """Loads and rests; AssertionError when a broker does not come to rest."""
    before = held(broker.counters())
    for number in range(rounds):
        outcome.seen += broker.load(load_s, seed + number)
        outcome.p99_s.append(onlookers.take_p99_s())
        broker.rest(before)
        outcome.samples.append(take_sample(broker.process.pid, broker.folder / "data"))
        print(f"round {number + 1}: {outcome.samples[-1]}", flush=True)
        broker.reload()


def judge(broker: Soaked, outcome: Outcome) -> list[str]:
    """What is wrong with a broker that has served all rounds, and with how it ends."""
    counted = broker.counters()
    problems = growing(outcome.samples)
    problems += [f"the load has never {name}" for name in MUST_BE_SEEN if not outcome.seen[name]]
    problems += [f"{name}: {counted[name]}" for name in MUST_NOT_BE_COUNTED if counted[name]]
    broker.process.terminate()
    if status := broker.process.wait(WAIT_S):
        problems.append(f"it ended with status {status}")
    if wrong := [line for line in broker.log.splitlines() if "error" in line or "Traceback" in line]:
        problems.append("\n".join(["its log:", *wrong[:20]]))
    check = [sys.executable, "-c", "from tidemq.cli import main; main()", "store", "check", "--data"]
    done = subprocess.run([*check, str(broker.folder / "data")], capture_output=True, text=True, check=False)
    if done.returncode:
        problems.append(f"its store: {done.stdout}{done.stderr}")
    return problems
