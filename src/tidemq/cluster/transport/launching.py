"""A program that dies with the thread that started it: `python launching.py PARENT PROGRAM ARGUMENT…`.

In a process of its own, because what a fork of the broker may do before it becomes another program is little,
and a fork with Python's hook for that copies the page tables of all its memory.
"""

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Becomes the program; exit code 125 where the parent has ended before."""
    os.umask(0o077)
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        sys.exit(f"prctl: {os.strerror(ctypes.get_errno())}")
    if os.getppid() != int(sys.argv[1]):
        sys.exit(125)
    os.execv(sys.argv[2], sys.argv[2:])


if __name__ == "__main__":
    main()
