"""`$exclusive/FILTER`: one subscriber at a time, whichever reactor it is on."""

from __future__ import annotations

import pytest
from conformance.kit import Client, connected, kept, unique
from conformance.packets import SUBACK, UNSUBACK, subscribe, unsubscribe
from conftest import RunningBroker, StartBroker
from waiting import wait_until

every_version = pytest.mark.parametrize("version", [3, 4, 5])
TAKEN = 0x97


@pytest.fixture(scope="module", params=[1, 2], ids=["1 reactor", "2 reactors"])
def broker(
    start_broker: StartBroker, tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest
) -> RunningBroker:
    folder = tmp_path_factory.mktemp("rules")
    (folder / "topics.toml").write_text("exclusive_subscriptions = true\n")
    (folder / "rules.acl").write_text("deny all secret/#\nallow all #\n")
    settings = f'topic_rules_file = "{folder}/topics.toml"\nacl_file = "{folder}/rules.acl"\n'
    return start_broker(settings, reactors=request.param)


def asked(client: Client, *filters: str) -> list[int]:
    """What SUBACK says."""
    client.send(subscribe(9, *((each, 1) for each in filters), version=client.version))
    return list(client.expect(SUBACK, packet_id=9).reasons)


@every_version
def test_one_client_has_it_and_the_others_are_refused(broker: RunningBroker, version: int) -> None:
    """Until it unsubscribes. A plain subscription to the same topics is nobody's concern."""
    topic = unique("t")
    clients = [connected(broker, version) for _ in range(6)]
    assert asked(clients[0], f"$exclusive/{topic}/+") == [1]
    assert asked(clients[0], f"$exclusive/{topic}/+") == [1]  # again: it is its own
    for other in clients[1:]:
        refusal = TAKEN if version == 5 else 0x80
        assert asked(other, f"$exclusive/{topic}/+", f"{topic}/x", f"$exclusive/{topic}/#")[:2] == [
            refusal,
            1,
        ]
    sender = connected(broker)
    sender.publish(f"{topic}/x", b"1", 1)
    clients[0].expect_message(f"{topic}/x", b"1", 1)
    for client in clients[2:]:
        client.expect_message(f"{topic}/x", b"1", 1)
    clients[0].send(unsubscribe(3, f"$exclusive/{topic}/+", version=version))
    clients[0].expect(UNSUBACK, packet_id=3)
    sender.publish(f"{topic}/x", b"2", 1)
    clients[0].expect_nothing()
    assert asked(connected(broker), f"$exclusive/{topic}/+") == [1]


def test_it_is_free_when_the_session_ends(broker: RunningBroker) -> None:
    """Not when the client of a session that stays is away."""
    topic = f"$exclusive/{unique('t')}"
    first, other = connected(broker), connected(broker)
    assert asked(first, topic) == [1]
    first.drop()
    wait_until(lambda: asked(other, topic) == [1], "it is free")
    other.disconnect()
    kept_one = connected(broker, **kept(5))
    assert asked(kept_one, topic) == [1]
    kept_one.disconnect()
    other = connected(broker)
    assert asked(other, topic) == [TAKEN]
    back = connected(broker, client_id=kept_one.client_id, **kept(5))
    assert asked(other, topic) == [TAKEN]
    back.disconnect(session_expiry=0)
    assert asked(other, topic) == [1]


def test_a_client_that_begins_anew_has_it_no_more(broker: RunningBroker) -> None:
    topic, other = f"$exclusive/{unique('t')}", connected(broker)
    client = connected(broker, **kept(5))
    assert asked(client, topic) == [1]
    again = connected(broker, client_id=client.client_id, clean=True)
    assert asked(other, topic) == [1]
    assert asked(again, topic) == [TAKEN]


def test_of_both_forms_a_client_has_the_later(broker: RunningBroker) -> None:
    """The message comes once; and the form that it has no more can be had by others."""
    topic = unique("t")
    client, other, sender = connected(broker), connected(broker), connected(broker)
    assert asked(client, topic) == [1]
    assert asked(client, f"$exclusive/{topic}") == [1]
    sender.publish(topic, b"1", 1)
    client.expect_message(topic, b"1", 1)
    client.expect_nothing()
    assert asked(client, topic) == [1]
    assert asked(other, f"$exclusive/{topic}") == [1]
    sender.publish(topic, b"2", 1)
    client.expect_message(topic, b"2", 1)
    client.expect_nothing()
    client.unsubscribe(topic)
    sender.publish(topic, b"3", 1)
    client.expect_nothing()


def test_what_is_retained_comes_to_it(broker: RunningBroker) -> None:
    topic, client = unique("t"), connected(broker)
    client.publish(f"{topic}/x", b"kept", 1, retain=True)
    assert asked(client, f"$exclusive/{topic}/#") == [1]
    client.expect_message(f"{topic}/x", b"kept", 1, retain=True)


def test_many_who_want_it_at_once_get_it_once(broker: RunningBroker) -> None:
    clients = [connected(broker) for _ in range(8)]
    for _ in range(10):
        topic = f"$exclusive/{unique('t')}"
        for client in clients:
            client.send(subscribe(9, (topic, 1)))
        reasons = [client.expect(SUBACK, packet_id=9).reasons[0] for client in clients]
        assert sorted(reasons) == [1] + 7 * [TAKEN]


def test_access_rules_are_about_its_topics(broker: RunningBroker) -> None:
    assert asked(connected(broker), "$exclusive/secret/x", "$exclusive/#") == [0x87, 0x87]


def test_what_is_none_is_refused(broker: RunningBroker, start_broker: StartBroker) -> None:
    client = connected(broker)
    for topic_filter in ("$exclusive/$share/g/t", "$exclusive/$SYS/x", "$exclusive/$exclusive/t"):
        assert asked(client, topic_filter)[0] in (0x8F, 0x87)  # no rule is about topics with a $
    assert asked(connected(start_broker()), f"$exclusive/{unique('t')}") == [0x8F]  # it is not switched on


def test_a_session_with_very_many_gives_all_of_them_up(broker: RunningBroker) -> None:
    topics = [f"$exclusive/{unique('t')}" for _ in range(1500)]
    client, other = connected(broker), connected(broker)
    assert asked(client, *topics) == [1] * len(topics)
    client.disconnect()
    wait_until(lambda: asked(other, *topics) == [1] * len(topics), "they are free")
