"""Rows as messages: each is checked before any is published."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from tidemq.client import NO_PROPERTIES, Message, Properties
from tidemq.errors import TideMQError, UsageError
from tidemq.wire import Fault, fault_text, topic_name_fault

if TYPE_CHECKING:
    from pyspark.sql.types import StructType

COLUMNS = {  # with the types of Spark that they may have
    "topic": ("string",),
    "payload": ("binary", "string"),
    "qos": ("tinyint", "smallint", "int", "bigint"),
    "retain": ("boolean",),
    "content_type": ("string",),
    "response_topic": ("string",),
    "correlation_data": ("binary",),
    "user_properties": ("array<struct<name:string,value:string>>",),
    "message_expiry_s": ("int", "bigint"),
}
_PROPERTIES = tuple(COLUMNS)[4:]
AHEAD_ROWS = 100_000  # so many rows of a task, or so many bytes, are checked before the first is published
AHEAD_BYTES = 16 << 20


class RowError(TideMQError):
    """A row is no message. Its text has the row's topic. Caught by nobody: the query or job fails."""


def check_columns(schema: StructType, besides: Iterable[str] = ()) -> None:
    """UsageError where there is no topic or payload, a column has another type, or nobody knows it."""
    found = {field.name: field.dataType.simpleString() for field in schema.fields}
    for name in ("topic", "payload"):
        if name not in found:
            raise UsageError(f"the rows have no column {name}")
    for name, given in found.items():
        if name in besides:
            continue
        if name not in COLUMNS:
            raise UsageError(f"the column {name} is no part of a message; accepted: {', '.join(COLUMNS)}")
        if given not in COLUMNS[name]:
            raise UsageError(f"the column {name} is {given}; accepted: {', '.join(COLUMNS[name])}")


def ahead(batches: Iterable[pa.RecordBatch], qos: int) -> Iterator[list[Message]]:
    """The messages of all batches, in order. A wrong row is a RowError before those that precede it within
    100,000 rows or 16 MiB are given.
    """
    messages: list[Message] = []
    size = 0
    for batch in batches:
        messages += messages_of(batch, qos)
        size += batch.nbytes
        if len(messages) >= AHEAD_ROWS or size >= AHEAD_BYTES:
            yield messages
            messages, size = [], 0
    if messages:
        yield messages


def messages_of(batch: pa.RecordBatch, qos: int) -> list[Message]:
    """One for each row; `qos` where the row has none. RowError names the topic of a row that is wrong."""
    columns = {name: batch.column(name).to_pylist() for name in batch.schema.names if name in COLUMNS}
    count = batch.num_rows
    topics, payloads = columns["topic"], columns["payload"]
    levels = [qos if each is None else each for each in columns.get("qos", [None] * count)]
    retains = [bool(each) for each in columns.get("retain", [False] * count)]
    _check(topics, payloads, levels)
    rows = zip(topics, payloads, levels, retains, _properties(columns, topics), strict=True)
    return [Message(*row) for row in rows]


def _check(topics: list[str | None], payloads: list[bytes | str | None], levels: list[int]) -> None:
    for topic in set(topics):
        if topic is None:
            raise RowError("a row cannot be published: its topic is null")
        if fault := topic_name_fault(topic):
            text = fault_text(Fault(fault))
            raise RowError(f"the row with the topic {_short(topic)} cannot be published: {text}")
    if None in payloads:
        topic = _short(topics[payloads.index(None)])
        raise RowError(
            f"the row with the topic {topic} cannot be published: its payload is null, which is not empty"
        )
    if wrong := set(levels) - {0, 1, 2}:
        level = min(wrong)
        topic = _short(topics[levels.index(level)])
        raise RowError(f"the row with the topic {topic} cannot be published: its qos is {level}")


def _short(topic: str | None) -> str:
    text = repr(topic)
    return text if len(text) <= 100 else f"{text[:100]}… ({len(text) - 2} characters)"


def _properties(columns: dict[str, list[Any]], topics: list[str]) -> Iterator[Properties]:
    """Of each row. Rows with the same values share them."""
    there = [name for name in _PROPERTIES if name in columns]
    known: dict[tuple[Any, ...], Properties] = {}
    for number, topic in enumerate(topics):
        values = [columns[name][number] for name in there]
        if not any(value is not None and value != [] for value in values):
            yield NO_PROPERTIES
            continue
        given = dict(zip(there, values, strict=True))
        pairs = tuple((pair["name"], pair["value"]) for pair in given.pop("user_properties", None) or ())
        key = (*given.values(), pairs)
        if key not in known:
            if len(known) > AHEAD_ROWS:
                known.clear()
            known[key] = _checked(topic, Properties(**given, user_properties=pairs))
        yield known[key]


def _checked(topic: str, properties: Properties) -> Properties:
    try:
        Message(topic, b"", 0, False, properties)
    except (UsageError, TypeError) as error:
        raise RowError(f"the row with the topic {_short(topic)} cannot be published: {error}") from error
    return properties
