"""Why a load could not be set up, in words: reason codes, system errors, limits."""

from __future__ import annotations

import errno
import os
import resource

from tidemq.errors import UsageError
from tidemq.wire import ConnectReturnCode, PacketType, ReasonCode

BY_CONNACK, BY_SUBACK, BY_MAXIMUM_QOS, BY_NONSENSE = 1, 2, 3, 4  # as receiver.pxd numbers them
FAILURE = 0x80  # of SUBACK; from here on codes are refusals
DESCRIPTORS_KEPT = 64  # for everything that is not a connection


def refusal_text(version: int, by: int, code: int, qos: int) -> str:
    """What a broker answered instead of yes."""
    if by == BY_CONNACK:
        return f"the broker refused the connection: {connack_text(version, code)}"
    if by == BY_MAXIMUM_QOS:
        return f"the broker takes QoS {code} at most, the load is of QoS {qos}"
    if by == BY_SUBACK and code < FAILURE:
        return f"the broker granted a subscription QoS {code}, the load is of QoS {qos}"
    if by == BY_SUBACK:
        return f"the broker refused a subscription: {reason_text(code)}"
    names = {each.value: each.name for each in PacketType}
    came = names.get(code >> 4, "no control packet")
    return f"{came} came instead of CONNACK or SUBACK: is it a broker of MQTT {version_text(version)}?"


def connack_text(version: int, code: int) -> str:
    """The name of a return code (3.1.1) or reason code (5.0)."""
    if version == 5:
        return reason_text(code)
    names = {each.value: each.name for each in ConnectReturnCode}
    return f"{words(names.get(code, 'unknown return code'))} (return code {code})"


def reason_text(code: int) -> str:
    """The name of a 5.0 reason code."""
    names = {each.value: each.name for each in ReasonCode}
    return f"{words(names.get(code, 'unknown reason code'))} (reason code {code:#04x})"


def farewell_text(code: int) -> str:
    """What a DISCONNECT said; empty for -1, none."""
    return "" if code < 0 else f"disconnected: {reason_text(code)}"


def version_text(version: int) -> str:
    return "5.0" if version == 5 else "3.1.1"


def words(name: str) -> str:
    return name.replace("_", " ").lower()


def connect_fault(number: int, connections: int) -> str:
    """Why a socket could not be connected; `connections` were tried."""
    if number == errno.ECONNREFUSED:
        return "nobody listens there (connection refused)"
    if number in (errno.EMFILE, errno.ENFILE):
        limit = "RLIMIT_NOFILE, raise it with `ulimit -n`" if number == errno.EMFILE else "fs.file-max"
        return f"no file descriptor is left after {connections} connections ({limit})"
    if number == errno.EADDRNOTAVAIL:
        return (
            f"no local port is left after {connections} connections: "
            "connect from several addresses of this machine (--source 127.0.0.1-127.0.0.8), "
            "or widen net.ipv4.ip_local_port_range"
        )
    return os.strerror(number).lower()


def check_descriptors(connections: int) -> None:
    """Raise this process's soft limit of descriptors to what so many connections need.

    UsageError where the hard limit is lower.
    """
    needed = connections + DESCRIPTORS_KEPT
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        raise UsageError(
            f"{connections:,} connections need {needed:,} file descriptors, RLIMIT_NOFILE allows {hard:,}: "
            f"raise it with `ulimit -n {needed}` (as root, or in /etc/security/limits.conf)"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
