"""The authenticator and the authoriser `webhook`: an HTTP server decides. docs/security.md has the bodies.

What it answers is remembered for a time under a keyed hash of the question, in which the password is. The
same question is asked once at a time, whoever waits for it. A server that fails again and again is left alone
for a while. So a server that is slow or gone costs those who need it, in time and number, and nobody else.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import secrets
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictFloat, StrictInt, ValidationError

from tidemq.broker.access.remembered import Remembered
from tidemq.broker.authenticators.claims import AclClaim, Name, rules_of
from tidemq.broker.authenticators.http_client import CallFailedError, HttpClient, Url, shown_url
from tidemq.broker.circuit_breaker import CircuitBreaker
from tidemq.broker.host.watched_files import WatchedFiles, read_secret
from tidemq.broker.providers import (
    BAD_USER_NAME_OR_PASSWORD,
    SERVER_UNAVAILABLE,
    Access,
    Options,
    Verdict,
    read_options,
)
from tidemq.config import Config
from tidemq.engine.door.events import ConnectRequest

GROUPS_MAX = 1000
SERVER_IN_TROUBLE = (408, 429)  # these of 4xx are not about the question (RFC 9110, RFC 6585)

WEBHOOK_COUNTERS = (
    "webhook_calls",
    "webhook_calls_failed",
    "webhook_answers_remembered",
    "webhook_answers_shared",
    "webhook_answers_evicted",
    "webhook_circuit_opened",
    "webhook_refused_circuit_open",
    "webhook_refused_over_quota",
)

_log = logging.getLogger("tidemq.access")


class QuestionRefusedError(CallFailedError):
    """The server is there, and cannot make anything of this question: no reason not to ask another."""


class WebhookOptions(BaseModel):
    """Of either webhook."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    url: Url
    ca_file: Path | None = None  # certificates of the authorities to trust; None: the system's
    secret_file: Path | None = None  # holds the value of the header below
    secret_header: Annotated[str, Field(pattern=r"^[A-Za-z0-9-]{1,64}$")] = "Authorization"
    timeout_s: Annotated[StrictFloat, Field(gt=0, le=300)] = 3.0  # of a call
    connections_max: Annotated[StrictInt, Field(ge=1, le=10_000)] = 64
    questions_max: Annotated[StrictInt, Field(ge=1, le=1_000_000)] = 5000  # that wait for an answer
    allow_s: Annotated[StrictFloat, Field(ge=0, le=86_400)] = 30.0  # an allow is remembered for; 0: not
    deny_s: Annotated[StrictFloat, Field(ge=0, le=86_400)] = 5.0
    remembered_max: Annotated[StrictInt, Field(ge=0, le=10_000_000)] = 100_000  # answers
    failures_max: Annotated[StrictInt, Field(ge=1, le=1_000_000)] = 5  # in a row, then the circuit opens
    open_s: Annotated[StrictFloat, Field(gt=0, le=3600)] = 10.0
    on_failure: Literal["deny", "ignore"] = "deny"  # what a call that fails, or is not made, counts as


class _Reply(BaseModel):
    """The JSON of an answer."""

    model_config = ConfigDict(strict=True, frozen=True)

    result: Literal["allow", "deny", "ignore"]
    client_id: Name = ""
    username: Name | None = None
    groups: Annotated[list[Name], Field(max_length=GROUPS_MAX)] = []
    acl: AclClaim | None = None
    expires_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


@dataclass(frozen=True, slots=True)
class _Known:
    """An answer and when it came (monotonic seconds)."""

    reply: _Reply
    at: float


