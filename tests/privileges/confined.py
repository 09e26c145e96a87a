"""Runs a command as systemd would with the unit's filter of system calls and MemoryDenyWriteExecute.

    confined.py NAME,NAME... COMMAND...

By libseccomp, which systemd uses as well and brings with it; a call that is not named fails with EPERM.
"""

from __future__ import annotations

import ctypes
import errno
import os
import sys

PR_SET_NO_NEW_PRIVS, PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN = 38, 65, 1
SCMP_ACT_ALLOW, SCMP_ACT_EPERM = 0x7FFF0000, 0x00050000 | errno.EPERM


def confine(allowed: list[str]) -> None:
    libc, seccomp = ctypes.CDLL(None, use_errno=True), ctypes.CDLL("libseccomp.so.2")
    seccomp.seccomp_init.restype = ctypes.c_void_p
    filter_ = ctypes.c_void_p(seccomp.seccomp_init(SCMP_ACT_EPERM))
    for name in allowed:
        number = seccomp.seccomp_syscall_resolve_name(name.encode())
        if number >= 0:  # the others are of other architectures
            assert seccomp.seccomp_rule_add(filter_, SCMP_ACT_ALLOW, number, 0) == 0, name
    assert libc.prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
    if libc.prctl(PR_SET_MDWE, PR_MDWE_REFUSE_EXEC_GAIN, 0, 0, 0) != 0:
        assert ctypes.get_errno() == errno.EINVAL  # Linux before 6.3
        print("MemoryDenyWriteExecute is not tested: this kernel has no prctl for it", flush=True)
    assert seccomp.seccomp_load(filter_) == 0


if __name__ == "__main__":
    confine(sys.argv[1].split(","))
    os.execvp(sys.argv[2], sys.argv[2:])
