"""Messages into rows, by a rule: of each format a frame with `decoded`, a struct, and `reason`, which is why
there is none.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pyarrow as pa
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql.pandas.functions import arrow_udf
from pyspark.sql.pandas.types import to_arrow_type
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DoubleType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from tidemq.pipeline.decode.cbor import decode_cbor
from tidemq.pipeline.decode.json_payloads import OTHERS, decode_json, json_fields
from tidemq.pipeline.decode.payload_rules import (
    COLUMN_NAME,
    EVENT_TIME,
    KEY,
    PLACE,
    TAKEN,
    Gold,
    Rule,
    filter_pattern,
)
from tidemq.pipeline.decode.publish_time import published_times
from tidemq.pipeline.decode.schemas import WITH_SCHEMA, check_of, decoder_of
from tidemq.pipeline.decode.sparkplug import Births, decode_sparkplug

COLUMNS_MAX = 200  # that are inferred: a publisher may put anything into names
_TEXT = "trim(cast(payload as string))"
_NUMBER = r"^[+-]?([0-9]+\\.?[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?$"
_KEY_TYPES = (LongType(), LongType(), StringType(), StringType(), TimestampType())


def matching(rule: Rule, frame: DataFrame) -> DataFrame:
    """The messages of the rule's filter."""
    return frame.where(F.col("topic").rlike(filter_pattern(rule.filter)))


def decode(rule: Rule, found: DataFrame, columns: StructType, births: Births) -> DataFrame:
    """Of messages of the filter, with these columns, the rows of the rule's table: `decoded`, `reason`, and
    `event_time` if the rule has one. Of Sparkplug B, and of rules with `many`, several of a message.

    In SQL where it can be: a column that Python makes costs calls of Java's, for each batch.
    """
    if rule.format == "sparkplug":
        frame = _sparkplug(found, columns, births)
    elif rule.format == "cbor":
        frame = _cbor(found, columns)
    elif rule.format in WITH_SCHEMA:
        frame = _by_schema(rule, found, columns)
    elif rule.format == "json":
        frame = _json(rule, found, columns)
    else:
        frame = found.selectExpr("*", f"struct({_number()} as value) as decoded")
        frame = frame.selectExpr("*", "if(decoded.value is null, 'not a number', null) as reason")
    if rule.time_property:
        name = rule.time_property
        read = on_columns(lambda properties: published_times(properties, name), TimestampType())
        return frame.select("*", F.coalesce(read("user_properties"), "received").alias(EVENT_TIME))
    return frame.selectExpr("*", f"{_event_time(rule, columns)} as {EVENT_TIME}") if rule.timed else frame


def rows(decoded: DataFrame, rule: Rule) -> DataFrame:
    """Of what `decode` gave, the rows of the rule's table, late ones among them."""
    return decoded.where("reason is null").select(*KEY, *_more(rule), "decoded.*", "date")


def row_columns(rule: Rule, columns: StructType) -> StructType:
    """Of the rule's table, with these columns; `date` is the last."""
    found = StructType()
    for name, kind in zip(KEY, _KEY_TYPES, strict=True):
        found.add(name, kind)
    if rule.many:
        found.add(PLACE, IntegerType())
    if rule.timed:
        found.add(EVENT_TIME, TimestampType())
    return StructType([*found.fields, *columns.fields]).add("date", DateType())


def filed(decoded: DataFrame, rule: Rule, columns: StructType) -> DataFrame:
    """Of what `decode` gave, what the tables of the rule get, in columns that are structs:

    - `row`, of the rule's table, whose last column is `date`: where `reason` is null;
    - `reason` and `payload` of what could not be decoded;
    - `late_s`, by how many seconds the row's time is behind that at which it was received; negative: it was
      still to come. Null where the rule's watermark allows it: other rows are late;
    - `reading`, if the rule has gold: what is counted of the row, see `_reading`.
    """
    found = [
        f"struct({', '.join((*KEY, *_more(rule)))}, decoded.*, date) as row",
        "reason",
        "if(reason is null, null, payload) as payload",
        f"{_late_s(rule)} as late_s",
    ]
    if rule.gold:
        there = {name: f"decoded.{_quoted(name)}" for name in columns.names}
        found.append(f"{_reading(rule, rule.gold, there)} as reading")
    return decoded.selectExpr(*found)


