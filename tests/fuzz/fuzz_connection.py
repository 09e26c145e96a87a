"""Fuzzes whole connections: `python tests/fuzz/fuzz_connection.py --seconds 60 [--seed N] [--runs N]`.

A scenario is a list of steps on a few connections to an engine of two reactors: send these bytes, stop
sending, read, close, reset. The corpus is played first as it is, then scenarios made from it and from packets
that a client might send, with bytes changed, packets cut, split, joined, repeated and put in another order:
always the same for a seed. They come in by any of the listeners of `adversity.entrances`, under rules that
change all the time or under none. After every scenario a good publisher and a good receiver, who live on the
same engine all the time, must have lost nothing; after every batch the engine is closed, and nothing may be
left.

A failure prints the seed and the scenario's number, and leaves the steps in a file that `--replay` plays
again. A process of its own plays, so that the steps are kept when it dies.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import random
import select
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from adversity.doors import Visitor
from adversity.entrances import Entrances
from conformance.kit import ConnectionEnded, connected
from conformance.packets import (
    PING,
    PUBACK,
    PUBLISH,
    Will,
    acknowledge,
    auth,
    connect,
    disconnect,
    options,
    publish,
    subscribe,
    unsubscribe,
)

from tidemq.engine import (
    AuthRequest,
    ConnectRequest,
    Delivered,
    Engine,
    Fed,
    PublishRequest,
    Replaying,
    SubscribeRequest,
)
from tidemq.engine.door import rule_row
from tidemq.engine.door.events import HeldMessage
from tidemq.engine.door.listeners import ListenerRates
from tidemq.engine.door.plugin_access import PluginAccess
from tidemq.engine.door.rule_row import CLIENT_MARK, RuleRow
from tidemq.limits import Limits

CORPUS = Path(__file__).parent / "corpus" / "connection"
CONNECTIONS = 4  # of a scenario
BATCH = 150  # scenarios that one engine lives through
STEPS_MAX = 80
_REPLAYED = publish("a/b", b"replayed")
LIMITS = Limits(
    packet_bytes_max=400_000,
    topic_levels_max=8,
    queued_messages_max=200,
    queued_bytes_max=2_000_000,
    subscriptions_max=40,
    session_expiry_s_max=2,
    retained_messages_max=200,
    connect_timeout_s=1,
    backpressure_s=1,
    output_high_bytes=200_000,
    output_bytes_max=1_000_000,
    shutdown_s=1,
    event_queue_max=1000,
    spans_per_s=100,
    flapping_connects_max=30,
    flapping_window_s=1,
    flapping_ban_s=1,
    flapping_clients_max=10,
)
RATES = {"TLS": ListenerRates(client_messages_per_s=100, client_bytes_per_s=1_000_000)}

Step = tuple[str, int, str]  # what, on which connection, bytes as hexadecimal digits
Scenario = list[Step]


# --- playing


class Stage:
    """A running engine with a good pair on it, and a control plane that decides in every other batch."""

    def __init__(self, dice: random.Random) -> None:
        self.engine = Engine(LIMITS, reactors=2)
        decides = dice.random() < 0.5
        self.engine.ask_connect = self.engine.ask_subscribe = self.engine.ask_publish = decides
        self.engine.report_connections = decides
        self.plugins = PluginAccess(self.engine)
        self.held: list[HeldMessage] = []
        if dice.random() < 0.5:
            self.plugins.set_filters(["a/#", "+/b"], ["good/#", "#"])
        self.folder = tempfile.TemporaryDirectory()
        self.entrances = Entrances(self.engine, 2, Path(self.folder.name), RATES)
        self.port: int = self.entrances.doors[0].port
        self.door = dice.choice(self.entrances.doors)
        self.has_rules = dice.random() < 0.5
        self.engine.start()
        self.dice = random.Random(dice.random())
        self.delivering: set[int] = set()  # connections that were given replayed messages
        self.ending = threading.Event()
        self.control = threading.Thread(target=self.decide, args=(random.Random(dice.random()),), daemon=True)
        self.control.start()
        self.topic = f"good/{dice.random()}"
        self.receiver = connected(self, 5, f"receiver {self.topic}", session_expiry=2)
        self.receiver.subscribe(self.topic, 1)
        self.publisher = connected(self, 4, f"publisher {self.topic}")
        self.numbers = itertools.count()

    def decide(self, dice: random.Random) -> None:
        """The control plane's thread: answers, now and then twice; receives and publishes."""
        receiver = self.engine.subscribe("+/b")
        while not self.ending.is_set():
            select.select([self.engine.fileno()], [], [], 0.05)
            for event in self.engine.events():
                self.answer(event, dice)
            if dice.random() < 0.05:
                self.engine.publish("a/b", b"from within", qos=1, retain=dice.random() < 0.5)
            if dice.random() < 0.02:
                self.engine.unsubscribe(receiver)
                receiver = self.engine.subscribe(dice.choice(["a/#", "#", "$share/g/a/+"]))
            if self.has_rules and dice.random() < 0.1:
                self.engine.set_rules(draw_rules(dice))
            if dice.random() < 0.02:
                self.entrances.replace(dice, 2 * LIMITS.connect_timeout_s)

    def deliver(self, connection: int, packets: bytes) -> None:
        """Unless the last piece is still on its way: one at a time is what `Engine.deliver` wants."""
        if connection not in self.delivering:
            self.delivering.add(connection)
            self.engine.deliver(connection, packets, 1)

    def feed(self, connection: int, topic_filter: str, offset: int, dice: random.Random) -> None:
        """Messages of a stream at QoS 1, some of which it may have had already."""
        count = dice.choice([0, 1, 200])
        parts = (b"a/b", b"", b"replayed" * dice.choice([1, 1, 1000]))
        sizes = [len(part) for part in parts]
        messages = b"".join(
            struct.pack(">QIII", offset + number, *sizes) + b"".join(parts) for number in range(count)
        )
        self.engine.feed(connection, topic_filter, messages, offset + count)

    def answer(self, event: Any, dice: random.Random) -> None:
        if isinstance(event, ConnectRequest):
            good = "good/" in event.client_id
            reason = 0 if good or dice.random() < 0.9 else dice.choice([0x18, 0x87])
            self.engine.answer_connect(
                event.connection,
                reason,
                client_id=event.client_id,
                auth_data=b"step",
                username=dice.choice([None, "me", "a/#"]),
                groups=dice.choice([(), ("group",)]),
                rules=draw_rules(dice) if dice.random() < 0.1 else None,
            )
        elif isinstance(event, AuthRequest):
            own = draw_rules(dice) if dice.random() < 0.3 else None
            self.engine.answer_auth(event.connection, dice.choice([0, 0x18, 0x87]), b"step", rules=own)
        elif isinstance(event, SubscribeRequest):
            good = "good/" in event.client_id
            reasons = [0 if good or dice.random() < 0.9 else 0x87 for _ in event.filters]
            starts = b"".join(
                struct.pack(">BQQ", dice.randrange(2), dice.randrange(2), dice.randrange(4))
                for (topic_filter, _), reason in zip(event.filters, reasons, strict=True)
                if topic_filter.startswith("$stream/") and len(topic_filter) > 8 and reason == 0
            )
            why = dice.choice(["", "because", "x" * 300])
            self.engine.judge(event.connection, [topic_filter for topic_filter, _ in event.filters])
            self.engine.answer_subscribe(event.connection, reasons, why, starts)
            if not good and dice.random() < 0.5:  # to one that may have asked for no replay, or have gone
                self.deliver(event.connection, _REPLAYED * dice.choice([0, 1, 20_000]))
        elif isinstance(event, Replaying):
            [(topic_filter, _)] = event.request.filters
            if dice.random() < 0.1:
                self.engine.revoke_replay(event.request.connection, topic_filter)
            self.feed(event.request.connection, topic_filter, event.offset, dice)
            event = event.request
        elif isinstance(event, Fed):
            if dice.random() < 0.9:
                self.feed(event.connection, event.topic_filter, dice.randrange(1000), dice)
        elif isinstance(event, Delivered):
            self.delivering.discard(event.connection)
            if not event.gone and dice.random() < 0.9:
                self.deliver(event.connection, _REPLAYED)
        elif isinstance(event, HeldMessage):
            self.answer_held(event, dice)
            return
        elif isinstance(event, PublishRequest):
            good = "good/" in event.client_id
            reason = 0 if good or dice.random() < 0.9 else 0x87
            self.engine.answer_publish(event.connection, reason, ttl_s=dice.choice([0, 0.01]))
        else:
            return
        if dice.random() < 0.05:  # too late or never asked for: must be ignored
            self.engine.answer_publish(event.connection, 0)
            self.engine.answer_subscribe(event.connection, [0])
            self.engine.answer_connect(event.connection, 0, client_id="twice")

    def answer_held(self, event: HeldMessage, dice: random.Random) -> None:
        """At once, later or twice, in any order; a will is not answered."""
        self.held.append(event)
        dice.shuffle(self.held)
        while len(self.held) > dice.choice([0, 0, 3]):
            each = self.held.pop()
            changed = dice.choice([None, None, publish("a/b", b"changed", 0), b"\x30\x05abc"])
            if not each.is_will:
                answer = (each.connection, each.number, dice.choice([0, 0, 0, 0x10, 0x99]), changed)
                self.plugins.answer([answer] * dice.choice([1, 1, 2]))

    def play(self, scenario: Scenario) -> None:
        """Plays the steps, then asks whether the good pair has noticed."""
        links: dict[int, Visitor] = {}
        try:
            for what, which, data in scenario:
                if which not in links:
                    links[which] = Visitor(self.door, 5, self.dice)
                perform(links, what, which, bytes.fromhex(data))
            self.check()
        finally:
            for each in links.values():
                each.drop()

    def check(self) -> None:
        """The good pair loses nothing, and the engine takes new clients."""
        payload = b"%d" % next(self.numbers)
        self.publisher.send(publish(self.topic, payload, 1, 1, 4))
        self.publisher.expect(PUBACK, packet_id=1)
        message = self.receiver.expect(PUBLISH, topic=self.topic, payload=payload, qos=1)
        self.receiver.send(acknowledge(PUBACK, message.packet_id))
        newcomer = connected(self, 5, f"newcomer {payload.decode()} {self.topic}")
        newcomer.ping()
        newcomer.drop()

    def end(self) -> None:
        """Closes the engine; nothing of it may be left."""
        self.ending.set()
        self.control.join()
        self.engine.close()
        left = {name: value for name, value in self.engine.live_objects().items() if value}
        assert not left, f"left after close(): {left}"
        self.folder.cleanup()


