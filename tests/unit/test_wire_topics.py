"""Topic names and filters: UTF-8, wildcards, sharing, levels, against the rules again in Python."""

from __future__ import annotations

import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemq.errors import ProtocolError
from tidemq.wire import Fault, Publish, decode, topic_filter_fault, topic_name_fault
from tidemq.wire.topics import topic_filter_ways


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("a", Fault.NONE),
        ("/", Fault.NONE),
        ("//", Fault.NONE),
        (" ", Fault.NONE),
        ("a b/ü/日本/😀", Fault.NONE),
        ("$SYS/x", Fault.NONE),
        ("$share/g/a", Fault.NONE),  # only filters are shared
        ("\ufeffa", Fault.NONE),  # [MQTT-1.5.4-3]
        ("", Fault.TOPIC_EMPTY),
        ("#", Fault.TOPIC_WILDCARD),
        ("a/+/b", Fault.TOPIC_WILDCARD),
        ("日本#", Fault.TOPIC_WILDCARD),
        ("a\0", Fault.NUL),
        ("\ud800", Fault.UTF8),
        ("a" * 65535, Fault.NONE),
        ("a" * 65536, Fault.TOPIC_LEVELS),
    ],
)
def test_topic_name(name: str, fault: Fault) -> None:
    assert Fault(topic_name_fault(name)) == fault


@pytest.mark.parametrize(
    ("filter", "ways"),
    [
        ("a", 1),
        ("a/b/c", 1),
        ("#", 1),
        ("+", 1),
        ("a/+", 2),
        ("+/a/#", 2),
        ("+/+", 2),
        ("+/+/+", 3),
        ("+/b/+/d/e", 10),
        ("$share/g/+/b/+/d/e", 10),
        ("/".join(["+", "a"] * 5 + ["+"]), 462),
        ("/".join(["+", "a"] * 6), 924),
        ("/".join(["a"] * 31 + ["+"] + ["a"] * 32), 64),
        ("/".join(["a"] * 15 + ["+"] * 2 + ["a"] * 15), 496),
        ("/".join(["a", "+"] * 3 + ["a"] * 9), 455),
        ("/".join(["a", "+"] * 4 + ["a"] * 4), 495),
        ("/".join(["+", "a"] * 5000), 1 << 40),
        ("/".join(["+"] * 64), 128),
        ("/".join(["+"] * 30 + ["a"] * 34), 128),
        ("/".join(["a"] * 34 + ["+"] * 30 + ["#"]), 128),
    ],
)
def test_wildcard_ways(filter: str, ways: int) -> None:
    assert topic_filter_ways(filter) == ways


@given(st.lists(st.sampled_from("a+"), min_size=2, max_size=80), st.sampled_from(["", "/#"]))
def test_no_beginning_of_a_filter_has_more_wildcard_ways(levels: list[str], end: str) -> None:
    assert topic_filter_ways("/".join(levels[:-1]) + end) <= topic_filter_ways("/".join(levels) + end)


GOOD_FILTERS = (
    "a # + +/+ /+ +/ a/# +/a/# /# //# $SYS/# $share $shared/a $share/g/# $share/g/a/+ $share/g// "
    "$share/g/$SYS/# $share/日/a x$share/+ é/+"
)


@pytest.mark.parametrize("good", GOOD_FILTERS.split())
def test_good_filter(good: str) -> None:
    assert Fault(topic_filter_fault(good)) == Fault.NONE


@pytest.mark.parametrize(
    ("name", "levels"), [("a", 1), ("a/b", 2), ("/", 2), ("a/b/c", 3), ("///", 4), ("a/", 2)]
)
def test_levels_are_counted(name: str, levels: int) -> None:
    for fault_of in (topic_name_fault, topic_filter_fault):
        assert Fault(fault_of(name, levels)) == Fault.NONE
        assert Fault(fault_of(name, levels - 1)) == Fault.TOPIC_LEVELS
    shared = f"$share/group/{name}"
    assert Fault(topic_filter_fault(shared, levels)) == Fault.NONE
    assert Fault(topic_filter_fault(shared, levels - 1)) == Fault.TOPIC_LEVELS


def good_levels(levels: list[str]) -> bool:
    """Section 4.7.1."""
    return all("#" not in level and (level == "+" or "+" not in level) for level in levels[:-1]) and (
        levels[-1] in ("#", "+") or not set("#+") & set(levels[-1])
    )


def good_filter(text: str) -> bool:
    """Sections 4.7.1 and 4.8.2."""
    levels = text.split("/")
    if levels[0] == "$share" and len(levels) > 1:
        inner = levels[2:]
        return (
            bool(levels[1])
            and not set("+#") & set(levels[1])
            and inner not in ([], [""])
            and good_levels(inner)
        )
    return text != "" and good_levels(levels)


@given(
    st.lists(st.sampled_from(["", "a", "+", "#", "a+", "$share", "é", "abcdefgh"]), max_size=6).map("/".join)
)
def test_filter_by_the_rules_in_python(text: str) -> None:
    assert (topic_filter_fault(text) == Fault.NONE) == good_filter(text)


def python_says(data: bytes) -> set[Fault]:
    """The faults that a topic of these bytes may be refused for; Python's decoder is as strict as MQTT's."""
    faults = set()
    try:
        text = data.decode()
    except UnicodeDecodeError:
        faults.add(Fault.UTF8)
        text = ""
    if 0 in data:
        faults.add(Fault.NUL)
    if not faults and set("+#") & set(text):
        faults.add(Fault.TOPIC_WILDCARD)
    return faults


pieces = st.one_of(
    st.sampled_from(
        [b"a", b"abcdefgh", b"\0", b"+", b"#", b"\x7f", b"\x80", b"\xc0\x80", b"\xed\xa0\x80", b"\xf4\x90"]
    ),
    st.sampled_from(
        [b"\xc2", b"\xe0\xa0\x80", b"\xef\xbf\xbf", b"\xf0\x90\x80\x80", b"\xf4\x8f\xbf\xbf", b"\xff"]
    ),
    st.binary(min_size=1, max_size=3),
    st.characters(exclude_categories=["Cs"]).map(str.encode),
)


@given(st.lists(pieces, min_size=1, max_size=12).map(b"".join))
def test_topic_bytes_as_python_judges_them(data: bytes) -> None:
    body = len(data).to_bytes(2, "big") + data
    expected = python_says(data)
    raw = bytes((0x30, len(body))) + body
    if not expected:
        assert decode(raw, 4) == (Publish(topic=data.decode()), len(raw))
        return
    with pytest.raises(ProtocolError) as caught:
        decode(raw, 4)
    assert caught.value.fault in expected


def test_every_code_point_is_read_as_python_reads_it() -> None:
    refused = []
    for number in range(sys.maxunicode + 1):
        fault = topic_name_fault(chr(number))
        if fault:
            refused.append((number, Fault(fault)))
    surrogates = [(number, Fault.UTF8) for number in range(0xD800, 0xE000)]
    wildcards = [(ord("#"), Fault.TOPIC_WILDCARD), (ord("+"), Fault.TOPIC_WILDCARD)]
    assert refused == [(0, Fault.NUL), *wildcards, *surrogates]
