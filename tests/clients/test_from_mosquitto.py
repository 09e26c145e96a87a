"""TideMQ takes the place of a real Mosquitto: clients that are not changed come back, get what waited for
them, and the rules hold.
"""

from __future__ import annotations

import shutil
import socket
import subprocess
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import forks
import paho.mqtt.client as paho
import pytest
from conformance.kit import Client
from conformance.packets import PUBACK, SUBACK, connect, publish, subscribe
from listeners.conftest import Authority
from paho.mqtt.enums import CallbackAPIVersion, MQTTProtocolVersion
from paho.mqtt.packettypes import PacketTypes
from paho.mqtt.properties import Properties
from waiting import WAIT_S, wait_until

from tidemq.config import Config
from tidemq.testing.ports import free_port

PASSWORDS = {"ann": "ann's", "bob": "bob's", "eve": "eve's"}
ACL = """
topic read public/#

user ann
topic readwrite plant/#
topic write own/#

user bob
topic read plant/#

pattern read own/%u/#
"""
LINE_BY_LINE = ("stdbuf", "-oL")  # what mosquitto_sub writes into a file
HAS_BRIDGES = "bridges" in Config.model_fields


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class House:
    """A folder with a Mosquitto's files, and whichever broker runs on its ports."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port, self.tls_port = free_port(), free_port()
        self.conf = folder / "mosquitto.conf"
        self._running: list[subprocess.Popen[Any]] = []
        self.authority = Authority(folder)

    def configure(self, *lines: str) -> None:
        files = self.authority.issue("localhost")
        (self.folder / "acl").write_text(ACL)
        (self.folder / "passwd").touch(0o600)
        for name, password in PASSWORDS.items():
            subprocess.run(["mosquitto_passwd", "-b", self.folder / "passwd", name, password], check=True)
        included = self.folder / "conf.d"
        included.mkdir()
        (included / "listeners.conf").write_text(
            f"listener {self.port} 127.0.0.1\nlistener {self.tls_port}\n"
            f"certfile {files.cert}\nkeyfile {files.key}\n"
        )
        self.conf.write_text("\n".join([
            "user root", "allow_anonymous false", "persistence true", f"persistence_location {self.folder}/",
            f"password_file {self.folder}/passwd", f"acl_file {self.folder}/acl", *lines,
            f"include_dir {included}", "",
        ]))  # fmt: skip

    def start_mosquitto(self, conf: Path | None = None, *ports: int) -> subprocess.Popen[Any]:
        log = (self.folder / "mosquitto.log").open("ab")
        process = subprocess.Popen(["mosquitto", "-c", str(conf or self.conf)], stdout=log, stderr=log)
        self._running.append(process)
        for port in ports or (self.port, self.tls_port):
            wait_until(lambda port=port: listens(port), "Mosquitto listens")  # type: ignore[misc]
        return process

    def start_tidemq(self, config: Path) -> subprocess.Popen[Any]:
        log = self.folder / "tidemq.log"
        with log.open("ab") as file:
            process = forks.Tidemq(["serve", "--config", str(config)], stdout=file, stderr=file)
        self._running.append(process)

        def is_ready() -> bool:
            assert process.poll() is None, log.read_text()
            return "is ready on" in log.read_text()

        wait_until(is_ready, "TideMQ is ready")
        return process

    def stop(self, process: subprocess.Popen[Any]) -> None:
        process.terminate()
        assert process.wait(WAIT_S) == 0
        self._running.remove(process)

    def close(self) -> None:
        for process in self._running:
            process.kill()
            process.wait()

    def import_all(self, *arguments: object) -> str:
        """Runs the command; gives the report."""
        done = forks.run(
            "config", "import", self.conf, "--output", self.folder / "out", *arguments, text=True
        )
        assert done.returncode == 0, done.stderr
        return str(done.stdout)

    def publish(self, topic: str, payload: str, *more: str, user: str = "ann") -> None:
        """As somebody's script does it, with the same words before and after."""
        command = ["mosquitto_pub", "-p", str(self.port), "-u", user, "-P", PASSWORDS[user], "-q", "1"]
        subprocess.run([*command, "-t", topic, "-m", payload, *more], check=True, timeout=WAIT_S)

    def listen(self, client_id: str, topic_filter: str, output: Path) -> None:
        """mosquitto_sub, which stays, and connects again when it has lost its broker. (Over TLS it sometimes
        ends instead.)
        """
        command = [*LINE_BY_LINE, "mosquitto_sub", "-p", str(self.port), "-u", "bob", "-i", client_id, "-c"]
        command += ["-P", PASSWORDS["bob"], "-q", "1", "-t", topic_filter, "-F", "%t %p"]
        self._running.append(subprocess.Popen(command, stdout=output.open("wb")))


