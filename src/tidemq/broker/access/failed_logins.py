"""Failed logins: who has failed how often of late, and how long the next refusal takes.

Failures are counted by source (`peer_address.source_of`), by user name, and by the two together. A count
halves with each `failed_login_half_life_s`. Only refusals are delayed, so nobody can keep a user out from
elsewhere: whoever has the right password is answered at once. A source that has failed `failed_logins_max`
times is refused without the authenticator being asked; but not for a user who has logged in from there
before, as long as that user does not fail as often from there: one device that has a wrong password, among
many behind one address, does not lock the others out. Of one source as many are asked about at a time, so
that guesses which come all at once are not looked at before the first of them are found wrong.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import OrderedDict
from contextlib import AbstractAsyncContextManager, nullcontext
from hashlib import blake2b
from weakref import WeakValueDictionary

from tidemq.broker.access.peer_address import source_of
from tidemq.config import Config

ENTRIES_MAX = 100_000  # sources, users and pairs of the two that are kept; the longest unseen go
_DOUBLINGS_MAX = 60

_Key = str | bytes | tuple[str, bytes]


class _Record:
    """Of one source, user, or pair."""

    __slots__ = ("at_s", "failures", "trusted")

    def __init__(self) -> None:
        self.failures = 0.0
        self.at_s = 0.0
        self.trusted = False  # a pair's: the user has logged in from there


class FailedLogins:
    """Of one broker; belongs to its event loop. Times are monotonic."""

    def __init__(self, config: Config) -> None:
        self._delay_s = config.failed_login_delay_s
        self._delay_s_max = config.failed_login_delay_max_s
        self._half_life_s = config.failed_login_half_life_s
        self._failures_max = config.failed_logins_max
        self._records: OrderedDict[_Key, _Record] = OrderedDict()
        self._turns: WeakValueDictionary[str, asyncio.Semaphore] = WeakValueDictionary()  # by source

    def turn(self, peer: str, username: str | None) -> AbstractAsyncContextManager[object]:
        """To be held while the authenticator is asked: as many at a time as may fail from there; who has
        logged in from there before does not wait. `refuses` comes within it."""
        source, user = source_of(peer), _user(username)
        if self._failures_max == 0 or self._trusts((source, user)):
            return nullcontext()
        turns = self._turns.get(source)
        if turns is None:
            turns = self._turns[source] = asyncio.Semaphore(self._failures_max)
        return turns

    def refuses(self, peer: str, username: str | None) -> bool:
        """Whether to refuse without asking."""
        if self._failures_max == 0 or not self._records:
            return False
        source, user = source_of(peer), _user(username)
        if self._failures(source, time.monotonic()) < self._failures_max:
            return False
        return not self._trusts((source, user))

    def _trusts(self, pair: _Key) -> bool:
        found = self._records.get(pair)
        if found is None or not found.trusted:
            return False
        return self._failures(pair, time.monotonic()) < self._failures_max

    def failed(self, peer: str, username: str | None) -> float:
        """Counts a failure; the seconds after which to answer."""
        source, user = source_of(peer), _user(username)
        now_s = time.monotonic()
        for key in (source, user, (source, user)):
            self._add(key, 1.0, now_s)
        worst = max(self._failures(source, now_s), self._failures(user, now_s))
        return min(self._delay_s_max, self._delay_s * math.pow(2.0, min(worst - 1.0, _DOUBLINGS_MAX)))

    def succeeded(self, peer: str, username: str | None) -> None:
        """Takes back what this user has failed from there; what others have, or elsewhere, stays."""
        source, user = source_of(peer), _user(username)
        now_s = time.monotonic()
        pair = (source, user)
        own = self._failures(pair, now_s)
        if own:
            for key in (source, user, pair):
                self._add(key, -own, now_s)
        self._keep(pair).trusted = True

    def _failures(self, key: _Key, now_s: float) -> float:
        found = self._records.get(key)
        if found is None or not found.failures:
            return 0.0
        return found.failures * math.pow(0.5, (now_s - found.at_s) / self._half_life_s)

    def _add(self, key: _Key, failures: float, now_s: float) -> None:
        before = self._failures(key, now_s)
        record = self._keep(key)
        record.failures = max(0.0, before + failures)
        record.at_s = now_s

    def _keep(self, key: _Key) -> _Record:
        record = self._records.get(key)
        if record is None:
            record = self._records[key] = _Record()
            if len(self._records) > ENTRIES_MAX:
                self._records.popitem(last=False)
        else:
            self._records.move_to_end(key)
        return record


def _user(username: str | None) -> bytes:
    """A name of up to 64 KiB in 16 bytes."""
    return blake2b((username or "").encode(), digest_size=16).digest()
