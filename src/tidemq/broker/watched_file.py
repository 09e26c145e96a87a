"""A file that is read again when it has changed: passwords, keys, secrets."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Generic, TypeVar

from tidemq.config import refused
from tidemq.errors import ConfigError

CHECK_S = 1.0  # between two looks whether the file has changed
FILE_BYTES_MAX = 1 << 20  # of keys and secrets

_log = logging.getLogger("tidemq")

T = TypeVar("T")


FileVersion = tuple[int, int, int]


def file_version(path: Path) -> FileVersion:
    """Another one when the file has changed."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0)
    return (found.st_ino, found.st_size, found.st_mtime_ns)


class WatchedFile(Generic[T]):
    """What `read` makes of the file. ConfigError when that fails at the start; later on what was read before
    goes on to count, and the log says what is wrong.
    """

    def __init__(self, path: Path, read: Callable[[Path], T]) -> None:
        self._path = path
        self._read = read
        self._version = file_version(self._path)
        self._value = read(path)
        self._looked = time.monotonic()

    async def current(self) -> T:
        """The value of now, at most `CHECK_S` old. A change is read on a thread."""
        now = time.monotonic()
        if now - self._looked < CHECK_S:
            return self._value
        self._looked = now
        version = file_version(self._path)
        if version == self._version:
            return self._value
        try:
            await self.reload()
        except ConfigError as error:
            _log.error("%s; what was read before goes on to count", error)
        else:
            _log.info("%s has changed and was read again", self._path)
        return self._value

    async def reload(self) -> None:
        """Reads it now; ConfigError when that fails, and the value stays."""
        self._version = file_version(self._path)
        self._value = await asyncio.to_thread(self._read, self._path)


def read_small_file(path: Path) -> bytes:
    """The whole of a file of keys or a secret; ConfigError when it cannot be read or is too large."""
    try:
        with path.open("rb") as file:
            data = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise refused(str(path), "the file", str(error.strerror), ["a readable file"]) from error
    if len(data) > FILE_BYTES_MAX:
        raise refused(str(path), "the file", "it is too large", [f"at most {FILE_BYTES_MAX} bytes"])
    return data


def read_secret(path: Path) -> str:
    """A secret in a file of its own, its line feed left out; ConfigError when there is none."""
    try:
        text = read_small_file(path).decode().strip()
    except UnicodeDecodeError as error:
        raise refused(str(path), "the file", "it is not UTF-8", ["a line of text"]) from error
    if not text or not text.isprintable():
        raise refused(str(path), "the file", "it has no secret", ["one line of printable text"])
    return text
