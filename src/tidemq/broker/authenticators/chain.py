"""The authenticator `chain`: several are asked one after the other.

The first that does not say "I do not know this client" (`Verdict.unknown`) decides. So a wrong password
refuses, an unknown user goes on to the next, and an error refuses: a chain never lets in by way of a later
authenticator whom an earlier one knows and refuses. One that speaks AUTH packets is asked where the client
names an authentication method, and passes on a method that it does not have.
"""

from __future__ import annotations

import asyncio
import inspect
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

from tidemq.broker.providers import (
    BAD_AUTHENTICATION_METHOD,
    UNKNOWN,
    Authenticator,
    Challenge,
    EnhancedAuthenticator,
    Options,
    Reloadable,
    Verdict,
    bounds_itself,
    close_provider,
    counts_of,
    find_provider,
    read_options,
)
from tidemq.config import Config, refused
from tidemq.engine.door.events import AuthRequest, ConnectRequest
from tidemq.errors import TideMQError

MEMBERS_MAX = 16


class Chain:
    """Asks `members` in order. None as the last one lets in everybody whom no other knows.

    At most `decisions_max` decisions of members that do not bound themselves are under way at a time: others
    of the chain are not kept waiting by those that do.
    """

    bounds_itself = True

    def __init__(self, members: Sequence[Authenticator | None], decisions_max: int) -> None:
        self._members = members
        self._slots = asyncio.Semaphore(decisions_max)

    @property
    def counts(self) -> Mapping[str, int]:
        """The members' counters, added up."""
        total: Counter[str] = Counter()
        for member in self._members:
            total.update(counts_of(member))
        return total

    async def authenticate(self, request: ConnectRequest) -> Verdict:
        """The verdict of the first that knows the client, else that of the last."""
        verdict = UNKNOWN
        for member in self._members:
            if member is None:
                return Verdict()
            async with nullcontext() if bounds_itself(member) else self._slots:
                answer = member.authenticate(request)
                verdict = await answer if inspect.isawaitable(answer) else answer
            if not verdict.unknown:
                return verdict
        return verdict

    async def converse(self, request: ConnectRequest | AuthRequest, challenge: Challenge) -> Verdict:
        """The verdict of the first that has the client's authentication method and knows the client."""
        verdict = Verdict(BAD_AUTHENTICATION_METHOD)
        for member in self._members:
            if not isinstance(member, EnhancedAuthenticator):
                continue
            answer = await member.converse(request, challenge)
            if answer.reason == BAD_AUTHENTICATION_METHOD:
                continue
            verdict = answer
            if not verdict.unknown:
                break
        return verdict

    async def reload(self) -> None:
        """Has all members read their files again; raises what was wrong with any, TideMQError."""
        wrong: list[str] = []
        for member in self._members:
            if isinstance(member, Reloadable):
                try:
                    done = member.reload()
                    if inspect.isawaitable(done):
                        await done
                except (TideMQError, OSError) as error:
                    wrong.append(str(error))
        if wrong:
            raise TideMQError("; ".join(wrong))

    async def close(self) -> None:
        """Closes the members."""
        for member in self._members:
            await close_provider(member)


class ChainOptions(BaseModel):
    """Its members: tables with the name of an authenticator, and its options."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    of: Annotated[tuple[dict[str, Any], ...], Field(min_length=1, max_length=MEMBERS_MAX)]


def make_chain(config: Config, options: Options) -> Chain:
    """The entry point `chain`."""
    members: list[Authenticator | None] = []
    for index, member in enumerate(read_options("chain", ChainOptions, options).of):
        name = member.get("authenticator")
        key = f"options of chain.of.{index}"
        if not isinstance(name, str):
            raise refused("configuration", f"{key}.authenticator", "it is missing", ["an authenticator"])
        if members and members[-1] is None:
            text = "it is never asked: the authenticator before it accepts every client"
            raise refused("configuration", key, text, ["another order"])
        rest = {option: value for option, value in member.items() if option != "authenticator"}
        members.append(find_provider("authenticator", name, rest, config))
    return Chain(members, config.decisions_max)
