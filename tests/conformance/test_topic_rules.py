"""New names for topics, retained messages that end, and subscriptions made at CONNECT, as clients of each
version meet them."""

from __future__ import annotations

import time

import pytest
from conformance.kit import Client, connected, kept, unique
from conformance.packets import (
    CONNACK,
    PUBACK,
    SUBACK,
    UNSUBACK,
    Will,
    connect,
    publish,
    subscribe,
    unsubscribe,
)
from conftest import RunningBroker, StartBroker
from waiting import LATE_S, wait_until

every_version = pytest.mark.parametrize("version", [3, 4, 5])

RULES = """
[[rewrite]]
filter = "old/+/temp/#"
to = "plant/$1/temperature/$2"

[[rewrite]]
filter = "old/#"                        # what the first has not taken
to = "plant/rest/$1"

[[rewrite]]
filter = "in/+/+"
to = "swapped/$2/$1"
action = "publish"

[[rewrite]]
filter = "out/#"
to = "plant/$1"
action = "subscribe"

[[rewrite]]
filter = "bare/#"
to = "$1"

[[retained]]
filter = "short/+"
ttl_s = 1

[[retained]]
filter = "short/#"
ttl_s = 100

[[subscribe]]
filter = "devices/%c/commands/#"
qos = 1

[[subscribe]]
filter = "users/%u"
qos = 2
retain_handling = 2

[[subscribe]]
filter = "forbidden"
"""
ACL = """
deny subscribe forbidden
deny all plant/rest/secret
deny publish old/#
allow all #
"""


