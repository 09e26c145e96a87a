"""`/api/v1/log-levels`: how much is logged, by area, shown and changed while the broker runs."""

from __future__ import annotations

from typing import Literal

from aiohttp import web

from tidemq.broker.admin.api import Answer, Body, Endpoint, Query, Role
from tidemq.broker.admin.asking import LATE
from tidemq.broker.admin.controls import Controls
from tidemq.broker.logs import levels, set_level
from tidemq.config import LogArea, LogLevel


class LevelOfArea(Body):
    """The level of an area; of an empty name: of all that have none of their own. null: it has none."""

    area: LogArea | Literal[""] = ""
    level: LogLevel | None


class LogLevels(Answer):
    """The levels in force, by area; under the empty name that of all others."""

    levels: dict[str, str]


class LogApi:
    """The endpoints. They run on the broker's event loop."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    def endpoints(self) -> list[Endpoint]:
        """Both."""
        return [
            Endpoint(
                method="GET",
                path="/log-levels",
                summary="How much is logged, by area.",
                handle=self._show,
                answer=LogLevels,
                refusals={400: "A query.", **LATE},
            ),
            Endpoint(
                method="PUT",
                path="/log-levels",
                summary="Change how much is logged of an area, until the broker ends.",
                handle=self._change,
                answer=LogLevels,
                body=LevelOfArea,
                role=Role.ADMIN,
                refusals={
                    400: "A wrong field.",
                    413: "The body is too large.",
                    415: "The body is no JSON.",
                    **LATE,
                },
            ),
        ]

    async def _show(self, _: web.Request, __: Query) -> LogLevels:
        return LogLevels(levels=levels())

    async def _change(self, _: web.Request, wanted: LevelOfArea) -> LogLevels:
        set_level(wanted.area, wanted.level)
        self._controls.log_changed()
        return LogLevels(levels=levels())
