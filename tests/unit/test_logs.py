"""What `tidemq serve` writes to its log: as JSON, by area, and of no kind too much."""

from __future__ import annotations

import asyncio
import http.client
import io
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from conformance.kit import connected, unique
from waiting import WAIT_S, wait_until

from tidemq import Broker, Config
from tidemq.broker import logs

JSON = {"Content-Type": "application/json"}


@pytest.fixture
def output() -> Iterator[io.StringIO]:
    """Where the log goes."""
    root = logging.getLogger()
    level = root.level
    written = io.StringIO()
    yield written
    for handler in root.handlers[:]:
        if isinstance(handler, logging.StreamHandler) and handler.stream is written:
            root.removeHandler(handler)
    root.setLevel(level)
    for area in ("", *logs.AREAS):
        logs.set_level(area, None)


@pytest.fixture
def config(tmp_path: Path, unused_tcp_port: int) -> Config:
    return Config(
        host="127.0.0.1",
        port=0,
        sys_interval_s=0,
        data=tmp_path,
        admin_port=unused_tcp_port,
        log_format="json",
        log_levels={"admin": "error"},
    )


def asked(broker: Broker, method: str, body: object = None) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", broker.admin_port, timeout=WAIT_S)
    text = None if body is None else json.dumps(body)
    connection.request(method, "/api/v1/log-levels", text, JSON)
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read())


def lines_of(output: io.StringIO) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.getvalue().splitlines()]


async def test_a_line_is_an_object_with_what_is_known(config: Config, output: io.StringIO) -> None:
    logs.write_log(config, output)
    name = unique('c\\"ü')

    def act() -> None:
        client = connected(broker, client_id=name)
        client.socket.sendall(b"\xf0\x00")  # no packet type
        wait_until(lambda: any("reason" in line for line in lines_of(output)))

    async with Broker(config) as broker:
        await asyncio.to_thread(act)
    lines = [line for line in lines_of(output) if line.get("client") == name]
    came, went = lines
    assert came["level"] == "info"
    assert came["logger"] == "tidemq.clients"
    assert came["message"].endswith("connected")
    assert came["address"].startswith("127.0.0.1:")
    assert came.keys() == {"time", "level", "logger", "message", "client", "address", "listener"}
    assert went["level"] == "warning"
    assert went["listener"] == "default"
    assert went["reason"] in went["message"]
    assert went["bytes"] > 20
    assert 0 <= went["seconds"] < WAIT_S


async def test_a_line_names_the_user(config: Config, output: io.StringIO) -> None:
    logs.write_log(config, output)
    users = {"authenticator": "static", "authenticator_options": {"users": {"ann": "secret"}}}
    name = unique("c")

    def act() -> None:
        connected(broker, client_id=name, username="ann", password=b"secret").disconnect()
        wait_until(lambda: len([line for line in lines_of(output) if line.get("client") == name]) == 2)

    async with Broker(config.model_copy(update=users)) as broker:
        await asyncio.to_thread(act)
    assert {line.get("user") for line in lines_of(output) if line.get("client") == name} == {"ann"}
    assert "secret" not in output.getvalue()


def test_an_exception_is_in_its_line(config: Config, output: io.StringIO) -> None:
    logs.write_log(config, output)
    try:
        raise ValueError("two\nlines")
    except ValueError:
        logging.getLogger("tidemq").exception("it failed for %r", "a\nb")
    (line,) = lines_of(output)
    assert "two\nlines" in line["exception"]
    assert line["message"] == "it failed for 'a\\nb'"


async def test_levels_change_while_it_runs(config: Config, output: io.StringIO) -> None:
    logs.write_log(config, output)

    def names() -> set[Any]:
        return {line.get("client") for line in lines_of(output)}

    def act() -> None:
        assert asked(broker, "GET")[1]["levels"]["admin"] == "error"
        first, second, third = unique("c"), unique("c"), unique("c")
        connected(broker, client_id=first).drop()
        wait_until(lambda: first in names())
        status, answer = asked(broker, "PUT", {"area": "clients", "level": "warning"})
        assert (status, answer["levels"]["clients"], answer["levels"]["access"]) == (200, "warning", "info")
        connected(broker, client_id=second).drop()
        assert asked(broker, "PUT", {"area": "clients", "level": None})[1]["levels"]["clients"] == "info"
        connected(broker, client_id=third).drop()
        wait_until(lambda: third in names())
        assert second not in names()
        assert asked(broker, "PUT", {"level": "error"})[1]["levels"] == dict.fromkeys(
            ("", *logs.AREAS), "error"
        )

    async with Broker(config) as broker:
        await asyncio.to_thread(act)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({"area": "all", "level": "info"}, "area"),
        ({"area": "store", "level": "loud"}, "level"),
        ({"area": "store"}, "level"),
        ({"level": "info", "colour": "red"}, "colour"),
    ],
)
async def test_a_wrong_level_is_refused(config: Config, body: object, said: str) -> None:
    async with Broker(config) as broker:
        status, answer = await asyncio.to_thread(asked, broker, "PUT", body)
    assert status == 400
    assert said in answer["detail"]


async def test_no_kind_of_line_drowns_the_others(
    config: Config, output: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 1000.0
    monkeypatch.setattr("tidemq.broker.logs.time.monotonic", lambda: now_s)
    logs.write_log(config, output)
    log, audit = logging.getLogger("tidemq.store"), logging.getLogger("tidemq.audit")
    for number in range(1000):
        log.error("row %d is wrong", number)
        audit.info("line %d", number)
    log.error("something else")
    monkeypatch.undo()
    lines = lines_of(output)
    of_rows = [line["message"] for line in lines if line["message"].startswith("row")]
    assert len(of_rows) == logs.KIND_LINES_MAX
    assert "are left out" in of_rows[-1]
    assert sum(line["logger"] == "tidemq.audit" for line in lines) == 1000
    assert lines[-1]["message"] == "something else"
    assert logs.lines_left_out() == 900
    async with Broker(config) as broker:
        assert broker.counters()["log_lines_left_out"] == 900
