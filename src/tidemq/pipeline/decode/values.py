"""Decoded values as those of a table's columns, for JSON and CBOR alike: each exactly, or not at all."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import date, datetime
from decimal import Context, Decimal
from typing import Any

from pyspark.sql.types import (
    ArrayType,
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
    StructType,
)

from tidemq.errors import ConfigError

Convert = Callable[[Any], Any]
"""A decoded value as one of a column's; TypeError, ValueError or ArithmeticError where it is none."""

INTEGER_BITS: Mapping[type[DataType], int] = {ByteType: 8, ShortType: 16, IntegerType: 32, LongType: 64}
_EXACT = Context(prec=80)  # more than twice the digits that a column may have
_FLOAT_MAX = 3.4028234663852886e38  # of 32 bits


class WrongFieldError(ValueError):
    """A field has a value that its column does not take; it says which."""


class Converters:
    """What makes values of columns out of decoded ones. `format` is the format's name, `own` has what it does
    by its own rules, and `absent` is a value of it that means none, beside null.
    """

    def __init__(self, format: str, own: Mapping[type[DataType], Convert], absent: object = None) -> None:
        self._format = format
        self._absent = absent
        self._simple: Mapping[type[DataType], Convert] = {**_SIMPLE, **own}

    def of(self, kind: DataType, name: str = "") -> Convert:
        """Of a type; null stays null. ConfigError where the format has none such; `name` says where.

        What it gives raises WrongFieldError.
        """
        convert, absent = self._of(kind, name), self._absent

        def checked(value: Any) -> Any:
            if value is None or value is absent:
                return None
            try:
                return convert(value)
            except WrongFieldError:
                raise
            except (TypeError, ValueError, ArithmeticError) as error:
                shown = f"{value!r:.60}"
                raise WrongFieldError(f"{name} is {shown}; {kind.simpleString()} is wanted") from error

        return checked

    def _of(self, kind: DataType, name: str) -> Convert:
        if isinstance(kind, StructType):
            inside = f"{name}." if name else ""
            fields = [(each.name, self.of(each.dataType, inside + each.name)) for each in kind.fields]
            return lambda value: {key: to(only(value, Mapping).get(key)) for key, to in fields}
        if isinstance(kind, ArrayType):
            element = self.of(kind.elementType, name)
            return lambda value: [element(each) for each in only(value, list, tuple)]
        if isinstance(kind, MapType):
            to_key, to_value = self.of(kind.keyType, name), self.of(kind.valueType, name)
            return lambda value: [(to_key(key), to_value(each)) for key, each in only(value, Mapping).items()]
        if isinstance(kind, DecimalType):
            return lambda value: _decimal(only(value, int, float, Decimal), kind)
        if bits := INTEGER_BITS.get(type(kind)):
            return lambda value: _integer(only(value, int), bits)
        if type(kind) not in self._simple:
            raise ConfigError(f"the column {name} is {kind.simpleString()}, which {self._format} has not")
        return self._simple[type(kind)]


def only(value: Any, *types: type) -> Any:
    """The value, if it is one of these; a truth value is no number."""
    if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
        raise TypeError
    return value


def finite(value: Any) -> float:
    """A number; one that is none, or infinite, would be in every figure that is made of it."""
    number = float(only(value, int, float, Decimal))
    if not math.isfinite(number):
        raise ValueError
    return number


def _float(value: Any) -> float:
    number = finite(value)
    if abs(number) > _FLOAT_MAX:
        raise ValueError
    return number


def _integer(value: int, bits: int) -> int:
    if not -(1 << bits - 1) <= value < 1 << bits - 1:
        raise ValueError
    return value


def _decimal(value: float | Decimal, kind: DecimalType) -> Decimal:
    rounded = Decimal(str(value)).quantize(Decimal(1).scaleb(-kind.scale), context=_EXACT)
    if len(rounded.as_tuple().digits) > kind.precision:
        raise ValueError
    return rounded


def _date(value: Any) -> date:
    found = date.fromisoformat(value) if isinstance(value, str) else only(value, date)
    if isinstance(found, datetime):
        raise TypeError
    return found


_SIMPLE: Mapping[type[DataType], Convert] = {
    BooleanType: lambda value: only(value, bool),
    FloatType: _float,
    DoubleType: finite,
    StringType: lambda value: only(value, str),
    DateType: _date,
}
