"""Users and the hashes of their passwords in a file, one `NAME:HASH` a line, as Mosquitto's password file.

`tidemq passwd` writes it, and it is read again when it has changed. To check a password takes tens of
milliseconds on purpose, so it is done on a few threads, and what was right is remembered, as a keyed hash in
memory, so that a client that comes back is let in at once.

A user has one line. With an argon2id hash he logs in by his password; with what `scram` keeps by
SCRAM-SHA-256, and by his password too unless `plain = false`. To keep both of one password would make it as
easy to guess as the weaker of the two. What is said to a user that is not there is made up by a key that the
file has in the line `:$key$BASE64`, so that it stays the same.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import fcntl
import hashlib
import logging
import os
import secrets
import stat
import tempfile
from collections import OrderedDict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from pydantic import BaseModel, ConfigDict, StrictBool

from tidemq.broker.authenticators import scram
from tidemq.broker.authenticators.password_hashes import check_form, hash_password, matches
from tidemq.broker.host.watched_files import WatchedFiles, file_version
from tidemq.broker.providers import (
    BAD_AUTHENTICATION_METHOD,
    BAD_USER_NAME_OR_PASSWORD,
    NOT_AUTHORIZED,
    UNKNOWN,
    Challenge,
    Options,
    Verdict,
    read_options,
)
from tidemq.config import Config, refused
from tidemq.engine.door.events import AuthRequest, ConnectRequest
from tidemq.errors import UsageError

REMEMBERED_MAX = 100_000  # passwords that were right
_THREADS_MAX = 4  # that check passwords, each with 19 MiB
_log = logging.getLogger("tidemq.access")
_KEY_BYTES = 32
_KEY_FORM = ":$key$"  # no user has this name: MQTT's may be empty, those of a file may not


class Users:
    """What a password file has: hashes by user name, and a key, by which is made up what a user who is not
    there is told. Without one it holds as long as this object."""

    def __init__(self, hashes: dict[str, str], key: bytes | None) -> None:
        self.hashes = hashes
        self.has_key = key is not None
        self._key = key or secrets.token_bytes(_KEY_BYTES)
        self.keys = {
            name: scram.parse_keys(hashed)
            for name, hashed in hashes.items()
            if hashed.startswith(scram.METHOD)
        }
        self._all_hashes = tuple(hashes.values())
        self._all_keys = tuple(self.keys.values())

    def decoy_hash(self, name: str, nobody: str) -> str:
        """Somebody's hash, so that a user who is not there is found out as slowly as one who is; `nobody`
        where there are none."""
        return self._all_hashes[self._draw(name) % len(self._all_hashes)] if self._all_hashes else nobody

    def find_keys(self, name: str) -> tuple[scram.Keys, bool]:
        """A user's keys and True, or made-up ones, which are as much work and look like somebody's. There
        must be a user with keys."""
        like = self._all_keys[self._draw(name) % len(self._all_keys)]
        made_up = scram.make_up(like, self._key, name)
        return self.keys.get(name, made_up), name in self.keys

    def _draw(self, name: str) -> int:
        """A number that is always the same for a name, and cannot be told without the key."""
        return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8, key=self._key).digest())


def read_password_file(path: Path) -> Users:
    """Reads all lines; ConfigError names a wrong one. Empty ones and those with # in front are left out."""
    try:
        lines = _lines(path)
    except OSError as error:
        raise refused(str(path), "the file", str(error.strerror), ["a readable file"]) from error
    except UnicodeDecodeError as error:
        raise refused(str(path), "the file", "it is not UTF-8", ["lines NAME:HASH"]) from error
    users: dict[str, str] = {}
    key: bytes | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        if line.startswith(_KEY_FORM):
            key = _parse_key(path, number, line)
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
    return Users(users, key)


def _lines(path: Path) -> list[str]:
    """With line feeds of any system's, and the mark that some editors put in front."""
    return path.read_text(encoding="utf-8-sig").splitlines()


def _parse_key(path: Path, number: int, line: str) -> bytes:
    try:
        key = base64.b64decode(line.strip().removeprefix(_KEY_FORM), validate=True)
    except binascii.Error:
        key = b""
    if len(key) != _KEY_BYTES:
        accepted = [f"{_KEY_FORM} and {_KEY_BYTES} bytes in Base64"]
        raise refused(str(path), f"line {number}", "the key is not whole, or damaged", accepted)
    return key


