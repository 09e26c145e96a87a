"""Rules that say how payloads are decoded: a TOML file, one table for each kind of message.

[[rules]]
name = "climate"                # the table SILVER/climate
filter = "plant/+/climate"      # an MQTT topic filter
format = "json"
columns = "celsius double, humidity double, at timestamp"
time = "at"

[rules.gold]                    # the table GOLD/climate, of the rule above
window = "1 minute"
values = ["celsius"]
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import astuple, dataclass, replace
from datetime import timedelta
from functools import cache
from pathlib import Path
from typing import Any, Self

from pyspark.sql.types import StructType

from tidemq.errors import ConfigError
from tidemq.pipeline.decode.column_types import parse_columns
from tidemq.pipeline.decode.named_tables import load_named
from tidemq.pipeline.decode.schema_registry import Registry
from tidemq.pipeline.decode.schemas import (
    LEAVE_OUT,
    WITH_SCHEMA,
    Schema,
    converters_of,
    load_schema,
    schema_columns,
    schema_names,
)
from tidemq.pipeline.decode.sparkplug import COLUMNS as SPARKPLUG_COLUMNS

KEY = ("epoch", "offset", "topic", "client_id", "received")  # of every decoded row, before what was decoded
PLACE = "place"  # of a reading in its message, from 0; where the rule says that it may have many
EVENT_TIME = "event_time"  # of a decoded row, where the rule names a time
TAKEN = {*KEY, PLACE, EVENT_TIME, "date", "late_s"}  # by columns of every table, or of some
FIXED = {"number": "value double", "sparkplug": SPARKPLUG_COLUMNS}  # columns that no rule names
FORMATS = ("json", "number", "cbor", "avro", "protobuf", "sparkplug")
MANY = ("lines", "array")
WATERMARK = timedelta(minutes=10)  # where a rule has gold, and does not say
COLUMN_NAME = r"[A-Za-z_][A-Za-z0-9_-]{0,127}"  # of a column that is inferred
FIGURES = (  # of every rule's gold, beside those of its values
    *("window", "count", "rate", "gaps", "longest_gap"),
    *("first", "last", "gaps_within", "longest_gap_within"),
)
GOLD_FORM = 2  # of gold's columns, which have changed
UNITS = {"second": 1, "minute": 60, "hour": 3600, "day": 86400}


@dataclass(frozen=True, slots=True)
class Gold:
    """What is counted of a rule's rows, by window, topic and client."""

    window: timedelta
    values: tuple[str, ...] = ()  # columns with numbers
    limits: tuple[tuple[str, float, float], ...] = ()  # of a value: readings outside are counted
    percentiles: tuple[float, ...] = ()  # 0 to 100
    gap: timedelta | None = None  # a longer silence counts
    by: tuple[str, ...] = ()  # further columns that rows are told apart by

    @property
    def digest(self) -> int:
        """Of all that makes its rows what they are."""
        return _digest(*astuple(self), GOLD_FORM)

    @classmethod
    def parse(cls, keys: Keys, sparkplug: bool) -> Self:
        """ConfigError names the file, the key and what would be accepted."""
        keys.known("window", "values", "limits", "percentiles", "gap", "by")
        values, by = keys.texts("values"), keys.texts("by")
        if set(by) & {*FIGURES, *KEY, PLACE, "date"}:
            raise keys.wrong("by", "columns of the rule with other names than gold's own")
        limits = keys.given.get("limits", {})
        if not isinstance(limits, Mapping) or not all(
            name in values and _is_range(found) for name, found in limits.items()
        ):
            raise keys.wrong("limits", "of some of the values lowest and highest, as { celsius = [-40, 85] }")
        percentiles = keys.given.get("percentiles", [])
        if not isinstance(percentiles, list) or not all(
            _is_number(each) and 0 <= each <= 100 for each in percentiles
        ):
            raise keys.wrong("percentiles", "a list of numbers from 0 to 100")
        return cls(
            window=keys.duration("window"),
            values=values,
            limits=tuple((name, *map(float, found)) for name, found in limits.items()),
            percentiles=tuple(dict.fromkeys(map(float, percentiles))),
            gap=keys.duration("gap") if "gap" in keys.given else None,
            by=by or (("metric",) if sparkplug else ()),
        )


