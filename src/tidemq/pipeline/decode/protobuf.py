"""Protobuf payloads into columns, on executors: one message each, of a type that a file describes, or that
the payload names and a registry has. Descriptors come as protoc makes them, or as the registry serializes
them: nothing is compiled where payloads are read.
"""

from __future__ import annotations

import base64
import importlib
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
from google.protobuf.descriptor import Descriptor, FieldDescriptor
from google.protobuf.descriptor_pb2 import FieldDescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.descriptor_pool import DescriptorPool
from google.protobuf.message import DecodeError, Message
from google.protobuf.message_factory import GetMessageClass
from google.protobuf.unknown_fields import UnknownFieldSet
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from tidemq.errors import ConfigError
from tidemq.pipeline.decode.schema_registry import (
    IDS_MAX,
    Registry,
    Source,
    UnknownSchemaError,
    UnusableSchemaError,
    framed,
    known_schema,
)
from tidemq.pipeline.decode.typed_rows import Decoded, struct_of
from tidemq.pipeline.decode.values import Converters, WrongFieldError, finite, only

DEPTH_MAX = 32  # of messages in one another, and of the indexes that name a type
_P = FieldDescriptor
_TYPES: Mapping[int, DataType] = {
    _P.TYPE_DOUBLE: DoubleType(),
    _P.TYPE_FLOAT: FloatType(),
    **dict.fromkeys((_P.TYPE_INT32, _P.TYPE_SINT32, _P.TYPE_SFIXED32), IntegerType()),
    **dict.fromkeys((_P.TYPE_UINT32, _P.TYPE_FIXED32), LongType()),
    **dict.fromkeys((_P.TYPE_INT64, _P.TYPE_SINT64, _P.TYPE_SFIXED64), LongType()),
    **dict.fromkeys((_P.TYPE_UINT64, _P.TYPE_FIXED64), DecimalType(20, 0)),
    _P.TYPE_BOOL: BooleanType(),
    _P.TYPE_STRING: StringType(),
    _P.TYPE_BYTES: BinaryType(),
    _P.TYPE_ENUM: StringType(),
}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)
_TIMESTAMP = "google.protobuf.Timestamp"
_TIME_S = range(-62_135_596_800, 253_402_300_800)  # the years 1 to 9999

Read = Callable[[Message], Any]
"""A field's value in a message, None where the message does not have it."""


@dataclass(frozen=True, slots=True)
class Types:
    """Message types of a file."""

    descriptors: tuple[Descriptor, ...]  # those at its top

    def at(self, indexes: Iterable[int]) -> Descriptor | None:
        """That which a payload names: the type of this index, within it that of the next, and so on."""
        found, here = None, self.descriptors
        for index in indexes:
            if not 0 <= index < len(here):
                return None
            found = here[index]
            here = tuple(found.nested_types)
        return found


class MessageReader:
    """What reads payloads of one message type into columns."""

    def __init__(self, descriptor: Descriptor, columns: StructType) -> None:
        self.name = descriptor.full_name
        self.fields = {
            each.name: _column_type(each, ()) for each in descriptor.fields if _can_be_column(each)
        }
        self._parse = GetMessageClass(descriptor).FromString
        self._requires = _requires(descriptor, set())
        self._rows = _row_reader(descriptor, columns, "")

    def __call__(self, data: bytes) -> Decoded:
        try:
            message = self._parse(data)
            if self._requires and not message.IsInitialized():
                return f"a required field is missing: {message.FindInitializationErrors()[0]}"
            return self._rows(message)
        except DecodeError as error:
            return f"not Protobuf: {error}"
        except WrongFieldError as error:
            return str(error)


def decode_protobuf(
    payloads: pa.Array,
    schema: str,
    message: str,
    registry: Registry | None,
    columns: StructType,
    arrow: pa.StructType,
) -> pa.Array:
    """Of each payload a struct of `decoded`, with these columns, and `reason`, why it cannot be decoded; one
    of them is null. `arrow` is the struct's type.

    Without a registry, payloads are messages of the type `message` in `schema`. With one they name their
    type, which must have the name `message`, if there is one. RegistryError.
    """
    given = [payload or b"" for payload in payloads.to_pylist()]
    readers: dict[object, MessageReader | str] = {}
    if registry is None:
        readers[None] = reader = MessageReader(message_type(schema, message), columns)
        found = [reader(payload) for payload in given]
    else:
        found = [_framed(payload, registry, message, columns, readers) for payload in given]
    fields = [each.fields for each in readers.values() if isinstance(each, MessageReader)]
    first, *others = fields or [{}]
    known = {name: kind for name, kind in first.items() if all(each.get(name) == kind for each in others)}
    return struct_of(found, columns, known, PROTOBUF, arrow)


