"""Which tests run in the build that checks invariants, and in `make test` in no other."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = [
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/adversity").glob("test_steps_*.py")),
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "tests/durable").glob("test_steps_*.py")),
    "tests/durable/test_many_at_once.py",
    "tests/durable/test_clock.py::test_very_many_sessions_have_new_dates",
]