def draw_rules(dice: random.Random) -> list[RuleRow]:
    """The good pair is allowed all it does."""
    both = rule_row.PUBLISH | rule_row.SUBSCRIBE
    others = [
        RuleRow(False, both, b"a/" + CLIENT_MARK),
        RuleRow(False, rule_row.PUBLISH, b"a/will", group=b"group"),
        RuleRow(False, rule_row.SUBSCRIBE, b"+/b", client=b"t*o"),
        RuleRow(False, both, b"a/#", user=b"me", messages=dice.randrange(64)),
    ]
    return [
        RuleRow(True, both, b"good/#"),
        *dice.sample(others, dice.randrange(4)),
        RuleRow(True, both, b"#"),
    ]


def perform(links: dict[int, Visitor], what: str, which: int, data: bytes) -> None:
    """One step. What the engine does to the connection is no failure: it may have ended at any moment."""
    link = links[which].socket
    try:
        if what == "send":
            link.settimeout(0.2)  # a paused connection takes no more: the rest stays unsent
            link.sendall(data)
        elif what == "read":
            link.settimeout(0.01)
            while len(link.recv(65536)) == 65536:
                pass
        elif what == "half":
            link.shutdown(socket.SHUT_WR)
        elif what == "close":
            del links[which]
            link.close()
        elif what == "reset":
            del links[which]
            link.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            link.close()
    except (OSError, ConnectionEnded):
        pass


