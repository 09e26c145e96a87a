"""`$delayed/SECONDS/TOPIC`: a message comes when it is due, within bounds."""

from __future__ import annotations

import time
from typing import Any

import pytest
from conformance.kit import Client, connected, kept, unique
from conformance.packets import PUBACK, PUBCOMP, PUBREC, PUBREL, acknowledge, publish
from conftest import RunningBroker, StartBroker
from waiting import wait_until

every_version = pytest.mark.parametrize("version", [3, 4, 5])


@pytest.fixture(scope="module", params=[1, 2], ids=["1 reactor", "2 reactors"])
def broker(
    start_broker: StartBroker, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> RunningBroker:
    folder = tmp_path_factory.mktemp("rules")
    (folder / "topics.toml").write_text(
        "[delayed]\nseconds_max = 1000\nmessages_max = 200\nbytes_max = 1_000_000\n"
        '[[rewrite]]\nfilter = "old/#"\nto = "new/$1"\n'
    )
    (folder / "rules.acl").write_text("deny all secret/#\nallow all #\n")
    settings = f'topic_rules_file = "{folder}/topics.toml"\nacl_file = "{folder}/rules.acl"\n'
    return start_broker(settings, reactors=request.param)


@every_version
@pytest.mark.parametrize("qos", [0, 1, 2])
def test_a_delayed_message_comes_when_it_is_due_and_not_before(
    broker: RunningBroker, version: int, qos: int
) -> None:
    """With all that it is made of, and once; though its publisher has gone."""
    topic = unique("t/")
    receiver, sender = connected(broker), connected(broker, version)
    receiver.subscribe(f"{topic}/#", 2)
    named: dict[str, Any] = {"content_type": "text/plain", "message_expiry": 50} if version == 5 else {}
    began = time.monotonic()
    sender.publish(f"$delayed/1/{topic}/a", b"late", qos, **named)
    sender.publish(f"$delayed/900/{topic}/b", b"much later", qos)
    sender.publish(f"$delayed/0/{topic}/c", b"now", qos)
    sender.publish(f"{topic}/d", b"now, too", qos)
    sender.disconnect()
    receiver.expect_message(f"{topic}/c", b"now", qos)
    receiver.expect_message(f"{topic}/d", b"now, too", qos)
    message = receiver.expect_message(f"{topic}/a", b"late", qos, retain=False)
    assert time.monotonic() - began >= 1
    if version == 5:
        assert message.all("content_type") == ["text/plain"]
        assert 20 < message.get("message_expiry") <= 50  # from when it is due
    receiver.expect_nothing()


def test_it_is_retained_when_it_is_due(broker: RunningBroker) -> None:
    topic = unique("t/")
    connected(broker).publish(f"$delayed/1/{topic}", b"kept", 1, retain=True)
    early = connected(broker)
    early.subscribe(topic, 1)
    early.expect_message(topic, b"kept", 1, retain=False)
    late = connected(broker)
    late.subscribe(topic, 1)
    late.expect_message(topic, b"kept", 1, retain=True)


def test_the_topic_behind_it_is_renamed_and_judged(broker: RunningBroker) -> None:
    receiver, sender, name = connected(broker), connected(broker), unique("n")
    receiver.subscribe(f"new/{name}", 1)
    sender.publish(f"$delayed/1/old/{name}", b"x", 1)
    for topic, reason in (("$delayed/1/secret/x", 0x87), ("$delayed/1/$SYS/x", 0x90)):
        sender.send(publish(topic, b"x", 1, 7))
        assert sender.expect(PUBACK, packet_id=7).reason == reason
    receiver.expect_message(f"new/{name}", b"x", 1)


@pytest.mark.parametrize(
    "topic",
    [
        "$delayed/1001/t",
        "$delayed/18446744073709551617/t",
        "$delayed/-1/t",
        "$delayed//t",
        "$delayed/1x/t",
        "$delayed/1/",
        "$delayed/1",
        "$delayed/t",
        "$delayed/",
        "$delayed",
        "$delayed/1/$delayed/1/t",
    ],
)
def test_what_is_none_is_refused(broker: RunningBroker, topic: str) -> None:
    """As all topics that begin with a $: 5.0 is told so, of 3.x it is acknowledged and dropped."""
    for version, qos in ((5, 1), (5, 2), (4, 1)):
        client = connected(broker, version)
        client.send(publish(topic, b"x", qos, 7, version))
        answer = client.expect(PUBACK if qos == 1 else PUBREC, packet_id=7)
        assert answer.reason == (0x90 if version == 5 else 0)
        client.ping()


def test_where_it_is_not_switched_on_nobody_delays(start_broker: StartBroker) -> None:
    client = connected(start_broker())
    client.send(publish("$delayed/1/t", b"x", 1, 7))
    client.expect(PUBACK, packet_id=7, reason=0x90)


@pytest.mark.parametrize("bound", ["messages_max = 3", "bytes_max = 3072"])
def test_there_are_bounds_of_number_and_bytes(
    start_broker: StartBroker, tmp_path_factory: pytest.TempPathFactory, bound: str
) -> None:
    """5.0 is told so, 3.x is disconnected; and there is room again when messages have come."""
    file = tmp_path_factory.mktemp("rules") / "topics.toml"
    file.write_text(f"[delayed]\n{bound}\n")
    broker = start_broker(f'topic_rules_file = "{file}"\n')
    receiver, sender, payload = connected(broker), connected(broker), 900 * b"x"
    receiver.subscribe("t", 1)
    for number in range(3):
        sender.send(publish("$delayed/2/t", payload, 1, 10 + number))
        sender.expect(PUBACK, packet_id=10 + number, reason=0)
    for qos, kind in ((1, PUBACK), (2, PUBREC)):
        sender.send(publish("$delayed/2/t", payload, qos, 20))
        sender.expect(kind, packet_id=20, reason=0x97)
    old = connected(broker, 4)
    old.send(publish("$delayed/2/t", payload, 1, 20, 4))
    old.expect_closed()
    for _ in range(3):
        receiver.expect_message("t", payload, 1)

    def there_is_room() -> bool:
        sender.send(publish("$delayed/0/t", b"", 0), publish("$delayed/1/t", payload, 1, 30))
        return bool(sender.expect(PUBACK, packet_id=30).reason == 0)

    wait_until(there_is_room, "there is room again")


def test_a_message_that_is_sent_again_comes_once(broker: RunningBroker) -> None:
    """QoS 2: before PUBREL it is the same message [MQTT-4.3.3-10]."""
    topic, receiver = unique("t/"), connected(broker)
    receiver.subscribe(topic, 2)
    name = unique("c")
    first = connected(broker, client_id=name, **kept(5))
    first.send(publish(f"$delayed/1/{topic}", b"x", 2, 5))
    first.expect(PUBREC, packet_id=5, reason=0)
    first.drop()
    again: Client = connected(broker, client_id=name, **kept(5))
    again.send(publish(f"$delayed/1/{topic}", b"x", 2, 5, dup=True))
    again.expect(PUBREC, packet_id=5)
    again.send(acknowledge(PUBREL, 5))
    again.expect(PUBCOMP, packet_id=5, reason=0)
    receiver.expect_message(topic, b"x", 2)
    receiver.expect_nothing(1.2)
    again.disconnect(session_expiry=0)
