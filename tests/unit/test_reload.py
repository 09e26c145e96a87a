"""A broker that runs reads again what can change: by its method, by SIGHUP (tests/privileges), over HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest
from unit.conftest import BrokerOnFake
from waiting import WAIT_S

from tidemq import Broker, Config
from tidemq.broker.authenticators.password_file import change_password_file
from tidemq.client import Client
from tidemq.client.errors import ServerRefusedError
from tidemq.errors import UsageError


def post(broker: Broker) -> tuple[int, dict[str, object]]:
    headers = {"Content-Type": "application/json"}
    request = Request(f"http://127.0.0.1:{broker.admin_port}/reload", b"", headers, method="POST")
    try:
        with urlopen(request, timeout=WAIT_S) as answer:
            return answer.status, json.load(answer)
    except HTTPError as error:
        return error.code, json.load(error)


async def test_passwords_are_read_again_at_once_and_wrong_ones_leave_the_old(
    tmp_path: Path, unused_tcp_port: int, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    users = tmp_path / "passwd"
    change_password_file(users, "ann", b"first")
    config = Config(
        host="127.0.0.1",
        port=0,
        reactors=1,
        store="memory",
        authenticator="password_file",
        authenticator_options={"file": str(users)},
        admin_port=unused_tcp_port,
    )

    async def comes_in(broker: Broker, password: bytes) -> bool:
        client = Client(f"mqtt://127.0.0.1:{broker.port}", username="ann", password=password)
        try:
            await client.connect()
        except ServerRefusedError:
            return False
        await client.disconnect()
        return True

    async with Broker(config) as broker:
        assert await comes_in(broker, b"first")
        change_password_file(users, "ann", b"second")
        assert await asyncio.to_thread(post, broker) == (
            200,
            {"reloaded": ["authenticator password_file", "admin"]},
        )
        assert not await comes_in(broker, b"first")
        assert await comes_in(broker, b"second")
        users.write_text("nonsense\n")
        status, said = await asyncio.to_thread(post, broker)
        assert (status, said["reloaded"]) == (500, ["admin"])
        assert str(said["error"]).startswith(f"authenticator password_file: {users}: line 1: ")
        assert await comes_in(broker, b"second")
        assert await broker.reload() == {
            "authenticator password_file": str(said["error"]).removeprefix("authenticator password_file: "),
            "admin": "",
        }
    assert "reload: authenticator password_file was read again" in caplog.text
    assert "line 1: it has no user or no hash" in caplog.text


async def test_one_part_that_fails_keeps_no_other_from_being_read(
    broker_on_fake: type[BrokerOnFake], caplog: pytest.LogCaptureFixture
) -> None:
    done: list[str] = []

    def fails() -> None:
        raise ValueError("secret-token")

    async def refuses() -> None:
        raise UsageError("the file is empty")

    async def works() -> None:
        done.append("works")

    async with broker_on_fake(Config(port=0, sys_interval_s=0)) as broker:
        for name, act in (("a", fails), ("b", refuses), ("c", works)):
            broker.on_reload(name, act)
        wrong = {"a": "it failed with ValueError", "b": "the file is empty", "c": ""}
        assert list(await asyncio.gather(broker.reload(), broker.reload())) == [wrong, wrong]
    assert done == ["works", "works"]
    assert "reload: b: the file is empty; the old content stays in force" in caplog.text
