"""`make test-unit` tries fewer examples of each property: it is run often, while something is changed."""

from __future__ import annotations

import os

QUICK = bool(os.environ.get("TIDEMQ_TEST_QUICK"))
EXAMPLES = 100  # where a test does not say how many


def examples(count: int = EXAMPLES) -> int:
    """How many of so many."""
    return -(-count // 8) if QUICK else count
