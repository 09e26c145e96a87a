"""Breaks of what engine/base relies on."""

from __future__ import annotations

from assertions.planted import Break

PLANTED: list[Break] = [
    Break(
        "who releases a message holds it",
        "queues/outbox.py",
        "        release_message(entry.message, tally)\n",
        "        release_message(entry.message, tally)\n        release_message(entry.message, tally)\n",
        ("tests/conformance/test_qos1.py",),
    ),
]
