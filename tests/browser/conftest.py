"""Chromium without a window, a server of pages, and what the listeners' tests have.

Tabs are opened and closed by DevTools' plain HTTP (`/json/new`, `/json/close`), and the page itself reports
how its scenario went: nothing between the tests and the browser, so no framework to pin.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import itertools
import os
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import aiohttp
import pytest
from aiohttp import web
from clients.conftest import node_modules, topic
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from listeners.conftest import Files, authority, broker_at, server_files
from waiting import WAIT_S

__all__ = ["authority", "broker_at", "node_modules", "server_files", "topic"]

HERE = Path(__file__).parent
SCENARIOS = HERE.parent / "clients" / "mqttjs" / "scenarios.js"
PAGE = """<!doctype html><meta charset="utf-8"><title>MQTT.js</title>
<script src="/mqtt.min.js"></script><script src="/scenarios.js"></script><script src="/page.js"></script>"""
FLAGS = [
    *("--headless", "--no-first-run", "--disable-gpu", "--disable-dev-shm-usage"),
    "--remote-debugging-port=0",
    "--disable-background-networking",
    *("--disable-background-timer-throttling", "--disable-renderer-backgrounding"),  # all tabs work
    "--host-resolver-rules=MAP rebound.example 127.0.0.1",  # as its owner's DNS may answer
]


def key_hash(cert: Path) -> str:
    """SHA-256 of the certificate's public key, as `--ignore-certificate-errors-spki-list` wants it."""
    key = x509.load_pem_x509_certificate(cert.read_bytes()).public_key()
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    return base64.b64encode(hashlib.sha256(der).digest()).decode()


class Chromium:
    """Opens and closes tabs."""

    def __init__(self, port: int) -> None:
        self._tools = f"http://127.0.0.1:{port}/json"

    async def open(self, url: str) -> str:
        """A new tab; returns its identifier."""
        async with (
            aiohttp.ClientSession(raise_for_status=True) as session,
            session.put(f"{self._tools}/new?{quote(url, safe='')}") as answer,
        ):
            return str((await answer.json(content_type=None))["id"])

    async def close(self, tab: str) -> None:
        async with (
            aiohttp.ClientSession(raise_for_status=True) as session,
            session.get(f"{self._tools}/close/{tab}"),
        ):
            pass


def tools_port(process: subprocess.Popen[bytes], folder: Path, log: Path) -> int:
    """The port that Chromium has chosen, from the file that it writes."""
    file, deadline = folder / "DevToolsActivePort", time.monotonic() + WAIT_S
    while time.monotonic() < deadline and process.poll() is None:
        if file.exists() and (lines := file.read_text().splitlines()):
            return int(lines[0])
        time.sleep(0.02)
    process.kill()
    raise AssertionError(
        f"Chromium (exit status {process.wait()}) does not listen:\n{log.read_text()[-4000:]}"
    )


@pytest.fixture(scope="session")
def chromium(
    install: Callable[[str, str], None], server_files: Files, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Chromium]:
    """One for all tests. It accepts the key of `server_files` whoever has signed it, and no other so."""
    install("chromium", "chromium")
    folder = tmp_path_factory.mktemp("chromium")
    log = folder / "log"
    command = ["chromium", *FLAGS, f"--user-data-dir={folder}"]
    command += [f"--ignore-certificate-errors-spki-list={key_hash(server_files.cert)}"]
    command += ["--no-sandbox"] if os.geteuid() == 0 else []
    with log.open("wb") as output:
        process = subprocess.Popen([*command, "about:blank"], stdout=output, stderr=output)
    yield Chromium(tools_port(process, folder, log))
    process.terminate()
    try:
        process.wait(WAIT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise


class Pages:
    """Serves a page that runs scenarios of MQTT.js, at 127.0.0.1 and localhost."""

    def __init__(self, chromium: Chromium, mqttjs: Path) -> None:
        self._chromium = chromium
        self._numbers = itertools.count()
        self._reports: dict[str, asyncio.Future[str]] = {}
        self._ports: dict[str, int] = {}
        app = web.Application()
        self._files = {file.name: file for file in (mqttjs, SCENARIOS, HERE / "page.js")}
        app.router.add_get("/", self._page)
        app.router.add_get("/{name}", self._file)
        app.router.add_post("/reports/{number}", self._take)
        self.runner = web.AppRunner(app)

    async def serve(self, scheme: str, tls: ssl.SSLContext | None) -> None:
        site = web.TCPSite(self.runner, "127.0.0.1", 0, ssl_context=tls)
        await site.start()
        address: Any = self.runner.addresses[-1]
        self._ports[scheme] = address[1]

    async def _page(self, _: web.Request) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html")

    async def _file(self, request: web.Request) -> web.FileResponse:
        if request.match_info["name"] not in self._files:
            raise web.HTTPNotFound  # favicon.ico
        return web.FileResponse(self._files[request.match_info["name"]])

    async def _take(self, request: web.Request) -> web.Response:
        self._reports[request.match_info["number"]].set_result(await request.text())
        return web.Response()

    def origin(self, scheme: str = "http", host: str = "localhost") -> str:
        """Of pages, `http` or `https`."""
        return f"{scheme}://{host}:{self._ports[scheme]}"

    async def open(
        self, origin: str, scenario: str, url: str, version: int, topic: str
    ) -> tuple[str, asyncio.Future[str]]:
        """A tab that runs a scenario, and its report: "" when all went well."""
        number = str(next(self._numbers))
        report = self._reports[number] = asyncio.get_running_loop().create_future()
        asked = {"scenario": scenario, "url": url, "version": version, "topic": topic, "number": number}
        return await self._chromium.open(f"{origin}/?{urlencode(asked)}"), report

    async def run(self, *arguments: Any) -> str:
        """The report of such a tab, which is closed then."""
        tab, report = await self.open(*arguments)
        try:
            return await asyncio.wait_for(report, WAIT_S)
        finally:
            await self._chromium.close(tab)


@pytest.fixture
async def pages(chromium: Chromium, node_modules: Path, server_files: Files) -> AsyncIterator[Pages]:
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    tls.load_cert_chain(server_files.cert, server_files.key)
    served = Pages(chromium, node_modules / "mqtt" / "dist" / "mqtt.min.js")
    await served.runner.setup()
    await served.serve("http", None)
    await served.serve("https", tls)
    yield served
    await served.runner.cleanup()
