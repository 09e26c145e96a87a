"""An engine under a load from another process, for `make asan` and `make race`: what is checked here is the
engine.

    tools/variant.sh thread tests/adversity/sanitized_load.py --seconds 60

Rounds with 2 and 4 reactors, with and without decisions of the control plane, with messages and receivers of
the embedding program, ended by a stop in the middle of the load. Clients come in at listeners with and
without TLS, WebSocket, PROXY headers and limits; certificates, rules and limits are replaced meanwhile, and
clients traced. The next round starts on the same store.
Fails when the load saw nothing, when it saw what no broker may send, when the store has failed, and when
anything is left of the engine after a round.
"""

from __future__ import annotations

import argparse
import ctypes
import dataclasses
import json
import os
import random
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

from adversity.entrances import Entrances

from tidemq.broker.durability.keeper import Keeper
from tidemq.broker.providers import Options
from tidemq.config import Config
from tidemq.engine import (
    AuthRequest,
    ConnectRequest,
    Delivered,
    Engine,
    Event,
    PublishRequest,
    Received,
    Stopped,
    StoreAccess,
    SubscribeRequest,
)
from tidemq.engine.door.events import HeldMessage, Spanned, Traced
from tidemq.engine.door.listeners import ListenerRates
from tidemq.engine.door.plugin_access import PluginAccess
from tidemq.engine.door.rule_row import CLIENT_MARK, PUBLISH, SUBSCRIBE, RuleRow
from tidemq.engine.door.view import EngineView
from tidemq.limits import Limits
from tidemq.store import MemoryStore, Store
from tidemq.store.rocksdb import make_rocksdb_store
from tidemq.store.sqlite import make_sqlite_store
from tidemq.wire import Properties, Publish, encode

TESTS = Path(__file__).resolve().parents[1]
ROUNDS = [(2, False), (4, False), (2, True), (4, True)]  # reactors, whether the control plane decides
STORES: dict[str, Callable[[Config, Options], Store]] = {
    "rocksdb": make_rocksdb_store,
    "sqlite": make_sqlite_store,
    "memory": lambda config, options: MemoryStore(),
}
LIMITS = Limits(
    backpressure_s=1,
    output_high_bytes=100_000,
    output_bytes_max=1_000_000,
    queued_messages_max=2000,
    queue_window_messages=50,
    retained_ttl_s=3,
    connect_timeout_s=2,
    shutdown_s=2,
    flapping_connects_max=4,
    flapping_window_s=1,
    flapping_ban_s=1,
    flapping_clients_max=20,
    memory_bytes_max=1 << 30,
    spans_per_s=20,
)
RATES = {
    "TLS": ListenerRates(client_messages_per_s=400, listener_bytes_per_s=2_000_000),
    "WebSocket": ListenerRates(client_bytes_per_s=500_000, listener_messages_per_s=4000, connects_per_s=20),
    "PROXY": ListenerRates(connections_per_address_max=2),
}
MUST_BE_SEEN = [
    "received at QoS 0",
    "received at QoS 1",
    "received at QoS 2",
    "retained",
    "resumed",
    "acknowledged",
    "read from a diary",
    "broke off",
    "replayed",
    "came in by plain",
    "came in by TLS",
    "came in by WebSocket",
    "came in by PROXY",
    "TLS resumed",
]
MUST_BE_COUNTED = [
    "sessions_taken_over",
    "connections_moved",
    "messages_mailed",
    "publishers_paused",
    "faults",
    "dropped_expired",
    "store_rows_read",
    "refused_not_authorised",
    "subscriptions_revoked",
    "handshakes_failed",
    "clients_throttled",
    "listeners_throttled",
    "refused_address",
    "refused_flapping",
    "spans_left_out",
]
_REPLAYED = b"\x30\x07\x00\x03a/b\x00c" * 1000  # in any version
MUST_NOT_BE_COUNTED = ["store_failures", "store_corrupt_rows", "refused_store"]


def draw_rules(dice: random.Random) -> list[RuleRow]:
    """Rules that allow most."""
    both = PUBLISH | SUBSCRIBE
    denials = [
        RuleRow(False, both, b"load/1/light", client=b"*1*"),
        RuleRow(False, SUBSCRIBE, b"retained/+", group=b"other"),
        RuleRow(False, PUBLISH, b"load/+/" + CLIENT_MARK),
        RuleRow(False, both, b"load/2/#", no_user=True, network=bytes(16), prefix=dice.choice([0, 127])),
    ]
    allowing = [RuleRow(True, both, dice.choice([b"#", b"+/#"])), RuleRow(True, SUBSCRIBE, b"$SYS/#")]
    return [*dice.sample(denials, dice.randrange(3)), *allowing]


