"""A stream's columns, and record batches as they are merged.

Plain types only, all nullable, in a fixed order: Spark's Python data sources take no others (docs/streams.md
has the meaning of each column).
"""

from __future__ import annotations

import pyarrow as pa
from crc32c import crc32c

_PAIR = pa.struct([pa.field("name", pa.string()), pa.field("value", pa.string())])

SCHEMA = pa.schema(
    [
        pa.field("offset", pa.int64()),
        pa.field("topic", pa.string()),
        pa.field("payload", pa.binary()),
        pa.field("qos", pa.int8()),
        pa.field("retain", pa.bool_()),
        pa.field("dup", pa.bool_()),
        pa.field("packet_id", pa.int32()),
        pa.field("client_id", pa.string()),
        pa.field("received", pa.timestamp("us", tz="UTC")),
        pa.field("message_id", pa.binary()),
        pa.field("content_type", pa.string()),
        pa.field("response_topic", pa.string()),
        pa.field("correlation_data", pa.binary()),
        pa.field("user_properties", pa.list_(_PAIR)),
    ]
)

HEAD: bytes = SCHEMA.serialize().to_pybytes()
"""What begins every Arrow IPC stream of a stream's messages."""

END = b"\xff\xff\xff\xff\x00\x00\x00\x00"
"""What ends one."""

COMPRESSED_ROWS_MIN = 16  # of a batch that is compressed


def serialized_batch(batch: pa.RecordBatch, compression: str = "lz4") -> memoryview:
    """A record batch as a message of an Arrow IPC stream, compressed (`none`, `lz4`, `zstd`) unless it is
    small.
    """
    if batch.num_rows < COMPRESSED_ROWS_MIN or compression == "none":
        return memoryview(batch.serialize())
    sink = pa.BufferOutputStream()
    options = pa.ipc.IpcWriteOptions(compression=compression, use_threads=False)
    writer = pa.ipc.new_stream(sink, batch.schema, options=options)
    writer.write_batch(batch)
    head = len(batch.schema.serialize())
    return memoryview(sink.getvalue())[head:]  # not closed: there is no end in it


def checksum(data: memoryview | bytes, before: int = 0) -> int:
    """CRC-32C, of bytes that follow those whose checksum is `before`."""
    return crc32c(data, before)
