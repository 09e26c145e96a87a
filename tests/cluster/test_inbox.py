"""What waits for the keeper has bounds, in messages and in bytes."""

from __future__ import annotations

from collections import Counter

import pytest

from tidemq.cluster import inbox
from tidemq.cluster.exchange import BEAT, RECORDS
from tidemq.cluster.inbox import FETCHED, Inbox


def test_records_wait_up_to_so_many_bytes_and_heartbeats_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(inbox, "CAME_BYTES_MAX", 1000)
    counts: Counter[str] = Counter()
    waiting = Inbox(lambda: None, counts)
    waiting.take_in(RECORDS, 2, bytes(600))
    waiting.take_fetched(2, [bytes(300), bytes(300)])
    waiting.take_in(RECORDS, 2, bytes(1))
    waiting.take_fetched(2, [bytes(1)])
    waiting.take_in(BEAT, 2, bytes(50))
    assert counts["cluster_messages_unread"] == 2
    assert [waiting.next()[0] for _ in range(2)] == [RECORDS, FETCHED]
    waiting.take_in(RECORDS, 2, bytes(600))
    assert counts["cluster_messages_unread"] == 2
    assert [waiting.next()[0] for _ in range(2)] == [BEAT, RECORDS]


def test_so_many_messages_wait_and_as_many_heartbeats_more(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(inbox, "CAME_MAX", 3)
    counts: Counter[str] = Counter()
    waiting = Inbox(lambda: None, counts)
    for kind in (RECORDS, BEAT):
        for _ in range(10):
            waiting.take_in(kind, 2, b"")
    assert [waiting.next()[0] for _ in range(len(waiting))] == [RECORDS] * 3 + [BEAT] * 3
    assert counts["cluster_messages_unread"] == 14
