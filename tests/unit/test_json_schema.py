"""The plugin `json_schema`: what does not fit its schema is refused, dropped or sent elsewhere."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conformance.kit import connected
from conformance.packets import PUBACK, publish

from tidemq import Broker, Config, ConfigError, HeldMessage
from tidemq.config import PluginConfig
from tidemq.plugins.json_schema import JsonSchema, SchemaOptions

SCHEMA = {
    "$schema": "https://json-schema.org/draft/2020-12/schema",
    "type": "object",
    "required": ["celsius"],
    "properties": {"celsius": {"type": "number", "minimum": -273}},
}
GOOD, BAD = b'{"celsius": 21.5}', b'{"celsius": "warm"}'


@pytest.fixture
def schema(tmp_path: Path) -> Path:
    path = tmp_path / "temperature.json"
    path.write_text(json.dumps(SCHEMA))
    return path


def plugin(schema: Path, filter: str = "t/#", **rule: Any) -> JsonSchema:
    return JsonSchema(SchemaOptions.model_validate({"rules": [{"filter": filter, "file": schema, **rule}]}))


def decide(plugin: JsonSchema, payload: bytes) -> Any:
    message = HeldMessage(1, 0, "c", None, "t/1", payload, 1, False)
    [decision] = plugin.publish([message])
    return decision


def config(schema: Path, **rule: Any) -> Config:
    options = {"rules": [{"filter": "t/#", "file": str(schema), **rule}]}
    return Config(
        host="127.0.0.1",
        port=0,
        reactors=2,
        sys_interval_s=0,
        store="memory",
        plugins=(PluginConfig(name="json_schema", options=options),),
    )


async def play(config: Config, act: Callable[[Broker], None]) -> dict[str, int]:
    async with Broker(config) as broker:
        await asyncio.to_thread(act, broker)
        return broker.counters()


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "utf-32", "utf-8-sig", "utf-8"])
def test_json_is_utf_8(schema: Path, encoding: str) -> None:
    """RFC 8259 section 8.1: nobody who reads it expects anything else."""
    decision = decide(plugin(schema), GOOD.decode().encode(encoding))
    assert (decision is None) == (encoding == "utf-8")


@pytest.mark.parametrize(("action", "reason"), [("refuse", 0x99), ("drop", 0x10), ("pass", 0)])
async def test_what_does_not_fit_goes_to_the_topic_for_rejects(
    schema: Path, action: str, reason: int
) -> None:
    def act(broker: Broker) -> None:
        reader = connected(broker)
        reader.subscribe("t/#", 1)
        rejects = connected(broker)
        rejects.subscribe("rejected/#", 1)
        device = connected(broker)
        device.send(
            publish("t/1", BAD, 1, 1, user=("own", "x")), publish("t/1", GOOD, 1, 2), publish("u", BAD, 1, 3)
        )
        device.expect(PUBACK, packet_id=1, reason=reason)
        device.expect(PUBACK, packet_id=2, reason=0)
        device.expect(PUBACK, packet_id=3, reason=0x10)  # no rule is about it, and nobody reads it
        reject = rejects.expect_message("rejected/t/1", BAD, 1)
        assert reject.all("user") == [
            ("own", "x"),
            ("reason", '/celsius: "warm" is not of type "number"'),
            ("topic", "t/1"),
            ("client_id", device.client_id),
        ]
        if action == "pass":
            reader.expect_message("t/1", BAD, 1)
        reader.expect_message("t/1", GOOD, 1)

    counters = await play(config(schema, action=action, reject_topic="rejected/{topic}"), act)
    assert (counters["schema_messages_invalid"], counters["schema_messages_valid"]) == (1, 1)
    assert counters["refused_plugin"] == (action == "refuse")


async def test_below_5_0_a_refused_message_is_acknowledged_and_goes_to_nobody(schema: Path) -> None:
    def act(broker: Broker) -> None:
        reader = connected(broker)
        reader.subscribe("#", 2)
        device = connected(broker, 4)
        for qos in (0, 1, 2):
            device.publish("t/1", BAD, qos)
            device.publish("t/1", GOOD, qos)
            reader.expect_message("t/1", GOOD, qos)

    counters = await play(config(schema), act)
    assert counters["schema_messages_invalid"] == counters["refused_plugin"] == 3


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"21.5",
        b"{}",
        b'{"celsius": NaN}',
        b'{"celsius": -300}',
        b'{"celsius": 1',
        b"\xff\xfe",
        b"[" * 100_000,
        b'{"celsius": ' + b"9" * 10_000 + b"}",
        GOOD + b" " * 262_144,
    ],
)
def test_hostile_payloads_are_invalid_and_no_more(schema: Path, payload: bytes) -> None:
    checker = plugin(schema, reject_topic="rejected")
    decision = decide(checker, payload)
    assert decision.reason == 0x99
    [route] = decision.routes
    reason = dict(route.properties.user_properties)["reason"]
    assert 0 < len(reason) <= 200
    assert reason.isprintable()
    assert decide(checker, GOOD) is None


def test_all_rules_about_a_topic_count_and_the_first_that_is_broken_says_what_follows(
    schema: Path, tmp_path: Path
) -> None:
    other = tmp_path / "other.json"
    other.write_text('{"required": ["unit"]}')
    rules = [
        {"filter": "t/+", "file": schema, "action": "drop"},
        {"filter": "#", "file": other, "reject_topic": "r"},
    ]
    checker = JsonSchema(SchemaOptions.model_validate({"rules": rules}))
    assert checker.filters == ("t/+", "#")
    assert decide(checker, b'{"celsius": 1, "unit": "C"}') is None
    assert decide(checker, BAD).drop
    assert decide(checker, GOOD).reason == 0x99


def test_schemas_are_read_again_and_a_wrong_one_leaves_the_old(schema: Path) -> None:
    checker = plugin(schema)
    schema.write_text('{"type": "nonsense"}')
    with pytest.raises(ConfigError, match=r"rules\.0\.file"):
        checker.reload()
    assert decide(checker, BAD).reason == 0x99
    schema.write_text("true")
    checker.reload()
    assert decide(checker, BAD) is None


async def test_a_reload_of_the_broker_reads_them_again(schema: Path) -> None:
    async with Broker(config(schema)) as broker:
        assert (await broker.reload())["plugins"] == ""
        await asyncio.to_thread(schema.write_text, "{")
        assert "rules.0.file" in (await broker.reload())["plugins"]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "Expecting property name"),
        ('{"type": "nonsense"}', "nonsense"),
        ('{"$ref": "https://example.org/other.json"}', "nothing is fetched"),
        ('{"$ref": "file:///etc/hostname"}', "nothing is fetched"),
        ("[" * 100_000, "recursion"),
        (None, "No such file"),
    ],
)
def test_a_wrong_schema_keeps_the_broker_from_starting(schema: Path, text: str | None, words: str) -> None:
    if text is None:
        schema.unlink()
    else:
        schema.write_text(text)
    with pytest.raises(ConfigError) as caught:
        asyncio.run(Broker(config(schema)).start())
    assert "options of json_schema.rules.0.file" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("rule", "key"),
    [
        ({"filter": "a/#/b"}, "rules.0.filter"),
        ({"filter": "$share/g/a"}, "rules.0.filter"),
        ({"reject_topic": "a/+"}, "rules.0.reject_topic"),
        ({"action": "ignore"}, "rules.0.action"),
        ({"topic": "a"}, "rules.0.topic"),
    ],
)
async def test_a_wrong_rule_is_refused_with_its_key(schema: Path, rule: dict[str, str], key: str) -> None:
    with pytest.raises(ConfigError) as caught:
        await Broker(config(schema, **rule)).start()
    assert f"options of json_schema.{key}" in str(caught.value)
