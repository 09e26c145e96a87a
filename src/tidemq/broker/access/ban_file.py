"""Bans in a file: read at the start, and again when it changes; who is connected and banned by it then is
put out.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Annotated, NamedTuple, Self

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, model_validator

from tidemq.broker.access.bans import BANS_MAX, Ban, Bans, Kind, address_or_network
from tidemq.broker.host.toml_files import read_toml
from tidemq.broker.host.watched_files import WatchedFiles
from tidemq.config import refused
from tidemq.errors import TideMQError

BY = "bans_file"  # who has made them
FILE_BYTES_MAX = 16 << 20
_ACCEPTED = "[[bans]] with one of client_id, username, address, and if wanted reason, until (a date with Z)"
_AGAIN_S = 1.0  # after the clients could not be looked through

Name = Annotated[str | None, Field(min_length=1, max_length=65_535)]

_log = logging.getLogger("tidemq.access")


class _Entry(BaseModel):
    """One `[[bans]]` of the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    client_id: Name = None
    username: Name = None
    address: Name = None
    reason: Annotated[str, Field(max_length=1000)] = ""
    until: AwareDatetime | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if sum(each is not None for each in (self.client_id, self.username, self.address)) != 1:
            raise ValueError("it has to name one of client_id, username and address")
        if self.address is not None:
            address_or_network(self.address)
        return self

    def named(self) -> tuple[Kind, str]:
        """Whom it is about."""
        if self.client_id is not None:
            return "client_id", self.client_id
        if self.username is not None:
            return "username", self.username
        assert self.address is not None
        return "address", address_or_network(self.address)


class _File(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    bans: Annotated[list[_Entry], Field(max_length=BANS_MAX)] = []


class Connection(NamedTuple):
    """Who is connected, as far as bans are about it."""

    client_id: str
    username: str | None
    peer: str


class BanFile:
    """Gives the bans of a file to who decides. ConfigError when the file is wrong at the start; later on the
    old bans stay in force, and the log says what is wrong.
    """

    def __init__(
        self,
        path: Path,
        use: Callable[[Bans], None],
        connected: Callable[[], AsyncIterator[Connection]],
        disconnect: Callable[[str], object],
    ) -> None:
        """`connected` goes through all who are connected; `disconnect` ends the connection of one."""
        self._path = path
        self._use_bans = use
        self._connected = connected
        self._disconnect = disconnect
        self._bans = Bans()
        self._changed = asyncio.Event()
        self.counts: Counter[str] = Counter()
        self.counts["ban_reloads"] = self.counts["ban_reloads_failed"] = 0
        self._file = WatchedFiles([path], self._read, self._use)
        self._bans = self._file.value
        use(self._bans)

    async def reload(self) -> None:
        """Reads the file now. ConfigError where it is wrong; then nothing has changed."""
        await self._file.reload()

    async def watch(self) -> None:
        """Reads the file again whenever it has changed, and puts out who is banned by it; never returns."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._file.watch())
            group.create_task(self._put_out())

    def _read(self) -> Bans:
        try:
            return read_bans(self._path, self._bans)
        except TideMQError:
            self.counts["ban_reloads_failed"] += 1
            raise

    def _use(self, bans: Bans) -> None:
        self._bans = bans
        self._use_bans(bans)
        self.counts["ban_reloads"] += 1
        _log.info("%s was read again: %d bans", self._path, len(bans))
        self._changed.set()

    async def _put_out(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            try:
                await self._put_out_once()
            except (TideMQError, TimeoutError) as error:
                _log.warning("bans of %s: clients cannot be looked through: %s", self._path, error)
                self._changed.set()
                await asyncio.sleep(_AGAIN_S)

    async def _put_out_once(self) -> None:
        if not self._bans:
            return
        async for each in self._connected():
            if self._bans.find(client_id=each.client_id, username=each.username, peer=each.peer):
                self._disconnect(each.client_id)


def read_bans(path: Path, before: Bans | None = None) -> Bans:
    """Those of the file. What was there `before` keeps its date. ConfigError for a wrong file."""
    found, now_s = Bans(), time.time()
    for place, entry in enumerate(read_toml(path, _File, _ACCEPTED, FILE_BYTES_MAX).bans):
        kind, value = entry.named()
        if found.get(kind, value) is not None:
            raise refused(str(path), f"bans.{place}", f"{kind} {value!r} is there twice", [_ACCEPTED])
        old = None if before is None else before.get(kind, value)
        since_s = now_s if old is None else old.since_s
        until_s = None if entry.until is None else entry.until.timestamp()
        found.add(Ban(kind, value, entry.reason, BY, since_s, until_s))
    return found