def change_password_file(
    path: Path, user: str, password: bytes | None, scram_iterations: int | None = None
) -> None:
    """Gives a user this password, for SCRAM where there is a number of iterations, or takes the user out
    (None). The file is replaced at once; its owner, its mode and other lines stay as they are. A new one is
    readable by its owner only. Two at a time wait for each other.

    UsageError for a user name that cannot be, or one that is not there to be taken out, and for a password
    that SCRAM cannot take; ConfigError where the file is wrong already; OSError where it cannot be written.
    """
    if not user or ":" in user or user.startswith("#") or not user.isprintable() or user != user.strip():
        raise UsageError(f"the user name {user!r} cannot be: no colon, no # in front, no line feed")
    path = path.resolve()  # a link stays one
    with _alone_with(path):
        known = read_password_file(path)
        if password is None and user not in known.hashes:
            raise UsageError(f"{path} has no user {user!r}")
        kept = [
            line for line in _lines(path) if line.startswith("#") or line.strip().partition(":")[0] != user
        ]
        if password is not None and scram_iterations is None:
            kept.append(f"{user}:{hash_password(password)}")
        elif password is not None and scram_iterations is not None:
            scram.check_name(user)
            if not known.has_key:
                key = base64.b64encode(secrets.token_bytes(_KEY_BYTES)).decode()
                kept.insert(0, f"{_KEY_FORM}{key}")
            kept.append(f"{user}:{scram.hash_for_scram(password, scram_iterations)}")
        _replace(path, "".join(f"{line}\n" for line in kept))


@contextmanager
def _alone_with(path: Path) -> Iterator[None]:
    """One process at a time: else of what two have written the one would be lost. A lock of the file itself,
    which those who may not read it cannot hold. A file that is not there is made, empty, and goes again where
    nothing is written.
    """
    while True:
        descriptor = os.open(path, os.O_RDONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            if not _is_still(path, descriptor):  # it was replaced meanwhile
                continue
            empty = os.fstat(descriptor).st_size == 0
            try:
                yield
            except BaseException:
                if empty:
                    path.unlink()
                raise
            return
        finally:
            os.close(descriptor)


def _is_still(path: Path, descriptor: int) -> bool:
    return file_version(path)[0] == os.fstat(descriptor).st_ino


def _replace(path: Path, text: str) -> None:
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")  # mode 0600
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            with suppress(FileNotFoundError):
                before = path.stat()
                os.fchown(descriptor, before.st_uid, before.st_gid)
                os.fchmod(descriptor, stat.S_IMODE(before.st_mode))
            file.write(text)
            file.flush()
            os.fsync(descriptor)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


class PasswordFile:
    """The authenticator `password_file`. ConfigError when the file cannot be read at the start."""

    def __init__(self, path: Path, *, plain: bool = True) -> None:
        """`plain`: whether a password may come as it is, in CONNECT."""
        self._plain = plain
        self._file = WatchedFiles([path], partial(self._read, path))
        self._threads = ThreadPoolExecutor(
            min(_THREADS_MAX, os.cpu_count() or 1), thread_name_prefix="tidemq-password"
        )
        self._key = secrets.token_bytes(32)
        self._right: OrderedDict[bytes, None] = OrderedDict()
        self._nobody = hash_password(secrets.token_bytes(16))

    async def authenticate(self, request: ConnectRequest) -> Verdict:
        """Accepts a known user with the right password."""
        if not self._plain:
            return Verdict(NOT_AUTHORIZED, f"log in by {scram.METHOD}: passwords are not taken as they are")
        users = await self._file.current()
        password = request.password or b""
        name = request.username or ""
        hashed = users.hashes.get(name)
        mark = self._mark(hashed, password) if hashed else b""
        if mark in self._right:
            self._right.move_to_end(mark)
            return Verdict()
        loop = asyncio.get_running_loop()
        checked = hashed or users.decoy_hash(name, self._nobody)
        same = await loop.run_in_executor(self._threads, matches, checked, password)
        if not hashed:
            return UNKNOWN
        if not same:
            return Verdict(BAD_USER_NAME_OR_PASSWORD)
        self._right[mark] = None
        if len(self._right) > REMEMBERED_MAX:
            self._right.popitem(last=False)
        return Verdict()

    async def converse(self, request: ConnectRequest | AuthRequest, challenge: Challenge) -> Verdict:
        """SCRAM-SHA-256, where any user has a line for it."""
        users = await self._file.current()
        if request.auth_method != scram.METHOD or not users.keys:
            return Verdict(BAD_AUTHENTICATION_METHOD)
        return await scram.prove(request, challenge, users.find_keys)

    async def close(self) -> None:
        """Lets the threads end."""
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _read(self, path: Path) -> Users:
        users = read_password_file(path)
        shut_out = len(users.hashes) - len(users.keys)
        if shut_out and not self._plain:
            _log.warning("%s: %d users have no line for SCRAM and cannot log in", path, shut_out)
        return users

    def _mark(self, hashed: str, password: bytes) -> bytes:
        """What a right password is remembered by; a changed hash makes it another."""
        return hashlib.blake2b(len(hashed).to_bytes(4) + hashed.encode() + password, key=self._key).digest()

    async def reload(self) -> None:
        """Reads the file now. ConfigError where it is wrong; the old users stay in force."""
        await self._file.reload()


class PasswordFileOptions(BaseModel):
    """Where the users are."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    file: Path
    plain: StrictBool = True  # whether a password may come as it is, in CONNECT


def make_password_file(_: Config, options: Options) -> PasswordFile:
    """The entry point `password_file`."""
    given = read_options("password_file", PasswordFileOptions, options)
    return PasswordFile(given.file, plain=given.plain)
