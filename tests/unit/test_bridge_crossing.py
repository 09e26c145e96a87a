"""When a bridge believes that the other side has gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from tidemq.bridge.crossing import BridgeError, Crossing, Home
from tidemq.bridge.far import Far
from tidemq.bridge.relay import Counts
from tidemq.bridge_config import Bridge, BridgeTopic
from tidemq.limits import Limits


class SilentLink:
    """A connection over which nothing comes."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, data: bytes) -> None:
        self.sent.append(data)


@pytest.fixture
def silent() -> tuple[Crossing, Any]:
    bridge = Bridge(name="far", addresses=("mqtt://h",), topics=(BridgeTopic(filter="#"),))
    home = Home("\0nowhere", "$bridge/far", b"", Limits())
    far = Far("mqtt://h", "c", is_private=False, is_notified=False)
    crossing = Crossing(bridge, home, far, Counts(), lambda: None)
    crossing._keep_alive_s = 0.02  # type: ignore[assignment]
    side: Any = crossing._remote
    side.link = SilentLink()
    return crossing, side


async def test_a_side_that_answers_nothing_is_asked_and_then_believed_gone(
    silent: tuple[Crossing, Any],
) -> None:
    crossing, side = silent
    with pytest.raises(BridgeError, match="did not answer within"):
        await crossing._keep_alive()
    assert side.link.sent == [b"\xc0\x00"]


async def test_a_side_that_takes_nothing_is_gone_too(silent: tuple[Crossing, Any]) -> None:
    crossing, side = silent
    side.is_blocked = side.is_paused = True
    with pytest.raises(BridgeError, match="did not answer within"):
        await crossing._keep_alive()


async def test_a_side_that_is_not_listened_to_may_be_there(silent: tuple[Crossing, Any]) -> None:
    crossing, side = silent
    side.is_paused = True
    waiting = asyncio.create_task(crossing._keep_alive())
    while len(side.link.sent) < 5:
        await asyncio.sleep(0.005)
        assert not waiting.done()
    side.is_paused = False
    with pytest.raises(BridgeError, match="did not answer within"):
        await waiting
