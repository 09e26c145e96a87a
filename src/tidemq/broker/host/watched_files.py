"""Files that are read again when they have changed: passwords, rules, certificates, keys, secrets."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Generic, TypeVar

from tidemq.config import refused
from tidemq.errors import TideMQError

CHECK_S = 1.0  # between two looks whether the file has changed
FILE_BYTES_MAX = 1 << 20  # of keys and secrets

_log = logging.getLogger("tidemq.host")

T = TypeVar("T")

FileVersion = tuple[int, int, int, int]


def file_version(path: Path) -> FileVersion:
    """Another one when the file, its owner or its mode has changed."""
    try:
        found = path.stat()
    except OSError:
        return (0, 0, 0, 0)
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class WatchedFiles(Generic[T]):
    """What `read`, which runs on a thread, makes of some files. `use` is told of each value but the first.

    Raises what `read` raises at the start; later on the old content stays in force, and the log says
    what is wrong.
    """

    def __init__(
        self, paths: Iterable[Path], read: Callable[[], T], use: Callable[[T], None] = lambda _: None
    ) -> None:
        self._paths = tuple(paths)
        self._read = read
        self._use = use
        self._lock = asyncio.Lock()  # one that began to read earlier must not end later
        self._versions = self._look()
        self.value = read()
        self._looked = time.monotonic()

    async def current(self) -> T:
        """The value of now, at most `CHECK_S` old."""
        now = time.monotonic()
        if now - self._looked >= CHECK_S:
            self._looked = now
            await self._follow()
        return self.value

    async def watch(self) -> None:
        """Reads the files again whenever one has changed and two looks find it the same: else it is perhaps
        half written. Never returns."""
        before = self._versions
        while True:
            await asyncio.sleep(CHECK_S)
            seen = self._look()
            if seen == before:
                await self._follow()
            before = seen

    async def reload(self) -> None:
        """Reads them now; raises what `read` and `use` raise, and the value stays."""
        async with self._lock:
            self._versions = self._look()  # before: what changes meanwhile is seen next time
            value = await asyncio.to_thread(self._read)
            self._use(value)
            self.value = value

    def _look(self) -> tuple[FileVersion, ...]:
        return tuple(file_version(path) for path in self._paths)

    async def _follow(self) -> None:
        if self._look() == self._versions:
            return
        names = ", ".join(map(str, self._paths))
        try:
            await self.reload()
        except TideMQError as error:
            _log.error("%s; the old content stays in force", error)
        except Exception:  # noqa: BLE001 - a provider may raise anything
            _log.exception("%s cannot be read; the old content stays in force", names)
        else:
            _log.info("%s: a change was read", names)


def read_small_file(path: Path, bytes_max: int = FILE_BYTES_MAX) -> bytes:
    """The whole of a file; ConfigError when it cannot be read or is too large."""
    try:
        with path.open("rb") as file:
            data = file.read(bytes_max + 1)
    except OSError as error:
        raise refused(str(path), "the file", str(error.strerror), ["a readable file"]) from error
    if len(data) > bytes_max:
        raise refused(str(path), "the file", "it is too large", [f"at most {bytes_max} bytes"])
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