# --- making


def make_connect(dice: random.Random, version: int) -> bytes:
    """A CONNECT; few names, so that sessions meet."""
    will = None
    if dice.random() < 0.3:
        will = Will(dice.choice(["a/b", "a/will"]), b"gone", dice.randrange(3), dice.random() < 0.3)
    named: dict[str, object] = {}
    if version == 5:
        named = dice.choice(
            [
                {},
                {"session_expiry": dice.choice([0, 1, 0xFFFFFFFF])},
                {"session_expiry": 2, "receive_max": dice.choice([1, 3, 65535]), "topic_alias_max": 3},
                {"packet_max": dice.choice([20, 200, 100_000]), "user": [("a", "b"), ("c", "d")]},
                {"auth_method": "steps", "auth_data": b"one"},
            ]
        )
    return connect(
        dice.choice(["", "one", "two", "three"]),
        version,
        clean=dice.random() < 0.5,
        keep_alive_s=dice.choice([0, 1, 60]),
        will=will,
        username=dice.choice([None, "me"]),
        **named,  # type: ignore[arg-type]
    )


def draw_trace_parent(dice: random.Random) -> str:
    """One of three that are near to a valid one, which the others are."""
    given = f"00-{dice.getrandbits(128):032x}-{dice.getrandbits(64):016x}-01"
    if dice.random() < 0.3:
        at = dice.randrange(len(given) + 1)
        return given[:at] + dice.choice(["", "g", "0", "-"]) + given[at + dice.randrange(2) :]
    return given


