"""A bridge kept up: connected, and connected again after every end, to one of its addresses.

Runs on the bridges' event loop; what it is at is read by other threads.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import logging
import random
import socket
import ssl
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tidemq.bridge.crossing import (
    BridgeError,
    Crossing,
    Home,
    NotificationsRefusedError,
    PrivateRefusedError,
    state_topic,
)
from tidemq.bridge.far import Far
from tidemq.bridge.relay import Counts
from tidemq.bridge_config import Bridge, BridgeTls
from tidemq.errors import TideMQError

STEADY_S = 10.0  # connected for so long, the pause before the next attempt is the first again
REPEATED_LINES_S = 60.0  # between two lines of the log for one error that lasts

_log = logging.getLogger("tidemq.bridges")

State = Literal["starting", "connecting", "connected", "waiting", "ended"]
ReadPassword = Callable[[Path], str]
# QoS by topic filter, by address
KnownFilters = Mapping[str, Mapping[str, int]]


@dataclass(slots=True)
class BridgeStatus:
    """What a bridge is at. Times are seconds since 1970, 0: never. Written by the bridges' thread alone."""

    state: State = "starting"
    address: str = ""  # that it is connected to, or tried last
    since: float = 0.0  # when it came into this state of being connected or not
    last_error: str = ""
    last_error_at: float = 0.0
    connects: int = 0  # that have succeeded
    failures: int = 0  # attempts that have not, and connections that ended
    refused_filters: tuple[str, ...] = ()  # by the other side

    @property
    def is_connected(self) -> bool:
        return self.state == "connected"


def client_id_of(bridge: Bridge) -> str:
    """The client identifier towards the other side."""
    return bridge.client_id or f"tidemq-{socket.gethostname()}-{bridge.name}"


def make_tls(tls: BridgeTls | None) -> ssl.SSLContext:
    """Reads the files. BridgeError names one that cannot be used."""
    tls = tls or BridgeTls()
    try:
        context = ssl.create_default_context(cafile=tls.ca)
    except (OSError, ssl.SSLError) as error:
        raise BridgeError(f"tls.ca: {tls.ca} cannot be read as PEM: {error}") from error
    if tls.insecure:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if tls.alpn:
        context.set_alpn_protocols([tls.alpn])
    if tls.certificate is not None:
        try:
            context.load_cert_chain(tls.certificate, tls.key, password=_no_password)
        except (OSError, ssl.SSLError) as error:
            raise BridgeError(f"tls.certificate: {tls.certificate} cannot be used: {error}") from error
    return context


def _finish(future: concurrent.futures.Future[None]) -> None:
    with suppress(concurrent.futures.InvalidStateError):  # who waited for it may have given up
        future.set_result(None)


def _no_password() -> str:
    raise ssl.SSLError("the key is encrypted")


