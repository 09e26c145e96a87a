"""Figures as people read them: three digits that count, a unit that suits, a median with its spread."""

from __future__ import annotations

import pytest

from tidemq.bench.report.numbers import duration, short, spread


@pytest.mark.parametrize(
    ("figure", "text"),
    [
        (0.1234, "0.123"),
        (7.891, "7.89"),
        (99.96, "100"),
        (678.4, "678"),
        (999.6, "1 k"),
        (1234, "1.23 k"),
        (45_630, "45.6 k"),
        (999_700, "1 M"),
        (23_456_789, "23.5 M"),
        (12_345_678_901, "12,346 M"),
    ],
)
def test_three_digits_count(figure: float, text: str) -> None:
    assert short(figure) == text


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0.5, "0.5 µs"),
        (47.2, "47.2 µs"),
        (123.4, "123 µs"),
        (999.7, "1 ms"),
        (1234, "1.23 ms"),
        (4560, "4.56 ms"),
        (4.5e6, "4.5 s"),
    ],
)
def test_durations_have_the_unit_that_suits_them(us: float, text: str) -> None:
    assert duration(us) == text


def test_a_spread_is_of_several() -> None:
    assert spread([3e6, 1e6, 2e6]) == "2 M (1 M-3 M)"
    assert spread([2000.0, 1000.0], duration, " - ") == "1.5 ms (1 ms - 2 ms)"
    assert (spread([7.0]), spread([])) == ("7", "—")