class Person:
    """A paho client with settings of its own, which it never changes."""

    def __init__(
        self, house: House, client_id: str, user: str, *, version: int = 4, secure: bool = False
    ) -> None:
        self._house, self._secure = house, secure
        kept: dict[str, Any] = {"clean_session": False} if version == 4 else {}
        protocol = MQTTProtocolVersion(version)
        self.client = paho.Client(CallbackAPIVersion.VERSION2, client_id, protocol=protocol, **kept)
        self.client.username_pw_set(user, PASSWORDS[user])
        if secure:
            self.client.tls_set(str(house.authority.ca))
        self.client.reconnect_delay_set(1, 1)
        self.client.on_message = lambda _client, _data, message: self.got.append(
            (message.topic, message.payload.decode(), message.retain)
        )
        self.client.on_connect = lambda *found: self.connects.append(found[2].session_present)
        self.client.on_subscribe = lambda *found: self.granted.append(found[3][0].value)
        self.got: list[tuple[str, str, bool]] = []
        self.connects: list[bool] = []  # of each connection, whether its session was there
        self.granted: list[int] = []
        self._more: dict[str, Any] = {}
        if version == 5:
            properties = Properties(PacketTypes.CONNECT)
            properties.SessionExpiryInterval = 3600
            self._more = {"properties": properties, "clean_start": False}

    def come(self) -> None:
        port = self._house.tls_port if self._secure else self._house.port
        seen = len(self.connects)
        self.client.connect("localhost", port, **self._more)
        self.client.loop_start()
        wait_until(lambda: len(self.connects) > seen, "CONNACK")

    def subscribe(self, topic_filter: str, qos: int) -> int:
        seen = len(self.granted)
        self.client.subscribe(topic_filter, qos)
        wait_until(lambda: len(self.granted) > seen, "SUBACK")
        return self.granted[-1]

    def go(self) -> None:
        self.client.disconnect()
        self.client.loop_stop()

    def payloads(self) -> list[str]:
        return [payload for _, payload, _ in self.got]


@pytest.fixture
def house(install: Callable[[str, str], None], tmp_path: Path) -> Iterator[House]:
    install("mosquitto", "mosquitto")
    install("mosquitto_sub", "mosquitto-clients")
    made = House(tmp_path)
    yield made
    made.close()


def refusal(house: House, *arguments: str) -> str:
    done = subprocess.run(
        ["mosquitto_pub", "-p", str(house.port), "-t", "plant/x", "-m", "no", *arguments],
        capture_output=True, text=True, timeout=WAIT_S,
    )  # fmt: skip
    return "" if done.returncode == 0 else done.stderr


def prepare_bridge(house: House) -> tuple[int, Path]:
    """Another Mosquitto, which stays, and what comes there of the bridge."""
    port = free_port()
    there = house.folder / "there.conf"
    there.write_text(f"listener {port} 127.0.0.1\nallow_anonymous true\nuser root\n")
    house.start_mosquitto(there, port)
    output = house.folder / "bridged"
    ready = ["mosquitto_pub", "-p", str(port), "-r", "-t", "site/ready", "-m", "yes"]
    subprocess.run(ready, check=True, timeout=WAIT_S)
    command = [*LINE_BY_LINE, "mosquitto_sub", "-p", str(port), "-t", "site/#", "-q", "1", "-F", "%t %p"]
    house._running.append(subprocess.Popen(command, stdout=output.open("wb")))
    wait_until(lambda: output.read_text() == "site/ready yes\n", "the other side listens")
    return port, output


