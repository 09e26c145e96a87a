"""Some columns of a batch are the columns that Arrow would select, whatever is in them, compressed or not."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemq.client.streams import COLUMNS
from tidemq.errors import UsageError
from tidemq.stream.projection import Projection
from tidemq.stream.schema import END, SCHEMA, serialized_batch

TEXTS = st.none() | st.text(max_size=30)
PAIRS = st.lists(
    st.fixed_dictionaries({"name": st.text(max_size=5), "value": st.text(max_size=5)}), max_size=3
)
ROWS = st.fixed_dictionaries(
    {
        "offset": st.integers(0, 1 << 60),
        "topic": st.text(max_size=20),
        "payload": st.binary(max_size=100),
        "qos": st.integers(0, 2),
        "retain": st.booleans(),
        "dup": st.booleans(),
        "packet_id": st.none() | st.integers(1, 65535),
        "client_id": TEXTS,
        "received": st.integers(0, 1 << 50),
        "message_id": st.binary(min_size=16, max_size=16),
        "content_type": TEXTS,
        "response_topic": TEXTS,
        "correlation_data": st.none() | st.binary(max_size=20),
        "user_properties": PAIRS,
    }
)


@given(
    batches=st.lists(st.lists(ROWS, min_size=1, max_size=3), min_size=1, max_size=3),
    names=st.lists(st.sampled_from(COLUMNS), unique=True, min_size=1),
    times=st.integers(1, 20),  # from 16 rows on a batch is compressed
)
def test_it_is_what_arrow_selects(batches: list[list[dict[str, Any]]], names: list[str], times: int) -> None:
    whole = [pa.RecordBatch.from_pylist(rows * times, SCHEMA) for rows in batches]
    projection = Projection.of(tuple(names))
    data = projection.of_batches(b"".join(serialized_batch(each) for each in whole))
    found = pa.ipc.open_stream(projection.head + data + END).read_all()
    found.validate(full=True)
    assert found == pa.Table.from_batches(whole).select([name for name in COLUMNS if name in names])


def test_the_columns_that_clients_know_are_those_of_a_stream() -> None:
    assert SCHEMA.names == list(COLUMNS)


def test_another_column_is_named() -> None:
    with pytest.raises(UsageError, match=r"a stream has no column 'topics'; accepted: offset, topic, "):
        Projection.of(("offset", "topics"))


@pytest.mark.parametrize("data", [b"nothing of the kind", SCHEMA.serialize().to_pybytes()])
def test_other_bytes_are_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match="no record batch"):
        Projection.of(("offset",)).of_batches(data)
