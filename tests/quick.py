"""How many examples are tried of each property: all in `make test-long`, a third in `make test`, an eighth in
`make test-unit`, which is run often, while something is changed.
"""

from __future__ import annotations

import os

PARTS = {"all": 1, "": 3, "few": 8}
EXAMPLES = 100  # where a test does not say how many


def examples(count: int = EXAMPLES) -> int:
    """How many of so many."""
    return -(-count // PARTS[os.environ.get("TIDEMQ_TEST_EXAMPLES", "")])