class Upkeep:
    """Of one bridge: `run`, until that is cancelled."""

    def __init__(
        self,
        bridge: Bridge,
        home: Home,
        read_password: ReadPassword,
        on_change: Callable[[Bridge, bool], None],
        known_filters: KnownFilters | None = None,
    ) -> None:
        """`on_change` is told, on the bridges' thread, when the bridge is connected and when no longer;
        `known_filters`: that an earlier bridge of the name and client identifier has subscribed to.
        """
        self.bridge = bridge
        self.status = BridgeStatus(since=time.time())
        self.counts = Counts()
        self._home = home
        self._read_password = read_password
        self._on_change = on_change
        notified = bridge.notifications and not bridge.notifications_local_only
        private = bridge.try_private and bridge.protocol_version == "3.1.1"
        known = known_filters or {}
        client_id = client_id_of(bridge)
        self._fars = [
            Far(url, client_id, private, notified, dict(known.get(url, {}))) for url in bridge.addresses
        ]
        self._logged_at = 0.0
        self.ended: concurrent.futures.Future[None] = concurrent.futures.Future()
        self.leaves = False  # for good: the other side need not keep anything for the bridge

    @property
    def state_topic(self) -> str:
        return state_topic(self.bridge, client_id_of(self.bridge))

    @property
    def remote_filters(self) -> KnownFilters:
        """That sessions at the other side have."""
        return {far.url: dict(far.filters) for far in self._fars}

    async def run(self, stale: Iterable[str], declared: concurrent.futures.Future[None]) -> None:
        """Until it is cancelled. `declared` is done when the own broker keeps what is to cross, and no longer
        what is `stale`; or never will.
        """
        try:
            await self._declare(list(stale))
            _finish(declared)
            await self._keep_up()
        finally:
            self._move("ended")
            _finish(declared)
            self.ended.set_result(None)

    async def _declare(self, stale: list[str]) -> None:
        """The own broker may be unable to store it now, but will be."""
        attempt = 0
        while not self.bridge.clean_session:
            crossing = Crossing(self.bridge, self._home, self._fars[0], Counts(), lambda: None)
            try:
                await crossing.declare(stale)
                self._note_session(crossing, self._fars)
                return
            except TideMQError as error:
                self._failed(str(error), False)
                attempt += 1
                await asyncio.sleep(self._pause_s(attempt))

    def _note_session(self, crossing: Crossing, fars: Iterable[Far]) -> None:
        """Where the own session is a new one, those at the other side remember more than it does."""
        if crossing.is_home_new:
            for far in fars:
                far.is_ahead = True

    async def _keep_up(self) -> None:
        place, attempt = 0, 0
        while True:
            far = self._fars[place]
            began = time.monotonic()
            was_connected = await self._cross(far)
            if was_connected:
                place = (place + 1) % len(self._fars) if self.bridge.round_robin else 0
                attempt = 0 if time.monotonic() - began >= STEADY_S else attempt
            else:
                place = (place + 1) % len(self._fars)
            if was_connected or place == 0:  # all were tried
                attempt += 1
                self._move("waiting")
                await asyncio.sleep(self._pause_s(attempt))

    def _pause_s(self, attempt: int) -> float:
        """Doubles, and is never the same for all who lost the same broker."""
        longest = min(self.bridge.reconnect_s * 2.0 ** min(attempt - 1, 32), self.bridge.reconnect_max_s)
        return random.uniform(longest / 2, longest)

    async def _cross(self, far: Far) -> bool:
        """Connects once, and again at once where the other side only refused how; whether it was there."""
        while True:
            self._move("connecting", far.url)
            crossing = Crossing(self.bridge, self._home, far, self.counts, lambda: self._connected(far))
            try:
                await crossing.run(*self._secrets(far), leaves=lambda: self.leaves)
            except NotificationsRefusedError as error:
                _log.info("bridge %s: %s; it goes on without notifications there", self.bridge.name, error)
                far.is_notified = False
                continue
            except PrivateRefusedError:
                far.is_private = False
                continue
            except (TideMQError, OSError) as error:
                self._failed(str(error), crossing.is_connected)
            except Exception as error:  # noqa: BLE001 - a defect of ours must not end the bridge for good
                _log.exception("bridge %s failed", self.bridge.name)
                self._failed(f"it failed with {type(error).__name__}", crossing.is_connected)
            if far.skip:
                text = "bridge %s: %s does not take the message with packet identifier %d: it is dropped"
                _log.warning(text, self.bridge.name, far.url, far.skip)
            self._note_session(crossing, (each for each in self._fars if each is not far))
            return crossing.is_connected

    def _secrets(self, far: Far) -> tuple[bytes | None, ssl.SSLContext | None]:
        file = self.bridge.password_file
        password = self._read_password(Path(file)).encode() if file else None
        secure = far.url.startswith(("mqtts:", "wss:"))
        return password, make_tls(self.bridge.tls) if secure else None

    def _connected(self, far: Far) -> None:
        status = self.status
        status.connects += 1
        status.refused_filters = tuple(far.refused)
        self._move("connected", far.url)
        _log.info("bridge %s: connected to %s", self.bridge.name, far.url)
        for filter, reason in far.refused.items():
            self._note(f"{far.url} refuses the topic filter {filter!r} ({reason:#04x})")
            _log.warning("bridge %s: %s", self.bridge.name, status.last_error)
        self._on_change(self.bridge, True)

    def _failed(self, text: str, was_connected: bool) -> None:
        self.status.failures += 1
        repeated = text == self.status.last_error and not was_connected
        self._note(text)
        now = time.monotonic()
        if not repeated or now - self._logged_at >= REPEATED_LINES_S:
            self._logged_at = now
            _log.warning("bridge %s: %s", self.bridge.name, text)
        self._move("waiting")
        if was_connected:
            self._on_change(self.bridge, False)

    def _note(self, error: str) -> None:
        self.status.last_error, self.status.last_error_at = error, time.time()

    def _move(self, state: State, address: str = "") -> None:
        status = self.status
        if (state == "connected") != status.is_connected:
            status.since = time.time()
        status.state, status.address = state, address or status.address
