"""A rule that is broken on purpose, and what comes of it in histories."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest


def expect(
    kind: str,
    plant: Callable[[pytest.MonkeyPatch], None],
    history: Callable[[int], Iterable[str]],
    seeds: int,
    first: int = 0,
) -> None:
    """Fails unless so many histories, by seed, show a failure of this kind; their lines begin with kinds.
    `first`: one shortly before the first that does, so that it is found soon.
    """
    kinds: set[str] = set()
    with pytest.MonkeyPatch.context() as patch:
        plant(patch)
        for seed in range(first, first + seeds):
            kinds |= {line.partition(":")[0] for line in history(seed)}
            if kind in kinds:
                return
    pytest.fail(f"{kind!r} was not found in {seeds} histories, only {kinds}")
