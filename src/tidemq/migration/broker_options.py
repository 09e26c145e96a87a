"""The broker's own options: limits, persistence, the log."""

from __future__ import annotations

import re

from tidemq.config import LIMIT_RANGES, refused
from tidemq.migration.lines import Line
from tidemq.migration.output import Output
from tidemq.migration.sections import Section

# by Mosquitto's option: the limit, and what its 0 means here
_LIMITS: dict[str, tuple[str, int]] = {
    "max_inflight_messages": ("inflight_max", 65_535),
    "max_keepalive": ("keep_alive_s_max", 0),
    "max_packet_size": ("packet_bytes_max", LIMIT_RANGES["packet_bytes_max"][1]),
    "max_queued_bytes": ("queued_bytes_max", LIMIT_RANGES["queued_bytes_max"][1]),
    "max_queued_messages": ("queued_messages_max", LIMIT_RANGES["queued_messages_max"][1]),
    "max_topic_alias_broker": ("topic_alias_max", 0),
    "memory_limit": ("memory_bytes_max", 0),
    "message_size_limit": ("payload_bytes_max", 0),
    "global_max_connections": ("connections_max", LIMIT_RANGES["connections_max"][1]),
    "global_max_clients": ("sessions_max", LIMIT_RANGES["sessions_max"][1]),
}
# that Mosquitto has where nothing is said, and that are wider than TideMQ's own: clients may rely on them
_WIDER = {
    "packet_bytes_max": LIMIT_RANGES["packet_bytes_max"][1],
    "topic_bytes_max": 65_535,
    "topic_levels_max": 200,
    "client_id_bytes_max": 65_535,
}
_KEEP_ALIVE_ANY = 65_535  # as max_keepalive: any
_SPAN_S = {"h": 3600, "d": 86_400, "w": 7 * 86_400, "m": 30 * 86_400, "y": 365 * 86_400}
# types of log lines, from the most detailed level on
_LEVELS = (
    ("debug", {"debug", "all", "websockets", "internal"}),
    ("info", {"information", "notice", "subscribe", "unsubscribe"}),
    ("warning", {"warning"}),
    ("error", {"error", "none"}),
)


def plan_broker(section: Section, output: Output, *, has_data: bool) -> None:
    """Fills the broker's keys. `has_data`: there is a store to be, whatever `persistence` says."""
    for limit, value in _WIDER.items():
        output.limit(limit, value)
    output.report.add(
        "taken", "Mosquitto's defaults", ", ".join(_WIDER), "TideMQ's own are narrower: make them so again "
        "if no client needs them as wide"
    )  # fmt: skip
    for option, (limit, without) in _LIMITS.items():
        _plan_limit(section, output, option, limit, without)
    if not section.flag("retain_available", True):
        output.config["retain_available"] = False
    kept = section.flag("persistence", section.flag("retained_persistence", False))
    output.config["store"] = "rocksdb" if kept or has_data else "memory"
    if kept or has_data:
        output.config["data"] = str(output.folder / "data")
    if (span := section.get("persistent_client_expiration")) is not None:
        output.limit("session_expiry_s_max", _seconds(span))
        section.note(span)
    if (interval := section.number("sys_interval")) is not None:
        output.config["sys_interval_s"] = float(interval)
    if (user := section.get("user")) is not None:
        section.note(user)
        if user.value and user.value != "root":
            output.config["user"] = user.value
    _plan_log(section, output)


def _plan_limit(section: Section, output: Output, option: str, limit: str, without: int) -> None:
    line = section.get(option)
    if line is None:
        return
    low, high = LIMIT_RANGES[limit]
    try:
        given = int(line.word)
    except ValueError:
        raise refused(line.place, option, f"{line.word!r} is refused", ["a whole number"]) from None
    value = without if given <= 0 or (option == "max_keepalive" and given >= _KEEP_ALIVE_ANY) else given
    taken = min(max(value, low), high)
    output.limit(limit, taken)
    if taken != value:
        section.change(line, f"`limits.{limit} = {taken}`: it is {low} to {high}")
    elif option == "memory_limit" and not taken:
        section.change(line, "without a limit three quarters of the machine's memory are one")
    else:
        section.note(line, f"`limits.{limit} = {taken}`")


def _seconds(line: Line) -> int:
    found = re.fullmatch(r"([0-9]{1,9})([hdwmy])", line.word)
    if found is None:
        accepted = ["a number and h, d, w, m or y"]
        raise refused(line.place, line.option, f"{line.word!r} is refused", accepted)
    return min(int(found[1]) * _SPAN_S[found[2]], LIMIT_RANGES["session_expiry_s_max"][1])


def _plan_log(section: Section, output: Output) -> None:
    types = set()
    for line in section.all("log_type"):
        types.add(line.word)
        section.note(line)
    if types:
        output.config["log_level"] = next((level for level, names in _LEVELS if types & names), "error")
    for line in section.all("log_dest"):
        if line.word in ("stderr", "syslog"):
            section.note(line, "standard error, which systemd gives to the journal")
        elif line.word == "none":
            section.change(line, 'the log cannot be turned off: `log_level = "error"`')
            output.config["log_level"] = "error"
        else:
            section.note(line)
    if not section.flag("connection_messages", True):
        output.config["log_levels"] = {"clients": "warning"}
