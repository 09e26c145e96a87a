"""`-D COMMAND NAME VALUE` on the command line becomes properties of packets."""

from __future__ import annotations

from typing import Any

import pytest

from tidemq.cli.property_flags import join_properties, parse_properties
from tidemq.errors import UsageError
from tidemq.wire import Properties


def parse(*arguments: str) -> dict[str, Properties]:
    joined = join_properties(arguments)
    return parse_properties(
        [joined[i + 1] for i, part in enumerate(joined) if part == "-D"], ("connect", "publish")
    )


def test_values_are_joined_to_their_flag_and_others_stay() -> None:
    joined = join_properties(["pub", "-D", "publish", "content-type", "x", "-m", "y", "--property", "a"])
    assert joined == ["pub", "-D", "publish\x1fcontent-type\x1fx", "-m", "y", "--property", "a"]


def test_properties_go_to_their_command_and_user_properties_stay_in_order() -> None:
    parsed = parse(
        *("-D", "publish", "user-property", "a", "1"),
        *("-D", "publish", "user-property", "a", "2"),
        *("-D", "publish", "message-expiry-interval", "9"),
        *("-D", "connect", "receive-maximum", "5"),
    )
    assert parsed["publish"] == Properties(user_properties=(("a", "1"), ("a", "2")), message_expiry_s=9)
    assert parsed["connect"] == Properties(receive_maximum=5)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (("will", "content-type", "x"), "'will' is unknown; accepted: connect, publish"),
        (("publish", "content-typ", "x"), "'content-typ' is unknown or has no value"),
        (("publish", "content-type"), "'content-type' is unknown or has no value"),
        (("publish", "user-property", "a"), "'user-property' is unknown or has no value"),
        (("publish",), "unknown or has no value"),
        ((), "property command '' is unknown"),
        (("publish", "message-expiry-interval", "x"), "'x'; accepted: a number"),
    ],
)
def test_what_is_not_well_formed_is_refused(arguments: Any, text: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse("-D", *arguments)
    assert text in str(caught.value)