def _framed(
    payload: bytes,
    registry: Registry,
    message: str,
    columns: StructType,
    readers: dict[object, MessageReader | str],
) -> Decoded:
    """Of a payload that names its type; what reads a type is kept in `readers`."""
    named = framed(payload)
    indexed = named if isinstance(named, str) else _indexes(named[1])
    if isinstance(named, str) or isinstance(indexed, str):
        return str(indexed)
    indexes, data = indexed
    key = (named[0], indexes)
    if key not in readers:
        readers[key] = _reader(named[0], indexes, registry, message, columns)
    reader = readers[key]
    return reader if isinstance(reader, str) else reader(data)


def _reader(
    number: int, indexes: tuple[int, ...], registry: Registry, message: str, columns: StructType
) -> MessageReader | str:
    """Of a schema's id and the indexes of a type; or why there is none."""
    try:
        types = known_schema(registry, number, _of_registry)
    except UnknownSchemaError as error:
        return str(error)
    if isinstance(types, str):
        return types
    descriptor = types.at(indexes)
    if descriptor is None:
        return f"no such message type: schema {number}, indexes {list(indexes)}"
    if message and message != descriptor.full_name:
        return f"a message of another type: {descriptor.full_name}, not {message}"
    return MessageReader(descriptor, columns)


def _indexes(data: bytes) -> tuple[tuple[int, ...], bytes] | str:
    """Those of the message type, as Confluent's serializers put them before the message: their number and
    each of them, or 0 for the first type alone. Numbers are Protobuf's own, of variable length and zigzag.
    """
    numbers: list[int] = []
    at = 0
    while not numbers or len(numbers) <= numbers[0]:
        value = shift = 0
        while True:
            if at == len(data) or shift > 28 or len(numbers) > DEPTH_MAX:
                return "no indexes of a message type behind the schema's id"
            value |= (data[at] & 0x7F) << shift
            shift += 7
            at += 1
            if not data[at - 1] & 0x80:
                break
        numbers.append(value >> 1 ^ -(value & 1))
    return tuple(numbers[1:]) or (0,), data[at:]


# --- schemas -----------------------------------------------------------------------------------


def protobuf_text(path: Path) -> str:
    """Of a .proto file, or of descriptors as `protoc --include_imports --descriptor_set_out` writes them, the
    descriptors in base64, without what makes no difference to rows. ConfigError, OSError.
    """
    data = _compiled(path) if path.suffix == ".proto" else path.read_bytes()
    try:
        found = FileDescriptorSet.FromString(data)
    except DecodeError as error:
        raise ConfigError("neither a .proto file nor descriptors of protoc's") from error
    if not any(each.message_type for each in found.file):
        raise ConfigError("it describes no message; accepted: a .proto file, or descriptors of protoc's")
    for each in found.file:
        each.ClearField("source_code_info")
    text = base64.b64encode(found.SerializeToString(deterministic=True)).decode()
    _of_file(text)
    return text


def message_name(text: str, message: str) -> str:
    """In full; without `message`, that of the only one of the last file. ConfigError says which there are."""
    types = _of_file(text)
    if not message and len(types.descriptors) == 1:
        return str(types.descriptors[0].full_name)
    return str(message_type(text, message).full_name)


def message_type(text: str, message: str) -> Descriptor:
    """Of a schema's text. ConfigError where it has none of this name."""
    found: dict[str, Descriptor] = {}
    left = list(_of_file(text).descriptors)
    while left:
        each = left.pop()
        found[each.full_name] = each
        left += each.nested_types
    if message not in found:
        names = sorted(found)
        more = f" and {len(names) - 20} more" if len(names) > 20 else ""
        raise ConfigError(f"it has no message {message!r}; accepted: {', '.join(names[:20])}{more}")
    return found[message]


