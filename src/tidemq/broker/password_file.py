"""Users and the hashes of their passwords in a file, one `NAME:HASH` a line, as Mosquitto's password file.

`tidemq passwd` writes it, and it is read again when it has changed. To check a password takes tens of
milliseconds on purpose, so it is done on a few threads, and what was right is remembered, as a keyed hash in
memory, so that a client that comes back is let in at once.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import secrets
import tempfile
import time
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tidemq.broker.passwords import check_form, hash_password, matches
from tidemq.broker.providers import BAD_USER_NAME_OR_PASSWORD, Verdict
from tidemq.config import Config, refused, unknown_name
from tidemq.engine.events import ConnectRequest
from tidemq.errors import ConfigError, UsageError

CHECK_S = 1.0  # between two looks whether the file has changed
REMEMBERED_MAX = 100_000  # passwords that were right
_THREADS_MAX = 4  # that check passwords, each with 19 MiB

_log = logging.getLogger("tidemq")


def read_password_file(path: Path) -> dict[str, str]:
    """Hashes by user name; ConfigError names the line. Empty lines and those with # in front are left out."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise refused(str(path), "the file", str(error.strerror), ["a readable file"]) from error
    except UnicodeDecodeError as error:
        raise refused(str(path), "the file", "it is not UTF-8", ["lines NAME:HASH"]) from error
    users: dict[str, str] = {}
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, colon, hashed = line.strip().partition(":")
        if not colon or not name:
            raise refused(str(path), f"line {number}", "it has no user or no hash", ["NAME:HASH"])
        if name in users:
            raise refused(str(path), f"line {number}", f"the user {name!r} has a line already", ["one"])
        try:
            check_form(hashed)
        except UsageError as error:
            raise refused(
                str(path), f"line {number}", f"the hash of {name!r}: {error}", ["NAME:HASH"]
            ) from error
        users[name] = hashed
    return users


def change_password_file(path: Path, user: str, password: bytes | None) -> None:
    """Gives a user this password, or takes the user out (None). The file is replaced at once, readable by its
    owner only; other lines stay as they are. UsageError for a user name that cannot be, or one that is not
    there to be taken out; ConfigError where the file is wrong already.
    """
    if not user or ":" in user or user.startswith("#") or not user.isprintable() or user != user.strip():
        raise UsageError(f"the user name {user!r} cannot be: no colon, no # in front, no line feed")
    there = path.exists()
    known = read_password_file(path) if there else {}
    if password is None and user not in known:
        raise UsageError(f"{path} has no user {user!r}")
    lines = path.read_text(encoding="utf-8").splitlines() if there else []
    kept = [line for line in lines if line.startswith("#") or line.strip().partition(":")[0] != user]
    if password is not None:
        kept.append(f"{user}:{hash_password(password)}")
    _replace(path, "".join(f"{line}\n" for line in kept))


def _replace(path: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


class PasswordFile:
    """The authenticator `password_file`. ConfigError when the file cannot be read at the start; later on what
    was read before goes on to count, and the log says what is wrong.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version = self._look()
        self._users = read_password_file(path)
        self._looked = time.monotonic()
        self._threads = ThreadPoolExecutor(
            min(_THREADS_MAX, os.cpu_count() or 1), thread_name_prefix="tidemq-password"
        )
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._nobody = hash_password(
            secrets.token_bytes(16)
        )  # an unknown user is found out as slowly as a known

    async def authenticate(self, request: ConnectRequest) -> Verdict:
        """Accepts a known user with the right password."""
        await self._reload()
        password = request.password or b""
        hashed = self._users.get(request.username or "")
        mark = self._mark(hashed, password) if hashed else b""
        if mark in self._right:
            self._right.move_to_end(mark)
            return Verdict()
        loop = asyncio.get_running_loop()
        same = await loop.run_in_executor(self._threads, matches, hashed or self._nobody, password)
        if not (hashed and same):
            return Verdict(BAD_USER_NAME_OR_PASSWORD)
        self._right[mark] = None
        if len(self._right) > REMEMBERED_MAX:
            self._right.popitem(last=False)
        return Verdict()

    def _mark(self, hashed: str, password: bytes) -> bytes:
        """What a right password is remembered by; a changed hash makes it another."""
        return hashlib.blake2b(len(hashed).to_bytes(4) + hashed.encode() + password, key=self._key).digest()

    async def _reload(self) -> None:
        now = time.monotonic()
        if now - self._looked < CHECK_S:
            return
        self._looked = now
        version = self._look()
        if version == self._version:
            return
        self._version = version
        try:
            self._users = await asyncio.to_thread(read_password_file, self._path)
        except ConfigError as error:
            _log.error("%s; the users that were read before go on to count", error)
        else:
            _log.info("%s was read again: %d users", self._path, len(self._users))

    def _look(self) -> tuple[int, int, int]:
        """Another one when the file has changed."""
        try:
            found = self._path.stat()
        except OSError:
            return (0, 0, 0)
        return (found.st_ino, found.st_size, found.st_mtime_ns)


def make_password_file(config: Config) -> PasswordFile:
    """Reads `authenticator_options.file`."""
    options = config.authenticator_options
    for name in options.keys() - {"file"}:
        raise unknown_name("configuration", f"authenticator_options.{name}", name, ("file",))
    file = options.get("file")
    if not isinstance(file, str) or not file:
        raise refused("configuration", "authenticator_options.file", f"{file!r}", ["a path"])
    return PasswordFile(Path(file))
