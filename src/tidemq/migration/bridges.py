"""A `connection` of Mosquitto's as a table of `bridges`."""

from __future__ import annotations

import itertools
import re
import socket
from typing import Any

from pydantic import BaseModel, ValidationError

from tidemq.bridge_config import Bridge, BridgeTopic
from tidemq.config import refused
from tidemq.migration.lines import Line
from tidemq.migration.output import Output, absolute, join_certificates, read_file
from tidemq.migration.sections import Section

_PORT = 1883
_KEEP_ALIVE_S = (5, 65_535)
_RECONNECT_S = (1, 3600)
_VERSIONS = {"mqttv31": "3.1.1", "mqttv311": "3.1.1", "mqttv50": "5.0", "mqttv5": "5.0"}
_EMPTY = '""'  # stands for no prefix, or no pattern
# by Mosquitto's option: the key and Mosquitto's own default, where it is not TideMQ's to choose
_FLAGS = {
    "cleansession": ("clean_session", False),
    "round_robin": ("round_robin", False),
    "try_private": ("try_private", True),
    "notifications": ("notifications", True),
    "notifications_local_only": ("notifications_local_only", False),
    "bridge_outgoing_retain": ("outgoing_retain", True),
}
_TLS = ("bridge_cafile", "bridge_capath", "bridge_certfile", "bridge_alpn")
_PSK = ("bridge_psk", "bridge_identity")


def plan_bridge(section: Section, output: Output, host_name: str | None = None) -> dict[str, Any] | None:
    """The table; None where it cannot be taken as a whole: without TLS it would say in clear what it should
    not. `host_name`: this machine's, of which Mosquitto makes the client identifier.
    """
    connection = section.get("connection")
    assert connection is not None  # it begins the section
    psk = [line for option in _PSK for line in section.all(option)]
    addresses = _addresses(section, secure=_has_tls(section))
    topics = _plan_topics(section)
    if psk or not addresses or not topics:
        for line in psk:
            section.refuse(line)
        why = "pre-shared keys" if psk else "it has no address" if not addresses else "it has no topic"
        section.refuse(connection, f"the bridge is left out: {why}")
        return None
    bridge: dict[str, Any] = {"name": _name(section, connection, output), "addresses": addresses}
    bridge["protocol_version"] = _VERSIONS[_version(section)]
    identifier = section.text("remote_clientid", "clientid")
    bridge["client_id"] = identifier or f"{host_name or socket.gethostname()}.{connection.word}"
    bridge |= _plan_login(section, output, bridge["name"])
    for option, (key, default) in _FLAGS.items():
        bridge[key] = section.flag(option, default)
    bridge["keep_alive_s"] = _keep_alive(section)
    bridge["reconnect_s"], bridge["reconnect_max_s"] = _reconnect(section)
    if (size := section.number("bridge_max_packet_size")) is not None:
        bridge["packet_bytes_max"] = size
    if (topic := section.text("notification_topic")) is not None:
        bridge["notification_topic"] = topic
    if (start := section.get("start_type")) is not None:
        section.note(start, "as it is" if start.word == "automatic" else None)
    if _has_tls(section):
        bridge["tls"] = _plan_tls(section, output)
    bridge["topics"] = topics
    if (problem := _problem(Bridge, bridge)) is not None:
        section.refuse(connection, f"the bridge is left out: {problem}")
        return None
    return bridge


def local_client_id(section: Section, host_name: str | None = None) -> str:
    """Of the session in which Mosquitto keeps what waits for the other side."""
    name = (section.peek("connection") or "").partition(" ")[0]
    remote = section.peek("remote_clientid", "clientid") or f"{host_name or socket.gethostname()}.{name}"
    return section.peek("local_clientid") or f"local.{remote}"