class Webhook:
    """Asks the server and remembers."""

    def __init__(self, options: WebhookOptions) -> None:
        self.options = options
        self._shown = shown_url(options.url)
        self.counts: Counter[str] = Counter(dict.fromkeys(WEBHOOK_COUNTERS, 0))
        self._http = HttpClient(
            timeout_s=options.timeout_s, connections_max=options.connections_max, ca_file=options.ca_file
        )
        secret = options.secret_file
        self._secret = None if secret is None else WatchedFiles([secret], partial(read_secret, secret))
        self._circuit = CircuitBreaker(options.failures_max, options.open_s)
        self._remembered: Remembered[bytes, _Known] = Remembered(options.remembered_max)
        self._asking: dict[bytes, asyncio.Task[_Known | None]] = {}
        self._waiting = 0  # for any of these
        self._secret_refused = False  # and that was said
        self._hash_key = secrets.token_bytes(32)

    async def ask(self, question: Mapping[str, Any]) -> _Known | None:
        """The answer to a question; None where there is none to be had."""
        body = json.dumps(question, sort_keys=True).encode()
        key = hashlib.blake2b(body, key=self._hash_key, digest_size=32).digest()
        known = self._remembered.find(key)
        if known is not None:
            self.counts["webhook_answers_remembered"] += 1
            return known
        if max(self._waiting, len(self._asking)) >= self.options.questions_max:
            self.counts["webhook_refused_over_quota"] += 1
            return None
        asking = self._asking.get(key)
        if asking is not None:
            self.counts["webhook_answers_shared"] += 1
        else:
            permit = self._circuit.enter()
            if permit is None:
                self.counts["webhook_refused_circuit_open"] += 1
                return None
            # a task of its own: the client that asked first may go, others wait for the answer
            asking = asyncio.create_task(self._call(key, body, permit))
            self._asking[key] = asking
            asking.add_done_callback(lambda _: self._asking.pop(key))
        self._waiting += 1
        try:
            return await asyncio.shield(asking)
        finally:
            self._waiting -= 1

    async def reload(self) -> None:
        """Reads the secret now, ConfigError where there is none; forgets all answers."""
        self._hash_key = secrets.token_bytes(32)  # so what is being asked counts for who has asked, no more
        self._remembered.clear()
        if self._secret is not None:
            await self._secret.reload()

    async def close(self) -> None:
        """Gives up what is under way."""
        tasks = tuple(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await self._http.close()

    async def _call(self, key: bytes, body: bytes, permit: int) -> _Known | None:
        self.counts["webhook_calls"] += 1
        reply, answer_bytes, failure = None, 0, ""
        try:
            reply, answer_bytes = await self._post(body)
        except CallFailedError as error:
            self.counts["webhook_calls_failed"] += 1
            failure = "" if isinstance(error, QuestionRefusedError) else str(error)
            _log.debug("the webhook %s failed: %s", self._shown, error)
        except Exception as error:
            self._report(permit, type(error).__name__)  # else nobody would ever be asked again
            raise
        self._report(permit, failure)
        if reply is None:
            return None
        self._secret_refused = False
        known = _Known(reply, time.monotonic())
        ttl_s = self.options.allow_s if reply.result == "allow" else self.options.deny_s
        self._remembered.put(key, known, min(ttl_s, reply.expires_s or ttl_s), held_bytes=answer_bytes)
        self.counts["webhook_answers_evicted"] = self._remembered.evicted
        return known

    def _report(self, permit: int, failure: str) -> None:
        """Tells the circuit whether the server is there, and the log when that changes."""
        was_open = self._circuit.is_open
        self._circuit.leave(permit, not failure)
        if self._circuit.is_open and not was_open:
            self.counts["webhook_circuit_opened"] += 1
            text = "the webhook %s failed %d times in a row, last: %s; it is tried again in %g s"
            _log.error(text, self._shown, self.options.failures_max, failure, self.options.open_s)
        elif was_open and not self._circuit.is_open:
            _log.info("the webhook %s answers again", self._shown)

    def _say_secret_refused(self) -> None:
        """Each client would be let down: so the operator must know; in one line until it is mended."""
        if not self._secret_refused:
            self._secret_refused = True
            text = "the webhook %s does not take the secret of %s: its status is 401"
            _log.error(text, self._shown, self.options.secret_file)

    async def _post(self, body: bytes) -> tuple[_Reply, int]:
        """The answer, and its bytes."""
        headers = {} if self._secret is None else {self.options.secret_header: await self._secret.current()}
        answer = await self._http.call("POST", self.options.url, body=body, headers=headers)
        if answer.status == 401 and self._secret is not None:
            self._say_secret_refused()
            raise QuestionRefusedError("it does not take the secret: its status is 401")
        if answer.status in (401, 403):
            return _Reply(result="deny"), 0
        if 400 <= answer.status <= 499 and answer.status not in SERVER_IN_TROUBLE:
            raise QuestionRefusedError(f"its status is {answer.status}")
        if not 200 <= answer.status <= 299:
            raise CallFailedError(f"its status is {answer.status}")
        if not answer.body and answer.has_length:
            return _Reply(result="allow"), 0
        try:
            return _Reply.model_validate(answer.json()), len(answer.body)
        except ValidationError as error:
            where = ".".join(str(part) for part in error.errors()[0]["loc"])
            raise CallFailedError(f"its JSON is not what it should be, at {where or 'the top'}") from error


class _Provider:
    """What both have in common: a server, its counters, its end."""

    bounds_itself = True

    def __init__(self, options: WebhookOptions) -> None:
        self._webhook = Webhook(options)

    @property
    def counts(self) -> Mapping[str, int]:
        """The webhook's counters."""
        return self._webhook.counts

    async def reload(self) -> None:
        """Reads the secret now; forgets all answers."""
        await self._webhook.reload()

    async def close(self) -> None:
        """Gives up what is under way."""
        await self._webhook.close()


class WebhookAuthenticator(_Provider):
    """The server decides who may connect."""

    async def authenticate(self, request: ConnectRequest) -> Verdict:
        """Its answer; `on_failure` where it has none, with the reason "server unavailable"."""
        known = await self._webhook.ask(question_of(request))
        if known is None:
            return Verdict(SERVER_UNAVAILABLE, unknown=self._webhook.options.on_failure == "ignore")
        reply = known.reply
        if reply.result != "allow":
            return Verdict(BAD_USER_NAME_OR_PASSWORD, unknown=reply.result == "ignore")
        verdict = Verdict(
            client_id=reply.client_id,
            username=reply.username,
            groups=tuple(reply.groups),
            rules=None if reply.acl is None else rules_of(reply.acl),
        )
        if reply.expires_s is None:
            return verdict
        return replace(verdict, expires_s=max(0.0, reply.expires_s - (time.monotonic() - known.at)))


class WebhookAuthoriser(_Provider):
    """The server decides who may publish and subscribe to what."""

    async def authorise(self, access: Access) -> bool:
        """Whether it allows; whatever else it answers, or does not, refuses."""
        known = await self._webhook.ask({"request": "authorise", **asdict(access)})
        return known is not None and known.reply.result == "allow"


def question_of(request: ConnectRequest) -> dict[str, Any]:
    """The body for a CONNECT. All that is in it may decide, so no port that another connection has not."""
    question: dict[str, Any] = {
        "request": "authenticate",
        "client_id": request.client_id,
        "username": request.username,
        "password": None,
        "address": request.peer.rpartition(":")[0] or request.peer,
        "protocol_version": request.protocol_version,
        "listener": request.listener,
    }
    if request.password is not None:
        try:
            question["password"] = request.password.decode()
        except UnicodeDecodeError:
            question["password_base64"] = base64.b64encode(request.password).decode()
    if request.certificate is not None:
        from tidemq.broker.authenticators.certificate import fingerprint_of, subject_of  # needs cryptography

        question["certificate_subject"] = subject_of(request.certificate)
        question["certificate_sha256"] = fingerprint_of(request.certificate)
    return question


def make_webhook_authenticator(_: Config, options: Options) -> WebhookAuthenticator:
    """The entry point `webhook` in `tidemq.authenticators`."""
    return WebhookAuthenticator(read_options("webhook", WebhookOptions, options))


def make_webhook_authoriser(_: Config, options: Options) -> WebhookAuthoriser:
    """The entry point `webhook` in `tidemq.authorisers`."""
    return WebhookAuthoriser(read_options("webhook", WebhookOptions, options))
