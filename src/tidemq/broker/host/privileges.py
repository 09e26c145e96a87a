"""Started as root, a broker gives up for good what only root may do, once its ports are bound and its secrets
read.

Everything that serves clients, and the store, is opened afterwards: files in a directory of the user's are
never opened as root.
"""

from __future__ import annotations

import grp
import importlib
import os
import pwd
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from tidemq.config import refused
from tidemq.errors import PrivilegeError


@dataclass(frozen=True, slots=True)
class Identity:
    """Who the process becomes."""

    user: str
    uid: int
    gid: int
    groups: tuple[int, ...]  # all of the user's, `gid` among them


def find_identity(user: str, group: str) -> Identity | None:
    """Whom the configuration names; None: the process stays who it is. ConfigError where it cannot."""
    if not user:
        if group:
            raise refused("configuration", "group", "it is given without a user", ["user as well"])
        return None
    try:
        found = pwd.getpwnam(user)
    except KeyError:
        raise refused(
            "configuration", "user", f"there is no user {user!r}", ["a user of this system"]
        ) from None
    try:
        gid = grp.getgrnam(group).gr_gid if group else found.pw_gid
    except KeyError:
        accepted = ["a group of this system"]
        raise refused("configuration", "group", f"there is no group {group!r}", accepted) from None
    if found.pw_uid == 0:
        raise refused("configuration", "user", f"{user!r} is root", ["a user without its rights"])
    if os.getresuid() == (found.pw_uid,) * 3 and os.getresgid() == (gid,) * 3:
        return None
    if os.geteuid() != 0:
        raise refused(
            "configuration",
            "user",
            f"only root can become {user!r}, and the broker was started by user {os.geteuid()}",
            ["none", "the broker started as root"],
        )
    return Identity(user, found.pw_uid, gid, tuple(os.getgrouplist(user, gid)))


def make_directory(path: Path, identity: Identity) -> None:
    """Makes the data directory for the user to be, mode 0700. ConfigError where one is there of another's."""
    try:
        path.mkdir(mode=0o700, parents=True)
        os.chown(path, identity.uid, identity.gid, follow_symlinks=False)
    except FileExistsError:
        owners = {path: path.stat().st_uid} | {each: each.lstat().st_uid for each in path.iterdir()}
        for each, owner in owners.items():
            if owner != identity.uid:
                command = f"chown -R {identity.user}: {path}"
                problem = f"{each} is not owned by {identity.user!r}"
                raise refused("configuration", "data", problem, [f"what this makes: {command}"]) from None
    except OSError as error:
        raise refused("configuration", "data", f"{path}: {error.strerror}", ["a directory"]) from error


def become(identity: Identity, late: Iterable[str] = ()) -> None:
    """Makes all threads of the process this user's, with no way back; PrivilegeError where one is left.

    Modules that are loaded `late` otherwise come first: the user may be unable to read where Python is.
    """
    for name in late:
        with suppress(ImportError):  # of an extra that is not installed
            importlib.import_module(name)
    # the C library changes every thread's identity, not only the caller's (nptl(7))
    os.setgroups(identity.groups)
    os.setresgid(identity.gid, identity.gid, identity.gid)
    os.setresuid(identity.uid, identity.uid, identity.uid)
    _check(identity)


def _check(identity: Identity) -> None:
    """Asks the kernel who each thread is, and tries to come back."""
    wanted = {
        "Uid": [identity.uid] * 4,
        "Gid": [identity.gid] * 4,
        "Groups": sorted(identity.groups),
        "CapPrm": [0],
        "CapEff": [0],
        "CapAmb": [0],
    }
    for thread in Path("/proc/self/task").iterdir():
        try:
            text = (thread / "status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue  # it has just ended
        lines = (line.partition(":") for line in text.splitlines())
        found = {
            name: [int(word, 16 if name.startswith("Cap") else 10) for word in words.split()]
            for name, _, words in lines
            if name in wanted
        }
        found["Groups"].sort()
        if found != wanted:
            raise PrivilegeError(f"thread {thread.name} has kept rights of root: {found}, not {wanted}")
    with suppress(PermissionError):
        os.setuid(0)
        raise PrivilegeError("the process can become root again")
