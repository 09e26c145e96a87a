"""Exit codes that several commands share."""

from __future__ import annotations

EXIT_FAILED = 1
EXIT_USAGE = 2  # it could not be begun
