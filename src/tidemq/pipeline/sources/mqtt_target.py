"""Options of everything that connects to a broker by MQTT: where, as whom, by which certificates."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Self, Unpack

from tidemq.client import ConnectError, sync
from tidemq.client.address import parse_url
from tidemq.client.settings import Options
from tidemq.errors import UsageError
from tidemq.pipeline.sources.stream_options import RETRY_S

RETRY_PAUSE_S = 0.5
_SPARKS = ("checkpointlocation", "queryname")  # which a writer is told, too


def named(given: Mapping[str, str], accepted: Iterable[str]) -> dict[str, str]:
    """Options by the name that is accepted, whatever the case; UsageError names one that is not."""
    names = {name.lower(): name for name in accepted}
    values = {name.lower(): value for name, value in given.items() if name.lower() not in _SPARKS}
    if unknown := sorted(values.keys() - names.keys()):
        raise UsageError(f"the option {unknown[0]!r} is unknown; accepted: {', '.join(names.values())}")
    return {names[name]: value for name, value in values.items()}


@dataclass(frozen=True, slots=True)
class Target:
    """A broker's MQTT listener. `cafile` is a file with certificates, on each machine that connects."""

    url: str
    user: str | None = None
    password: str | None = None
    cafile: str | None = None

    NAMES = ("url", "user", "password", "cafile")

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Self:
        """UsageError where the URL is missing or wrong."""
        if not values.get("url"):
            raise UsageError("the option url is missing: mqtt://host, mqtts://host or ws://host")
        parse_url(values["url"])
        return cls(**{name: values[name] for name in cls.NAMES if name in values})

    def tls(self) -> ssl.SSLContext | None:
        """UsageError where there are no such certificates."""
        if self.cafile is None:
            return None
        try:
            return ssl.create_default_context(cafile=self.cafile)
        except OSError as error:
            raise UsageError(f"no certificates can be read from {self.cafile}: {error}") from error

    def options(self) -> Options:
        """Of a client."""
        return Options(username=self.user, password=self.password, tls=self.tls())

    @contextmanager
    def connected(self, **more: Unpack[Options]) -> Iterator[sync.Client]:
        """A client that is connected. A broker that cannot be reached is tried again for 30 s."""
        deadline = time.monotonic() + RETRY_S
        while True:
            client = sync.Client(self.url, **(self.options() | more))
            try:
                client.connect()
                break
            except ConnectError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(RETRY_PAUSE_S)
        try:
            yield client
        except BaseException:
            client.disconnect(wait=False)
            raise
        client.disconnect()
