"""An engine under a load from another process, for `make asan` and `make race`: what is checked here is the
engine.

    tools/sanitize.sh thread tests/adversity/sanitized_load.py --seconds 60

Rounds with 2 and 4 reactors, with and without decisions of the control plane, with messages and receivers of
the embedding program, ended by a stop in the middle of the load. The state of one round is the next one's
start. Fails when the load saw nothing, when it saw what no broker may send, and when anything is left of the
engine after a round.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import random
import select
import subprocess
import sys
import time
from pathlib import Path

from tidemq.broker.keeper import Keeper
from tidemq.engine import (
    AuthRequest,
    ConnectRequest,
    Engine,
    Event,
    PublishRequest,
    Received,
    Stopped,
    StoreAccess,
    SubscribeRequest,
)
from tidemq.limits import Limits
from tidemq.store import MemoryStore

TESTS = Path(__file__).resolve().parents[1]
ROUNDS = [(2, False), (4, False), (2, True), (4, True)]  # reactors, whether the control plane decides
LIMITS = Limits(
    backpressure_s=1,
    output_high_bytes=100_000,
    output_bytes_max=1_000_000,
    queued_messages_max=2000,
    queue_window_messages=50,
    connect_timeout_s=2,
    shutdown_s=2,
    memory_bytes_max=1 << 30,
)
MUST_BE_SEEN = [
    "received at QoS 0",
    "received at QoS 1",
    "received at QoS 2",
    "retained",
    "resumed",
    "acknowledged",
    "read from a diary",
]
MUST_BE_COUNTED = [
    "sessions_taken_over",
    "connections_moved",
    "messages_mailed",
    "publishers_paused",
    "faults",
]


def answer(engine: Engine, event: Event, dice: random.Random) -> None:
    """The control plane's decision, mostly to allow."""
    refused = dice.random() < 0.02
    if isinstance(event, ConnectRequest):
        engine.answer_connect(event.connection, 0x87 if refused else 0, client_id=event.client_id)
    elif isinstance(event, AuthRequest):
        engine.answer_auth(event.connection, 0)
    elif isinstance(event, SubscribeRequest):
        engine.answer_subscribe(event.connection, [0x87 if refused else 0] * len(event.filters))
    elif isinstance(event, PublishRequest):
        engine.answer_publish(event.connection, 0x87 if refused else 0)


def embed(engine: Engine, until: float, dice: random.Random) -> int:
    """Lives as an embedding program does until the time has come; returns how many messages it received."""
    receivers: list[int] = []
    received = 0
    while time.monotonic() < until:
        select.select([engine.fileno()], [], [], 0.01)
        for event in engine.events():
            received += isinstance(event, Received)
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
        engine.counters()
    return received


def play_round(reactors: int, decides: bool, seconds: float, seed: int, store: MemoryStore) -> None:
    """One engine's life; its state goes on in the store."""
    dice = random.Random(seed)
    engine = Engine(LIMITS, reactors=reactors)
    engine.ask_connect = engine.ask_subscribe = engine.ask_publish = decides
    engine.report_connections = decides
    keeper = Keeper(store, StoreAccess(engine))
    keeper.load()
    port = engine.listen("127.0.0.1", 0)
    engine.start()
    keeper.start()
    plain = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    load = subprocess.Popen(
        [sys.executable, "-m", "adversity.load", str(port), "--seconds", str(seconds), "--seed", str(seed)],
        stdout=subprocess.PIPE,
        env=plain | {"PYTHONPATH": str(TESTS)},
    )
    received = embed(engine, time.monotonic() + seconds * 0.9, dice)
    counters = engine.counters()
    engine.stop()
    while not any(isinstance(event, Stopped) for event in engine.events()):
        select.select([engine.fileno()], [], [], 0.1)
    keeper.finish()
    engine.close()
    output, _ = load.communicate(timeout=seconds + 30)
    assert load.returncode == 0, "the load failed"
    seen = json.loads(output)
    alive = {name: value for name, value in engine.live_objects().items() if value}
    assert not alive, f"left after close(): {alive}"
    missing = [name for name in MUST_BE_SEEN if not seen.get(name)]
    missing += [name for name in MUST_BE_COUNTED if not counters[name]]
    assert not missing, f"the load did not reach everything: {missing}"
    assert received, "the program received nothing"
    print(
        f"reactors {reactors}, decisions {decides}: {seen['published']} published, "
        f"{counters['messages_sent']} sent, {counters['connections_accepted']} connections, "
        f"{counters['sessions_taken_over']} taken over, {counters['publishers_moved']} publishers moved, "
        f"{received} received by the program",
        flush=True,
    )


def check_leaks() -> None:
    """Asks the leak sanitizer, where the program runs with one."""
    check = getattr(ctypes.CDLL(None), "__lsan_do_recoverable_leak_check", None)
    if check is not None and os.environ.get("LEAKS") == "1":
        assert check() == 0, "the leak sanitizer has found something"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    wanted = parser.parse_args()
    store = MemoryStore()
    for index, (reactors, decides) in enumerate(ROUNDS):
        play_round(reactors, decides, wanted.seconds / len(ROUNDS), wanted.seed + index, store)
    check_leaks()


if __name__ == "__main__":
    main()
