"""`-D COMMAND NAME VALUE`: properties of MQTT 5.0 from the command line, named as the standard names them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from tidemq.errors import UsageError
from tidemq.wire import Properties

FLAGS = ("-D", "--property")
SEPARATOR = "\x1f"  # joins the values of one flag, since an option takes one
USER_PROPERTY = "user-property"

# name on the command line: field of Properties and what makes its value
PROPERTIES: dict[str, tuple[str, Callable[[str], Any]]] = {
    "payload-format-indicator": ("payload_format", int),
    "message-expiry-interval": ("message_expiry_s", int),
    "content-type": ("content_type", str),
    "response-topic": ("response_topic", str),
    "correlation-data": ("correlation_data", str.encode),
    "subscription-identifier": ("subscription_ids", lambda text: (int(text),)),
    "session-expiry-interval": ("session_expiry_s", int),
    "authentication-method": ("auth_method", str),
    "authentication-data": ("auth_data", str.encode),
    "request-problem-information": ("request_problem_info", lambda text: bool(int(text))),
    "will-delay-interval": ("will_delay_s", int),
    "request-response-information": ("request_response_info", lambda text: bool(int(text))),
    "receive-maximum": ("receive_maximum", int),
    "topic-alias-maximum": ("topic_alias_maximum", int),
    "topic-alias": ("topic_alias", int),
    "maximum-packet-size": ("maximum_packet_size", int),
}


def join_properties(arguments: Sequence[str]) -> list[str]:
    """Makes one argument of the three or, for a user property, four that follow each `-D`."""
    joined: list[str] = []
    rest = list(arguments)
    while rest:
        argument = rest.pop(0)
        joined.append(argument)
        if argument in FLAGS:
            count = 4 if rest[1:2] == [USER_PROPERTY] else 3
            joined.append(SEPARATOR.join(rest[:count]))
            del rest[:count]
    return joined


def parse_properties(joined: Iterable[str], commands: Sequence[str]) -> dict[str, Properties]:
    """The properties for each of the command's packets; UsageError for one that is not well formed."""
    parsed = {command: Properties() for command in commands}
    for argument in joined:
        command, name, *values = [*argument.split(SEPARATOR), "", ""][: max(2, argument.count(SEPARATOR) + 1)]
        if command not in parsed:
            raise UsageError(f"property command {command!r} is unknown; accepted: {', '.join(commands)}")
        if name == USER_PROPERTY and len(values) == 2:
            pairs = (*parsed[command].user_properties, (values[0], values[1]))
            parsed[command] = replace(parsed[command], user_properties=pairs)
        elif name in PROPERTIES and len(values) == 1:
            field, convert = PROPERTIES[name]
            parsed[command] = replace(parsed[command], **{field: _convert(name, values[0], convert)})
        else:
            names = ", ".join([*PROPERTIES, USER_PROPERTY])
            raise UsageError(f"property {name!r} is unknown or has no value; accepted: {names}")
    return parsed


def _convert(name: str, text: str, convert: Callable[[str], Any]) -> Any:
    try:
        return convert(text)
    except ValueError as error:
        raise UsageError(f"property {name} is {text!r}; accepted: a number") from error