def _more(rule: Rule) -> list[str]:
    """The columns between the key and what was decoded."""
    return ([PLACE] if rule.many else []) + ([EVENT_TIME] if rule.timed else [])


def _late_s(rule: Rule) -> str:
    if rule.watermark is None:
        return "cast(null as double)"
    behind = f"((unix_micros(received) - unix_micros({EVENT_TIME})) / 1e6D)"
    return f"if(abs({behind}) > {rule.watermark.total_seconds()}D, {behind}, null)"


def readings(rows: DataFrame, rule: Rule) -> DataFrame:
    """Of rows of the rule's table the same: `row`, with what readings are told apart by, and `reading`."""
    assert rule.gold is not None
    reading = _reading(rule, rule.gold, {name: _quoted(name) for name in rows.columns})
    return rows.selectExpr("struct(topic, client_id) as row", f"{reading} as reading")


def _reading(rule: Rule, gold: Gold, there: Mapping[str, str]) -> str:
    """What gold counts of a row: `at`, its time in microseconds since 1970, `v0`, `v1` and so on, its values,
    and `b0` and so on, the columns of `gold.by`. A column may be missing whose messages are still to come.
    """
    empty = "cast(null as string)"
    fields = [f"unix_micros({rule.time_column}) as at"]
    for place, name in enumerate(gold.values):
        number = f"try_cast({there.get(name, empty)} as double)"  # it may be text
        fields.append(f"if(isnan({number}), null, {number}) as v{place}")
    fields += (f"{there.get(name, empty)} as b{place}" for place, name in enumerate(gold.by))
    return f"struct({', '.join(fields)})"


def _quoted(name: str) -> str:
    """As SQL names a column."""
    return f"`{name.replace('`', '``')}`"


# --- formats -----------------------------------------------------------------------------------


def number() -> Column:
    """Of a payload the number that it is as text, in decimal digits; null where it is none."""
    return F.expr(_number())


def _number() -> str:
    value = f"try_cast({_TEXT} as double)"
    finite = f"abs({value}) != double('Infinity')"
    return f"if({_TEXT} rlike '{_NUMBER}' and {finite}, {value}, null)"


def _json(rule: Rule, found: DataFrame, columns: StructType) -> DataFrame:
    kind = _decoded_type(columns)
    if rule.many:
        kind.add(PLACE, IntegerType()).add("payload", BinaryType())
    whole = ArrayType(kind) if rule.many else kind
    arrow = to_arrow_type(whole, timezone="UTC")
    many, infers, schema = rule.many, rule.infers, rule.schema

    def decode_all(payloads: pa.Array) -> pa.Array:
        check = check_of(schema) if schema else None
        return decode_json(payloads, columns, arrow, many=many, infers=infers, check=check)

    decoder = on_columns(decode_all, whole)
    if not rule.many:
        return _with_both(found, decoder("payload"))
    # not a copy of the payload for each of its readings
    several = found.select("*", F.explode(decoder("payload")).alias("both"))
    return several.selectExpr("* except (payload, both)", "both.*")


def _cbor(found: DataFrame, columns: StructType) -> DataFrame:
    kind = _decoded_type(columns)
    arrow = to_arrow_type(kind, timezone="UTC")
    return _with_both(
        found, on_columns(lambda payloads: decode_cbor(payloads, columns, arrow), kind)("payload")
    )


def _by_schema(rule: Rule, found: DataFrame, columns: StructType) -> DataFrame:
    kind = _decoded_type(columns)
    arrow = to_arrow_type(kind, timezone="UTC")
    decoder = decoder_of(rule.format, rule.schema, rule.message, rule.registry, columns, arrow)
    return _with_both(found, on_columns(decoder, kind)("payload"))


