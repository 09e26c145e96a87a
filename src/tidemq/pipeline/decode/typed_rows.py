"""What a decoder has made of payloads, as columns. Where a schema's types are those of the columns, a column
is made whole; a value that is not to be had so is looked at by itself, and its payload is refused if need be.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DoubleType,
    FloatType,
    IntegerType,
    LongType,
    StringType,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from tidemq.pipeline.decode.values import Converters, WrongFieldError

Decoded = Mapping[str, Any] | str
"""Of a payload its fields by name; or why there are none."""

# that Arrow makes of Python's values exactly, or not at all
_WHOLE = (
    *(BinaryType, BooleanType, DoubleType, FloatType, IntegerType, LongType, StringType),
    *(TimestampType, TimestampNTZType),
)


def struct_of(
    found: Sequence[Decoded],
    columns: StructType,
    known: Mapping[str, DataType],
    converters: Converters,
    arrow: pa.StructType,
) -> pa.Array:
    """Of each payload a struct of `decoded`, with these columns, and `reason`, why it cannot be decoded; one
    of them is null. `known` are the types of fields whose values are certainly of them. `arrow` is the
    struct's type.
    """
    reasons = [each if isinstance(each, str) else None for each in found]
    rows: list[Mapping[str, Any]] = [{} if isinstance(each, str) else each for each in found]
    arrays = []
    for column, kind in zip(columns.fields, arrow.field("decoded").type, strict=True):
        values = [row.get(column.name) for row in rows]
        whole = None
        if isinstance(column.dataType, _WHOLE) and known.get(column.name) == column.dataType:
            whole = _whole(values, kind.type)
        if whole is None:
            convert = converters.of(column.dataType, column.name)
            for at, value in enumerate(values):
                try:
                    values[at] = convert(value)
                except WrongFieldError as error:
                    values[at] = None
                    reasons[at] = reasons[at] or str(error)
            whole = pa.array(values, kind.type)
        arrays.append(whole)
    return decoded_struct(arrays, reasons, arrow)


def decoded_struct(
    arrays: Collection[pa.Array], reasons: Sequence[str | None], arrow: pa.StructType
) -> pa.Array:
    """Of columns, null where there is a reason, the struct of `decoded` and `reason`."""
    mask = pa.array([reason is not None for reason in reasons])
    kinds = list(arrow.field("decoded").type)
    decoded = pa.StructArray.from_arrays(list(arrays), fields=kinds, mask=mask)
    return pa.StructArray.from_arrays([decoded, pa.array(reasons, pa.string())], fields=list(arrow))


def _whole(values: list[Any], kind: pa.DataType) -> pa.Array | None:
    """A column; None where a value is beyond its type, or is no number."""
    try:
        array = pa.array(values, kind)
    except (pa.ArrowException, OverflowError, TypeError, ValueError):
        return None
    if pa.types.is_floating(kind) and not pc.all(pc.is_finite(array), min_count=0).as_py():
        return None
    return array