def make_publish(dice: random.Random, version: int) -> bytes:
    size = dice.choice([0, 1, 30, 30, 30, 3000, 40_000, 150_000])
    named: dict[str, object] = {}
    if version == 5 and dice.random() < 0.4:
        named = dice.choice(
            [
                {"topic_alias": dice.randrange(5)},
                {"message_expiry": dice.choice([0, 1, 100])},
                {"user": [("traceparent", draw_trace_parent(dice))] * 2, "content_type": "text"},
                {"user": [("k", "v")] * 3, "content_type": "text", "correlation_data": b"\0\1"},
                {"response_topic": "a/answer", "payload_format": 1},
            ]
        )
    qos = dice.randrange(3)
    topic = dice.choice(["a", "a/b", "a/b/c", "$own/a", "a/will", "" if "topic_alias" in named else "a/b"])
    flags = {"retain": dice.random() < 0.2, "dup": qos > 0 and dice.random() < 0.1}
    return publish(topic, b"x" * size, qos, dice.randrange(1, 6), version, **flags, **named)  # type: ignore[arg-type]


def make_packet(dice: random.Random, version: int) -> bytes:
    """Any packet of a client but CONNECT."""
    filters = ["a", "a/b", "+/b", "a/#", "#", "+", "$own/#", "$share/g/a/+", "$share/g/#", "$share/h/a/b"]
    filters += ["$stream/a/first/#", "$stream/"]
    kind = dice.randrange(12)
    if kind < 4:
        return make_publish(dice, version)
    if kind < 6:
        chosen = [
            (
                dice.choice(filters),
                options(dice.randrange(3), handling=dice.randrange(3) if version == 5 else 0),
            )
            for _ in range(dice.randrange(1, 4))
        ]
        named = {"subscription_id": dice.randrange(1, 300)} if version == 5 and dice.random() < 0.3 else {}
        return subscribe(dice.randrange(1, 6), *chosen, version=version, **named)
    if kind == 6:
        return unsubscribe(dice.randrange(1, 6), dice.choice(filters), version=version)
    if kind < 10:
        reason = dice.choice([0, 0, 0x80]) if version == 5 else 0
        return acknowledge(dice.choice([4, 5, 6, 7]), dice.randrange(1, 6), reason)
    if kind == 10:
        return PING
    if version == 5 and dice.random() < 0.3:
        return auth(dice.choice([0x18, 0x19]), auth_method="steps", auth_data=b"two")
    return disconnect(dice.choice([0, 4]) if version == 5 else 0)


def make_scenario(dice: random.Random) -> Scenario:
    """Steps as several clients at once might take them."""
    versions = [dice.choice([3, 4, 5]) for _ in range(CONNECTIONS)]
    steps: Scenario = []
    for _ in range(dice.randrange(3, 30)):
        which = dice.randrange(CONNECTIONS)
        fresh = not any(step[1] == which for step in steps) or steps[-1][0] in ("close", "reset")
        if fresh:
            steps.append(("send", which, make_connect(dice, versions[which]).hex()))
        kind = dice.random()
        if kind < 0.7:
            packets = [make_packet(dice, versions[which]) for _ in range(dice.choice([1, 1, 1, 2, 5]))]
            steps.append(("send", which, b"".join(packets).hex()))
        elif kind < 0.9:
            steps.append(("read", which, ""))
        else:
            steps.append((dice.choice(["half", "close", "reset"]), which, ""))
    return steps


def mutate(dice: random.Random, scenario: Scenario) -> Scenario:
    """One change of a scenario; it stays a list of steps, and some of them make no sense afterwards."""
    steps = list(scenario)
    at = dice.randrange(len(steps))
    what, which, data = steps[at]
    raw = bytearray.fromhex(data)
    kind = dice.randrange(9)
    if kind == 0 and raw:  # a byte, mostly near the front where the structure is
        place = min(int(dice.expovariate(1 / 12)), len(raw) - 1)
        raw[place] = dice.choice([raw[place] ^ 1 << dice.randrange(8), dice.randrange(256), 0, 0xFF, 0x80])
        steps[at] = (what, which, raw.hex())
    elif kind == 1 and raw:  # cut
        steps[at] = (what, which, raw[: dice.randrange(len(raw))].hex())
    elif kind == 2 and raw:  # split
        cut = dice.randrange(len(raw))
        steps[at : at + 1] = [(what, which, raw[:cut].hex()), (what, which, raw[cut:].hex())]
    elif kind == 3:  # the same again
        steps.insert(dice.randrange(len(steps)), steps[at])
    elif kind == 4:  # somewhere else
        steps.insert(dice.randrange(len(steps)), steps.pop(at))
    elif kind == 5:  # on another connection
        steps[at] = (what, dice.randrange(CONNECTIONS), data)
    elif kind == 6:  # left out
        del steps[at]
    elif kind == 7:  # joined: what one connection sends comes in one piece
        sent = "".join(each for kind_, number, each in steps if kind_ == "send" and number == which)
        rest = [step for step in steps if step[:2] != ("send", which)]
        steps = [*rest, ("send", which, sent)]
    else:  # something strange in between
        steps.insert(at, ("send", which, dice.randbytes(dice.randrange(1, 20)).hex()))
    return steps[:STEPS_MAX] or scenario


