"""Reactors ask for short time slices, and change nothing else of how they are scheduled."""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from pathlib import Path

import pytest
from waiting import until

from tidemq import Broker, Config

SCHED_GETATTR = {"x86_64": 315, "aarch64": 275}
SLICE_NS = 100_000
REACTORS = 3
LIBC = ctypes.CDLL(None, use_errno=True)
ATTRIBUTES = struct.Struct("IIQiIQQQ")  # size, policy, flags, niceness, priority, slice and two more


def kernel() -> tuple[int, int]:
    major, minor = os.uname().release.split(".")[:2]
    return int(major), int(minor)


def scheduling() -> dict[str, tuple[int, int, int]]:
    """Policy, niceness and slice of each thread of this process."""
    found = {}
    for thread in Path("/proc/self/task").iterdir():
        room = ctypes.create_string_buffer(ATTRIBUTES.size)
        number = SCHED_GETATTR[os.uname().machine]
        if LIBC.syscall(number, int(thread.name), room, ATTRIBUTES.size, 0) != 0:
            assert ctypes.get_errno() == errno.ESRCH, os.strerror(ctypes.get_errno())
            continue  # it has ended since the folder was read
        _, policy, _, niceness, _, slice_ns, _, _ = ATTRIBUTES.unpack(room.raw)
        found[thread.name] = (policy, niceness, slice_ns)
    return found


@pytest.mark.skipif(os.uname().machine not in SCHED_GETATTR, reason="the system call's number is not known")
@pytest.mark.skipif(kernel() < (6, 12), reason="slices came with Linux 6.12")
async def test_only_reactors_have_short_slices_and_the_rest_stays() -> None:
    usual = os.sched_getscheduler(0), os.getpriority(os.PRIO_PROCESS, 0)
    before = scheduling()  # threads that other tests have left may differ from what is usual
    config = Config(host="127.0.0.1", port=0, store="memory", reactors=REACTORS)

    def begun() -> list[tuple[int, int, int]]:
        return [how for thread, how in scheduling().items() if thread not in before]

    async with Broker(config):  # whose threads may only be about to begin
        await until(lambda: [slice_ns for *_, slice_ns in begun()].count(SLICE_NS) == REACTORS)
        assert {(policy, niceness) for policy, niceness, _ in begun()} == {usual}
        after = scheduling()
        assert {thread: after[thread] for thread in before.keys() & after.keys()}.items() <= before.items()
