"""Run brokers until Ctrl-C: `python benchmarks/peers mosquitto aedes` prints a name and a URL for each."""

from __future__ import annotations

import signal
import sys
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))  # Python knows this folder only, being told to run it

from peers import PEERS
from peers.peer import PeerMissingError, anywhere


def main(names: list[str]) -> None:
    """Exits with 1 for a name that is none, and for a broker that cannot be had or does not start."""
    known = [name for name in PEERS if name != "relay"]
    if not names or set(names) - set(known):
        sys.exit(f"usage: python benchmarks/peers NAME…, of {', '.join(known)}")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with ExitStack() as stack:
        for name in names:
            try:
                PEERS[name].install()
                running = stack.enter_context(PEERS[name].started(anywhere()))
            except (PeerMissingError, RuntimeError) as error:
                sys.exit(f"{name}: {error}")
            print(f"{name} mqtt://127.0.0.1:{running.port}", flush=True)
        try:
            signal.pause()
        except KeyboardInterrupt:
            print()


if __name__ == "__main__":
    main(sys.argv[1:])
