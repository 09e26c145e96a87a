"""`/api/v1`: what every endpoint has in common. A request's query and body are pydantic models, and so is the
answer: they are checked, and described in OpenAPI 3.1, by the same classes. What is refused is problem JSON
(RFC 9457), which says what was wrong and what is right.
"""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from http import HTTPStatus
from typing import Any, ClassVar, NoReturn

from aiohttp import web
from pydantic import BaseModel, ConfigDict, ValidationError
from pydantic.json_schema import models_json_schema

import tidemq

PREFIX = "/api/v1"
PROBLEM = "application/problem+json"
FIELDS = web.RequestKey("fields", dict[str, Any])  # of the body, as the audit log has them
BODY_BYTES_MAX = 1 << 20  # of a request
INPUT_SHOWN = 80  # characters of what is refused
_EXPRESSION = re.compile(r":[^}]*\}")  # which part of a path is meant, for aiohttp alone


class Role(IntEnum):
    """What a token may do; each may do what those before it may."""

    READ = 0
    OPERATE = 1
    ADMIN = 2


class Query(BaseModel):
    """A request's query; a key that is unknown is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Body(BaseModel):
    """A request's body, a JSON object; a field that is unknown is refused."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    secret: ClassVar[tuple[str, ...]] = ()  # fields that are not for the audit log


class Answer(BaseModel):
    """What an endpoint answers with."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class Problem(Answer):
    """Why a request was refused (RFC 9457)."""

    title: str
    status: int
    detail: str


# given the request, and its query, or its body where it has one; gives an Answer, or
# its JSON where there is much of it, or a whole response
Handle = Callable[[web.Request, Any], Awaitable[Answer | str | web.StreamResponse]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One path and method. `refusals`: statuses that it may answer with, and what they mean."""

    method: str
    path: str  # below PREFIX; {name} is a part of it
    summary: str
    handle: Handle
    answer: type[Answer]
    status: int = 200  # of the answer
    media: str = "application/json"  # its type
    query: type[Query] = Query
    body: type[Body] | None = None
    role: Role = Role.READ
    refusals: Mapping[int, str]

    @property
    def canonical(self) -> str:
        """The path as aiohttp names it."""
        return PREFIX + _EXPRESSION.sub("}", self.path)

    def route(self) -> web.RouteDef:
        """For an aiohttp application."""

        async def handler(request: web.Request) -> web.StreamResponse:
            asked: Query | Body = checked_query(request, self.query)
            if self.body is not None:
                asked = await checked_body(request, self.body)
                request[FIELDS] = asked.model_dump(mode="json", exclude=set(self.body.secret))
            answer = await self.handle(request, asked)
            if isinstance(answer, web.StreamResponse):
                return answer
            text = answer if isinstance(answer, str) else answer.model_dump_json()
            return web.Response(text=text, status=self.status, content_type="application/json")

        return web.route(self.method, PREFIX + self.path, handler)


def checked_query(request: web.Request, model: type[Query]) -> Query:
    """The query as the model has it; 400 for a key that is unknown, given twice or wrong."""
    given: dict[str, str] = {}
    for name, text in request.query.items():
        if name in given:
            refuse(400, f"{name} is given twice")
        given[name] = text
    try:
        return model.model_validate(given)
    except ValidationError as error:
        _refuse_wrong(error, model, "the query")


async def checked_body(request: web.Request, model: type[Body]) -> Body:
    """The body as the model has it; 400 for one that is no JSON object, or a field that is unknown or wrong;
    413 where it is too large, 415 where it says that it is something else.
    """
    if request.content_type != "application/json":
        refuse(415, f"the body is {request.content_type}; accepted: application/json")
    try:
        return model.model_validate_json(await request.read())
    except web.HTTPRequestEntityTooLarge:
        refuse(413, f"the body is too large; accepted: {BODY_BYTES_MAX} bytes")
    except ValidationError as error:
        _refuse_wrong(error, model, "the body")


def _refuse_wrong(error: ValidationError, model: type[BaseModel], whole: str) -> NoReturn:
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"]) or whole
    if first["type"] == "extra_forbidden":
        refuse(400, f"{name} is unknown; accepted: {', '.join(sorted(model.model_fields)) or 'none'}")
    refuse(400, f"{name}: {first['msg']}, not {str(first['input'])[:INPUT_SHOWN]!r}")


def refuse(status: int, detail: str) -> NoReturn:
    """Answers with problem JSON."""
    problem = Problem(title=HTTPStatus(status).phrase, status=status, detail=detail)
    text = problem.model_dump_json()
    if status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:  # its class has a signature of its own
        raise web.HTTPRequestEntityTooLarge(0, 0, text=text, content_type=PROBLEM)
    raise _KINDS[status](text=text, content_type=PROBLEM)


_KINDS: Mapping[int, type[web.HTTPError]] = {
    400: web.HTTPBadRequest,
    403: web.HTTPForbidden,
    404: web.HTTPNotFound,
    409: web.HTTPConflict,
    415: web.HTTPUnsupportedMediaType,
    429: web.HTTPTooManyRequests,
    503: web.HTTPServiceUnavailable,
}


def described(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    models: list[type[BaseModel]] = [Problem, *(each.answer for each in endpoints)]
    bodies = [each.body for each in endpoints if each.body is not None]
    _, definitions = models_json_schema(
        [(model, "serialization") for model in dict.fromkeys(models)]
        + [(model, "validation") for model in dict.fromkeys(bodies)],
        ref_template="#/components/schemas/{model}",
    )
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        paths.setdefault(endpoint.canonical, {})[endpoint.method.lower()] = _operation(endpoint)
    return {
        "openapi": "3.1.0",
        "info": {"title": "TideMQ", "version": tidemq.__version__},
        "paths": paths,
        "components": {
            "schemas": definitions["$defs"],
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{}, {"token": []}],
    }


def _operation(endpoint: Endpoint) -> dict[str, Any]:
    path = _EXPRESSION.sub("}", endpoint.path)
    parts = re.findall(r"\{(\w+)\}", path)
    parameters: list[dict[str, Any]] = [
        {"name": part, "in": "path", "required": True, "schema": {"type": "string"}} for part in parts
    ]
    schema = endpoint.query.model_json_schema()
    for name, field in schema.get("properties", {}).items():
        text = field.pop("description", "")
        parameters.append({"name": name, "in": "query", "description": text, "schema": field})
    answers = {str(endpoint.status): ("Done.", endpoint.media, endpoint.answer.__name__)}
    answers |= {str(status): (text, PROBLEM, "Problem") for status, text in endpoint.refusals.items()}
    sent: dict[str, Any] = {}
    if endpoint.body is not None:
        schema = {"$ref": f"#/components/schemas/{endpoint.body.__name__}"}
        sent = {"requestBody": {"required": True, "content": {"application/json": {"schema": schema}}}}
    return sent | {
        "summary": f"{endpoint.summary} Role: {endpoint.role.name.lower()}.",
        "operationId": f"{endpoint.method.lower()}{re.sub('[^a-z]+', '_', path).rstrip('_')}",
        "parameters": parameters,
        "responses": {
            status: {
                "description": text,
                "content": {kind: {"schema": {"$ref": f"#/components/schemas/{name}"}}},
            }
            for status, (text, kind, name) in answers.items()
        },
    }


def document_route(endpoints: Sequence[Endpoint]) -> web.RouteDef:
    """`GET /openapi.json`."""
    text = json.dumps(described(endpoints))

    async def handler(_: web.Request) -> web.Response:
        return web.Response(text=text, content_type="application/json")

    return web.get("/openapi.json", handler)
