"""The rules of an `acl_file`, and topics with a `$`, as clients of each version meet them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from conformance.kit import Client, connected, kept, refused, unique
from conformance.packets import (
    PUBACK,
    PUBCOMP,
    PUBREC,
    PUBREL,
    SUBACK,
    Packet,
    Will,
    acknowledge,
    connect,
    publish,
    subscribe,
)
from conftest import RunningBroker, StartBroker

every_version = pytest.mark.parametrize("version", [3, 4, 5])
every_qos = pytest.mark.parametrize("qos", [0, 1, 2])

RULES = """
deny user mallory all #
deny all open/secret
allow all open/#
allow publish low/# qos 1 retain no
allow subscribe low/# qos 0
allow user ann all ann/#
allow client own-* all own/%c/#
allow network 127.0.0.0/8 publish here/#
allow network 192.0.2.0/24 publish there/#
allow subscribe $SYS/#
allow client bridge-* publish $SYS/broker/connection/%c/state
"""


@pytest.fixture(scope="module", params=[1, 2], ids=["1 reactor", "2 reactors"])
def broker(
    start_broker: StartBroker, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> RunningBroker:
    file = tmp_path_factory.mktemp("acl") / "rules.acl"
    file.write_text(RULES)
    return start_broker(f'acl_file = "{file}"\nsys_interval_s = 0.2\n', reactors=request.param)


def publishes(client: Client, topic: str, qos: int, reason: int, *, retain: bool = False) -> None:
    """A message that is refused for `reason` in 5.0, and acknowledged and dropped in 3.x; 0: it is taken."""
    client.send(publish(topic, b"x", qos, 9, client.version, retain=retain))
    if qos:
        answer = client.expect(PUBACK if qos == 1 else PUBREC, packet_id=9)
        said = reason if client.version == 5 else 0
        assert answer.reason == said or (said == 0 and answer.reason == 0x10), answer
        if qos == 2 and answer.reason < 0x80:
            client.send(acknowledge(PUBREL, 9))
            client.expect(PUBCOMP, packet_id=9, reason=0)
    client.ping()


@every_version
@every_qos
def test_only_what_is_allowed_is_delivered(broker: RunningBroker, version: int, qos: int) -> None:
    """In its order, and nothing between."""
    receiver, sender = connected(broker), connected(broker, version)
    receiver.subscribe("open/t", 2)
    for round_number in range(3):
        sender.publish("open/t", b"%d" % round_number, qos)
        publishes(sender, "open/secret", qos, 0x87)
        publishes(sender, "shut", qos, 0x87)
    for round_number in range(3):
        receiver.expect_message("open/t", b"%d" % round_number, qos)
    receiver.expect_nothing()


@every_version
def test_qos_and_retain_of_a_rule(broker: RunningBroker, version: int) -> None:
    client = connected(broker, version)
    publishes(client, "low/x", 1, 0)
    publishes(client, "low/x", 2, 0x87)
    publishes(client, "low/x", 1, 0x87, retain=True)
    client.send(subscribe(3, ("low/#", 2), version=version))
    client.expect(SUBACK, packet_id=3, reasons=[0])
    connected(broker, version).publish("low/x", b"y", 1)
    client.expect_message("low/x", b"y", 0)


@every_version
@pytest.mark.parametrize(
    ("topic_filter", "allowed"),
    [
        ("open/t", True),
        ("open/secret", False),
        ("open/#", False),
        ("open/+/x", True),
        ("#", False),
        ("+/t", False),
        ("$SYS/broker/#", True),
        ("$share/g/open/t", True),
        ("$share/g/shut", False),
        ("shut", False),
        ("own/x/#", False),
    ],
)
def test_a_filter_is_allowed_as_a_whole_or_not(
    broker: RunningBroker, version: int, topic_filter: str, allowed: bool
) -> None:
    client = connected(broker, version)
    refusal = 0x87 if version == 5 else 0x80
    client.send(subscribe(1, ("open/a", 1), (topic_filter, 1), ("open/b", 1), version=version))
    client.expect(SUBACK, packet_id=1, reasons=[1, 1 if allowed else refusal, 1])


@every_version
def test_rules_about_who(broker: RunningBroker, version: int) -> None:
    ann = connected(broker, version, username="ann", password=b"p")
    publishes(ann, "ann/x", 1, 0)
    publishes(connected(broker, version), "ann/x", 1, 0x87)
    name = unique("own-")
    own = connected(broker, version, name)
    publishes(own, f"own/{name}/x", 1, 0)
    publishes(own, "own/other/x", 1, 0x87)
    publishes(own, "here/x", 1, 0)
    publishes(own, "there/x", 1, 0x87)
    mallory = connected(broker, version, username="mallory", password=b"p")
    publishes(mallory, "open/t", 1, 0x87)


def test_a_client_identifier_that_the_server_assigned_is_filled_in(broker: RunningBroker) -> None:
    client = connected(broker, 5, "")
    publishes(client, f"own/{client.client_id}/x", 1, 0x87)  # the rule is about own-*
    publishes(client, "open/t", 1, 0)


@every_version
def test_a_will_that_is_not_allowed_refuses_the_connection(broker: RunningBroker, version: int) -> None:
    client = Client(broker.port, version)
    client.send(connect(unique("c"), version, will=Will("shut", b"x")))
    refused(client, 0x87 if version == 5 else 5)
    client = Client(broker.port, version)
    client.send(connect(unique("c"), version, will=Will("low/x", b"x", 2)))
    refused(client, 0x87 if version == 5 else 5)
    connected(broker, version, will=Will("low/x", b"x", 1)).ping()


@every_version
@every_qos
@pytest.mark.parametrize("topic", ["$SYS/broker/version", "$x", "$share/g/x"])
def test_no_client_publishes_to_topics_with_a_dollar(
    broker: RunningBroker, version: int, qos: int, topic: str
) -> None:
    """They are the server's own (section 4.7.2)."""
    watcher = connected(broker)
    watcher.send(subscribe(1, ("$SYS/broker/version", 0)))
    watcher.expect(SUBACK, packet_id=1)
    publishes(connected(broker, version), topic, qos, 0x90)
    for packet in iter_packets(watcher):
        assert packet.payload != b"x"


