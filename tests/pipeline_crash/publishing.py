"""Devices that publish while everything dies around them; what they sent, and what was acknowledged."""

from __future__ import annotations

import asyncio
import json
import random
import re
from dataclasses import dataclass
from typing import Literal

from tidemq.client import Client

RULES = """\
[[rules]]
name = "json"
filter = "plant/+/json"
format = "json"
columns = "id bigint, text string"

[rules.gold]
window = "10 seconds"
values = ["id"]
gap = "1 second"

[[rules]]
name = "number"
filter = "plant/+/number"
format = "number"

[rules.gold]
window = "1 day"
values = ["value"]
percentiles = [50]
"""
FILTER = "plant/#"
KINDS = ("json", "json", "number", "number", "wrong", "other")  # wrong: cannot be decoded; other: has no rule
IDS_OF_ONE = 1_000_000


@dataclass(slots=True)
class Sent:
    """A message that was published; `number` is unique in its run, and in the payload."""

    number: int
    kind: str
    qos: int
    acknowledged: bool = False

    def message(self, publisher: str) -> tuple[str, bytes]:
        """Its topic and its payload."""
        topic = f"plant/{publisher}/{'json' if self.kind == 'wrong' else self.kind}"
        if self.kind == "json":
            values = {"id": self.number, "text": f"of {publisher}", "level": self.number * 37 % 101}
            return topic, json.dumps(values).encode()
        return topic, f"{self.number} is no object".encode() if self.kind == "wrong" else b"%d" % self.number


def number_in(payload: bytes) -> int:
    """Of the message with this payload."""
    found = re.search(rb"\d+", payload)
    assert found is not None, payload
    return int(found[0])


class Publisher:
    """One device. Its session survives: what was not acknowledged is sent again under its identifier."""

    def __init__(self, place: int, choose: random.Random, sent: dict[int, Sent]) -> None:
        self.name = f"device{place}"
        self.choose = choose
        self.sent = sent  # by number; of all publishers
        self.next = place * IDS_OF_ONE
        self.version: Literal[4, 5] = choose.choice((4, 5))
        self.window = choose.choice((1, 5, 20, 40))  # messages under way at a time
        self.pause_s = self.window / choose.choice((5, 15, 30))  # after as many, at most
        self.under_way = 0
        self.stopping = False

    async def publish(self, url: str) -> None:
        """Until it is told to stop, and then until all is acknowledged."""
        client = Client(
            url,
            client_id=self.name,
            version=self.version,
            clean_start=False,
            session_expiry_s=3600,
            inflight_max=self.window,
            retry_first=True,
            backoff_s_min=0.05,
            backoff_s_max=0.3,
        )
        async with client:
            while not self.stopping:
                async with asyncio.TaskGroup() as group:
                    for _ in range(self.choose.randint(1, self.window)):
                        group.create_task(self._publish_one(client))
                await asyncio.sleep(self.choose.uniform(0, self.pause_s))

    async def _publish_one(self, client: Client) -> None:
        self.next += 1
        sent = Sent(self.next, self.choose.choice(KINDS), self.choose.choice((1, 2)))
        self.sent[sent.number] = sent
        self.under_way += 1
        await client.publish(*sent.message(self.name), qos=sent.qos)
        self.under_way -= 1
        sent.acknowledged = True
