"""Sparkplug B payloads (Eclipse Sparkplug specification 3.0) into rows, one for each metric, on executors.

A metric may come by its alias alone, and without its data type: the birth certificate of its edge node or
device has them. `Births` are those that came before.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow as pa
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError
from google.protobuf.message_factory import GetMessageClass

COLUMNS = (
    "group_id string, message_type string, edge_node_id string, device_id string, seq bigint, metric string, "
    "alias bigint, timestamp timestamp, datatype string, value_double double, value_long bigint, "
    "value_text string, value_bool boolean, value_bytes binary, is_historical boolean"
)
BIRTH_COLUMNS = ("group_id", "message_type", "edge_node_id", "device_id", "metric", "alias", "datatype")
BIRTHS = ("NBIRTH", "DBIRTH")

_LEVELS = {  # of a topic, by its message type: those of a device have its identifier
    f"{of}{what}": levels for of, levels in (("N", 4), ("D", 5)) for what in ("BIRTH", "DATA", "DEATH", "CMD")
}

_TYPES = (
    *("Unknown", "Int8", "Int16", "Int32", "Int64", "UInt8", "UInt16", "UInt32", "UInt64", "Float", "Double"),
    *("Boolean", "String", "DateTime", "Text", "UUID", "DataSet", "Bytes", "File", "Template", "PropertySet"),
    *("PropertySetList", "Int8Array", "Int16Array", "Int32Array", "Int64Array", "UInt8Array", "UInt16Array"),
    *("UInt32Array", "UInt64Array", "FloatArray", "DoubleArray", "BooleanArray", "StringArray"),
    "DateTimeArray",
)
_SIGNED_BITS = {"Int8": 8, "Int16": 16, "Int32": 32, "Int64": 64}
_TIME_MS_MAX = 253_402_300_799_999  # the year 9999
_COMPRESSED = "SPBV1.0_COMPRESSED"


class _Field(NamedTuple):
    """Of a message of section 6.4 of the specification."""

    name: str
    number: int
    kind: int
    is_value: bool = False  # one of those of which a metric has one


_P = FieldDescriptorProto
_METRIC = (
    _Field("name", 1, _P.TYPE_STRING),
    _Field("alias", 2, _P.TYPE_UINT64),
    _Field("timestamp", 3, _P.TYPE_UINT64),
    _Field("datatype", 4, _P.TYPE_UINT32),
    _Field("is_historical", 5, _P.TYPE_BOOL),
    _Field("is_null", 7, _P.TYPE_BOOL),
    _Field("int_value", 10, _P.TYPE_UINT32, True),
    _Field("long_value", 11, _P.TYPE_UINT64, True),
    _Field("float_value", 12, _P.TYPE_FLOAT, True),
    _Field("double_value", 13, _P.TYPE_DOUBLE, True),
    _Field("boolean_value", 14, _P.TYPE_BOOL, True),
    _Field("string_value", 15, _P.TYPE_STRING, True),
    _Field("bytes_value", 16, _P.TYPE_BYTES, True),
    # messages, which stay as they are: on the wire they are bytes
    _Field("dataset_value", 17, _P.TYPE_BYTES, True),
    _Field("template_value", 18, _P.TYPE_BYTES, True),
)
_PAYLOAD = (
    _Field("timestamp", 1, _P.TYPE_UINT64),
    _Field("metrics", 2, _P.TYPE_MESSAGE),
    _Field("seq", 3, _P.TYPE_UINT64),
    _Field("uuid", 4, _P.TYPE_STRING),
)


def _payload_class() -> Any:
    """What protoc would make of the specification's messages, of the fields that are looked at."""
    file = FileDescriptorProto(name="tidemq/sparkplug.proto", package="tidemq.sparkplug", syntax="proto2")
    for name, fields in (("Metric", _METRIC), ("Payload", _PAYLOAD)):
        message = file.message_type.add(name=name)
        for each in fields:
            made = message.field.add(
                name=each.name, number=each.number, type=each.kind, label=_P.LABEL_OPTIONAL
            )
            if each.kind == _P.TYPE_MESSAGE:
                made.label, made.type_name = _P.LABEL_REPEATED, ".tidemq.sparkplug.Metric"
            if each.is_value:
                made.oneof_index = 0
        if name == "Metric":
            message.oneof_decl.add(name="value")
    pool = DescriptorPool()
    pool.Add(file)
    return GetMessageClass(pool.FindMessageTypeByName("tidemq.sparkplug.Payload"))


_Payload = _payload_class()


class Node(NamedTuple):
    """An edge node; its aliases are its devices' too."""

    group_id: str
    edge_node_id: str


@dataclass(slots=True)
class Birth:
    """A birth certificate: of its metrics the name and the data type."""

    offset: int
    message_type: str
    device_id: str | None
    by_alias: dict[int, tuple[str | None, str | None]] = field(default_factory=dict)
    by_name: dict[str, str | None] = field(default_factory=dict)