@pytest.fixture(scope="module", params=[1, 2], ids=["1 reactor", "2 reactors"])
def broker(
    start_broker: StartBroker, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> RunningBroker:
    folder = tmp_path_factory.mktemp("rules")
    (folder / "topics.toml").write_text(RULES)
    (folder / "rules.acl").write_text(ACL)
    settings = f'topic_rules_file = "{folder}/topics.toml"\nacl_file = "{folder}/rules.acl"\n'
    return start_broker(settings, reactors=request.param)


# --- new names -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("version", "qos"), [(3, 0), (4, 1), (5, 0), (5, 2)])
@pytest.mark.parametrize(
    ("topic", "meant"),
    [
        ("old/7/temp/a/b", "plant/7/temperature/a/b"),
        ("old/7/temp", "plant/7/temperature"),
        ("old/7/temp/", "plant/7/temperature/"),
        ("old//temp/x", "plant//temperature/x"),
        ("old/7/other", "plant/rest/7/other"),
        ("old", "plant/rest"),
        ("in/a/b", "swapped/b/a"),
        ("in/a/b/c", "in/a/b/c"),
        ("bare/x/y", "x/y"),
        ("bare", "bare"),  # it would be empty
        ("older", "older"),
    ],
)
def test_a_message_has_the_topic_that_is_meant(
    broker: RunningBroker, version: int, qos: int, topic: str, meant: str
) -> None:
    receiver, sender = connected(broker), connected(broker, version)
    receiver.subscribe(meant, qos)
    _, slash, rest = topic.partition("/")
    if slash and topic != meant:
        receiver.subscribe(f"+/{rest}", qos)  # which is not renamed: nothing comes to the old topic
    for payload in (b"first", b"second"):  # looked up, and remembered
        sender.publish(topic, payload, qos)
        receiver.expect_message(meant, payload, qos)
    receiver.expect_nothing()


def test_an_alias_stands_for_the_topic_as_it_was_sent(broker: RunningBroker) -> None:
    receiver, sender = connected(broker), connected(broker)
    receiver.subscribe("plant/rest/7/+", 1)
    sender.publish("old/7/other", b"1", 1, topic_alias=1)
    sender.publish("", b"2", 1, topic_alias=1)
    for payload in (b"1", b"2"):
        receiver.expect_message("plant/rest/7/other", payload, 1)


def test_a_will_and_what_is_retained_have_the_topic_that_is_meant(broker: RunningBroker) -> None:
    number = unique("n")
    receiver = connected(broker)
    receiver.subscribe(f"plant/rest/{number}/+", 1)
    connected(broker, will=Will(f"old/{number}/will", b"gone", 1)).drop()
    receiver.expect_message(f"plant/rest/{number}/will", b"gone", 1)
    sender = connected(broker)
    sender.publish(f"old/{number}/kept", b"kept", 1, retain=True)
    receiver.expect_message(f"plant/rest/{number}/kept", b"kept", 1)
    late = connected(broker)
    late.subscribe(f"plant/rest/{number}/#", 1)
    late.expect_message(f"plant/rest/{number}/kept", b"kept", 1, retain=True)


@every_version
@pytest.mark.parametrize(
    ("topic_filter", "topic", "found"),
    [
        ("old/+/temp/#", "plant/7/temperature/a", True),
        ("old/7/temp/#", "plant/8/temperature/a", False),
        ("out/+/x", "plant/7/x", True),
        ("in/a/b", "swapped/b/a", False),  # that rule is for PUBLISH
        ("$share/group/out/s", "plant/s", True),
        ("old/q/#", "plant/rest/q/z", True),
        ("old", "plant/rest", True),
        ("+/rest/z", "plant/rest/z", True),
    ],
)
def test_a_filter_has_the_name_that_is_meant(
    broker: RunningBroker, version: int, topic_filter: str, topic: str, found: bool
) -> None:
    receiver, sender = connected(broker, version), connected(broker)
    receiver.send(subscribe(9, (topic_filter, 1), version=version))
    receiver.expect(SUBACK, packet_id=9, reasons=[1])
    sender.publish(topic, b"x", 1)
    if found:
        receiver.expect_message(topic, b"x", 1)
    receiver.expect_nothing()
    receiver.send(unsubscribe(10, topic_filter, version=version))
    answer = receiver.expect(UNSUBACK, packet_id=10)
    assert version < 5 or answer.reasons == [0]
    sender.publish(topic, b"x", 1)
    receiver.expect_nothing()


def test_what_comes_with_a_filter_stays_with_it(broker: RunningBroker) -> None:
    """Options and the subscription identifier; and each of several filters has its reason."""
    client = connected(broker)
    client.send(subscribe(5, ("out/o", 1 | 4), ("plant/p", 2), ("old/secret", 0), subscription_id=300))
    client.expect(SUBACK, packet_id=5, reasons=[1, 2, 0x87])
    client.publish("plant/o", b"own", 1)  # no local
    connected(broker).publish("plant/p", b"another's", 2)
    message = client.receive()
    assert (message.topic, message.get("subscription_id")) == ("plant/p", 300)


def test_very_many_filters_of_one_packet(broker: RunningBroker) -> None:
    """What is more than a client may have is refused; the others have the names that are meant."""
    client, sender, most = connected(broker), connected(broker), 9_999  # and one that is made at CONNECT
    wanted = 1 | 2 << 4  # nothing that is retained
    client.send(subscribe(5, *((f"old/{number}/m", wanted) for number in range(17_000))))
    assert client.expect(SUBACK, packet_id=5).reasons == [1] * most + [0x97] * (17_000 - most)
    for number in (0, most - 1):
        sender.publish(f"plant/rest/{number}/m", b"x", 1)
        client.expect_message(f"plant/rest/{number}/m", b"x", 1)
    client.send(unsubscribe(6, *(f"old/{number}/m" for number in range(17_000))))
    reasons = client.expect(UNSUBACK, packet_id=6).reasons
    assert reasons == [0] * most + [0x11] * (17_000 - most)


def test_access_rules_are_about_the_topic_that_is_meant(broker: RunningBroker) -> None:
    """Also where they refuse the name that the client has used."""
    client = connected(broker)
    for topic, reason in (("old/secret", 0x87), ("old/x", 0x10), ("plant/rest/secret", 0x87)):
        client.send(publish(topic, b"x", 1, 7))
        assert client.expect(PUBACK, packet_id=7).reason == reason


def test_a_new_name_beyond_the_limits_is_refused(
    start_broker: StartBroker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.mktemp("rules") / "topics.toml"
    file.write_text('[[rewrite]]\nfilter = "twice/+"\nto = "$1/$1"\n')
    broker = start_broker(f'topic_rules_file = "{file}"\n[limits]\ntopic_bytes_max = 100\n')
    sender, receiver = connected(broker), connected(broker)
    receiver.subscribe("#", 1)
    sender.publish("twice/" + 49 * "x", b"fits", 1)
    receiver.expect_message(49 * "x" + "/" + 49 * "x", b"fits", 1)
    sender.send(publish("twice/" + 50 * "x", b"too long", 1, 9))
    sender.expect_closed(0x90)
    receiver.send(subscribe(4, ("twice/" + 50 * "x", 1)))
    receiver.expect(SUBACK, packet_id=4, reasons=[0x8F])


# --- retained messages that end ----------------------------------------------------------------------


def test_what_is_retained_ends_when_the_rule_says_so(broker: RunningBroker) -> None:
    """Who is subscribed gets it as it was published; the first rule that matches counts."""
    name = unique("s")
    receiver, sender = connected(broker), connected(broker)
    receiver.subscribe(f"short/{name}/#", 1)
    sender.publish(f"short/{name}", b"ends", 1, retain=True)
    assert not receiver.expect_message(f"short/{name}", b"ends", 1).all("message_expiry")
    sender.publish(f"short/{name}/x", b"ends later", 1, retain=True)
    sender.publish(f"short/{name}/y", b"own", 1, retain=True, message_expiry=50)
    receiver.expect_message(f"short/{name}/x", b"ends later", 1)
    assert receiver.expect_message(f"short/{name}/y", b"own", 1).get("message_expiry") == 50
    began = time.monotonic()
    late = connected(broker)
    late.subscribe(f"short/{name}/+", 1)
    expiries = {message.topic: message.get("message_expiry") for message in (late.receive(), late.receive())}
    assert 60 < expiries[f"short/{name}/x"] <= 100
    assert 10 < expiries[f"short/{name}/y"] <= 50

    def is_gone() -> bool:
        looking = connected(broker)
        looking.subscribe(f"short/{name}")
        found = looking.rest()
        looking.disconnect()
        return not found

    wait_until(is_gone, "it is gone", wait_s=LATE_S)
    assert time.monotonic() - began > 0.5


# --- subscriptions made at CONNECT -------------------------------------------------------------------


@every_version
def test_a_client_is_subscribed_when_it_connects(broker: RunningBroker, version: int) -> None:
    """With the names that are its own, before anything that it sends is handled, and no SUBACK tells of it.
    What the access rules forbid it does not get."""
    name, other = unique("d"), connected(broker)
    other.publish(f"devices/{name}/commands/boot", b"kept", 1, retain=True)
    other.publish("users/ann", b"kept", 1, retain=True)
    client = Client(broker.port, version)
    client.client_id = name
    client.send(
        connect(name, version, username="ann", password=b"a"),
        publish(f"devices/{name}/commands/own", b"1", 0, 0, version),
    )
    client.expect(CONNACK, reason=0)
    client.expect_message(f"devices/{name}/commands/boot", b"kept", 1, retain=True)
    if version < 5:  # which knows no Retain Handling
        client.expect_message("users/ann", b"kept", 1, retain=True)
    client.expect_message(f"devices/{name}/commands/own", b"1")
    other.publish("users/ann", b"2", 2)
    client.expect_message("users/ann", b"2", 2)
    other.publish("forbidden", b"3")
    client.expect_nothing()
    other.send(publish("users/ann", b"", 1, 9, retain=True))
    other.expect(PUBACK, packet_id=9)


def test_a_name_that_is_no_level_makes_no_subscription(broker: RunningBroker) -> None:
    for name in ("a/b" + unique("c"), "+", "#" + unique("c")):
        client, other = connected(broker, client_id=name), connected(broker)
        other.publish(f"devices/{name.strip('+#')}/commands/x", b"x")
        client.expect_nothing()
        client.disconnect()


def test_a_session_that_comes_back_has_what_it_has(broker: RunningBroker) -> None:
    """What is retained does not come again; what it has unsubscribed from, it has again."""
    name, other = unique("d"), connected(broker)
    topic = f"devices/{name}/commands/x"
    other.publish(topic, b"kept", 1, retain=True)
    client = connected(broker, client_id=name, **kept(5))
    client.expect_message(topic, b"kept", 1, retain=True)
    client.disconnect()
    other.publish(topic, b"while away", 1)
    client = connected(broker, client_id=name, **kept(5))
    client.expect_message(topic, b"while away", 1)
    client.expect_nothing()
    client.unsubscribe(f"devices/{name}/commands/#")
    client.disconnect()
    client = connected(broker, client_id=name, **kept(5))
    client.expect_message(topic, b"kept", 1, retain=True)
    client.disconnect(session_expiry=0)


def test_a_session_with_less_than_was_wanted_has_it_all_the_same(
    start_broker: StartBroker, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """It may not have more: so what is retained does not come again at each CONNECT."""
    file = tmp_path_factory.mktemp("rules") / "topics.toml"
    file.write_text('[[subscribe]]\nfilter = "news/%c"\nqos = 2\n')
    broker = start_broker(f'topic_rules_file = "{file}"\nqos_max = 1\n')
    name = unique("d")
    connected(broker).publish(f"news/{name}", b"kept", 1, retain=True)
    client = connected(broker, client_id=name, **kept(5))
    client.expect_message(f"news/{name}", b"kept", 1, retain=True)
    client.disconnect()
    connected(broker, client_id=name, **kept(5)).expect_nothing()


def test_a_client_that_begins_anew_gets_its_connack_first(broker: RunningBroker) -> None:
    name, other = unique("d"), connected(broker)
    other.publish(f"devices/{name}/commands/x", b"kept", 1, retain=True)
    for _ in range(10):
        client = connected(broker, client_id=name, clean=True, session_expiry=100)
        client.expect_message(f"devices/{name}/commands/x", b"kept", 1, retain=True)
        client.drop()
