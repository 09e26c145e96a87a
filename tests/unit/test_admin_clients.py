"""What the admin listener does with clients."""

from __future__ import annotations

import asyncio
import http.client
import json
import time
from urllib.parse import quote

import pytest
from conformance.kit import connected
from waiting import WAIT_S

from tidemq.broker import Broker
from tidemq.config import Config


def delete(port: int, client_id: str) -> tuple[int, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
    connection.request("DELETE", f"/api/v1/clients/{quote(client_id, safe='')}")
    answer = connection.getresponse()
    return answer.status, answer.read()


@pytest.mark.parametrize("client_id", ["pump-7", "a/b c", "../clients/ü", "%2e"])
async def test_a_client_is_disconnected(client_id: str, unused_tcp_port: int) -> None:
    def act() -> None:
        client = connected(broker, client_id=client_id)
        other = connected(broker, client_id=f"{client_id}x")
        assert delete(broker.admin_port, client_id)[0] == 202
        client.expect_closed(0x98)
        deadline = time.monotonic() + 20
        while delete(broker.admin_port, client_id)[0] == 202 and time.monotonic() < deadline:
            time.sleep(0.01)  # until its session is known to be without a client
        status, body = delete(broker.admin_port, client_id)
        assert status == 404
        assert json.loads(body)["detail"] == f"no client {client_id!r} is connected"
        assert delete(broker.admin_port, "nobody")[0] == 404
        other.ping()

    async with Broker(Config(host="127.0.0.1", port=0, store="memory", admin_port=unused_tcp_port)) as broker:
        await asyncio.to_thread(act)