def answer(engine: Engine, event: Event, dice: random.Random) -> None:
    """The control plane's decision, mostly to allow."""
    refused = dice.random() < 0.02
    if isinstance(event, ConnectRequest):
        step = event.auth_method is not None and dice.random() < 0.5
        engine.answer_connect(
            event.connection,
            0x87 if refused else 0x18 if step else 0,
            client_id=event.client_id,
            auth_data=b"step",
            groups=dice.choice([(), ("load",), ("load", "other")]),
            rules=draw_rules(dice) if dice.random() < 0.1 else None,
        )
    elif isinstance(event, AuthRequest):
        engine.answer_auth(
            event.connection,
            dice.choice([0, 0, 0, 0x18]),
            b"step",
            username=dice.choice([None, "other"]),
            rules=draw_rules(dice) if dice.random() < 0.1 else None,
        )
    elif isinstance(event, SubscribeRequest):
        engine.answer_subscribe(event.connection, [0x87 if refused else 0] * len(event.filters))
        if any(topic_filter.startswith("$stream/") for topic_filter, _ in event.filters):
            engine.deliver(event.connection, _REPLAYED, 1000)
    elif isinstance(event, Delivered):
        if not event.gone and dice.random() < 0.5:
            engine.deliver(event.connection, _REPLAYED, 1000)
    elif isinstance(event, PublishRequest):
        engine.answer_publish(event.connection, 0x87 if refused else 0, ttl_s=dice.choice([0, 0.01]))


def answer_held(plugins: PluginAccess, event: HeldMessage, dice: random.Random) -> None:
    """A plugin's decision; a will it forgets. What diaries count is not changed, nor dropped."""
    payload, dropped = event.payload + b" changed", 0x10
    if event.topic.startswith("diary/"):
        payload, dropped = event.payload, 0
    packet = Publish(topic=event.topic, payload=payload, properties=Properties(content_type="changed"))
    changed = dice.choice([None, None, encode(packet, 5)])
    if not event.is_will:
        reason = dice.choice([0] * 50 + [dropped, 0x99])
        plugins.answer([(event.connection, event.number, reason, changed)])


def oversee(engine: Engine, view: EngineView, decides: bool, dice: random.Random) -> None:
    """As an operator does now and then: limits, whom a trace is about, bans."""
    engine.ask_connect = decides or dice.random() < 0.1
    if dice.random() < 0.05:
        view.change_limits(dataclasses.replace(LIMITS, queued_messages_max=dice.randrange(1000, 3000)))
    if dice.random() < 0.05:
        view.trace(dice.choice(["throne0", "commuter0", "author1v5"]), dice.choice(["", "127.0.0.1"]))
    elif dice.random() < 0.05:
        view.end_trace()


def embed(
    engine: Engine, entrances: Entrances, decides: bool, until: float, dice: random.Random
) -> Counter[type]:
    """Lives as an embedding program does until the time has come; returns how many of which events it got."""
    receivers: list[int] = []
    undecided: list[Event] = []  # answered later, when the client may be elsewhere, or gone
    received = Counter[type]()
    view = EngineView(engine)
    plugins = PluginAccess(engine)
    while time.monotonic() < until:
        select.select([engine.fileno()], [], [], 0.01)
        events, undecided = undecided + engine.events(), []
        for event in events:
            received[type(event)] += 1
            if dice.random() < 0.02:
                undecided.append(event)
            elif isinstance(event, HeldMessage):
                answer_held(plugins, event, dice)
            else:
                answer(engine, event, dice)
        for _ in range(5):
            engine.publish(f"load/{dice.randrange(4)}/heat", bytes(100), qos=dice.randrange(3))
        engine.publish(
            f"retained/{dice.randrange(50)}", b"x" * dice.randrange(2), retain=True, message_expiry_s=5
        )
        if len(receivers) < 4:
            receivers.append(engine.subscribe(dice.choice(["load/#", "retained/+", "$share/a/load/+/heat"])))
        elif dice.random() < 0.1:
            engine.unsubscribe(receivers.pop(dice.randrange(4)))
        if dice.random() < 0.05:
            engine.disconnect(dice.choice(["throne0", "throne1", "commuter0", "commuter1"]), 0x98)
        if dice.random() < 0.05:
            engine.set_rules(draw_rules(dice))
        if dice.random() < 0.1:
            entrances.replace(dice, 2 * LIMITS.connect_timeout_s)
        if dice.random() < 0.05:
            wanted = [["load/1/#", "load/+/heat", "#"][: dice.randrange(4)] for _ in range(2)]
            plugins.set_filters(*wanted)
        oversee(engine, view, decides, dice)
        engine.counters()
    return received


