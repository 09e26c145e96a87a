"""Columns as Spark's own language names them (DDL), read without Spark's Java, which has the only
other parser: so what is wrong is told before Spark starts, and no batch asks Java again.

Only what a column of a rule may be is known here. Types are Spark's names and their aliases; every column may
be null, for a field that a payload lacks is null.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    ByteType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidemq.errors import ConfigError

NESTED_MAX = 32  # types in one another
_DIGITS_MAX = 38  # of a decimal, as Spark has it
_TOKEN = re.compile(r"\s*(?:`((?:[^`]|``)+)`|('(?:[^'\\]|\\.)*'|\"(?:[^\"\\]|\\.)*\")|(\w+)|([<>(),:]))")
_BARE = re.compile(r"[A-Za-z_]\w*", re.ASCII)  # a name that needs no quotes
_TYPES: Mapping[str, type[DataType]] = {
    "boolean": BooleanType,
    **dict.fromkeys(("tinyint", "byte"), ByteType),
    **dict.fromkeys(("smallint", "short"), ShortType),
    **dict.fromkeys(("int", "integer"), IntegerType),
    **dict.fromkeys(("bigint", "long"), LongType),
    **dict.fromkeys(("float", "real"), FloatType),
    "double": DoubleType,
    "string": StringType,
    "binary": BinaryType,
    "date": DateType,
    **dict.fromkeys(("timestamp", "timestamp_ltz"), TimestampType),
    "timestamp_ntz": TimestampNTZType,
}
_DECIMALS = ("decimal", "dec", "numeric")
_ACCEPTED = ", ".join(
    (
        *dict.fromkeys(each().simpleString() for each in _TYPES.values()),
        *("decimal(digits, of them behind the point)", "array<…>", "map<…, …>", "struct<name: …>"),
    )
)


def parse_columns(text: str) -> StructType:
    """Of "celsius double, at timestamp", or struct<…>; ConfigError says what is wrong where."""
    parser = _Parser(text)
    if parser.word("struct") and parser.sees("<"):
        parser.back()
        found = parser.type(0)
        assert isinstance(found, StructType)
    else:
        parser.back()
        found = StructType(parser.fields(0))
    parser.end()
    if not found.fields:
        raise ConfigError("there is no column")
    return found


class _Parser:
    """Goes through the tokens of a text once; `back` begins again."""

    def __init__(self, text: str) -> None:
        self._text = text.rstrip()
        self._at = 0

    def back(self) -> None:
        self._at = 0

    def end(self) -> None:
        if self._at != len(self._text):
            raise self._wrong("a comma")

    def sees(self, sign: str) -> bool:
        """Whether the next token is this sign; it stays."""
        found = self._next()
        return found is not None and found[4] == sign

    def word(self, *words: str) -> str:
        """The next token in small letters, if it is one of these words, and goes on; else empty."""
        found = self._next()
        if found is None or not found[3] or found[3].lower() not in words:
            return ""
        self._at = found.end()
        return found[3].lower()

    def fields(self, depth: int) -> list[StructField]:
        """A column, and those behind commas."""
        found = [self._field(depth)]
        while self._sign(","):
            found.append(self._field(depth))
        names = Counter(each.name.lower() for each in found)
        if doubled := [name for name, count in names.items() if count > 1]:
            raise ConfigError(f"two columns have the name {doubled[0]}, whose capitals make no difference")
        return found

    def type(self, depth: int) -> DataType:
        if depth > NESTED_MAX:
            raise ConfigError(f"more than {NESTED_MAX} types in one another")
        if self.word("array"):
            return self._inside(lambda: ArrayType(self.type(depth + 1)))
        if self.word("map"):
            return self._inside(lambda: MapType(self.type(depth + 1), self._second(depth + 1)))
        if self.word("struct"):
            return self._inside(lambda: StructType(self.fields(depth + 1)))
        if self.word(*_DECIMALS):
            return self._decimal()
        if name := self.word(*_TYPES):
            return _TYPES[name]()
        raise self._wrong(f"a type: {_ACCEPTED}")

    def _field(self, depth: int) -> StructField:
        found = self._next()
        if found is None or not (found[1] or _BARE.fullmatch(found[3] or "")):
            raise self._wrong("a column's name, in `` unless it is of letters (a to z), digits and _")
        self._at = found.end()
        name = (found[1] or found[3]).replace("``", "`")
        self._sign(":")
        kind = self.type(depth)
        if self.word("not"):
            raise ConfigError(f"{name} is NOT NULL; every column may be null: a payload may lack the field")
        return StructField(name, kind, metadata=self._comment())

    def _comment(self) -> dict[str, str] | None:
        if not self.word("comment"):
            return None
        found = self._next()
        if found is None or not found[2]:
            raise self._wrong("the comment, in quotes")
        self._at = found.end()
        return {"comment": re.sub(r"\\(.)", r"\1", found[2][1:-1])}

    def _inside(self, read: Callable[[], DataType]) -> DataType:
        self._want("<")
        found = read()
        self._want(">")
        return found

    def _second(self, depth: int) -> DataType:
        self._want(",")
        return self.type(depth)

    def _decimal(self) -> DecimalType:
        if not self._sign("("):
            return DecimalType(10, 0)  # as Spark has it
        digits = self._number()
        behind = self._number() if self._sign(",") else 0
        self._want(")")
        if not 1 <= digits <= _DIGITS_MAX or behind > digits:
            raise ConfigError(f"decimal({digits}, {behind}): accepted: 1 to {_DIGITS_MAX} digits")
        return DecimalType(digits, behind)

    def _number(self) -> int:
        found = self._next()
        if found is None or not (found[3] or "").isdecimal():
            raise self._wrong("a number of digits")
        self._at = found.end()
        return int(found[3][:9])

    def _want(self, sign: str) -> None:
        if not self._sign(sign):
            raise self._wrong(sign)

    def _sign(self, sign: str) -> bool:
        if not self.sees(sign):
            return False
        found = self._next()
        assert found is not None
        self._at = found.end()
        return True

    def _next(self) -> re.Match[str] | None:
        return _TOKEN.match(self._text, self._at)

    def _wrong(self, wanted: str) -> ConfigError:
        rest = self._text[self._at :].strip()
        return ConfigError(f"{f'{rest[:40]!r}' if rest else 'the end'} where there should be {wanted}")