def protobuf_columns(text: str, message: str) -> StructType:
    """Of each field; ConfigError where one can be no column."""
    found = StructType()
    for each in message_type(text, message).fields:
        try:
            found.add(each.name, _column_type(each, ()))
        except UnusableSchemaError as error:
            raise ConfigError(f"the field {each.name} can be no column: {error}") from error
    return found


def _compiled(path: Path) -> bytes:
    """By protoc, which an extra brings; files that it imports are beside it, or the library's own."""
    tools = importlib.import_module("grpc_tools")
    path.stat()
    with TemporaryDirectory() as folder:
        made = Path(folder) / "descriptors"
        command = [sys.executable, "-m", "grpc_tools.protoc", "--include_imports", f"-I{path.parent}"]
        command += [
            f"-I{Path(str(tools.__file__)).parent / '_proto'}",
            f"--descriptor_set_out={made}",
            str(path),
        ]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise ConfigError(" ".join(done.stderr.split())[:500])
        return made.read_bytes()


@lru_cache(IDS_MAX)
def _of_file(text: str) -> Types:
    """ConfigError where an import is missing."""
    files = FileDescriptorSet.FromString(base64.b64decode(text)).file
    try:
        return _types({each.name: each for each in files}, files[-1].name)
    except UnusableSchemaError as error:
        raise ConfigError(f"{error}; protoc --include_imports") from error


def _of_registry(source: Source) -> Types:
    """UnusableSchemaError."""
    files: dict[str, FileDescriptorProto] = {}
    _gather(source, "the schema", files)
    return _types(files, "the schema")


_of_registry.serialized = True  # type: ignore[attr-defined]


def _gather(source: Source, name: str, files: dict[str, FileDescriptorProto]) -> None:
    """A schema's descriptor, and those of the files that it imports, by their names."""
    if source.kind != "PROTOBUF":
        raise UnusableSchemaError(f"it is of {source.kind}, not of PROTOBUF")
    try:
        files[name] = FileDescriptorProto.FromString(base64.b64decode(source.text, validate=True))
    except (DecodeError, ValueError) as error:
        raise UnusableSchemaError("the registry gives no descriptor of it (format=serialized)") from error
    files[name].name = name
    for imported, each in source.references:
        if imported not in files:
            _gather(each, imported, files)


def _types(files: Mapping[str, FileDescriptorProto], main: str) -> Types:
    pool = DescriptorPool()
    _add(pool, main, files, set())
    prefix = f"{files[main].package}." if files[main].package else ""
    names = [prefix + each.name for each in files[main].message_type]
    return Types(tuple(pool.FindMessageTypeByName(name) for name in names))


def _add(pool: DescriptorPool, name: str, files: Mapping[str, FileDescriptorProto], added: set[str]) -> None:
    """A file and, before it, those that it imports."""
    if name in added:
        return
    added.add(name)
    file = files.get(name) or _of_library(name)
    for each in file.dependency:
        _add(pool, each, files, added)
    try:
        pool.Add(file)
    except TypeError as error:
        raise UnusableSchemaError(f"descriptors that are not whole: {error}") from error


def _of_library(name: str) -> FileDescriptorProto:
    """Of google/protobuf/timestamp.proto and the like, which no registry has."""
    if name.startswith("google/"):
        try:
            module = importlib.import_module(name.removesuffix(".proto").replace("/", ".") + "_pb2")
            return FileDescriptorProto.FromString(module.DESCRIPTOR.serialized_pb)
        except ImportError:
            pass
    raise UnusableSchemaError(f"it imports {name}, which is not there")


# --- columns -----------------------------------------------------------------------------------


def _can_be_column(field: FieldDescriptor) -> bool:
    try:
        _column_type(field, ())
    except UnusableSchemaError:
        return False
    return True


def _column_type(field: FieldDescriptor, within: tuple[Descriptor, ...]) -> DataType:
    """UnusableSchemaError where no column can hold it. `within` are the messages around it."""
    if _is_map(field):
        key, value = (_element_type(each, within) for each in field.message_type.fields)
        return MapType(key, value)
    element = _element_type(field, within)
    return ArrayType(element) if field.is_repeated else element


def _element_type(field: FieldDescriptor, within: tuple[Descriptor, ...]) -> DataType:
    if field.message_type is None:
        return _TYPES[field.type]
    inner = field.message_type
    if inner.full_name == _TIMESTAMP:
        return TimestampType()
    if inner in within or len(within) == DEPTH_MAX:
        raise UnusableSchemaError(f"{inner.full_name} holds itself")
    found = StructType()
    for each in inner.fields:
        found.add(each.name, _column_type(each, (*within, inner)))
    if not found.fields:
        raise UnusableSchemaError(f"{inner.full_name} has no fields")
    return found


