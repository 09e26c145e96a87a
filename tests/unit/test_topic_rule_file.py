"""The file of topic rules: what is accepted, what is refused, and changes of a running broker."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path

import pytest
from conformance.kit import Client, connected, unique
from conformance.packets import PUBACK, SUBACK, publish, subscribe
from waiting import wait_until

from tidemq import Broker, Config
from tidemq.broker.topic_rules import (
    RULES_MAX,
    SUBSCRIPTIONS_MAX,
    Delayed,
    TopicRules,
    read_topic_rules,
)
from tidemq.errors import ConfigError

ROOT = Path(__file__).parents[2]


@pytest.fixture
def config(tmp_path: Path) -> Config:
    file = tmp_path / "topics.toml"
    file.write_text("")
    return Config(
        host="127.0.0.1", port=0, reactors=2, sys_interval_s=0, store="memory", topic_rules_file=file
    )


def write(config: Config, text: str) -> None:
    """As an editor does it: the file is never half written."""
    assert config.topic_rules_file is not None
    fresh = config.topic_rules_file.with_suffix(".new")
    fresh.write_text(text)
    fresh.rename(config.topic_rules_file)


async def during(config: Config, act: Callable[[Broker], None]) -> None:
    async with Broker(config) as broker:
        await asyncio.to_thread(act, broker)


async def test_a_change_is_followed(config: Config) -> None:
    """Topics that were looked up before have other names from then on, on every reactor."""
    name = unique("n")

    def act(broker: Broker) -> None:
        receiver, senders = connected(broker), [connected(broker) for _ in range(4)]
        receiver.subscribe(f"+/{name}/#", 1)

        def meant(sender: Client) -> str:
            """The topic that a message to the old one has."""
            sender.publish(f"old/{name}", b"x", 1)
            message = receiver.receive()
            receiver.acknowledge(message)
            return str(message.topic)

        def all_meant(expected: str) -> bool:
            return {meant(each) for each in senders} == {expected}

        assert all_meant(f"old/{name}")
        write(config, '[[rewrite]]\nfilter = "old/#"\nto = "new/$1"\n')
        wait_until(lambda: all_meant(f"new/{name}"), "each reactor has the rule")
        write(config, '[[rewrite]]\nfilter = "old/#"\nto = "newer/$1"\n')
        wait_until(lambda: all_meant(f"newer/{name}"), "each reactor has the other rule")
        write(config, "")
        wait_until(lambda: all_meant(f"old/{name}"), "no reactor has a rule")
        counters = broker.counters()
        assert (counters["topic_rule_reloads"], counters["topic_rule_reloads_failed"]) == (3, 0)
        assert counters["messages_rewritten"] >= 8

    await during(config, act)


async def test_a_wrong_change_leaves_the_old_rules_in_force(config: Config) -> None:
    name = unique("n")
    write(config, 'exclusive_subscriptions = true\n[[rewrite]]\nfilter = "old/#"\nto = "new/$1"\n')

    def act(broker: Broker) -> None:
        receiver, sender = connected(broker), connected(broker)
        receiver.subscribe(f"new/{name}", 1)
        sender.publish(f"old/{name}", b"x", 1)
        receiver.expect_message(f"new/{name}", b"x", 1)

    async with Broker(config) as broker:
        write(config, '[[rewrite]]\nfilter = "old/#"\nto = "new/$2"\n')
        assert "rewrite.0" in (await broker.reload())["topic rules"]
        await asyncio.to_thread(act, broker)
        counters = broker.counters()
        assert (counters["topic_rule_reloads"], counters["topic_rule_reloads_failed"]) == (0, 1)


async def test_what_was_switched_off_is_refused_and_what_there_is_stays(config: Config) -> None:
    write(config, "exclusive_subscriptions = true\n[delayed]\n")

    def before(broker: Broker) -> None:
        client = connected(broker, client_id="holder")
        client.send(subscribe(3, ("$exclusive/t", 1)), publish("$delayed/2/t", b"late", 1, 4))
        client.expect(SUBACK, packet_id=3, reasons=[1])
        client.expect(PUBACK, packet_id=4, reason=0)
        clients.append(client)

    def after(broker: Broker) -> None:
        other = connected(broker)
        wait_until(lambda: answer(other) == 0x90, "the rules are in force")
        other.send(subscribe(3, ("$exclusive/u", 1)))
        other.expect(SUBACK, packet_id=3, reasons=[0x8F])
        clients[0].expect_message("t", b"late", 1)
        clients[0].unsubscribe("$exclusive/t")

    def answer(client: Client) -> int:
        client.send(publish("$delayed/1/u", b"", 1, 5))
        return int(client.expect(PUBACK, packet_id=5).reason)

    clients: list[Client] = []
    async with Broker(config) as broker:
        await asyncio.to_thread(before, broker)
        write(config, "")
        assert (await broker.reload())["topic rules"] == ""
        await asyncio.to_thread(after, broker)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("rewrites = []", "rewrites: it is unknown"),
        ("exclusive_subscriptions = 1", "exclusive_subscriptions"),
        ('[[rewrite]]\nfilter = "a"', "rewrite.0.to"),
        ('[[rewrite]]\nfilter = "a#"\nto = "b"', "rewrite.0: filter: 'a#' is no topic filter"),
        ('[[rewrite]]\nfilter = "$SYS/#"\nto = "b"', "rewrite.0: filter: '$SYS/#' begins with a $"),
        ('[[rewrite]]\nfilter = "a/+"\nto = "b/$2"', "rewrite.0: to: the level '$2' is none of $1"),
        ('[[rewrite]]\nfilter = "a"\nto = "b/$1"', "rewrite.0: to: the level '$1' is none of none"),
        ('[[rewrite]]\nfilter = "a/+"\nto = "b/x$1"', "rewrite.0: to: the level 'x$1'"),
        ('[[rewrite]]\nfilter = "a/+"\nto = "b/+"', "rewrite.0: to: 'b/+' is no topic"),
        ('[[rewrite]]\nfilter = "a/+"\nto = "$SYS/$1"', "rewrite.0: to: the level '$SYS'"),
        ('[[rewrite]]\nfilter = "a/+/#"\nto = "b/$2/$1"', "rewrite.0: to: $2, which stands for all"),
        ('[[rewrite]]\nfilter = "+/+/+/+/+/+/+/+/+/#"\nto = "b"', "rewrite.0: filter: it has 10 wildcards"),
        ('[[rewrite]]\nfilter = "a"\nto = "b"\naction = "none"', "rewrite.0.action"),
        ('[[rewrite]]\nfilter = "a"\nto = "b"\n' * (RULES_MAX + 1), f"at most {RULES_MAX}"),
        ('[[retained]]\nfilter = "a"', "retained.0.ttl_s"),
        ('[[retained]]\nfilter = "a"\nttl_s = 0', "retained.0.ttl_s"),
        ('[[retained]]\nfilter = "$share/g/a"\nttl_s = 1', "retained.0: filter: '$share/g/a' begins with"),
        ('[[subscribe]]\nfilter = "a"\nqos = 3', "subscribe.0.qos"),
        ('[[subscribe]]\nfilter = "+%c"', "subscribe.0: filter: '+%c' is no topic filter"),
        ('[[subscribe]]\nfilter = "$stream/s/a"', "subscribe.0: filter: '$stream/s/a' asks for a stream"),
        ('[[subscribe]]\nfilter = "$share/g/a"\nno_local = true', "subscribe.0: no_local"),
        ('[[subscribe]]\nfilter = "' + "a/" * 200 + 'a"', "subscribe.0: "),
        ('[[subscribe]]\nfilter = "a"\n' * (SUBSCRIPTIONS_MAX + 1), f"at most {SUBSCRIPTIONS_MAX}"),
        ("[delayed]\nseconds_max = 0", "delayed.seconds_max"),
        ("[delayed]\nmessages = 1", "delayed.messages: it is unknown"),
        ("[[rewrite", "the file: "),
    ],
)
async def test_a_wrong_file_is_refused_at_the_start(config: Config, text: str, said: str) -> None:
    write(config, text)
    with pytest.raises(ConfigError, match=re.escape(f"{config.topic_rules_file}: ")) as refused:
        await Broker(config).start()
    assert said in str(refused.value)
    assert "; accepted: " in str(refused.value)


def test_the_file_of_the_page_is_accepted(tmp_path: Path) -> None:
    """And the page has the bounds of the code."""
    page = (ROOT / "docs/topic-rules.md").read_text()
    shown = re.findall(r"```toml\n(.*?)```", page, re.DOTALL)
    assert len(shown) > 4
    for text in shown:
        if "topic_rules_file" not in text:
            (tmp_path / "topics.toml").write_text(text)
            assert read_topic_rules(tmp_path / "topics.toml", 100) != TopicRules()
    assert f"at most {RULES_MAX} of them" in page
    assert f"At most {SUBSCRIPTIONS_MAX}" in page
    documented = dict(re.findall(r"^\| `(\w+)` \| `([\d_]+)` \|", page, re.MULTILINE))
    defaults = {name: field.default for name, field in Delayed.model_fields.items()}
    assert {name: int(text) for name, text in documented.items()} == defaults


async def test_more_wildcards_than_names_for_what_they_stand_for(config: Config) -> None:
    """Also where a topic ends before the filter does, behind nine wildcards."""
    nine, twenty = "/".join("+" * 9), "/".join("+" * 20)
    write(
        config,
        f'[[rewrite]]\nfilter = "{nine}/end"\nto = "nine/$9/$1"\n'
        f'[[retained]]\nfilter = "{twenty}/#"\nttl_s = 1000\n',
    )

    def act(broker: Broker) -> None:
        receiver, sender = connected(broker), connected(broker)
        receiver.subscribe("#")
        for count in (8, 9, 10, 11, 19, 20, 21):
            topic = "/".join(str(number) for number in range(count))
            sender.publish(topic, b"x", retain=True)
            receiver.expect_message(topic, b"x")
            expiry = connected(broker)
            expiry.subscribe(topic)
            kept = expiry.expect_message(topic, b"x", retain=True)
            assert bool(kept.all("message_expiry")) == (count >= 20)
        sender.publish("/".join(str(number) for number in range(9)) + "/end", b"x")
        receiver.expect_message("nine/8/0", b"x")

    await during(config, act)
