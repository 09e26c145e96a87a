"""Breaks of what engine/queues relies on."""

from __future__ import annotations

from assertions.planted import Break

PLANTED: list[Break] = [
    Break(
        "outbox: head <= next <= tail",
        "queues/outbox.py",
        "    if box.next < box.head:\n        box.next = box.head\n",
        "    box.next = box.head - 1\n",
        ("tests/conformance/test_qos1.py",),
    ),
    Break(
        "outbox: entries are at its places",
        "queues/outbox.py",
        "    else:\n        box.inflight -= 1\n",
        "",
        ("tests/conformance/test_qos1.py",),
    ),
    Break(
        "outbox: bytes are those of the messages held",
        "queues/outbox.py",
        "        box.bytes -= size\n",
        "        box.bytes -= 2 * size\n",
        ("tests/conformance/test_qos1.py",),
    ),
]
