"""What Confluent's own serializers write, rules with a registry read. Without Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka.schema_registry import SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf.message_factory import GetMessageClass
from pipeline.registry import RegistryDouble, registry_double
from pipeline.test_avro import AT, SMALL
from pipeline.test_avro import decoded as avro_decoded
from pipeline.test_protobuf import EVERY, PARTS
from pipeline.test_protobuf import SMALL as CLIMATE
from pipeline.test_protobuf import decoded as protobuf_decoded

from tidemq.pipeline.decode.protobuf import message_type, protobuf_text
from tidemq.pipeline.decode.schema_registry import Registry

TO = SerializationContext("plant", MessageField.VALUE)


@pytest.fixture
def double() -> Any:
    with registry_double() as made:
        yield made


def test_avro_of_its_serializer(double: RegistryDouble) -> None:
    client = SchemaRegistryClient({"url": double.url})
    write = AvroSerializer(client, json.dumps(SMALL))
    value = {"celsius": 20.5, "unit": "C"}
    assert avro_decoded(
        [write(value, TO)], columns="celsius double, unit string", registry=Registry(double.url)
    ) == [value]


@pytest.mark.parametrize("name", ["plant.Climate", "plant.Other", "plant.Climate.Inner"])
def test_protobuf_of_its_serializer(double: RegistryDouble, tmp_path: Path, name: str) -> None:
    """The first type of a file, another, and one within another."""
    (tmp_path / "climate.proto").write_text(CLIMATE)
    kind = GetMessageClass(message_type(protobuf_text(tmp_path / "climate.proto"), name))
    of_type: dict[str, dict[str, Any]] = {
        "plant.Climate": {"celsius": 20.5},
        "plant.Other": {"name": "a"},
        "plant.Climate.Inner": {"x": 3},
    }
    values = of_type[name]
    payload = ProtobufSerializer(kind, SchemaRegistryClient({"url": double.url}))(kind(**values), TO)
    columns = "celsius double, name string, x int"
    none: dict[str, Any] = {"celsius": None, "name": None, "x": None}
    assert protobuf_decoded([payload], "", name, columns, Registry(double.url)) == [none | values]


def test_protobuf_that_imports_others(double: RegistryDouble, tmp_path: Path) -> None:
    (tmp_path / "every.proto").write_text(EVERY)
    (tmp_path / "parts.proto").write_text(PARTS)
    kind = GetMessageClass(message_type(protobuf_text(tmp_path / "every.proto"), "plant.Reading"))
    write = ProtobufSerializer(kind, SchemaRegistryClient({"url": double.url}))
    payload = write(kind(a=1.5, o={"x": 3}, l=AT), TO)
    columns = "a double, l timestamp, o struct<x: bigint>"
    found = protobuf_decoded([payload], "", "plant.Reading", columns, Registry(double.url))
    assert found == [{"a": 1.5, "l": AT, "o": {"x": 3}}]
