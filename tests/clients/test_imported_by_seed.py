"""Configurations of Mosquitto's by seed, asked in both brokers: TideMQ lets in whom Mosquitto lets in, to do
the same, on the same ports, or its report says why not; and it never lets in anybody else, nor allows more.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import os
import random
import socket
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conformance.kit import Client, ConnectionEnded
from conformance.packets import (
    CONNACK,
    PING,
    PINGRESP,
    PUBACK,
    PUBLISH,
    SUBACK,
    connect,
    publish,
    subscribe,
    unsubscribe,
)
from waiting import WAIT_S, wait_until

from tidemq import Broker, Config
from tidemq.migration.dynamic_security import covers
from tidemq.migration.importing import plan_import, write_import
from tidemq.migration.lines import read_lines
from tidemq.migration.sections import OPEN
from tidemq.testing.ports import free_port
from tidemq.wire.filters import matches

PASSWORDS = {"ann": b"ann's", "bob": b"bob's", "eve": b"eve's"}
CLIENTS: list[tuple[str | None, bytes | None]] = [
    (None, None), ("ann", b"ann's"), ("ann", b"wrong"), ("bob", b"bob's"), ("nobody", b"x"), ("eve", b"eve's")
]  # fmt: skip
TOPICS = ["a", "a/1", "a/2", "b/1", "own/ann", "own/bob", "own/c-ann"]
FILTERS = [*TOPICS, "a/#", "a/+", "b/#", "own/+", "#", "$SYS/#"]
PLUGIN = next(Path("/usr/lib").glob("*/mosquitto_dynamic_security.so"), Path("/usr/lib/none"))


@dataclass
class Answers:
    """What a broker said, by question; `got`: the topics of what came, by port, user and filter."""

    ports: set[int] = field(default_factory=set)
    said: dict[tuple[object, ...], bool] = field(default_factory=dict)
    got: dict[tuple[object, ...], set[str]] = field(default_factory=dict)


def hashed(password: bytes) -> str:
    salt = b"salt-of-12-b"
    digest = hashlib.pbkdf2_hmac("sha512", password, salt, 101)
    return f"$7$101${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def ask(ports: list[int]) -> Answers:
    """The same questions to whoever listens there."""
    found = Answers()
    for port in ports:
        with socket.socket() as probe:
            if probe.connect_ex(("127.0.0.1", port)):
                continue
        found.ports.add(port)
        publisher = come_in(port, "publisher", *CLIENTS[-1])
        for user, password in CLIENTS:
            client = come_in(port, f"c-{user}", user, password)
            found.said[port, user, password] = client is not None
            if client is not None:
                ask_to_publish(client, port, user, password, found)
                ask_to_subscribe(client, publisher, (port, user), found)
        found.said[port, "no identifier"] = come_in(port, "", None, None, 4) is not None
    return found


def come_in(
    port: int, client_id: str, user: str | None, password: bytes | None, version: int = 5
) -> Client | None:
    client = Client(port, version)
    client.send(connect(client_id, version, username=user, password=password))
    try:
        return client if client.expect(CONNACK).reason == 0 else None
    except ConnectionEnded:
        return None


def ask_to_publish(
    client: Client, port: int, user: str | None, password: bytes | None, found: Answers
) -> None:
    for name in TOPICS:
        number = client.next_id()
        client.send(publish(name, b"x", 1, number))
        found.said[port, user, "publishes", name] = reason_of(client, PUBACK, number) < 0x80


def ask_to_subscribe(
    client: Client, publisher: Client | None, who: tuple[object, ...], found: Answers
) -> None:
    """Mosquitto, which has one thread, has sent what somebody gets before it answers the next ping."""
    for name in FILTERS:
        number = client.next_id()
        client.send(subscribe(number, (name, 0)))
        granted = found.said[*who, "subscribes", name] = reason_of(client, SUBACK, number) < 0x80
        if not granted or publisher is None:
            continue
        for topic in TOPICS:
            number = publisher.next_id()
            publisher.send(publish(topic, b"x", 1, number))
            reason_of(publisher, PUBACK, number)
        client.send(PING)
        came = found.got[*who, name] = set()
        while (packet := client.receive()).kind != PINGRESP:
            if packet.kind == PUBLISH:
                came.add(packet.topic)
        client.send(unsubscribe(client.next_id(), name))
    client.drop()


def reason_of(client: Client, kind: int, number: int) -> int:
    while (packet := client.receive()).kind != kind or packet.packet_id != number:
        pass
    return int(packet.reasons[0] if kind == SUBACK else packet.reason)


@contextmanager
def mosquitto(conf: Path) -> Iterator[bool]:
    """Whether it runs with this configuration."""
    log = conf.parent / "mosquitto.log"
    with log.open("wb") as file:
        process = subprocess.Popen(["mosquitto", "-c", str(conf)], cwd=conf.parent, stdout=file, stderr=file)
    try:
        wait_until(lambda: process.poll() is not None or b" running" in log.read_bytes(), "Mosquitto runs")
        yield process.poll() is None
    finally:
        process.kill()
        process.wait(WAIT_S)


def imported(conf: Path) -> tuple[Config, bool]:
    """The configuration that TideMQ has, and whether the report says that it is closed to some."""
    output = plan_import(conf, conf.parent / "out")
    write_import(output)
    said = {each.place for each in output.report.findings}
    assert not [line.place for line in read_lines(conf) if line.place not in said]  # nothing in silence
    quick = {"failed_login_delay_s": 0.0, "failed_logins_max": 0, "user": ""}
    closed = output.report.of("not taken") or [each for each in output.report.findings if OPEN in each.text]
    return Config(**(output.config | quick)), bool(closed)


def answers_of_tidemq(config: Config, ports: list[int]) -> Answers:
    async def run() -> Answers:
        async with Broker(config):
            return await asyncio.to_thread(ask, ports)

    return asyncio.run(run())


def compare(seed: int, folder: Path, make: Callable[[random.Random, Path], list[int]]) -> list[str]:
    """What differs; empty, too, where Mosquitto does not start with what `make` has written."""
    chance = random.Random(seed)
    conf = folder / "mosquitto.conf"
    ports = make(chance, folder)
    with mosquitto(conf) as runs:
        theirs = ask(ports) if runs else None
    config, closed = imported(conf)
    if theirs is None:
        return []
    return differences(answers_of_tidemq(config, ports), theirs, closed=closed)


def differences(ours: Answers, theirs: Answers, *, closed: bool) -> list[str]:
    """What TideMQ allows and Mosquitto does not; and the other way round, unless the report says that
    something is closed.
    """
    found = [f"more: {port}" for port in ours.ports - theirs.ports]
    for question, yes in ours.said.items():
        if yes and not theirs.said.get(question) and not is_part(question, theirs):
            found.append(f"more: {question}")
    less = [f"less: {port}" for port in theirs.ports - ours.ports]
    for question, yes in theirs.said.items():
        if yes and not ours.said.get(question) and "subscribes" not in question:
            less.append(f"less: {question}")
    for (*who, name), came in theirs.got.items():
        granted = ours.said.get((*who, "subscribes", name), False)
        found += [f"more: {who} gets {topic} on {name}" for topic in TOPICS
                  if granted and matches(str(name), topic) and topic not in came]  # fmt: skip
        if not granted and name in came:
            less.append(f"less: {who} gets {name}")
    return found + ([] if closed else less)


def is_part(question: tuple[object, ...], theirs: Answers) -> bool:
    """Whether it is a subscription to a part of what the same client may subscribe to in Mosquitto, and gets:
    what is allowed there literally holds here for narrower filters, too.
    """
    *who, action, name = question
    if action != "subscribes":
        return False
    topics = {topic for topic in TOPICS if matches(str(name), topic)}
    wide = [(each, came) for (*whose, each), came in theirs.got.items() if whose == who]
    return any(covers(str(each), str(name)) and topics <= came for each, came in wide)


# Access by listeners, files and includes


def write_access(chance: random.Random, folder: Path) -> list[str]:
    """Some options of who may do what."""
    lines = []
    if chance.random() < 0.7:
        comment = chance.choice(["", " # a comment", " "])
        lines.append(f"allow_anonymous {chance.choice(['true', 'false', '1', '0'])}{comment}")
    if chance.random() < 0.6:
        lines.append(f"password_file {folder}/{chance.choice(['users', 'users', 'few'])}")
    if chance.random() < 0.5:
        lines.append(f"acl_file {folder}/{chance.choice(['rules', 'other', 'rules'])}")
    if chance.random() < 0.2:
        lines.append(f"allow_zero_length_clientid {chance.choice(['true', 'false # x'])}")
    return lines


def write_listener(chance: random.Random, port: int) -> list[str]:
    lines = [
        f"listener  {port}{chance.choice(['', ' 127.0.0.1', ' # a comment', ' 127.0.0.1 # x', ' localhost'])}"
    ]
    if chance.random() < 0.3:
        lines.append(
            chance.choice(["max_connections 50 # x", "max_qos 2", "protocol mqtt # x", "max_connections -1"])
        )
    return lines


def write_files(chance: random.Random, folder: Path) -> None:
    names = {"users": ["ann", "bob", "eve"], "few": ["ann"]}
    for file, users in names.items():
        text = "".join(f"{name}:{hashed(PASSWORDS[name])}\n" for name in users)
        (folder / file).write_text(text)
    for file in ("rules", "other"):
        (folder / file).write_text("\n".join(write_rules(chance)) + "\n")


def write_rules(chance: random.Random) -> list[str]:
    """A file of rules; `eve` publishes what others get."""

    def rule() -> str:
        access = chance.choice(["read ", "write ", "readwrite ", "", "deny "])
        return f"topic {access}{chance.choice(FILTERS[:-1])}"

    lines = [rule() for _ in range(chance.randrange(3))]
    for user in ("ann", "bob"):
        lines += [f"user {user}", *(rule() for _ in range(chance.randrange(1, 5)))]
    lines += ["user eve", "topic write #"]
    if chance.random() < 0.6:
        access, topic = chance.choice(["read", "write", "readwrite"]), chance.choice(["own/%u", "own/%c"])
        lines.append(f"pattern {access} {topic}")
    return lines


def write_configuration(chance: random.Random, folder: Path) -> list[int]:
    """A `mosquitto.conf` and its files; gives the ports that may be listened on."""
    write_files(chance, folder)
    ports = [free_port() for _ in range(4)]
    by_listener = chance.random() < 0.6
    access = [write_access(chance, folder) for _ in range(5)]  # at most once for all, or by listener
    if not by_listener:
        place = chance.randrange(5)
        access = [each if index == place else [] for index, each in enumerate(access)]
    (folder / "conf.d").mkdir()
    included = [access[0], write_listener(chance, ports[3]) + access[1]]
    for name, lines in zip(("a_b.conf", "ab.conf"), included, strict=True):
        (folder / "conf.d" / name).write_text("\n".join(lines) + "\n")
    blocks = [
        [f"port {ports[0]}"], access[2],
        write_listener(chance, ports[1]) + access[3], write_listener(chance, ports[2]) + access[4],
    ]  # fmt: skip
    blocks = chance.sample(blocks, chance.randrange(1, 5))
    if chance.random() < 0.7:  # between two lines of a listener Mosquitto would forget the second
        blocks.insert(chance.choice([0, len(blocks)]), [f"include_dir {folder}/conf.d"])
    main = ["set_tcp_nodelay true", *(["user root"] if os.geteuid() == 0 else [])]
    if by_listener or chance.random() < 0.5:
        main.append(
            f"per_listener_settings {'true' if by_listener else 'false'}{chance.choice(['', ' # x'])}"
        )
    end = chance.choice(["\n", "\r\n", " \n"])
    lines = [*main, *(line for block in blocks for line in block)]
    (folder / "mosquitto.conf").write_text("# made by seed\n" + end.join(lines) + "\n")
    return ports


# Dynamic security


def some(chance: random.Random, key: str, names: list[str]) -> list[dict[str, Any]]:
    """Some of these, some with a priority."""
    return [
        {key: name} | ({"priority": chance.randrange(-1, 3)} if chance.random() < 0.5 else {})
        for name in chance.sample(names, chance.randrange(len(names)))
    ]


def write_permissions(chance: random.Random) -> list[dict[str, Any]]:
    """Of one role. None twice, which `mosquitto_ctrl` does not allow; and none that refuses a filter with
    wildcards literally, which here holds for narrower filters, too.
    """
    found: dict[tuple[str, str], dict[str, Any]] = {}
    kinds = ["publishClientSend", "publishClientReceive", "subscribePattern", "subscribeLiteral"]
    for _ in range(chance.randrange(6)):
        kind, topic, allow = chance.choice(kinds), chance.choice(FILTERS), chance.random() < 0.6
        if kind == "subscribeLiteral" and not allow:
            topic = chance.choice(TOPICS)
        priority = {"priority": chance.randrange(-2, 3)} if chance.random() < 0.7 else {}
        found[kind, topic] = {"acltype": kind, "topic": topic, "allow": allow} | priority
    return list(found.values())


def write_dynamic_security(chance: random.Random, folder: Path) -> list[int]:
    """Roles, groups, priorities, defaults."""
    names = ["r1", "r2", "r3", "r0"]
    roles = [{"rolename": name, "acls": write_permissions(chance)} for name in names]
    clients = []
    for name, password in PASSWORDS.items():
        _, _, rounds, salt, digest = hashed(password).split("$")
        clients.append({"username": name, "password": digest, "salt": salt, "iterations": int(rounds),
                        "roles": some(chance, "rolename", names),
                        "disabled": chance.random() < 0.1})  # fmt: skip
    everything = {"acltype": "publishClientSend", "topic": "#", "allow": True}
    roles.append({"rolename": "all", "acls": [everything]})
    clients[-1] |= {"roles": [{"rolename": "all"}], "disabled": False}  # who publishes what others get
    groups = [
        {"groupname": group, "roles": some(chance, "rolename", names),
         "clients": some(chance, "username", ["ann", "bob"])}
        for group in ("g2", "g1", "guests")
    ]  # fmt: skip
    document: dict[str, Any] = {"clients": clients, "groups": groups, "roles": roles}
    if chance.random() < 0.8:
        defaults = ["publishClientSend", "publishClientReceive", "subscribe", "unsubscribe"]
        document["defaultACLAccess"] = {
            name: chance.random() < 0.5 for name in defaults if chance.random() < 0.8
        }
    if chance.random() < 0.5:
        document["anonymousGroup"] = "guests"
    (folder / "ds.json").write_text(json.dumps(document))
    port = free_port()
    user = "user root\n" if os.geteuid() == 0 else ""
    anonymous = chance.choice(["true", "false"])
    (folder / "mosquitto.conf").write_text(
        f"{user}set_tcp_nodelay true\nlistener {port} 127.0.0.1\nallow_anonymous {anonymous}\n"
        f"plugin {PLUGIN}\nplugin_opt_config_file {folder}/ds.json\n"
    )
    return [port]


@pytest.fixture(autouse=True)
def _installed(install: Callable[[str, str], None]) -> None:
    install("mosquitto", "mosquitto")


@pytest.mark.parametrize("seed", range(6))
def test_who_comes_in_and_may_do_what(seed: int, tmp_path: Path) -> None:
    assert compare(seed, tmp_path, write_configuration) == []


@pytest.mark.parametrize("seed", range(5))
def test_what_dynamic_security_allows(seed: int, tmp_path: Path) -> None:
    assert compare(seed, tmp_path, write_dynamic_security) == []
