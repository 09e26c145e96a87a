"""What a test started ends with the process of the tests, however that ends.

Each process of pytest starts this program, which waits for its end, `kill -9` too, and then kills whatever
carries the mark that the process put into its environment: children, their children, whoever started
them. (The kernel's own means, PR_SET_PDEATHSIG, is for children only, and for the end of a thread.)
"""

from __future__ import annotations

import os
import secrets
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

MARK = "TIDEMQ_TEST_OF"
GIVE_UP_S = 30.0  # what cannot be killed until then stays


def guard_this_process() -> None:
    """From now on; what runs already is not marked."""
    environment = {name: value for name, value in os.environ.items() if name != MARK}
    os.environ[MARK] = mark = secrets.token_hex(16)
    # A session of its own: what ends a terminal's processes ends them without it.
    subprocess.Popen(
        [sys.executable, "-ES", __file__, str(os.getpid()), mark],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment,
        start_new_session=True,
        cwd="/",
    )


def marked(mark: str) -> Iterator[int]:
    """A descriptor of each process that began with this mark in its environment."""
    line = f"{MARK}={mark}".encode()
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            process = os.pidfd_open(int(folder.name))
        except OSError:  # it has ended
            continue
        try:
            is_marked = line in (folder / "environ").read_bytes().split(b"\0")
            if is_marked:
                yield process
        except OSError:  # it has ended, or is somebody else's
            continue
        finally:
            os.close(process)


def kill_marked(mark: str) -> None:
    """Until none is left: one that is being started may be seen by the next look only."""
    deadline = time.monotonic() + GIVE_UP_S
    found = True
    while found and time.monotonic() < deadline:
        found = False
        for process in marked(mark):
            found = True
            signal.pidfd_send_signal(process, signal.SIGKILL)
        time.sleep(0.02)


def main() -> None:
    parent, mark = int(sys.argv[1]), sys.argv[2]
    process = os.pidfd_open(parent)
    if os.getppid() == parent:  # else it has ended already
        select.select([process], [], [])
    kill_marked(mark)


if __name__ == "__main__":
    main()