class Births:
    """Birth certificates of a stream."""

    def __init__(self, rows: Iterable[Mapping[str, Any]] = ()) -> None:
        """Of rows with `offset` and BIRTH_COLUMNS, in any order."""
        found: dict[Node, dict[int, Birth]] = defaultdict(dict)
        for row in rows:
            births, offset = found[Node(row["group_id"], row["edge_node_id"])], row["offset"]
            if offset not in births:
                births[offset] = Birth(offset, row["message_type"], row["device_id"])
            if row["alias"] is not None:
                births[offset].by_alias[row["alias"]] = (row["metric"], row["datatype"])
            if row["metric"] is not None:
                births[offset].by_name[row["metric"]] = row["datatype"]
        self._newest_first = {
            node: [births[offset] for offset in sorted(births, reverse=True)]
            for node, births in found.items()
        }

    def known(
        self, node: Node, device_id: str | None, offset: int, name: str | None, alias: int | None
    ) -> tuple[str | None, str | None]:
        """Name and data type of a metric of the message of this offset; None for what is not known."""
        for birth in self._before(node, offset):
            if name is None and alias in birth.by_alias:
                return birth.by_alias[alias]
            if name is not None and birth.device_id == device_id and name in birth.by_name:
                return name, birth.by_name[name]
        return name, None

    def _before(self, node: Node, offset: int) -> Iterator[Birth]:
        """Those that count, the newest first: back to the node's own, which ends all before it."""
        for birth in self._newest_first.get(node, ()):
            if birth.offset < offset:
                yield birth
                if birth.message_type == "NBIRTH":
                    return


def decode_sparkplug(
    topics: pa.Array, offsets: pa.Array, payloads: pa.Array, births: Births, arrow: pa.DataType
) -> pa.Array:
    """Of each message a struct of `decoded`, a list with COLUMNS of each metric, and `reason`, why it cannot
    be decoded; one of them is null. A message without metrics has one row. `arrow` is the struct's type.
    """
    found: list[dict[str, Any]] = []
    for topic, offset, payload in zip(
        *(each.to_pylist() for each in (topics, offsets, payloads)), strict=True
    ):
        try:
            found.append({"decoded": _rows(topic, offset, payload or b"", births), "reason": None})
        except ValueError as error:
            found.append({"decoded": None, "reason": str(error)})
    return pa.array(found, arrow)


def _rows(topic: str, offset: int, data: bytes, births: Births) -> list[dict[str, Any]]:
    """ValueError says why there are none."""
    levels = topic.split("/")
    if levels[0] != "spBv1.0" or len(levels) != _LEVELS.get("".join(levels[2:3])):
        raise ValueError(
            "not a topic of Sparkplug B's metrics: spBv1.0/GROUP/TYPE/NODE, or spBv1.0/GROUP/TYPE/NODE/DEVICE"
        )
    device_id = levels[4] if len(levels) == 5 else None
    payload = _Payload()
    try:
        payload.ParseFromString(data)
    except DecodeError as error:
        raise ValueError(f"not a Sparkplug B payload: {error}") from error
    if payload.uuid == _COMPRESSED:
        raise ValueError(f"a compressed payload ({_COMPRESSED}), which is not decoded")
    of_message = {
        "group_id": levels[1],
        "message_type": levels[2],
        "edge_node_id": levels[3],
        "device_id": device_id,
        "seq": _signed(payload.seq, 64) if payload.HasField("seq") else None,
        "timestamp": _time_us(payload),
    }
    node = Node(levels[1], levels[3])
    rows = []
    for metric in payload.metrics:
        name = _text(metric.name) or None
        alias = _signed(metric.alias, 64) if metric.HasField("alias") else None
        datatype = _type_name(metric.datatype) if metric.HasField("datatype") else None
        if name is None or datatype is None:
            name, known = births.known(node, device_id, offset, name, alias)
            datatype = datatype or known
        row = of_message | {"metric": name, "alias": alias, "datatype": datatype}
        row["timestamp"] = _time_us(metric) or row["timestamp"]
        row["is_historical"] = metric.is_historical
        rows.append(row | ({} if metric.is_null else _value(metric, datatype)))
    return rows or [of_message]


def _time_us(message: Any) -> int | None:
    """The message's timestamp, in microseconds since 1970."""
    if not message.HasField("timestamp"):
        return None
    if message.timestamp > _TIME_MS_MAX:
        raise ValueError(f"a timestamp of {message.timestamp} ms since 1970, later than the year 9999")
    return int(message.timestamp) * 1000


def _type_name(number: int) -> str:
    return _TYPES[number] if number < len(_TYPES) else str(number)


def _value(metric: Any, datatype: str | None) -> dict[str, Any]:
    """The columns that have it. Numbers are in value_double, and whole ones in value_long as well."""
    which = metric.WhichOneof("value")
    if which is None:
        return {}
    value = getattr(metric, which)
    if which in ("int_value", "long_value"):
        if bits := _SIGNED_BITS.get(datatype or ""):
            value = _signed(value, bits)
        if value >= 1 << 63:
            return {"value_double": float(value), "value_text": str(value)}
        return {"value_double": float(value), "value_long": value}
    if which in ("float_value", "double_value"):
        return {"value_double": value}
    if which == "boolean_value":
        return {"value_bool": value}
    return {"value_text": _text(value)} if which == "string_value" else {"value_bytes": value}


def _text(value: str | bytes) -> str:
    """ValueError for bytes, which the library gives where text is none."""
    if isinstance(value, bytes):
        raise ValueError(f"a text of the payload is not UTF-8: {value!r:.60}")
    return value


def _signed(value: int, bits: int) -> int:
    """The low bits as a two's complement: whether or not the sender has extended the sign."""
    low = value & ((1 << bits) - 1)
    return low - (1 << bits) if low >> (bits - 1) else low
