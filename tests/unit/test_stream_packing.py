"""A batch of buffers as it is written is what Arrow reads, whatever compresses it; and a buffer is compressed
only where that is worth it.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest

from tidemq.stream.packing import Buffers, Packer
from tidemq.stream.projection import Projection
from tidemq.stream.schema import END, HEAD, SCHEMA, serialized_batch

PAIRS = [{"name": "a", "value": "1"}, {"name": "b", "value": ""}]


def message(number: int, payload: bytes) -> dict[str, Any]:
    odd = bool(number % 2)
    return {
        "offset": number,
        "topic": f"plant/{number % 3}",
        "payload": payload,
        "qos": number % 3,
        "retain": odd,
        "dup": not odd,
        "packet_id": number or None,
        "client_id": f"device {number % 2}" if number % 5 else None,
        "received": 1_790_000_000_000_000 + number,
        "message_id": number.to_bytes(16),
        "content_type": None,
        "response_topic": "answers" if odd else None,
        "correlation_data": bytes([number % 256]) if number % 4 else None,
        "user_properties": PAIRS[: number % 3],
    }


def buffers_of(batch: pa.RecordBatch) -> Buffers:
    """As the engine has them."""

    def placed(buffers: Sequence[pa.Buffer | None]) -> tuple[tuple[int, int] | None, ...]:
        return tuple(buffer and (buffer.address, buffer.size) for buffer in buffers)

    found = {name: placed(batch.column(name).buffers()) for name in SCHEMA.names[:-1]}
    validity, ends, *pairs = placed(batch.column("user_properties").buffers())
    assert validity is None
    name, value = tuple(pairs[1:4]), tuple(pairs[4:])
    return found | {"user_properties": (None, ends), "name": name, "value": value}


def made(payloads: Sequence[bytes]) -> pa.RecordBatch:
    """With buffers of exactly the sizes that the columns need, as the engine's."""
    rows = [message(number, payload) for number, payload in enumerate(payloads)]
    read = pa.ipc.open_stream(HEAD + pa.RecordBatch.from_pylist(rows, SCHEMA).serialize().to_pybytes() + END)
    [batch] = read
    return batch


def packed(packer: Packer, batch: pa.RecordBatch) -> bytes:
    return b"".join(packer.pack(batch.num_rows, buffers_of(batch)))


@pytest.mark.parametrize("compression", ["none", "lz4", "zstd"])
@pytest.mark.parametrize("rows", [1, 15, 16, 17, 1000])
def test_arrow_reads_what_was_packed(compression: str, rows: int) -> None:
    packer = Packer(compression)
    for payload in (b"", b"21.5", os.urandom(200), b'{"celsius": 21.5}' * 20):
        batch = made([payload] * rows)
        table = pa.ipc.open_stream(HEAD + packed(packer, batch) * 2 + END).read_all()
        table.validate(full=True)
        assert table == pa.Table.from_batches([batch, batch])
        assert [column.null_count for column in table.columns] == [2 * column.null_count for column in batch]


def test_files_of_all_kinds_stand_side_by_side() -> None:
    batch = made([b'{"celsius": 21.5}'] * 100)
    kinds = [bytes(serialized_batch(batch))]  # by Arrow's writer, as before
    kinds += [packed(Packer(name), batch) for name in ("none", "lz4", "zstd")]
    assert pa.ipc.open_stream(HEAD + b"".join(kinds) + END).read_all() == pa.Table.from_batches([batch] * 4)
    some = Projection.of(("payload", "client_id"))
    found = pa.ipc.open_stream(some.head + some.of_batches(b"".join(kinds)) + END).read_all()
    assert found == pa.Table.from_batches([batch] * 4).select(["payload", "client_id"])


def test_what_gets_no_smaller_is_written_as_it_is_and_tried_again_later() -> None:
    packer = Packer("lz4")
    random, same = made([os.urandom(100) for _ in range(500)]), made([b"21.5" * 25] * 500)
    assert len(packed(packer, random)) > 500 * 100
    sizes = [len(packed(packer, same)) for _ in range(20)]
    assert min(sizes[:15]) > 500 * 100  # not tried
    assert max(sizes[15:]) < 500 * 80


def test_other_compressions_and_none() -> None:
    batch = made([b'{"celsius": 21.5, "humidity": 40}'] * 1000)
    sizes = {name: len(packed(Packer(name), batch)) for name in ("none", "lz4", "zstd")}
    assert sizes["zstd"] < sizes["lz4"] < sizes["none"] * 0.6
    small = made([b'{"celsius": 21.5, "humidity": 40}'] * 15)
    assert packed(Packer("zstd"), small) == packed(Packer("none"), small)
