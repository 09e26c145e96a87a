"""`tidemq sub -F`: a message printed as the format says."""

from __future__ import annotations

import json
import time

import pytest

from tidemq.cli.message_format import MessageFormat, NotJsonError
from tidemq.errors import UsageError
from tidemq.wire import Properties, Publish

MESSAGE = Publish(
    topic="a/ü",
    payload=b"pay\xff",
    qos=1,
    packet_id=7,
    retain=True,
    properties=Properties(
        content_type="text",
        response_topic="r",
        correlation_data=b"cd",
        message_expiry_s=9,
        payload_format=0,
        user_properties=(("a", "b"), ("c", "d")),
        subscription_ids=(3, 4),
    ),
)
NOW_NS = 1_795_371_360_000_012_345


def shown(text: str, message: Publish = MESSAGE) -> bytes:
    return MessageFormat(text).show(message, NOW_NS)


@pytest.mark.parametrize(
    ("text", "printed"),
    [
        ("plain", "plain"),
        ("%%|%A|%C|%D|%E|%F|%P|%R|%S", "%||text|cd|9|0|a:b c:d|r|3 4"),
        ("%t|%q|%r|%m|%l|%x|%X", "a/ü|1|1|7|4|706179ff|706179FF"),
        ("%5l|%-5l|%05l|%.1t|%6.1t|%-4.3t|", "    4|4    |00004|a|     a|a/ü|"),
        (r"\\|\0|\a|\e|\n|\r|\t|\v", "\\|\0|\a|\033|\n|\r|\t|\v"),
        ("%U|@@|@N|", "1795371360.000012345|@|000012345|"),
        ("", ""),
    ],
)
def test_each_part(text: str, printed: str) -> None:
    assert shown(text) == printed.encode()


def test_the_payload_as_it_is_and_the_rest_empty_where_there_is_none() -> None:
    assert shown("%p|%6p|%-6p|") == b"pay\xff|  pay\xff|pay\xff  |"
    assert shown("%A%C%D%E%F%P%R%S%t|%m|%q", Publish(topic="t")) == b"t|0|0"


def test_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC-2")
    time.tzset()
    try:
        assert shown("%I @Y-@m-@dT@H:@M:@S") == b"2026-11-22T20:16:00+0200 2026-11-22T20:16:00"
    finally:
        monkeypatch.undo()
        time.tzset()


def test_as_json() -> None:
    found = json.loads(shown("%j"))
    assert found.pop("tst").startswith("20")
    assert found == {
        "topic": "a/ü", "qos": 1, "retain": 1, "payloadlen": 4, "mid": 7, "payload": "pay\ufffd",
        "properties": {
            "payload-format-indicator": 0, "message-expiry-interval": 9, "content-type": "text",
            "response-topic": "r", "correlation-data": "cd", "user-properties": {"a": "b", "c": "d"},
            "subscription-identifier": [3, 4],
        },
    }  # fmt: skip
    inner = json.loads(shown("%J", Publish(topic="t", payload=b'{"a": [1, 2.5]}')))
    assert inner["payload"] == {"a": [1, 2.5]}
    assert "properties" not in inner
    assert "mid" not in inner
    assert b"\n\t" in MessageFormat("%j", pretty=True).show(MESSAGE)
    with pytest.raises(NotJsonError, match="a/ü"):
        shown("%J")


@pytest.mark.parametrize("text", ["%b", "%", "a%5", "@", "@q1", "\\", "\\q", "%5"])
def test_what_is_no_format(text: str) -> None:
    with pytest.raises(UsageError, match="format"):
        MessageFormat(text)
