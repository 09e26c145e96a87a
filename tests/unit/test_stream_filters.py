"""What a subscription to a stream asks for: TideMQ's form, and EMQX's with the start in a user property."""

from __future__ import annotations

from pathlib import Path

import pytest

from tidemq.broker.stream_filters import ReplayRefusedError, Wanted, find_offset, is_start, parse_wanted
from tidemq.config import StreamConfig
from tidemq.stream import Stream, StreamLog
from tidemq.wire.filters import matches, overlap


def stream(folder: Path, *filters: str) -> Stream:
    return Stream(StreamConfig(name="plant", filters=filters), 7, StreamLog("plant", folder, [], 40), 0)


@pytest.mark.parametrize(
    ("topic_filter", "offset", "wanted"),
    [
        ("plant/first/#", None, ("first", "#", "$stream/plant/first/")),
        ("plant/17/a/+", None, ("17", "a/+", "$stream/plant/17/")),
        ("plant/2026-01-31T12:00Z//x", None, ("2026-01-31T12:00Z", "/x", "$stream/plant/2026-01-31T12:00Z/")),
        ("plant/earliest/a", None, ("earliest", "a", "$stream/plant/earliest/")),
        ("plant", None, ("next", None, "")),
        ("plant/plant/#", None, ("next", "plant/#", "")),
        ("plant/+/first", None, ("next", "+/first", "")),
        ("plant", "earliest", ("earliest", None, "")),
        ("plant", "1764000000000000", ("1764000000000000", None, "")),
        ("plant/a/#", "latest", ("latest", "a/#", "")),
        ("plant/a/#", "5", ("5", "a/#", "")),
    ],
)
def test_both_forms(topic_filter: str, offset: str | None, wanted: tuple[str, str | None, str]) -> None:
    properties = [("other", "1")] + ([("stream-offset", offset)] if offset else [])
    assert parse_wanted(f"$stream/{topic_filter}", properties) == Wanted("plant", *wanted)


@pytest.mark.parametrize(
    ("topic_filter", "offsets", "says"),
    [
        ("plant/first", (), "FILTER is missing"),
        ("plant/17/", (), "FILTER is missing"),
        ("plant/", (), "nothing follows"),
        ("plant", ("soon",), "stream-offset is 'soon'; accepted: first"),
        ("plant", ("-5",), "stream-offset is '-5'"),
        ("plant", ("",), "stream-offset is ''"),
        ("plant", ("2026-01-31T12:00",), "accepted"),  # of which zone
        ("plant", ("1" * 19,), "accepted"),
        ("plant", ("earliest", "latest"), "2 different values"),
        ("plant/first/#", ("earliest",), "START is given twice"),
        ("plant/first", ("earliest",), "START is given twice"),
    ],
)
def test_what_is_neither_is_refused_with_a_reason(
    topic_filter: str, offsets: tuple[str, ...], says: str
) -> None:
    with pytest.raises(ReplayRefusedError, match=says) as refused:
        parse_wanted(f"$stream/{topic_filter}", [("stream-offset", each) for each in offsets])
    assert refused.value.reason == 0x8F


def test_the_same_start_twice_is_one() -> None:
    assert parse_wanted("$stream/plant", [("stream-offset", "first")] * 2).start == "first"


def test_the_topics_are_those_of_the_filter_or_all_of_the_stream_s(tmp_path: Path) -> None:
    plant = stream(tmp_path, "plant/#", "$own/+")
    assert parse_wanted("$stream/plant", ()).filters_of(plant) == ("plant/#", "$own/+")
    assert parse_wanted("$stream/plant/+/x", ()).filters_of(plant) == ("+/x",)
    assert parse_wanted("$stream/plant/first/none", ()).filters_of(plant) == ("none",)
    with pytest.raises(ReplayRefusedError, match="'soon/#' is no START/FILTER"):
        parse_wanted("$stream/plant/soon/#", ()).filters_of(plant)


def test_starts_are_found(tmp_path: Path) -> None:
    plant = stream(tmp_path, "#")
    starts = ("first", "earliest", "next", "latest", "17", "99999999999999", "100000000000000")
    assert [find_offset(plant, each) for each in starts] == [40, 40, 40, 40, 17, 99_999_999_999_999, 40]
    assert find_offset(plant, "2026-01-31T12:00Z") == 40
    assert not is_start("soon")
    assert not is_start("٣")


@pytest.mark.parametrize(
    ("first", "second", "both"),
    [
        ("a/#", "a", True),
        ("a/#", "+/b/c", True),
        ("a/+", "+/b", True),
        ("a/+", "a", False),
        ("a/b", "a/c", False),
        ("#", "a/b", True),
        ("#", "$own/b", False),
        ("+/b", "$own/b", False),
        ("$own/+", "$own/#", True),
        ("$share/g/a/+", "a/b", True),
        ("a/b/#", "a/+/c/d", True),
        ("a", "a/b/#", False),
    ],
)
def test_filters_overlap_where_a_topic_matches_both(first: str, second: str, both: bool) -> None:
    assert overlap(first, second) == overlap(second, first) == both
    topics = [f"{a}{b}{c}" for a in ("a", "$own", "x") for b in ("", "/b", "/x") for c in ("", "/c", "/c/d")]
    assert both == any(matches(first, topic) and matches(second, topic) for topic in topics)
