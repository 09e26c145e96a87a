"""Messages into rows, by a rule: of each format a frame with `decoded`, a struct, and `reason`, which is why
there is none.
"""

from __future__ import annotations

import math
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
    DoubleType,
    IntegerType,
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
    Gold,
    Rule,
    filter_pattern,
)
from tidemq.pipeline.decode.publish_time import published_times
from tidemq.pipeline.decode.sparkplug import Births, decode_sparkplug

COLUMNS_MAX = 200  # that are inferred: a publisher may put anything into names
_TEXT = "cast(payload as string)"
_NUMBER = r"^[+-]?([0-9]+\\.?[0-9]*|\\.[0-9]+)([eE][+-]?[0-9]+)?$"


def matching(rule: Rule, frame: DataFrame) -> DataFrame:
    """The messages of the rule's filter."""
    return frame.where(F.col("topic").rlike(filter_pattern(rule.filter)))


def decode(rule: Rule, found: DataFrame, columns: StructType, births: Births) -> DataFrame:
    """Of messages of the filter, with these columns, the rows of the rule's table: `decoded`, `reason`, and
    `event_time` if the rule has one. Of Sparkplug B, and of rules with `many`, several of a message.
    """
    if rule.format == "sparkplug":
        frame = _sparkplug(found, columns, births)
    elif rule.format == "cbor":
        frame = _cbor(found, columns)
    elif rule.format == "json":
        frame = _json(rule, found, columns)
    else:
        frame = found.withColumn("decoded", F.struct(number().alias("value")))
        frame = frame.withColumn("reason", F.when(F.col("decoded.value").isNull(), "not a number"))
    if rule.timed:
        frame = frame.withColumn(EVENT_TIME, F.coalesce(_event_time(rule, columns), "received"))
    return frame


def rows(decoded: DataFrame, rule: Rule) -> DataFrame:
    """Of what `decode` gave, the rows of the rule's table, late ones among them."""
    return decoded.where("reason is null").select(*KEY, *_more(rule), "decoded.*", "date")


def filed(decoded: DataFrame, rule: Rule) -> DataFrame:
    """Of what `decode` gave, what the tables of the rule get, in columns that are structs:

    - `row`, of the rule's table, whose last column is `date`: where `reason` is null;
    - `reason` and `payload` of what could not be decoded;
    - `late_s`, by how many seconds the row's time is behind that at which it was received; negative: it was
      still to come. Null where the rule's watermark allows it: other rows are late;
    - `reading`, if the rule has gold: what is counted of the row, see `_reading`.
    """
    row = F.struct(*KEY, *_more(rule), "decoded.*", "date").alias("row")
    payload = F.expr("if(reason is null, null, payload)").alias("payload")
    found: list[Column | str] = [row, "reason", payload, _late_s(rule).alias("late_s")]
    if rule.gold:
        columns = decoded.schema["decoded"].dataType
        assert isinstance(columns, StructType)
        there = {name: F.col("decoded").getField(name) for name in columns.names}
        found.append(_reading(rule, rule.gold, there))
    return decoded.select(*found)


def _more(rule: Rule) -> list[str]:
    """The columns between the key and what was decoded."""
    return ([PLACE] if rule.many else []) + ([EVENT_TIME] if rule.timed else [])


def _late_s(rule: Rule) -> Column:
    if rule.watermark is None:
        return F.lit(None).cast(DoubleType())
    behind = F.expr(f"(unix_micros(received) - unix_micros({EVENT_TIME})) / 1e6")
    return F.when(F.abs(behind) > rule.watermark.total_seconds(), behind)


def readings(rows: DataFrame, rule: Rule) -> DataFrame:
    """Of rows of the rule's table the same: `row`, with what readings are told apart by, and `reading`."""
    assert rule.gold is not None
    there = {name: F.col(name) for name in rows.columns}
    return rows.select(F.struct("topic", "client_id").alias("row"), _reading(rule, rule.gold, there))


def _reading(rule: Rule, gold: Gold, there: Mapping[str, Column]) -> Column:
    """What gold counts of a row: `at`, its time in microseconds since 1970, `v0`, `v1` and so on, its values,
    and `b0` and so on, the columns of `gold.by`. A column may be missing whose messages are still to come.
    """
    empty = F.lit(None).cast("string")
    numbers = (there.get(name, empty).try_cast("double") for name in gold.values)  # it may be text
    finite = (F.when(~F.isnan(value), value).alias(f"v{place}") for place, value in enumerate(numbers))
    further = (there.get(name, empty).alias(f"b{place}") for place, name in enumerate(gold.by))
    at = F.expr(f"unix_micros({rule.time_column})").alias("at")
    return F.struct(at, *finite, *further).alias("reading")


