"""mosquitto_pub and mosquitto_sub, in all versions of MQTT, against the broker."""

from __future__ import annotations

import json
import signal
import subprocess
from pathlib import Path

import forks
import pytest
from conformance.kit import Listening, unique
from conftest import RunningBroker
from waiting import WAIT_S

pytestmark = pytest.mark.usefixtures("mosquitto_clients")
every_version = pytest.mark.parametrize("version", ["mqttv31", "mqttv311", "mqttv5"])


def pub(broker: Listening, version: str, *arguments: str, stdin: bytes | None = None) -> None:
    command = ["mosquitto_pub", "-p", str(broker.port), "-V", version, *arguments]
    done = subprocess.run(command, input=stdin, capture_output=True, timeout=WAIT_S)
    assert done.returncode == 0, done.stderr.decode()


class Sub:
    """mosquitto_sub, running; subscribed when made."""

    def __init__(self, broker: Listening, version: str, *arguments: str) -> None:
        command = ["stdbuf", "-oL", "mosquitto_sub", "-p", str(broker.port), "-V", version, "-d"]
        command += ["-W", str(WAIT_S), *arguments]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.printed: list[str] = []  # without its debug output
        assert self.process.stdout is not None
        for line in self.process.stdout:
            if line.startswith("Subscribed"):
                return
            self.keep(line)
        raise AssertionError(f"mosquitto_sub did not subscribe: {self.printed}")

    def keep(self, line: str) -> None:
        if not line.startswith(("Client ", "Subscribed", "Sending", "Received")):
            self.printed.append(line.rstrip("\n"))

    def lines(self) -> list[str]:
        """What it prints of messages until it ends."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.keep(line)
        self.process.wait()
        return self.printed

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def sub_now(broker: Listening, version: str, *arguments: str) -> list[str]:
    """The output of a mosquitto_sub that waits for messages that are there already."""
    command = ["mosquitto_sub", "-p", str(broker.port), "-V", version, *arguments]
    return subprocess.run(command, capture_output=True, timeout=WAIT_S, text=True).stdout.splitlines()


@every_version
@pytest.mark.parametrize("qos", ["0", "1", "2"])
def test_publish_and_subscribe(broker: RunningBroker, version: str, qos: str, topic: str) -> None:
    """Messages of every QoS arrive, in order."""
    sub = Sub(broker, version, "-t", f"{topic}/#", "-q", qos, "-C", "5", "-F", "%t %q %r %p")
    pub(broker, version, "-t", f"{topic}/a", "-q", qos, "-l", stdin=b"one\ntwo\nthree\nfour\n")
    pub(broker, version, "-t", f"{topic}/b", "-q", qos, "-n")
    expected = [f"{topic}/a {qos} 0 {word}" for word in ("one", "two", "three", "four")]
    assert sub.lines() == [*expected, f"{topic}/b {qos} 0 "]


@every_version
def test_large_message(broker: RunningBroker, version: str, topic: str, tmp_path: Path) -> None:
    """A file of 300,000 bytes arrives whole."""
    path = tmp_path / "payload"
    path.write_bytes(b"0123456789" * 30_000)
    sub = Sub(broker, version, "-t", topic, "-q", "1", "-C", "1", "-F", "%l %p")
    pub(broker, version, "-t", topic, "-q", "1", "-f", str(path))
    (line,) = sub.lines()
    assert line == "300000 " + "0123456789" * 30_000


@every_version
def test_retained(broker: RunningBroker, version: str, topic: str) -> None:
    """A retained message is there for later subscribers until it is removed."""
    pub(broker, version, "-t", topic, "-q", "1", "-r", "-m", "kept")
    assert sub_now(broker, version, "-t", topic, "-C", "1", "-F", "%r %p") == ["1 kept"]
    pub(broker, version, "-t", topic, "-q", "1", "-r", "-n")
    assert sub_now(broker, version, "-t", topic, "-W", "1") == []


@every_version
def test_will(broker: RunningBroker, version: str, topic: str) -> None:
    """The will of a killed client is published."""
    watcher = Sub(broker, version, "-t", f"{topic}/will", "-q", "1", "-C", "1", "-F", "%q %p")
    will = ("--will-topic", f"{topic}/will", "--will-payload", "gone", "--will-qos", "1")
    dying = Sub(broker, version, "-t", f"{topic}/nothing", *will)
    dying.kill()
    assert watcher.lines() == ["1 gone"]


@every_version
@pytest.mark.parametrize("qos", ["1", "2"])
def test_session(broker: RunningBroker, version: str, qos: str, topic: str) -> None:
    """A client with a kept session gets what came while it was away."""
    identity = ["-i", topic.replace("/", ""), "-c", "-q", qos, "-t", topic]
    if version == "mqttv5":
        identity += ["-x", "300"]
    assert sub_now(broker, version, *identity, "-E") == []
    for word in ("one", "two"):
        pub(broker, version, "-t", topic, "-q", qos, "-m", word)
    assert sub_now(broker, version, *identity, "-C", "2", "-F", "%q %p") == [f"{qos} one", f"{qos} two"]


def test_properties(broker: RunningBroker, topic: str) -> None:
    """Properties of 5.0 as mosquitto_sub prints them."""
    form = "%p|%C|%R|%D|%F|%P|%E"
    sub = Sub(broker, "mqttv5", "-t", topic, "-q", "1", "-C", "1", "-F", form)
    sent = [
        *("content-type", "text/plain"),
        *("response-topic", "answers"),
        *("correlation-data", "c1"),
        *("payload-format-indicator", "1"),
        *("message-expiry-interval", "100"),
    ]
    arguments = [
        part for pair in zip(sent[::2], sent[1::2], strict=True) for part in ("-D", "publish", *pair)
    ]
    arguments += ["-D", "publish", "user-property", "b", "2", "-D", "publish", "user-property", "a", "1"]
    pub(broker, "mqttv5", "-t", topic, "-q", "1", "-m", "hello", *arguments)
    (line,) = sub.lines()
    payload, content, answer, data, indicator, user, expiry = line.split("|")
    assert [payload, content, answer, data, indicator] == ["hello", "text/plain", "answers", "c1", "1"]
    assert user.split() == ["b:2", "a:1"]
    assert int(expiry) in (99, 100)


def test_retain_handling_and_no_local(broker: RunningBroker, topic: str) -> None:
    """Subscription options of 5.0."""
    pub(broker, "mqttv5", "-t", topic, "-r", "-q", "1", "-m", "old")
    stored = Sub(broker, "mqttv5", "-t", topic, "-q", "1", "--retained-only", "-W", "1")
    assert stored.lines() == ["old", "Timed out"]
    published_flag = Sub(
        broker, "mqttv5", "-t", topic, "--retain-as-published", "-R", "-C", "1", "-F", "%r %p"
    )
    pub(broker, "mqttv5", "-t", topic, "-q", "1", "-m", "new")
    assert published_flag.lines() == ["0 new"]


def test_shared(broker: RunningBroker, topic: str) -> None:
    """Two members of a group share the messages."""
    members = [Sub(broker, "mqttv5", "-t", f"$share/g/{topic}", "-q", "1", "-W", "2") for _ in range(2)]
    pub(
        broker,
        "mqttv5",
        "-t",
        topic,
        "-q",
        "1",
        "-l",
        stdin=b"".join(b"%d\n" % number for number in range(20)),
    )
    found = [[int(line) for line in member.lines() if line.isdigit()] for member in members]
    assert sorted(found[0] + found[1]) == list(range(20))
    assert all(found)


@every_version
def test_unacknowledged_is_sent_again(broker: RunningBroker, version: str, topic: str) -> None:
    """A subscriber that hangs, and is then killed, gets everything when it is back."""
    identity = ["-i", topic.replace("/", ""), "-c", "-q", "2", "-t", topic]
    if version == "mqttv5":
        identity += ["-x", "300"]
    hanging = Sub(broker, version, *identity)
    hanging.process.send_signal(signal.SIGSTOP)
    pub(
        broker,
        version,
        "-t",
        topic,
        "-q",
        "2",
        "-l",
        stdin=b"".join(b"%d\n" % number for number in range(200)),
    )
    hanging.kill()
    again = Sub(broker, version, *identity, "-C", "200")
    assert again.lines() == [str(number) for number in range(200)]


FORMATS = (
    r"%%|%t|%p|%q|%r|%l|%x|%X|@@|\n\t\\|\a\e\0|",
    "%C|%D|%F|%P|%R|%5l|%-5l|%05l|%12t|%-12t|%.3t|%20p|",
    "%j",
    "%J",
)


@pytest.mark.parametrize("form", FORMATS)
def test_our_command_prints_as_theirs(broker: RunningBroker, form: str) -> None:
    """`-F`, of a retained message with every property."""
    topic = unique("f/")
    properties = [
        *("-D", "publish", "content-type", "text", "-D", "publish", "response-topic", "r"),
        *("-D", "publish", "correlation-data", "cd", "-D", "publish", "payload-format-indicator", "1"),
        *("-D", "publish", "user-property", "a", "b", "-D", "publish", "user-property", "c", "d"),
    ]
    pub(broker, "mqttv5", "-t", topic, "-m", '{"a":[1,"ü"]}', "-r", "-q", "1", *properties)
    options = ["-p", str(broker.port), "-V", "mqttv5", "-t", topic, "-C", "1", "-W", "60", "-F", form]
    printed = [
        forks.run("sub", *options).stdout,
        subprocess.run(["mosquitto_sub", *options], capture_output=True, timeout=90).stdout,
    ]
    if form in ("%j", "%J"):
        shown = [json.loads(each) for each in printed]
        assert [len(each.pop("tst")) for each in shown] == [len("2026-11-22T18:16:00.888168Z+0000")] * 2
        assert shown[0] == shown[1]
    else:
        assert printed[0] == printed[1] != b""
