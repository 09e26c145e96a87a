"""Options of everything that connects to a broker by MQTT: where, as whom, by which certificates."""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
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
    """A broker's MQTT listener. Files are on each machine that connects: `password_file` holds the password,
    `cafile` the certificates that are trusted, `cert` the client's own and `key` its key.
    """

    url: str
    user: str | None = None
    password: str | None = field(default=None, repr=False)
    password_file: str | None = None
    cafile: str | None = None
    cert: str | None = None
    key: str | None = None  # where `cert` does not have it

    NAMES = ("url", "user", "password", "passwordFile", "cafile", "cert", "key")

    @classmethod
    def parse(cls, values: Mapping[str, str]) -> Self:
        """Of options by these names. UsageError where the URL is missing or wrong, or two options say one
        thing.
        """
        if not values.get("url"):
            raise UsageError("the option url is missing: mqtt://host, mqtts://host or ws://host")
        parse_url(values["url"])
        if "password" in values and "passwordFile" in values:
            raise UsageError("the options password and passwordFile exclude one another")
        if "key" in values and "cert" not in values:
            raise UsageError("the option key needs cert")
        given = {name: values[name] for name in cls.NAMES if name in values and name != "passwordFile"}
        return cls(**given, password_file=values.get("passwordFile"))

    def given(self) -> dict[str, str]:
        """The same, as options by these names."""
        values = {"passwordFile": self.password_file} | {
            name: getattr(self, name) for name in self.NAMES if name != "passwordFile"
        }
        return {name: value for name, value in values.items() if value is not None}

    def tls(self) -> ssl.SSLContext | None:
        """UsageError where there are no such certificates."""
        if self.cafile is None and self.cert is None:
            return None
        try:
            context = ssl.create_default_context(cafile=self.cafile)
        except OSError as error:
            raise UsageError(f"no certificates can be read from {self.cafile}: {error}") from error
        if self.cert is not None:
            try:
                context.load_cert_chain(self.cert, self.key)
            except OSError as error:
                files = f"{self.cert} and {self.key}" if self.key else self.cert
                raise UsageError(f"no certificate with its key can be read from {files}: {error}") from error
        return context

    def options(self) -> Options:
        """Of a client; UsageError where a file cannot be read."""
        return Options(username=self.user, password=self.secret(), tls=self.tls())

    def secret(self) -> str | None:
        """The password; UsageError where its file cannot be read."""
        if self.password_file is None:
            return self.password
        try:
            return Path(self.password_file).read_text(encoding="utf-8").rstrip("\r\n")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"the password file {self.password_file} cannot be read: {error}") from error

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