def play_round(
    reactors: int, decides: bool, seconds: float, seed: int, store: Store, folder: Path
) -> tuple[Counter[str], Counter[str]]:
    """One engine's life; its state goes on in the store, which is opened and closed here. The folder is for
    certificates. Returns what the load has seen and the engine counted.
    """
    dice = random.Random(seed)
    engine = Engine(LIMITS, reactors=reactors)
    engine.ask_connect = engine.ask_subscribe = engine.ask_publish = decides
    engine.report_connections = decides
    assert store.open() == [], "the store is damaged"
    keeper = Keeper(store, StoreAccess(engine))
    keeper.load()
    entrances = Entrances(engine, reactors, folder, RATES)
    doors = json.dumps([dataclasses.asdict(door) for door in entrances.doors])
    engine.start()
    keeper.start()
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    load = subprocess.Popen(
        [sys.executable, "-m", "adversity.load", doors, "--seconds", str(seconds), "--seed", str(seed)],
        stdout=subprocess.PIPE,
        env=plain | {"PYTHONPATH": str(TESTS)},
    )
    received = embed(engine, entrances, decides, time.monotonic() + seconds * 0.9, dice)
    engine.stop()
    while not any(isinstance(event, Stopped) for event in engine.events()):
        select.select([engine.fileno()], [], [], 0.1)
    keeper.finish()
    counters = Counter(engine.counters() | keeper.counts)
    engine.close()
    store.close()
    output, _ = load.communicate(timeout=seconds + 30)
    assert load.returncode == 0, "the load failed"
    seen = Counter[str](json.loads(output))
    alive = {name: value for name, value in engine.live_objects().items() if value}
    assert not alive, f"left after close(): {alive}"
    wrong = {name: counters[name] for name in MUST_NOT_BE_COUNTED if counters[name]}
    assert not wrong, f"the store failed: {wrong}"
    for kind in (Received, Spanned, Traced):
        assert received[kind], f"the program got no event {kind.__name__}"
    print(
        f"reactors {reactors}, decisions {decides}: {seen['published']} published, "
        f"{counters['messages_sent']} sent, {counters['connections_accepted']} connections, "
        f"{counters['sessions_taken_over']} taken over, {counters['publishers_moved']} publishers moved, "
        f"{counters['store_batches']} batches, {counters['store_rows_read']} rows read back, "
        f"{counters['dropped_expired']} expired, "
        f"{received[Received]} received by the program",
        flush=True,
    )
    return seen, counters


def play_rounds(kind: str, seconds: float, seed: int) -> None:
    """All rounds, on one store. Together they must reach everything."""
    seen, counters = Counter[str](), Counter[str]()
    with tempfile.TemporaryDirectory() as folder:
        store = STORES[kind](Config(data=Path(folder) / "data"), {})
        for index, (reactors, decides) in enumerate(ROUNDS):
            of_round = play_round(reactors, decides, seconds / len(ROUNDS), seed + index, store, Path(folder))
            seen.update(of_round[0])
            counters.update(of_round[1])
    missing = [name for name in MUST_BE_SEEN if not seen[name]]
    missing += [name for name in MUST_BE_COUNTED if not counters[name]]
    assert not missing, f"the load did not reach everything: {missing}"


def check_leaks() -> None:
    """Asks the leak sanitizer, where the program runs with one. It does not see what only a variable of a
    running Python function holds.
    """
    check = getattr(ctypes.CDLL(None), "__lsan_do_recoverable_leak_check", None)
    if check is not None and os.environ.get("LEAKS") == "1":
        assert check() == 0, "the leak sanitizer has found something"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--store", choices=STORES, default="rocksdb")
    wanted = parser.parse_args()
    play_rounds(wanted.store, wanted.seconds, wanted.seed)
    check_leaks()


if __name__ == "__main__":
    main()
