"""Which records of each node have been applied: numbers by incarnation.

A node's records are applied in their order and without a gap, so one number says all of a node's. Where a
vector lacks an incarnation, nothing of it has been applied: number 0, and the first record is 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

Vector = Mapping[int, int]


class Dot(NamedTuple):
    """One record: whose, and which."""

    incarnation: int
    number: int


def has_seen(vector: Vector, dot: Dot) -> bool:
    return vector.get(dot.incarnation, 0) >= dot.number


def covers(vector: Vector, other: Vector) -> bool:
    """Whether all that `other` has applied is applied in `vector`."""
    return all(vector.get(incarnation, 0) >= number for incarnation, number in other.items())


def raised(vector: Vector, other: Vector) -> dict[int, int]:
    """What either has applied."""
    return {each: max(vector.get(each, 0), other.get(each, 0)) for each in {*vector, *other}}
