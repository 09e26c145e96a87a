"""Run a command beside processes that do nothing but compute, as on a machine that others use.

`tools/busy.py 4 .venv/bin/pytest -n 4`: four of them, at the priority that the command has.
"""

from __future__ import annotations

import subprocess
import sys

# Ends with its parent: nothing is ever written to its standard input, which the parent's end closes.
PROGRAM = """
import os, sys, threading
threading.Thread(target=lambda: (sys.stdin.read(), os._exit(0)), daemon=True).start()
while True:
    pass
"""


def main() -> int:
    number, command = int(sys.argv[1]), sys.argv[2:]
    busy = [subprocess.Popen([sys.executable, "-c", PROGRAM], stdin=subprocess.PIPE) for _ in range(number)]
    try:
        return subprocess.run(command, check=False).returncode
    finally:
        for process in busy:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main())
