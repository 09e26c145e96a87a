"""The dashboard in Chromium, driven by Playwright: each page notes what it should not have had to say."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

from playwright.async_api import Browser, ConsoleMessage, Page, Route, async_playwright, expect
from waiting import WAIT_S

expect.set_options(timeout=WAIT_S * 1000)
WIDE, PHONE = (1280, 900), (390, 844)
VIEWS = ("overview", "clients", "sessions", "topics", "try-out", "losses", "streams", "bridges")


@dataclass
class Dashboard:
    """A page, and what went wrong in it."""

    page: Page
    url: str
    wrong: list[str] = field(default_factory=list)

    async def open(self, view: str = "overview") -> None:
        """Shows a view, without loading the page again where it is there already."""
        await self.page.goto(f"{self.url}#/{view}")
        await expect(self.page.locator("#view h1")).to_be_visible()

    def tile(self, name: str) -> Any:
        """The value of a tile of the overview."""
        return self.page.locator(".tiles div", has_text=name).locator("dd")

    async def confirm(self) -> None:
        """Says yes."""
        await self.page.get_by_role("dialog").get_by_role("button", name="Yes").click()


@asynccontextmanager
async def browser() -> AsyncIterator[Browser]:
    """Debian's Chromium without a window."""
    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []
    async with async_playwright() as playwright:
        chromium = await playwright.chromium.launch(executable_path=shutil.which("chromium"), args=arguments)
        yield chromium
        await chromium.close()


@asynccontextmanager
async def opened(
    chromium: Browser, url: str, *, size: tuple[int, int] = WIDE, dark: bool = False
) -> AsyncIterator[Dashboard]:
    """A page of its own, with nothing of others'. It may ask its broker alone."""
    context = await chromium.new_context(
        viewport={"width": size[0], "height": size[1]}, color_scheme="dark" if dark else "light"
    )
    context.set_default_timeout(WAIT_S * 1000)
    page = await context.new_page()
    dashboard = Dashboard(page, url)

    async def fetch(route: Route) -> None:
        if urlsplit(route.request.url).netloc != urlsplit(url).netloc:
            dashboard.wrong.append(f"asked for {route.request.url}")
        await route.continue_()

    await page.route("**/*", fetch)
    page.on("pageerror", lambda error: dashboard.wrong.append(str(error)))

    def note(said: ConsoleMessage) -> None:
        # that the API refuses something is for the page to say, and the browser says it, too
        if said.type in ("error", "warning") and "status of 4" not in said.text:
            dashboard.wrong.append(said.text)

    page.on("console", note)
    yield dashboard
    await context.close()
