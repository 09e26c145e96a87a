"""`/api/v1/limits` and `/api/v1/reload`: what of the configuration changes while the broker runs."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from aiohttp import web
from pydantic import Field, create_model

from tidemq.broker.admin.api import Answer, Body, Endpoint, Query, Role, refuse
from tidemq.broker.admin.asking import LATE
from tidemq.broker.admin.controls import Controls
from tidemq.config import LIMIT_RANGES
from tidemq.errors import UsageError
from tidemq.limits import CHANGEABLE


class ShownLimits(Answer):
    """All limits in force; `changeable`: those that change without a restart."""

    limits: dict[str, int]
    changeable: list[str]


class Reloaded(Answer):
    """What was read again, and what could not be, with the reason. `changed`: keys of the configuration whose
    new values are in force now; `needs_restart`: keys whose values are not.
    """

    reloaded: list[str]
    failed: dict[str, str]
    changed: list[str]
    needs_restart: list[str]


class Nothing(Body):
    """An empty object."""


def _field(low: int, high: int) -> Any:
    return (Annotated[int | None, Field(ge=low, le=high, strict=True)], None)


LimitsChange = create_model(
    "LimitsChange", __base__=Body, **{name: _field(*LIMIT_RANGES[name]) for name in CHANGEABLE}
)
LimitsChange.__doc__ = "Limits that are to change, until the broker ends."


class SettingsApi:
    """The endpoints. They run on the broker's event loop."""

    def __init__(self, controls: Controls) -> None:
        self._controls = controls

    def endpoints(self) -> list[Endpoint]:
        """All of them."""
        wrong = {
            400: "A wrong field.",
            413: "The body is too large.",
            415: "The body is no JSON.",
            **LATE,
        }
        return [
            Endpoint(
                method="GET",
                path="/limits",
                summary="The limits in force.",
                handle=self._show,
                answer=ShownLimits,
                refusals={400: "A query.", **LATE},
            ),
            Endpoint(
                method="PATCH",
                path="/limits",
                summary="Change limits until the broker ends; what is there already stays.",
                handle=self._change,
                answer=ShownLimits,
                body=LimitsChange,
                role=Role.ADMIN,
                refusals=wrong,
            ),
            Endpoint(
                method="POST",
                path="/reload",
                summary="Read again what can change: the configuration, passwords, rules, certificates.",
                handle=self._reload,
                answer=Reloaded,
                body=Nothing,
                role=Role.ADMIN,
                refusals=wrong,
            ),
        ]

    async def _show(self, _: web.Request, __: Query) -> ShownLimits:
        return ShownLimits(limits=asdict(self._controls.settings().limits), changeable=list(CHANGEABLE))

    async def _change(self, request: web.Request, wanted: Body) -> ShownLimits:
        given = wanted.model_dump(exclude_none=True)
        try:
            self._controls.settings().change_limits(given)
        except UsageError as error:
            refuse(400, str(error))
        return await self._show(request, Query())

    async def _reload(self, _: web.Request, __: Nothing) -> Reloaded:
        done = await self._controls.reload()
        settings = self._controls.settings()
        self._controls.log_changed()
        return Reloaded(
            reloaded=[name for name, text in done.items() if not text],
            failed={name: text for name, text in done.items() if text},
            changed=settings.changed,
            needs_restart=settings.needs_restart,
        )
