"""Texts that have one hash in libstdc++'s std::hash: MurmurHash64A with a seed that everybody knows."""

from __future__ import annotations

from typing import Any

import numpy as np

_MUL = np.uint64(0xC6A4A7935BD1E995)
_INVERSE = np.uint64(pow(0xC6A4A7935BD1E995, -1, 1 << 64))
_SEED = 0xC70F6907
_SHIFT = np.uint64(47)


def _mix(values: Any) -> Any:
    return values ^ (values >> _SHIFT)  # its own inverse: twice 47 is more than 64 bits


def colliding(count: int, seed: int = 1) -> list[bytes]:
    """So many different ASCII texts of 16 bytes, without `+`, `#`, `/` and NUL, that all collide.

    The first 8 bytes are random; the last 8 bring the hash to one fixed value, for each of its steps can be
    undone. Those that are no such text are thrown away.
    """
    random = np.random.default_rng(seed)
    start = np.uint64((_SEED ^ (16 * int(_MUL))) & 0xFFFFFFFFFFFFFFFF)
    found: list[bytes] = []
    with np.errstate(over="ignore"):
        while len(found) < count:
            first = random.integers(0x61, 0x7B, (1 << 18, 8), dtype=np.uint8)
            state = (start ^ (_mix(first.view("<u8")[:, 0] * _MUL) * _MUL)) * _MUL
            last = _mix((state ^ np.uint64(1)) * _INVERSE) * _INVERSE
            text = last.astype("<u8").view(np.uint8).reshape(-1, 8)
            good = ((text > 0) & (text < 0x80)).all(axis=1) & ~np.isin(text, list(b"+#/")).any(axis=1)
            found += [first[at].tobytes() + text[at].tobytes() for at in np.flatnonzero(good)]
    return found[:count]
