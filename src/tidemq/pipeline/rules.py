"""Rules that say how payloads are decoded: a TOML file, one table for each kind of message.

[[rules]]
name = "climate"                # the table SILVER/climate
filter = "plant/+/climate"      # an MQTT topic filter
format = "json"                 # json: an object with these columns; number: text, the column `value`
columns = "celsius double, humidity double, at timestamp"
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.types import StructType

from tidemq.errors import ConfigError

KEY = ("epoch", "offset", "topic", "client_id", "received")  # of every decoded row, before what was decoded
FORMATS = ("json", "number")
_CORRUPT = "_corrupt"
_TEXT = "cast(payload as string)"


@dataclass(frozen=True, slots=True)
class Rule:
    """How messages on a topic filter are decoded."""

    name: str
    filter: str
    format: str
    columns: str

    @classmethod
    def parse(cls, file: str, given: Any) -> Self:
        """ConfigError names the file, the key and what would be accepted."""
        if not isinstance(given, Mapping):
            raise ConfigError(f"{file}: rules has {given!r}; accepted: tables [[rules]]")
        if given.get("format") not in FORMATS:
            accepted = ", ".join(FORMATS)
            raise ConfigError(f"{file}: rules.format is {given.get('format')!r}; accepted: {accepted}")
        values = {"columns": "value double" if given.get("format") == "number" else ""} | dict(given)
        for key in ("name", "filter", "columns"):
            if not isinstance(values.get(key), str) or not values[key]:
                raise ConfigError(f"{file}: rules.{key} is missing; accepted: text")
        if unknown := sorted(values.keys() - {"name", "filter", "format", "columns"}):
            raise ConfigError(
                f"{file}: rules.{unknown[0]} is unknown; accepted: name, filter, format, columns"
            )
        if not re.fullmatch(r"[A-Za-z0-9_-]{1,64}", values["name"]):
            raise ConfigError(f"{file}: rules.name is {values['name']!r}; accepted: letters, digits, _ and -")
        levels = values["filter"].split("/")
        if "#" in levels[:-1] or any(len(level) > 1 and re.search("[+#]", level) for level in levels):
            raise ConfigError(f"{file}: rules.filter is {values['filter']!r}; accepted: an MQTT topic filter")
        return cls(**values)

    def check(self) -> None:
        """Looks at the columns; ConfigError. Needs a session, for they are in Spark's own language."""
        try:
            names = self._names()
        except PySparkException as error:
            reason = str(error).strip().splitlines()[0]
            raise ConfigError(f"the columns of the rule {self.name}, {self.columns!r}: {reason}") from error
        if taken := sorted({*KEY, "date", _CORRUPT}.intersection(names)):
            raise ConfigError(f"the rule {self.name} has a column {taken[0]}, which every table has")

    def _names(self) -> list[str]:
        parsed = StructType.fromDDL(self.columns)
        if not isinstance(parsed, StructType):
            raise ConfigError(f"the rule {self.name} has no columns: {self.columns!r}")
        return parsed.names

    def decode(self, frame: DataFrame) -> DataFrame:
        """The messages of the filter, with the columns `decoded`, a struct, and `reason`: why it cannot be
        decoded, or null.
        """
        found = frame.where(F.col("topic").rlike(filter_pattern(self.filter)))
        decode = self._number if self.format == "number" else self._json
        decoded, reason = decode()
        utf8 = F.expr(f"is_valid_utf8({_TEXT})")
        found = found.withColumn("decoded", decoded)
        return found.withColumn("reason", F.when(~utf8, "not UTF-8").otherwise(reason))

    def _number(self) -> tuple[Column, Column]:
        value = F.expr(f"named_struct('value', try_cast(trim({_TEXT}) as double))")
        return value, F.when(F.col("decoded.value").isNull(), "not a number")

    def _json(self) -> tuple[Column, Column]:
        options = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
        decoded = F.from_json(F.expr(_TEXT), f"{self.columns}, {_CORRUPT} string", options)
        wrong = F.col("decoded").isNull() | F.col(f"decoded.{_CORRUPT}").isNotNull()
        return decoded, F.when(wrong, f"not a JSON object with {self.columns}")

    def rows(self, decoded: DataFrame) -> DataFrame:
        """Of what `decode` gave, the rows of the rule's table."""
        values = [F.col("decoded").getField(name).alias(name) for name in self._names()]
        return decoded.where("reason is null").select(*KEY, *values, "date")

    def dead_letters(self, decoded: DataFrame) -> DataFrame:
        """And the others, with the reason."""
        rule = F.lit(self.name).alias("rule")
        return decoded.where("reason is not null").select(*KEY, "payload", rule, "reason", "date")


def load_rules(path: Path) -> tuple[Rule, ...]:
    """The rules of a file; ConfigError, or OSError where it cannot be read."""
    try:
        given = tomllib.loads(path.read_text())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path}: it is no TOML: {error}") from error
    tables = given.get("rules")
    if set(given) != {"rules"} or not isinstance(tables, list):
        raise ConfigError(f"{path}: accepted: tables [[rules]], and nothing else")
    rules = tuple(Rule.parse(str(path), table) for table in tables)
    names = [rule.name for rule in rules]
    if doubled := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"{path}: two rules have the name {doubled[0]}; accepted: a name for each")
    return rules


def filter_pattern(filter: str) -> str:
    """A topic filter as a regular expression of Java's [MQTT-4.7]."""
    levels = filter.split("/")
    pattern = "/".join("[^/]*" if level == "+" else rf"\Q{level}\E" for level in levels if level != "#")
    if levels[-1] == "#":
        pattern = f"{pattern}(/.*)?" if len(levels) > 1 else ".*"
    hidden = r"(?!\$)" if levels[0] in ("+", "#") else ""  # [MQTT-4.7.2-1]
    return f"(?s)^{hidden}{pattern}$"