# --- formats -----------------------------------------------------------------------------------


def number() -> Column:
    """Of a payload the number that it is as text, in decimal digits; null where it is none."""
    value = F.when(F.expr(f"trim({_TEXT}) rlike '{_NUMBER}'"), F.expr(f"try_cast(trim({_TEXT}) as double)"))
    return F.when(F.abs(value) != math.inf, value)


def _json(rule: Rule, found: DataFrame, columns: StructType) -> DataFrame:
    kind = _decoded_type(columns)
    kept = found.columns
    if rule.many:  # not a copy of the payload for each of its readings
        kind.add(PLACE, IntegerType()).add("payload", BinaryType())
        kept = [name for name in kept if name != "payload"]
    whole = ArrayType(kind) if rule.many else kind
    arrow = to_arrow_type(whole, timezone="UTC")
    decoder = on_columns(
        lambda payloads: decode_json(payloads, columns, arrow, many=rule.many, infers=rule.infers), whole
    )
    both = decoder("payload")
    decoded = found.select(*kept, (F.explode(both) if rule.many else both).alias("both"))
    return decoded.select(*kept, "both.*")


def _cbor(found: DataFrame, columns: StructType) -> DataFrame:
    kind = _decoded_type(columns)
    arrow = to_arrow_type(kind, timezone="UTC")
    decoder = on_columns(lambda payloads: decode_cbor(payloads, columns, arrow), kind)
    return found.withColumn("both", decoder("payload")).select(*found.columns, "both.*")


def _sparkplug(found: DataFrame, columns: StructType, births: Births) -> DataFrame:
    kind = _decoded_type(ArrayType(columns))
    arrow = to_arrow_type(kind, timezone="UTC")

    def decode_all(topics: pa.Array, offsets: pa.Array, payloads: pa.Array) -> pa.Array:
        return decode_sparkplug(topics, offsets, payloads, births, arrow)

    decoder = on_columns(decode_all, kind)
    both = found.withColumn("both", decoder("topic", "offset", "payload"))
    return both.select(*found.columns, F.explode_outer("both.decoded").alias("decoded"), "both.reason")


def on_columns(function: Callable[..., pa.Array], kind: DataType) -> Callable[..., Column]:
    """A function of Arrow arrays as one of columns, which executors run."""
    # its stub asks for the type that it warns of at run time
    made: Callable[..., Column] = arrow_udf(function, kind)  # type: ignore[call-overload]
    return made


def _decoded_type(decoded: DataType) -> StructType:
    return StructType([StructField("decoded", decoded), StructField("reason", StringType())])


# --- times -------------------------------------------------------------------------------------


def _event_time(rule: Rule, columns: StructType) -> Column:
    """When the rule says that a reading was taken; null where it is not said, or is no time."""
    if rule.time_property:
        name = rule.time_property
        read = on_columns(lambda properties: published_times(properties, name), TimestampType())
        return read("user_properties")
    if rule.time not in columns.names:
        return F.lit(None).cast(TimestampType())
    column, kind = F.col("decoded").getField(rule.time), columns[rule.time].dataType
    if isinstance(kind, TimestampType):
        return column
    # a number: seconds, milliseconds or microseconds by its size, as in `publish_time`
    number = column.try_cast("double")
    scale = F.when(number < 1e11, 1e6).when(number < 1e14, 1e3).otherwise(1.0)
    time = F.when(number.between(0, 1e17), F.timestamp_micros(F.round(number * scale).cast("bigint")))
    return F.coalesce(column.try_cast(TimestampType()), time) if isinstance(kind, StringType) else time


# --- columns that messages have ----------------------------------------------------------------


def inferred(rule: Rule, found: DataFrame, known: StructType) -> StructType:
    """The columns of JSON messages: those that are known, and those of their other fields.

    The first message that has a field, and not as null, says the type of its column: double, boolean, or text
    for all else, which keeps lists and objects as JSON. So it does not matter where batches begin and end.
    """
    taken = {name.lower() for name in (*KEY, EVENT_TIME, PLACE, "date", OTHERS, "late_s", *known.names)}
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