def scenarios(seed: int) -> Iterator[tuple[int, Scenario]]:
    """The corpus, then without end what is made from it; number and steps."""
    corpus = [load(path) for path in sorted(CORPUS.iterdir())]
    yield from enumerate(corpus)
    for number in itertools.count(len(corpus)):
        dice = random.Random(f"{seed}.{number}")
        scenario = dice.choice(corpus) if dice.random() < 0.3 else make_scenario(dice)
        for _ in range(dice.choice([0, 1, 2, 5])):
            scenario = mutate(dice, scenario)
        yield number, scenario


def load(path: Path) -> Scenario:
    """A scenario from a file, where `61*500` means five hundred times the byte 61."""
    steps: Scenario = []
    for what, which, data in json.loads(path.read_text()):
        runs = (word.partition("*") for word in data.split())
        steps.append((what, which, "".join(digits * int(count or 1) for digits, _, count in runs)))
    return steps


def save(path: Path, scenario: Scenario) -> None:
    """Keeps a scenario as a file, one step a line, long runs of a byte shortened."""
    lines = []
    for what, which, data in scenario:
        runs = [(byte, len(list(run))) for byte, run in itertools.groupby(bytes.fromhex(data))]
        words = "".join(f" {byte:02x}*{size} " if size > 20 else f"{byte:02x}" * size for byte, size in runs)
        lines.append(json.dumps([what, which, words.strip()]))
    path.write_text("[\n" + ",\n".join(lines) + "\n]\n")


# --- driving


def play_all(seed: int, seconds: float, runs: int, kept: Path) -> int:
    """Plays scenarios until time or number is over; the one that is being played lies in `kept`."""
    end = time.monotonic() + seconds
    stage, played = None, 0
    for number, scenario in itertools.islice(scenarios(seed), runs):
        if time.monotonic() > end:
            break
        if played % BATCH == 0:
            if stage:
                stage.end()
            stage = Stage(random.Random(f"{seed}.{number}.stage"))
        assert stage is not None
        save(kept, scenario)
        print(number, file=sys.stderr)
        stage.play(scenario)
        played += 1
    if stage:
        stage.end()
    kept.unlink(missing_ok=True)
    return played


def guarded(command: list[str], seed: int, kept: Path, crash_dir: Path) -> int:
    """Runs the player as another process; keeps the steps that ended it."""
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, env=os.environ)
    if done.returncode == 0:
        return 0
    numbers = [line for line in done.stderr.splitlines() if line.isdigit()]
    rest = "\n".join(line for line in done.stderr.splitlines() if not line.isdigit())
    print(f"seed {seed}, scenario {numbers[-1] if numbers else '?'}: status {done.returncode}\n{rest}")
    if kept.exists():
        crash = crash_dir / f"crash-connection-{seed}-{numbers[-1]}.json"
        kept.rename(crash)
        print(f"its steps are in {crash}")
    return 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--runs", type=int, default=sys.maxsize, help="scenarios in all, the corpus included")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replay", type=Path, help="play this scenario only")
    parser.add_argument("--crash-dir", type=Path, default=Path())
    parser.add_argument("--player", type=Path, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    if wanted.player:
        print(f"played {play_all(wanted.seed, wanted.seconds, wanted.runs, wanted.player)} scenarios")
        return 0
    if wanted.replay:
        stage = Stage(random.Random(wanted.seed))
        stage.play(load(wanted.replay))
        stage.end()
        return 0
    kept = wanted.crash_dir / f"crash-connection-{wanted.seed}-{os.getpid()}.json"
    command = [sys.executable, __file__, "--player", str(kept), "--seconds", str(wanted.seconds)]
    command += ["--runs", str(wanted.runs), "--seed", str(wanted.seed)]
    return guarded(command, wanted.seed, kept, wanted.crash_dir)


if __name__ == "__main__":
    raise SystemExit(main())
