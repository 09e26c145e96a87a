"""What is forked for a test holds no end of its own pipes, whatever the process of the tests has closed."""

from __future__ import annotations

import os
import subprocess

import forks
from waiting import WAIT_S


def test_who_has_closed_its_input_gives_none_of_a_childs_pipes_in_its_place() -> None:
    forks.run("--help")  # the process that forks is there before
    kept = os.dup(0)
    os.close(0)
    try:
        words = ["serve", "--store", "memory", "--host", "127.0.0.1", "--port", "0"]
        process = forks.Tidemq(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert process.stdout is not None
        taken = process.stdout.fileno()
        process.stdout.readline()  # it is what it is to be
        reads = os.readlink(f"/proc/{process.pid}/fd/0")
        process.terminate()
        process.communicate(timeout=WAIT_S)
    finally:
        os.dup2(kept, 0)
        os.close(kept)
    assert taken == 0
    assert reads == os.devnull