def _sparkplug(found: DataFrame, columns: StructType, births: Births) -> DataFrame:
    kind = _decoded_type(ArrayType(columns))
    arrow = to_arrow_type(kind, timezone="UTC")

    def decode_all(topics: pa.Array, offsets: pa.Array, payloads: pa.Array) -> pa.Array:
        return decode_sparkplug(topics, offsets, payloads, births, arrow)

    both = found.select("*", on_columns(decode_all, kind)("topic", "offset", "payload").alias("both"))
    return both.selectExpr(
        "* except (both)", "explode_outer(both.decoded) as decoded", "both.reason as reason"
    )


def _with_both(found: DataFrame, both: Column) -> DataFrame:
    """With the fields of a struct: `decoded`, `reason`."""
    return found.select("*", both.alias("both")).selectExpr("* except (both)", "both.*")


def on_columns(function: Callable[..., pa.Array], kind: DataType) -> Callable[..., Column]:
    """A function of Arrow arrays as one of columns, which executors run."""
    # its stub asks for the type that it warns of at run time
    made: Callable[..., Column] = arrow_udf(function, kind)  # type: ignore[call-overload]
    return made


def _decoded_type(decoded: DataType) -> StructType:
    return StructType([StructField("decoded", decoded), StructField("reason", StringType())])


# --- times -------------------------------------------------------------------------------------


def _event_time(rule: Rule, columns: StructType) -> str:
    """When the rule's column says that a reading was taken; when it came, if it does not say a time."""
    if rule.time not in columns.names:
        return "received"
    column, kind = f"decoded.{_quoted(rule.time)}", columns[rule.time].dataType
    if isinstance(kind, TimestampType):
        return f"coalesce({column}, received)"
    # a number: seconds, milliseconds or microseconds by its size, as in `publish_time`
    number = f"try_cast({column} as double)"
    scale = f"case when {number} < 1e11D then 1e6D when {number} < 1e14D then 1e3D else 1D end"
    time = f"timestamp_micros(cast(round({number} * {scale}) as bigint))"
    time = f"if({number} between 0D and 1e17D, {time}, null)"
    text = f"try_cast({column} as timestamp), " if isinstance(kind, StringType) else ""
    return f"coalesce({text}{time}, received)"


# --- columns that messages have ----------------------------------------------------------------


def inferred(rule: Rule, found: DataFrame, known: StructType) -> StructType:
    """The columns of JSON messages: those that are known, and those of their other fields.

    The first message that has a field, and not as null, says the type of its column: double, boolean, or text
    for all else, which keeps lists and objects as JSON. So it does not matter where batches begin and end.
    """
    taken = TAKEN | {OTHERS, *map(str.lower, known.names)}
    kind = ArrayType(StructType().add("name", StringType()).add("type", StringType()))
    arrow = to_arrow_type(kind)
    read = on_columns(lambda payloads: json_fields(payloads, arrow, many=rule.many), kind)
    fields = (
        found.select("offset", F.inline(read("payload")))
        .where(F.col("name").rlike(f"^{COLUMN_NAME}$") & ~F.lower("name").isin(*taken))
        .groupBy("name")
        .agg(F.min_by("type", "offset").alias("type"), F.min("offset").alias("first"))
        .orderBy("first", "name")
        .limit(max(COLUMNS_MAX - len(known.names), 0))
    )
    columns = [each for each in known.fields if each.name != OTHERS]
    for row in fields.collect():
        if row.name.lower() not in taken:
            taken.add(row.name.lower())
            columns.append(StructField(row.name, _INFERRED[row.type]))
    return StructType([*columns, StructField(OTHERS, StringType())])


_INFERRED: Mapping[str, DataType] = {"double": DoubleType(), "boolean": BooleanType(), "string": StringType()}
