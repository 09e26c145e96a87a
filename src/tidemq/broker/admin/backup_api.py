"""`POST /api/v1/backup`: a consistent copy of the running store; `GET /api/v1/backups`: those there are."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

from aiohttp import web
from pydantic import Field

from tidemq.broker.admin.api import Answer, Body, Endpoint, Query, Role, refuse
from tidemq.broker.admin.asking import LATE
from tidemq.broker.admin.controls import Controls
from tidemq.broker.durability.backup import Backup, backups_in, make_backup
from tidemq.broker.durability.storage import Storage
from tidemq.errors import StoreError, UsageError


class BackupName(Body):
    """`name`: of the folder; empty: the time."""

    name: Annotated[str, Field(pattern=r"^([A-Za-z0-9][A-Za-z0-9_-]{0,99})?$")] = ""


class ShownBackup(Answer):
    """A copy; `bytes` counts what it shares with the store, too."""

    name: str
    path: str
    made: datetime
    bytes: int


class Backups(Answer):
    """The newest last."""

    backups: list[ShownBackup]


class BackupApi:
    """The endpoints. They run on the broker's event loop."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls
        self._making = asyncio.Lock()

    def endpoints(self) -> list[Endpoint]:
        """Both."""
        return [
            Endpoint(
                method="GET",
                path="/backups",
                summary="Copies of the store in its data directory.",
                handle=self._list,
                answer=Backups,
                refusals={400: "A query.", 409: "The store has no files.", **LATE},
            ),
            Endpoint(
                method="POST",
                path="/backup",
                summary="Make a consistent copy of the store in its data directory.",
                handle=self._make,
                answer=ShownBackup,
                status=201,
                body=BackupName,
                role=Role.ADMIN,
                refusals={
                    400: "A wrong field.",
                    409: "One is being made, or has this name; there are too many; no files.",
                    413: "The body is too large.",
                    415: "The body is no JSON.",
                    **LATE,
                },
            ),
        ]

    def _storage(self) -> Storage:
        storage = self._controls.storage()
        if storage is None or storage.keeper is None or not storage.is_on_disk:
            refuse(409, "the store has no files that could be copied")
        return storage

    async def _list(self, _: web.Request, __: Query) -> Backups:
        found = await asyncio.to_thread(backups_in, self._storage().data)
        return Backups(backups=[_shown(each) for each in found])

    async def _make(self, _: web.Request, wanted: BackupName) -> ShownBackup:
        storage = self._storage()
        assert storage.keeper is not None
        if self._making.locked():
            refuse(409, "a backup is being made; accepted: one at a time")
        name = wanted.name or datetime.now(UTC).strftime("%Y%m%d-%H%M%S-%f")
        async with self._making:
            act = partial(make_backup, storage.store, storage.streams, storage.data, name)
            try:
                return _shown(await asyncio.wrap_future(storage.keeper.ask(act)))
            except UsageError as error:
                refuse(409, str(error))
            except StoreError as error:
                refuse(503, str(error))


def _shown(backup: Backup) -> ShownBackup:
    path = str(backup.path.absolute())
    return ShownBackup(name=backup.name, path=path, made=backup.made, bytes=backup.size_bytes)