@dataclass(frozen=True, slots=True)
class Rule:
    """How messages on a topic filter are decoded."""

    name: str
    filter: str
    format: str
    columns: str = ""  # in Spark's language; of JSON, none: as the messages have them
    many: str = ""  # of JSON: how a message holds several readings, see MANY; none: it is one
    time: str = ""  # the column that says when a reading was taken; none: when the broker had it
    time_property: str = ""  # the user property that says it
    watermark: timedelta | None = None  # what was received so much later than its time is late
    gold: Gold | None = None
    message: str = ""  # of Protobuf with a registry: the full name of the type that payloads have; any
    schema: Schema | None = None  # how payloads are written, where a file says it
    registry: Registry | None = None  # which knows the schemas that payloads name

    @classmethod
    def parse(cls, file: str, given: Any) -> Self:
        """ConfigError names the file, the key and what would be accepted. Files that it names are read; their
        paths begin where it is.
        """
        if not isinstance(given, Mapping):
            raise ConfigError(f"{file}: rules has {given!r}; accepted: tables [[rules]]")
        keys = Keys(file, "rules", given)
        if given.get("format") not in FORMATS:
            raise ConfigError(
                f"{file}: rules.format is {given.get('format')!r}; accepted: {', '.join(FORMATS)}"
            )
        format = given["format"]
        keys.known(
            *("name", "filter", "format"),
            *(() if format in FIXED else ("columns",)),
            *(("schema",) if format in (*WITH_SCHEMA, "json") else ()),
            *(("registry",) if format in WITH_SCHEMA else ()),
            *(("message",) if format == "protobuf" else ()),
            *(("many",) if format == "json" else ()),
            *("time", "time_property", "watermark", "gold"),
        )
        if "many" in keys.given and keys.given["many"] not in MANY:
            raise keys.wrong("many", " or ".join(MANY))
        name, filter = keys.text("name"), keys.text("filter")
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", name):
            raise keys.wrong("name", "letters, digits, _ and -")
        levels = filter.split("/")
        if "#" in levels[:-1] or any(len(level) > 1 and re.search("[+#]", level) for level in levels):
            raise keys.wrong("filter", "an MQTT topic filter")
        gold, registry, schema = keys.table("gold"), _registry(keys), _schema(keys, format)
        found = cls(
            name=name,
            filter=filter,
            format=format,
            columns=FIXED.get(format) or _columns(keys, needed=format != "json" and schema is None),
            many=keys.given.get("many", ""),
            **_timing(keys),
            gold=Gold.parse(gold, format == "sparkplug") if gold else None,
            message=_message(keys),
            schema=schema,
            registry=registry,
        )
        try:
            found.check()
        except ConfigError as error:
            raise ConfigError(f"{file}: {error}") from error
        return found

    @property
    def digest(self) -> int:
        """Of all that makes its decoded rows what they are: not of where a registry is."""
        *plain, _, _, _ = astuple(replace(self, gold=None))  # as it was before there were schemas
        written = self.message, self.schema, self.registry is not None
        return _digest(*plain, *(written if any(written) else ()))

    @property
    def infers(self) -> bool:
        """Whether the columns are those that the messages have."""
        return not (self.columns or self.schema)

    @property
    def timed(self) -> bool:
        """Whether rows have a time beside that of the broker."""
        return bool(self.time or self.time_property)

    @property
    def time_column(self) -> str:
        """Of a decoded row: the time that counts."""
        return EVENT_TIME if self.timed else "received"

    def check(self) -> None:
        """Looks at the columns; ConfigError."""
        if self.infers:
            named = (
                *((self.time,) if self.time else ()),
                *(self.gold.values + self.gold.by if self.gold else ()),
            )
            if odd := [name for name in named if not re.fullmatch(COLUMN_NAME, name)]:
                raise ConfigError(f"the rule {self.name} names {odd[0]}, which can be no column of its own")
            return
        try:
            parsed = self.struct()
        except ConfigError as error:
            raise ConfigError(f"the columns of the rule {self.name}: {error}") from error
        if taken := [name for name in parsed.names if name.lower() in TAKEN]:
            hint = f"; {LEAVE_OUT}" if self.schema else ""
            raise ConfigError(f"the rule {self.name} has a column {taken[0]}, which every table has{hint}")
        written = schema_names(self.format, self.schema) if self.schema else parsed.names
        if missing := sorted(set(parsed.names) - set(written)):
            raise ConfigError(f"the rule {self.name} has a column {missing[0]}, which its schema has not")
        try:
            if converters := converters_of(self.format):
                converters.of(parsed)
        except ConfigError as error:
            raise ConfigError(f"the rule {self.name}: {error}") from error
        self._check_named(parsed)

    def _check_named(self, parsed: StructType) -> None:
        """The columns that other keys name are there, and of a type that can be counted."""
        gold = self.gold or Gold(timedelta(0))
        for key, names in (("time", [self.time] if self.time else []), ("gold.by", gold.by)):
            if missing := sorted(set(names) - set(parsed.names)):
                raise ConfigError(f"the rule {self.name} has no column {missing[0]}, which {key} names")
        numbers = ("double", "float", "bigint", "int", "smallint", "tinyint", "decimal")
        if self.time and not parsed[self.time].dataType.simpleString().startswith(
            ("timestamp", "string", *numbers)
        ):
            raise ConfigError(f"the rule {self.name} has a column {self.time} that is no time")
        for name in gold.values:
            if name not in parsed.names or not parsed[name].dataType.simpleString().startswith(numbers):
                raise ConfigError(
                    f"the rule {self.name} has no column {name} with numbers, which gold.values names"
                )

    def struct(self) -> StructType:
        """The columns as types; ConfigError."""
        if self.schema and not self.columns:
            return schema_columns(self.format, self.schema)
        return _parsed(self.columns)