def serve_what_was_written(house: House) -> None:
    """TideMQ takes over; what it cannot read yet is asserted and taken out."""
    config = house.folder / "out" / "tidemq.toml"
    written = tomllib.loads(config.read_text())
    (bridge,) = written["bridges"]
    assert bridge["name"] == "cloud"
    assert [(each["filter"], each["direction"], each["remote_prefix"]) for each in bridge["topics"]] == [
        ("plant/#", "out", "site/")
    ]
    if not HAS_BRIDGES:
        config.write_text(config.read_text().partition("\n[[bridges]]")[0])
    done = forks.run("config", "check", config, text=True)
    assert done.returncode == 0, done.stderr
    house.start_tidemq(config)


@pytest.mark.parametrize("count", [10, pytest.param(2000, marks=pytest.mark.long)])
def test_clients_that_are_not_changed_go_on(house: House, count: int) -> None:
    port, bridged = prepare_bridge(house)
    bridge = ["connection cloud", f"address 127.0.0.1:{port}", 'topic plant/# out 1 "" site/']
    house.configure("max_queued_messages 0", *bridge)
    mosquitto = house.start_mosquitto()

    # connected all the time, their sessions are kept
    staying = [Person(house, "stays", "bob"), Person(house, "stays-secure", "bob", version=5, secure=True)]
    for each in staying:
        each.come()
        each.subscribe("plant/#", 1)
    away = [Person(house, "away-4", "bob", secure=True), Person(house, "away-5", "bob", version=5)]
    for each in away:
        each.come()
        each.subscribe("plant/#", 2)
        each.go()
    seen = house.folder / "seen"
    house.publish("plant/1/state", "on", "-r")
    house.listen("script", "plant/#", seen)
    wait_until(lambda: seen.read_text() == "plant/1/state on\n", "the script listens")
    lines = house.folder / "lines"
    lines.write_text("".join(f"{number}\n" for number in range(count)))
    publisher = ["mosquitto_pub", "-p", str(house.port), "-u", "ann", "-P", PASSWORDS["ann"], "-l"]
    with lines.open("rb") as file:
        subprocess.run([*publisher, "-q", "2", "-t", "plant/1/n"], stdin=file, check=True, timeout=WAIT_S)
    expected = ["on", *map(str, range(count))]
    wait_until(lambda: all(each.payloads() == expected for each in staying), "messages by Mosquitto")
    wait_until(lambda: seen.read_text().count("\n") == count + 1, "messages by Mosquitto, in the script")
    assert [line.split()[1] for line in seen.read_text().splitlines()] == expected
    wait_until(lambda: bridged.read_text().count("\n") == count + 2, "messages over the bridge")

    house.stop(mosquitto)
    report = house.import_all("--data", house.folder / "mosquitto.db")
    _, _, left_out = report.partition("\nNot taken: ")
    # the last acknowledgement may have been on its way over the bridge
    assert not [line for line in left_out.splitlines()[1:-1] if "waited for the bridge" not in line], report
    serve_what_was_written(house)

    wait_until(
        lambda: all(each.connects == [False, True] for each in staying),
        "they have come back, and their sessions were there",
    )
    house.publish("plant/1/n", "after", "-q", "2")  # of another QoS it would overtake those that wait
    expected.append("after")
    wait_until(lambda: all(each.payloads() == expected for each in staying), "messages by TideMQ")
    # it subscribes anew, so that what is retained may come behind
    wait_until(lambda: "plant/1/n after\n" in seen.read_text(), "messages by TideMQ, in the script")
    for each in away:
        each.come()
        wait_until(lambda each=each: len(each.got) >= len(expected), "what had waited")  # type: ignore[misc]
        assert each.payloads() == expected
        assert each.connects == [False, True]
    stays = staying[0]
    assert stays.subscribe("plant/1/state", 1) == 1
    wait_until(lambda: ("plant/1/state", "on", True) in stays.got, "what is retained")
    if HAS_BRIDGES:
        wait_until(lambda: "site/plant/1/n after\n" in bridged.read_text(), "over our bridge")

    eve = Person(house, "eve-1", "eve")
    eve.come()
    assert eve.subscribe("plant/#", 1) == 0x80
    assert eve.subscribe("own/eve/#", 1) == 1
    house.publish("plant/1/n", "forged", user="eve")
    house.publish("own/eve/x", "yours")
    wait_until(lambda: eve.payloads() == ["yours"], "what the pattern allows")
    house.publish("plant/1/n", "last")
    wait_until(lambda: stays.payloads()[-1] == "last", "the last message")
    assert "forged" not in stays.payloads()
    assert "connection was refused" in refusal(house)
    assert "connection was refused" in refusal(house, "-u", "ann", "-P", "wrong")
    for person in (*staying, eve, *away):
        person.go()


