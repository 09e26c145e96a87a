"""Columns of rules are read as Spark reads them, but without its Java; and what is wrong is said."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pyspark.sql import SparkSession
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
from tidemq.pipeline.decode.column_types import parse_columns

SIMPLE: list[type[DataType]] = [
    *(BinaryType, BooleanType, ByteType, DateType, DoubleType, FloatType, IntegerType, LongType, ShortType),
    *(StringType, TimestampNTZType, TimestampType),
]
names = st.text(st.characters(codec="utf-8", exclude_categories=["C"]), min_size=1, max_size=8).filter(
    str.strip
)
decimals = st.integers(1, 38).flatmap(
    lambda digits: st.builds(DecimalType, st.just(digits), st.integers(0, digits))
)


def structs(kinds: st.SearchStrategy[DataType]) -> st.SearchStrategy[StructType]:
    field = st.builds(StructField, names, kinds)
    return st.lists(field, min_size=1, max_size=4, unique_by=lambda each: each.name.lower()).map(StructType)


kinds = st.recursive(
    st.sampled_from(SIMPLE).map(lambda kind: kind()) | decimals,
    lambda inner: st.builds(ArrayType, inner) | st.builds(MapType, inner, inner) | structs(inner),
    max_leaves=6,
)


def columns_text(columns: StructType) -> str:
    """In Spark's language."""
    return ", ".join(f"{quoted(each.name)} {type_text(each.dataType)}" for each in columns.fields)


def type_text(kind: DataType) -> str:
    if isinstance(kind, StructType):
        return (
            f"struct<{', '.join(f'{quoted(each.name)}: {type_text(each.dataType)}' for each in kind.fields)}>"
        )
    if isinstance(kind, ArrayType):
        return f"array<{type_text(kind.elementType)}>"
    if isinstance(kind, MapType):
        return f"map<{type_text(kind.keyType)}, {type_text(kind.valueType)}>"
    return kind.simpleString()


def quoted(name: str) -> str:
    """As any name may stand."""
    return f"`{name.replace('`', '``')}`"


@given(structs(kinds))
def test_what_is_written_is_read_again(columns: StructType) -> None:
    assert parse_columns(columns_text(columns)) == columns


AS_SPARK = [
    "celsius double",
    "struct string, Map int, `array` array<int>, decimal decimal",
    "a BYTE, b short,c Integer , d LONG,e real, f numeric(5), g dec(38,38), h timestamp_ltz, i timestamp_ntz",
    "a: int, b : struct<x: int, `y z` map<string,array<array<date>>>>",
    "struct<a: int, b boolean>",
    "`a``b` binary, `größe` float, `1 a` int, _ tinyint, timestamp timestamp",
    "a int comment 'it\\'s', b struct<c: string comment \"in\">",
    "\n a\tint\n,\nb smallint\n",
]


def test_columns_are_what_spark_reads(spark: SparkSession) -> None:
    """Of all types, with aliases, quotes, comments; and of those that `columns_text` writes."""
    for text in AS_SPARK:
        assert parse_columns(text) == StructType.fromDDL(text), text

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(structs(kinds))
    def check(columns: StructType) -> None:
        assert StructType.fromDDL(columns_text(columns)) == columns

    check()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("celsius doubble", "'doubble' where there should be a type: boolean, tinyint, .*struct<name: …>$"),
        ("int", "the end where there should be a type"),
        ("", "the end where there should be a column's name"),
        (" , a int", "', a int' where there should be a column's name"),
        ("größe int", "'größe int' where there should be a column's name, in ``"),
        ("a int,", "the end where there should be a column's name"),
        ("a int b int", "'b int' where there should be a comma"),
        ("a-b int", "'-b int' where there should be a type"),
        ("a interval year", "'interval year' where there should be a type"),
        ("a char(5)", r"'char\(5\)' where there should be a type"),
        ("a int not null", "a is NOT NULL; every column may be null"),
        ("a int, A string", "two columns have the name a, whose capitals make no difference"),
        ("a struct<x: int, X: int>", "two columns have the name x"),
        ("a decimal(39, 0)", r"decimal\(39, 0\): accepted: 1 to 38 digits"),
        ("a decimal(3, 4)", r"decimal\(3, 4\): accepted"),
        ("a decimal(x)", r"'x\)' where there should be a number of digits"),
        ("a array<int", "the end where there should be >"),
        ("a map<string>", "'>' where there should be ,"),
        ("a " + "array<" * 40 + "int" + ">" * 40, "more than 32 types in one another"),
        ("a int comment b", "'b' where there should be the comment, in quotes"),
    ],
)
def test_what_is_wrong_is_said(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        parse_columns(text)