def iter_packets(client: Client) -> Iterator[Packet]:
    """What has come until now."""
    client.send(b"\xc0\x00")
    while (packet := client.receive()).raw != b"\xd0\x00":
        yield packet


def test_a_will_with_a_dollar(broker: RunningBroker) -> None:
    """5.0 is refused with a reason of its own; 3.x is let in without it."""
    client = Client(broker.port)
    client.send(connect(unique("c"), will=Will("$SYS/broker/connection/b/state", b"0", 1, True)))
    refused(client, 0x90)
    bridge = connected(broker, 4, will=Will("$SYS/broker/connection/b/state", b"0", 1, True))
    publishes(bridge, "$SYS/broker/connection/b/state", 1, 0x90, retain=True)
    watcher = connected(broker)
    watcher.subscribe("$SYS/broker/connection/b/#")
    bridge.socket.close()
    watcher.expect_nothing()


@every_version
def test_a_bridge_says_whether_it_is_connected(broker: RunningBroker, version: int) -> None:
    """As Mosquitto's do: on the one topic with a $ that has their own identifier, if the rules allow it."""
    name = unique("bridge-")
    state = f"$SYS/broker/connection/{name}/state"
    watcher = connected(broker)
    watcher.subscribe(f"$SYS/broker/connection/{name}/#")
    bridge = connected(broker, version, name, will=Will(state, b"0", 1, True))
    publishes(bridge, state, 1, 0, retain=True)
    watcher.expect_message(state, b"x", 0)
    publishes(bridge, f"{state}/x", 1, 0x90, retain=True)
    publishes(bridge, "$SYS/broker/connection/other/state", 1, 0x90, retain=True)
    bridge.socket.close()
    watcher.expect_message(state, b"0", 0)


@every_version
def test_a_bridge_whose_state_rules_do_not_allow_crosses_without(broker: RunningBroker, version: int) -> None:
    name = unique("b")
    state = f"$SYS/broker/connection/{name}/state"
    watcher = connected(broker)
    watcher.subscribe(f"$SYS/broker/connection/{name}/#")
    bridge = connected(broker, version, name, will=Will(state, b"0", 1, True))
    publishes(bridge, state, 1, 0x87, retain=True)
    bridge.socket.close()
    watcher.expect_nothing()


def test_an_alias_is_judged_as_its_topic(broker: RunningBroker) -> None:
    client = Client(broker.port)
    client.connect()
    client.send(publish("open/secret", b"x", 1, 1, topic_alias=1))
    client.expect(PUBACK, packet_id=1, reason=0x87)
    client.send(publish("", b"x", 1, 2, topic_alias=1))
    client.expect(PUBACK, packet_id=2, reason=0x87)
    client.send(publish("open/t", b"x", 1, 3, topic_alias=1))
    client.expect(PUBACK, packet_id=3, reason=0x10)
    client.send(publish("", b"x", 1, 4, topic_alias=1))
    client.expect(PUBACK, packet_id=4, reason=0x10)


def test_clients_of_one_topic_are_judged_each_for_itself(broker: RunningBroker) -> None:
    """More of them than a topic remembers, in turns."""
    name = unique("own-")
    clients = [connected(broker, 5, name if number == 3 else unique("own-")) for number in range(9)]
    clients.append(connected(broker, 5, username="mallory", password=b"p"))
    for _ in range(3):
        for number, client in enumerate(clients):
            publishes(client, f"own/{name}/x", 1, 0 if number == 3 else 0x87)


def test_a_session_comes_back_to_the_rules_of_its_user(broker: RunningBroker) -> None:
    """Its subscriptions that are not allowed to who comes now have ended."""
    name = unique("c")
    ann = connected(broker, 5, name, username="ann", password=b"p", **kept(5))
    ann.subscribe("ann/x", 1)
    ann.subscribe("open/t", 1)
    ann.socket.close()
    bob = Client(broker.port)
    assert bob.connect(name, username="bob", password=b"p", **kept(5)).session_present
    connected(broker, 5, username="ann", password=b"p").publish("ann/x", b"secret", 1)
    connected(broker).publish("open/t", b"fine", 1)
    bob.expect_message("open/t", b"fine", 1)
    bob.expect_nothing()