def _is_map(field: FieldDescriptor) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def _requires(descriptor: Descriptor, seen: set[str]) -> bool:
    """Whether a message of the type, or one in it, must have a field (proto2)."""
    if descriptor.full_name in seen:
        return False
    seen.add(descriptor.full_name)
    return any(
        each.is_required or (each.message_type is not None and _requires(each.message_type, seen))
        for each in descriptor.fields
    )


# --- messages ----------------------------------------------------------------------------------


def _row_reader(
    descriptor: Descriptor, columns: StructType, inside: str
) -> Callable[[Message], dict[str, Any]]:
    """Of a message the fields that columns want, by name."""
    fields = {each.name: each for each in descriptor.fields}
    reads = [
        (each.name, _field_reader(fields[each.name], each.dataType, f"{inside}{each.name}"))
        for each in columns.fields
        if each.name in fields
    ]
    names = {each.number: each for each in descriptor.fields}

    def row(message: Message) -> dict[str, Any]:
        unknown = UnknownFieldSet(message)
        if len(unknown):
            for each in unknown:
                if each.field_number in names:  # with another type, which Protobuf passes over
                    found = names[each.field_number]
                    raise WrongFieldError(
                        f"{inside}{found.name} is of another type; {_said(found)} is wanted"
                    )
        return {name: read(message) for name, read in reads}

    return row


def _said(field: FieldDescriptor) -> str:
    """A field's type in Protobuf's words."""
    if field.message_type is not None:
        return str(field.message_type.full_name)
    return str(FieldDescriptorProto.Type.Name(field.type)).removeprefix("TYPE_").lower()


def _field_reader(field: FieldDescriptor, kind: DataType, where: str) -> Read:
    name = field.name
    if _is_map(field) and isinstance(kind, MapType):
        _, value = field.message_type.fields
        element = _element_reader(value, kind.valueType, where)
        return lambda message: {key: element(each) for key, each in getattr(message, name).items()}
    if field.is_repeated:
        wanted = kind.elementType if isinstance(kind, ArrayType) else kind
        element = _element_reader(field, wanted, where)
        return lambda message: [element(each) for each in getattr(message, name)]
    plain = field.message_type is None and field.enum_type is None
    if plain and not isinstance(kind, TimestampType) and not field.has_presence:
        return lambda message: getattr(message, name)
    element = _element_reader(field, kind, where)
    if not field.has_presence:
        return lambda message: element(getattr(message, name))
    return lambda message: element(getattr(message, name)) if message.HasField(name) else None


def _element_reader(field: FieldDescriptor, kind: DataType, where: str) -> Callable[[Any], Any]:
    if field.enum_type is not None:
        numbers = {number: value.name for number, value in field.enum_type.values_by_number.items()}
        return lambda value: numbers.get(value) or str(value)
    if field.message_type is not None and isinstance(kind, StructType):
        return _row_reader(field.message_type, kind, f"{where}.")
    if isinstance(kind, TimestampType):
        of_message = field.message_type is not None and field.message_type.full_name == _TIMESTAMP
        time_us = _timestamp_us if of_message else _seconds_us
        return lambda value: time_us(value, where)
    return lambda value: value


# --- values ------------------------------------------------------------------------------------


def _timestamp_us(value: Any, where: str) -> int:
    """Microseconds since 1970 of a Timestamp."""
    if value.seconds not in _TIME_S:
        raise WrongFieldError(f"{where} is {value.seconds} s since 1970; timestamp is wanted")
    return int(value.seconds * 1_000_000 + value.nanos // 1000)


def _seconds_us(value: Any, where: str) -> int:
    """The same of a number of seconds."""
    try:
        return (datetime.fromtimestamp(finite(value), UTC) - _EPOCH) // _MICROSECOND
    except (TypeError, ValueError, ArithmeticError, OSError) as error:
        raise WrongFieldError(f"{where} is {value!r:.60}; timestamp is wanted") from error


PROTOBUF = Converters(
    "Protobuf",
    {BinaryType: lambda value: only(value, bytes), TimestampType: lambda value: only(value, int)},
)
