"""Several web workers with one subscription: each message comes to one of them, and none is lost between two.

    pip install tidemq fastapi uvicorn
    uvicorn --workers 4 --app-dir examples fastapi_workers:app

docs/how-to/web-workers.md says why it is as it is. `MQTT_URL` is the broker's, `DATABASE` the file of the
readings.
"""

from __future__ import annotations

import asyncio
import fcntl
import itertools
import logging
import os
import signal
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from pathlib import Path
from typing import TextIO

from fastapi import FastAPI, Request

from tidemq.client import Client

URL = os.environ.get("MQTT_URL", "mqtt://localhost")
DATABASE = Path(os.environ.get("DATABASE", "readings.db"))


def take_number() -> tuple[int, TextIO]:
    """The lowest number that no other worker has. It is free again when the file is closed, however."""
    for number in itertools.count():
        file = DATABASE.with_suffix(f".worker-{number}").open("w")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
        else:
            return number, file
    raise AssertionError


def open_database() -> sqlite3.Connection:
    database = sqlite3.connect(DATABASE, timeout=30, isolation_level=None)
    database.execute("PRAGMA journal_mode = WAL")
    database.execute("CREATE TABLE IF NOT EXISTS readings (topic TEXT, payload TEXT, worker INTEGER)")
    return database


async def keep_readings(client: Client, database: sqlite3.Connection, number: int) -> None:
    async for message in client.messages:  # which acknowledges the message before
        row = (message.topic, message.payload.decode(), number)
        database.execute("INSERT INTO readings VALUES (?, ?, ?)", row)


def end_worker(keeping: asyncio.Task[None]) -> None:
    """A worker that gets no messages any more must not look well: uvicorn starts another one."""
    if not keeping.cancelled():
        logging.error("readings are not kept any more", exc_info=keeping.exception())
        os.kill(os.getpid(), signal.SIGTERM)


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    number, file = take_number()
    client = Client(
        URL, client_id=f"web-{number}", clean_start=False, session_expiry_s=86_400, retry_first=True
    )
    with file, closing(open_database()) as database:
        async with client:
            await client.subscribe("$share/web/sensors/#", qos=1)
            keeping = asyncio.create_task(keep_readings(client, database, number))
            keeping.add_done_callback(end_worker)
            app.state.client, app.state.database = client, database
            yield
            keeping.cancel()


app = FastAPI(lifespan=lifespan)


@app.get("/workers")
async def readings_by_worker(request: Request) -> dict[int, int]:
    """How many readings each worker has kept."""
    query = "SELECT worker, count(*) FROM readings GROUP BY worker"
    return dict(request.app.state.database.execute(query).fetchall())


@app.get("/readings/{topic:path}")
async def newest_readings(topic: str, request: Request) -> list[str]:
    """Of one topic, the newest first."""
    query = "SELECT payload FROM readings WHERE topic = ? ORDER BY rowid DESC LIMIT 100"
    return [payload for (payload,) in request.app.state.database.execute(query, (topic,))]


@app.post("/commands/{device}")
async def command(device: str, command: str, request: Request) -> None:
    """Returns when the broker has it."""
    await request.app.state.client.publish(f"commands/{device}", command, qos=1)