def test_strict_refuses_and_writes_nothing(house: House) -> None:
    house.configure("mount_point x/", "max_queued_messages 10")
    command = ["config", "import", house.conf, "--output", house.folder / "out", "--strict"]
    done = forks.run(*command, text=True)
    assert done.returncode == 3
    assert f"{house.conf}:7: mount_point x/: " in done.stdout
    assert "1 cannot be taken, and nothing is written" in done.stderr
    assert not (house.folder / "out").exists()
    done = forks.run(*command[:-1], text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "Not taken: 1" in (house.folder / "out" / "report.txt").read_text()
    done = forks.run(*command[:-1], text=True)
    assert done.returncode == 1
    assert "is there already" in done.stderr


# ------------------------------------------------------------------ dynamic security

QUESTIONS = [
    (user, action, topic)
    for user in ("ann", "bob", "eve")
    for action in ("publish", "subscribe")
    for topic in ("plant/1", "plant/secret", "commands/1", "other", "plant/1/a", "commands/bob")
]


def answers(port: int) -> dict[tuple[str, str, str], bool]:
    """What each user may do, as the broker there says."""
    found = {}
    for user, action, topic in QUESTIONS:
        client = Client(port)
        client.send(connect(f"{user}-c", username=user, password=PASSWORDS[user].encode()))
        assert client.receive().reason == 0, user
        if action == "publish":
            client.send(publish(topic, b"x", 1, 1))
            found[user, action, topic] = client.expect(PUBACK).reason < 0x80
        else:
            client.send(subscribe(1, (topic, 1)))
            found[user, action, topic] = client.expect(SUBACK).reasons[0] < 0x80
        client.disconnect()
    return found


def test_dynamic_security_means_the_same(house: House) -> None:
    """Asked of Mosquitto with its plugin, then of TideMQ with what was imported."""
    plugin = next(Path("/usr/lib").glob("*/mosquitto_dynamic_security.so"))
    file = house.folder / "dynamic-security.json"
    subprocess.run(["mosquitto_ctrl", "dynsec", "init", str(file), "admin", "adm"], check=True)
    house.conf.write_text(
        f"listener {house.port} 127.0.0.1\nuser root\nallow_anonymous false\n"
        f"plugin {plugin}\nplugin_opt_config_file {file}\n"
    )
    mosquitto = house.start_mosquitto(None, house.port)
    control = ["mosquitto_ctrl", "-p", str(house.port), "-u", "admin", "-P", "adm", "dynsec"]
    for words in (
        *(f"createClient {name} -p {password}" for name, password in PASSWORDS.items()),
        "createRole plant", "createRole operator", "createGroup operators",
        "addRoleACL plant publishClientSend plant/# allow 1",
        "addRoleACL plant publishClientSend plant/secret deny 5",
        "addRoleACL plant subscribePattern plant/# allow 1",
        "addRoleACL plant subscribeLiteral plant/secret deny 5",
        "addRoleACL operator publishClientSend commands/# allow",
        "addRoleACL operator subscribePattern commands/+ allow",
        "addRoleACL operator publishClientSend plant/secret allow",
        "addClientRole ann plant 1", "addClientRole bob plant 1",
        "addGroupRole operators operator 1", "addGroupClient operators bob 1",
        "addGroupClient operators eve 1",
    ):  # fmt: skip
        subprocess.run([*control, *words.split()], check=True, timeout=WAIT_S, capture_output=True)
    before = answers(house.port)
    assert {True, False} == set(before.values())
    house.stop(mosquitto)
    shutil.copy(file, house.folder / "kept.json")
    report = house.import_all()
    assert "Not taken: 0\n" in report, report
    house.start_tidemq(house.folder / "out" / "tidemq.toml")
    assert answers(house.port) == before