def _problem(model: type[BaseModel], table: dict[str, Any]) -> str | None:
    """What TideMQ says against such a table; None: nothing."""
    try:
        model.model_validate(table)
    except ValidationError as error:
        detail = error.errors(include_input=False, include_url=False)[0]
        key = ".".join(map(str, detail["loc"]))
        accepted = detail["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
        return f"{key}: accepted: {accepted}" if key else f"accepted: {accepted}"
    return None


def _name(section: Section, connection: Line, output: Output) -> str:
    """The bridge's, of the letters that a name of TideMQ's may have, and no other bridge's."""
    known = {each["name"] for each in output.config.get("bridges", [])}
    name = stem = re.sub(r"[^A-Za-z0-9_-]", "-", connection.word)[:60]
    number = 1
    while name in known:
        number += 1
        name = f"{stem}-{number}"
    if name == connection.word:
        section.note(connection)
    else:
        section.change(connection, f"a table `[[bridges]]` with the name {name!r}")
    return name


def _plan_topics(section: Section) -> list[dict[str, Any]]:
    """Those that TideMQ takes; of the others it is said why not."""
    topics = []
    for line in section.all("topic"):
        table = _plan_topic(line)
        if (problem := _problem(BridgeTopic, table)) is not None:
            section.refuse(line, problem)
        else:
            section.note(line)
            topics.append(table)
    return topics


def _keep_alive(section: Section) -> int:
    line = section.get("keepalive_interval")
    if line is None:
        return 60  # Mosquitto's
    if not line.word.isascii() or not line.word.isdigit():
        raise refused(line.place, line.option, f"{line.word!r} is refused", ["seconds"])
    seconds = min(max(int(line.word), _KEEP_ALIVE_S[0]), _KEEP_ALIVE_S[1])
    if seconds == int(line.word):
        section.note(line)
    else:
        section.change(line, f"`keep_alive_s = {seconds}`: it is {_KEEP_ALIVE_S[0]} to {_KEEP_ALIVE_S[1]}")
    return seconds


def _has_tls(section: Section) -> bool:
    by_system = (section.peek("bridge_tls_use_os_certs") or "").partition(" ")[0] in ("true", "1")
    return by_system or any(map(section.has, _TLS))


def _addresses(section: Section, *, secure: bool) -> list[str]:
    scheme = "mqtts" if secure else "mqtt"
    found = []
    for option in ("address", "addresses"):
        for line in section.all(option):
            section.note(line)
            for each in _before_comment(line.value.split()):
                host, colon, port = each.rpartition(":")
                if not colon or host.endswith(":") or (":" in host and not host.startswith("[")):
                    host, port = each, str(_PORT)  # an address of IPv6 without a port, or a name
                if ":" in host and not host.startswith("["):
                    host = f"[{host}]"
                found.append(f"{scheme}://{host}:{port}")
    return found


def _before_comment(words: list[str]) -> list[str]:
    """Those before the first that begins with #."""
    return list(itertools.takewhile(lambda word: not word.startswith("#"), words))


def _version(section: Section) -> str:
    line = section.get("bridge_protocol_version")
    if line is None:
        return "mqttv311"
    if line.value not in _VERSIONS:
        raise refused(line.place, line.option, f"{line.value!r} is refused", _VERSIONS)
    if line.value == "mqttv31":
        section.change(line, "it speaks 3.1.1, which every broker knows that knows 3.1")
    else:
        section.note(line)
    return line.value


def _plan_login(section: Section, output: Output, name: str) -> dict[str, Any]:
    """User and password, the latter in a file of its own."""
    login: dict[str, Any] = {}
    if (user := section.text("remote_username", "username")) is not None:
        login["username"] = user
    if (password := section.get("remote_password", "password")) is not None:
        login["password_file"] = str(output.keep(f"bridges/{name}.password", f"{password.value}\n".encode()))
        section.note(password)
    return login


def _reconnect(section: Section) -> tuple[float, float]:
    """Seconds of the first pause and of the longest."""
    line = section.get("restart_timeout")
    if line is None:
        return 5.0, 30.0  # Mosquitto's
    try:
        numbers = [int(word) for word in _before_comment(line.value.split())]
    except ValueError:
        numbers = []
    if not 1 <= len(numbers) <= 2:
        raise refused(
            line.place, line.option, f"{line.value!r} is refused", ["seconds, and the most of them"]
        )
    section.note(line)
    low, high = _RECONNECT_S
    first, most = (float(min(max(seconds, low), high)) for seconds in (numbers[0], max(numbers)))
    return first, most


def _plan_topic(line: Line) -> dict[str, Any]:
    """`pattern [[[out|in|both] qos] local-prefix remote-prefix]`."""
    words = line.value.split()
    words = words[:2] + _before_comment(words[2:5])  # Mosquitto reads no more
    if not words:
        raise refused(
            line.place, "topic", f"{line.value!r} is refused", ["PATTERN DIRECTION QOS LOCAL REMOTE"]
        )
    pattern, direction, qos, local, remote = words + ["", "out", "0", "", ""][len(words) :]
    direction = direction.lower()
    if direction not in ("in", "out", "both") or qos not in ("0", "1", "2"):
        accepted = ["PATTERN in|out|both 0|1|2 LOCAL REMOTE"]
        raise refused(line.place, "topic", f"{line.value!r} is refused", accepted)
    return {
        "filter": "" if pattern == _EMPTY else pattern,
        "direction": direction,
        "qos": int(qos),
        "local_prefix": "" if local == _EMPTY else local,
        "remote_prefix": "" if remote == _EMPTY else remote,
    }


def _plan_tls(section: Section, output: Output) -> dict[str, Any]:
    tls: dict[str, Any] = {}
    authorities, folder = section.get("bridge_cafile"), section.get("bridge_capath")
    if authorities is not None:
        tls["ca"] = str(absolute(authorities))
        section.note(authorities)
    if folder is not None:
        content = join_certificates(folder)
        if authorities is not None:
            content += read_file(authorities)
        tls["ca"] = str(output.keep("bridges/authorities.pem", content))
        section.change(folder, f"its certificates are in {tls['ca']}: later changes of the directory have to "
                       "be made there")  # fmt: skip
    for option, key in (("bridge_certfile", "certificate"), ("bridge_keyfile", "key")):
        if (line := section.get(option)) is not None:
            tls[key] = str(absolute(line))
            section.note(line)
    if (alpn := section.text("bridge_alpn")) is not None:
        tls["alpn"] = alpn
    tls["insecure"] = section.flag("bridge_insecure", False)
    for line in section.all("bridge_tls_use_os_certs"):
        section.note(line)
    return tls