@dataclass(frozen=True, slots=True)
class Keys:
    """A table of the file; every ConfigError names the file and the key."""

    file: str
    place: str
    given: Mapping[str, Any]

    def wrong(self, key: str, accepted: str) -> ConfigError:
        said = f"is {self.given[key]!r}" if key in self.given else "is missing"
        return ConfigError(f"{self.file}: {self.place}.{key} {said}; accepted: {accepted}")

    def known(self, *names: str) -> None:
        if unknown := sorted(self.given.keys() - set(names)):
            accepted = ", ".join(names)
            raise ConfigError(f"{self.file}: {self.place}.{unknown[0]} is unknown; accepted: {accepted}")

    def text(self, key: str) -> str:
        value = self.given.get(key)
        if not isinstance(value, str) or not value:
            raise self.wrong(key, "text")
        return value

    def table(self, key: str) -> Keys | None:
        """None where the key is missing."""
        value = self.given.get(key)
        if key in self.given and not isinstance(value, Mapping):
            raise self.wrong(key, f"a table [{self.place}.{key}]")
        return None if value is None else Keys(self.file, f"{self.place}.{key}", value)

    def path(self, key: str) -> Path:
        """Of a file; a relative one begins where this file is."""
        return Path(self.file).parent / self.text(key)

    def read(self, key: str) -> str:
        """What the file has that the key names, less white space at its ends; empty without the key."""
        if key not in self.given:
            return ""
        try:
            return self.path(key).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"{self.file}: {self.place}.{key}: {error}") from error

    def texts(self, key: str) -> tuple[str, ...]:
        """Each once; none where the key is missing."""
        values = self.given.get(key, [])
        if not isinstance(values, list) or not all(isinstance(each, str) and each for each in values):
            raise self.wrong(key, "a list of texts")
        return tuple(dict.fromkeys(values))

    def duration(self, key: str) -> timedelta:
        value = self.given.get(key)
        found = (
            re.fullmatch(rf"(\d{{1,9}}) ?({'|'.join(UNITS)})s?", value) if isinstance(value, str) else None
        )
        if not found or not int(found[1]):
            raise self.wrong(key, f"a number with its unit ({', '.join(UNITS)}), as 10 minutes")
        return timedelta(seconds=int(found[1]) * UNITS[found[2]])


@cache
def _parsed(columns: str) -> StructType:
    return parse_columns(columns)


def _digest(*settings: object) -> int:
    """48 bits: for whom chance is no enemy."""
    return int.from_bytes(hashlib.sha256(repr(settings).encode()).digest()[:6])


def _columns(keys: Keys, *, needed: bool) -> str:
    return keys.text("columns") if needed or "columns" in keys.given else ""


def _schema(keys: Keys, format: str) -> Schema | None:
    """ConfigError where a format that needs it has neither this nor a registry."""
    if "schema" not in keys.given and (format not in WITH_SCHEMA or "registry" in keys.given):
        return None
    keys.text("schema")
    try:
        return load_schema(format, keys.path("schema"), _message(keys))
    except ConfigError as error:
        raise ConfigError(f"{keys.file}: {keys.place}.schema: {error}") from error


def _message(keys: Keys) -> str:
    return keys.text("message") if "message" in keys.given else ""


def _registry(keys: Keys) -> Registry | None:
    table = keys.table("registry")
    if table is None:
        return None
    table.known("url", "user", "password_file", "cafile")
    for key, other in (("password_file", "user"), ("user", "password_file")):
        if key in table.given and other not in table.given:
            raise table.wrong(other, f"text, beside {key}")
    url, user = table.text("url"), table.text("user") if "user" in table.given else ""
    password, authority = table.read("password_file"), table.read("cafile")
    try:
        return Registry(url, user, password, authority)
    except ConfigError as error:
        raise ConfigError(f"{table.file}: {table.place}: {error}") from error


def _timing(keys: Keys) -> dict[str, Any]:
    """The arguments of Rule that say when a reading was taken, and when it is late."""
    given = {key: keys.text(key) for key in ("time", "time_property") if key in keys.given}
    if len(given) == 2:
        raise keys.wrong("time_property", "either this or time")
    if "watermark" in keys.given:
        if not given:
            raise keys.wrong("watermark", "only beside time or time_property")
        return {**given, "watermark": keys.duration("watermark")}
    return {**given, "watermark": WATERMARK if given and "gold" in keys.given else None}


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_range(value: object) -> bool:
    return (
        isinstance(value, list) and len(value) == 2 and all(map(_is_number, value)) and value[0] <= value[1]
    )


def load_rules(path: Path) -> tuple[Rule, ...]:
    """The rules of a file; ConfigError, or OSError where it cannot be read."""
    return load_named(path, "rules", Rule.parse)


def filter_pattern(filter: str) -> str:
    """A topic filter as a regular expression of Java's [MQTT-4.7]."""
    levels = filter.split("/")
    pattern = "/".join("[^/]*" if level == "+" else rf"\Q{level}\E" for level in levels if level != "#")
    if levels[-1] == "#":
        pattern = f"{pattern}(/.*)?" if len(levels) > 1 else ".*"
    hidden = r"(?!\$)" if levels[0] in ("+", "#") else ""  # [MQTT-4.7.2-1]
    return f"(?s)^{hidden}{pattern}$"
