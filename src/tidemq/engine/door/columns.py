"""What reactors captured for a stream, as columns: the buffers of Arrow arrays.

Row for row and without the GIL; Python sees whole columns only. The layout is Arrow's columnar format:
offsets of 32 bits, validity and booleans as bits, the lowest first.
"""

from __future__ import annotations

import cython
from cython.cimports.libc.stdint import int32_t, int64_t, uint8_t, uint32_t, uint64_t
from cython.cimports.libc.string import memcpy
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.base.asserting import ASSERTS, holds
from cython.cimports.tidemq.engine.link.replies import span_of
from cython.cimports.tidemq.engine.state.captured import CAPTURED_DUP, CAPTURED_RETAIN, CapturedHead
from cython.cimports.tidemq.wire.cursor import Cursor, read_binary, read_varint, write_u32
from cython.cimports.tidemq.wire.properties import skip_value
from cython.cimports.tidemq.wire.protocol import (
    FAULT_NONE,
    PROP_CONTENT_TYPE,
    PROP_CORRELATION_DATA,
    PROP_RESPONSE_TOPIC,
    PROP_USER_PROPERTY,
    Span,
)

_BATCH_BYTES = cython.declare(int64_t, 2 << 20)  # of topics and payloads; a message more is in it


def _set_bit(bits, row):
    """The row's bit of a column. Rows without are passed over: `_pad_bits` makes up for them."""
    if bits.size() <= cython.cast(cython.size_t, row >> 3):
        bits.resize((row >> 3) + 1, 0)
    bits[0][row >> 3] |= cython.cast(uint8_t, 1 << (row & 7))


def _pad_bits(bits, rows):
    bits.resize((rows + 7) >> 3, 0)


def _pad(texts, rows):
    """Rows without a text, up to so many."""
    texts.ends.resize(rows + 1, texts.ends.back())


def _put(texts, text):
    texts.data.append(cython.cast(cython.p_char, text.data), text.size)
    texts.ends.push_back(cython.cast(int32_t, texts.data.size()))


def _put_maybe(texts, row, text):
    """The row's of a column in which some are missing: those without data."""
    if text.data != cython.NULL:
        _pad(texts, row)
        _put(texts, text)
        _set_bit(cython.address(texts.valid), row)


def _put_properties(columns, block):
    """The 5.0 properties that have columns. The block was checked when it came."""
    content_type: Span = Span(cython.NULL, 0)
    response_topic: Span = Span(cython.NULL, 0)
    correlation_data: Span = Span(cython.NULL, 0)
    c: Cursor = Cursor(block.data, block.data + block.size, FAULT_NONE)
    while c.at < c.end:
        property_id: uint32_t = read_varint(cython.address(c))
        if property_id == PROP_CONTENT_TYPE:
            content_type = read_binary(cython.address(c))
        elif property_id == PROP_RESPONSE_TOPIC:
            response_topic = read_binary(cython.address(c))
        elif property_id == PROP_CORRELATION_DATA:
            correlation_data = read_binary(cython.address(c))
        elif property_id == PROP_USER_PROPERTY:
            _put(cython.address(columns.user_name), read_binary(cython.address(c)))
            _put(cython.address(columns.user_value), read_binary(cython.address(c)))
        else:
            skip_value(cython.address(c), property_id)
    columns.user_ends.resize(columns.rows + 1, columns.user_ends.back())
    columns.user_ends.push_back(cython.cast(int32_t, columns.user_name.ends.size() - 1))
    _put_maybe(cython.address(columns.content_type), columns.rows, content_type)
    _put_maybe(cython.address(columns.response_topic), columns.rows, response_topic)
    _put_maybe(cython.address(columns.correlation_data), columns.rows, correlation_data)


def _put_row(columns, head, at, offset, origin):
    """One message; ``at``: its texts."""
    row: int64_t = columns.rows
    message_id: uint8_t[16]
    columns.offset.push_back(offset)
    _put(cython.address(columns.topic), Span(at, head.topic_size))
    at += head.topic_size
    name: Span = Span(at, head.client_id_size)
    if name.size == 0:
        name.data = cython.NULL
    _put_maybe(cython.address(columns.client_id), row, name)
    at += head.client_id_size
    _put(cython.address(columns.payload), Span(at, head.payload_size))
    at += head.payload_size
    columns.qos.push_back(head.qos)
    if head.flags & CAPTURED_RETAIN:
        _set_bit(cython.address(columns.retain), row)
    if head.flags & CAPTURED_DUP:
        _set_bit(cython.address(columns.dup), row)
    columns.packet_id.push_back(head.packet_id)
    if head.packet_id:
        _set_bit(cython.address(columns.packet_id_valid), row)
    columns.received_us.push_back(head.received_us)
    write_u32(message_id, head.clock >> 32)
    write_u32(message_id + 4, cython.cast(uint32_t, head.clock))
    write_u32(message_id + 8, origin >> 32)
    write_u32(message_id + 12, cython.cast(uint32_t, origin))
    _put(cython.address(columns.message_id), Span(cython.address(message_id[0]), 16))
    if head.properties_size:
        _put_properties(columns, Span(at, head.properties_size))
    columns.rows += 1


def _complete(columns):
    """As many rows in those columns in which some are missing as in the others."""
    rows: int64_t = columns.rows
    _pad_bits(cython.address(columns.retain), rows)
    _pad_bits(cython.address(columns.dup), rows)
    _pad_bits(cython.address(columns.packet_id_valid), rows)
    _complete_texts(cython.address(columns.client_id), rows)
    _complete_texts(cython.address(columns.content_type), rows)
    _complete_texts(cython.address(columns.response_topic), rows)
    _complete_texts(cython.address(columns.correlation_data), rows)
    columns.user_ends.resize(rows + 1, columns.user_ends.back())
    if ASSERTS:
        _check(columns)


def _has_rows(texts, rows):
    ends: cython.size_t = rows + 1
    return texts.ends.size() == ends and cython.cast(cython.size_t, texts.ends.back()) == texts.data.size()


def _check(columns):
    rows: cython.size_t = columns.rows
    holds(
        columns.offset.size() == rows
        and columns.qos.size() == rows
        and columns.packet_id.size() == rows
        and columns.received_us.size() == rows
        and columns.user_ends.size() == rows + 1,
        b"columns: each has a number for each row",
    )
    holds(
        _has_rows(cython.address(columns.topic), columns.rows)
        and _has_rows(cython.address(columns.payload), columns.rows)
        and _has_rows(cython.address(columns.client_id), columns.rows)
        and _has_rows(cython.address(columns.message_id), columns.rows)
        and _has_rows(cython.address(columns.content_type), columns.rows)
        and _has_rows(cython.address(columns.response_topic), columns.rows)
        and _has_rows(cython.address(columns.correlation_data), columns.rows),
        b"columns: each has a text for each row",
    )


def _complete_texts(texts, rows):
    _pad(texts, rows)
    _pad_bits(cython.address(texts.valid), rows)


def _fill(columns, sections, section, place, stream, offset, origin):
    """Takes messages from where ``section`` and ``place`` point to, until there are enough for a batch."""
    head: CapturedHead
    while section[0] < sections.size():
        captured: cython.pointer[string] = cython.address(sections[0][section[0]].captured)
        data: cython.pointer[cython.const[uint8_t]] = span_of(captured).data
        while place[0] < captured.size():
            memcpy(cython.address(head), data + place[0], cython.sizeof(CapturedHead))
            place[0] += cython.sizeof(CapturedHead)
            if head.streams & stream:
                _put_row(columns, cython.address(head), data + place[0], offset + columns.rows, origin)
            place[0] += head.topic_size + head.client_id_size
            place[0] += cython.cast(cython.size_t, head.payload_size) + head.properties_size
            holds(place[0] <= captured.size(), b"columns: messages end where their section does")
            if cython.cast(int64_t, columns.topic.data.size() + columns.payload.data.size()) > _BATCH_BYTES:
                return
        section[0] += 1
        place[0] = 0


def _clear_texts(texts):
    texts.ends.clear()
    texts.ends.push_back(0)
    texts.data.clear()
    texts.valid.clear()


def _clear(columns):
    """No rows; the memory is kept for the next."""
    columns.rows = 0
    columns.offset.clear()
    _clear_texts(cython.address(columns.topic))
    _clear_texts(cython.address(columns.payload))
    columns.qos.clear()
    columns.retain.clear()
    columns.dup.clear()
    columns.packet_id.clear()
    columns.packet_id_valid.clear()
    _clear_texts(cython.address(columns.client_id))
    columns.received_us.clear()
    _clear_texts(cython.address(columns.message_id))
    _clear_texts(cython.address(columns.content_type))
    _clear_texts(cython.address(columns.response_topic))
    _clear_texts(cython.address(columns.correlation_data))
    columns.user_ends.clear()
    columns.user_ends.push_back(0)
    _clear_texts(cython.address(columns.user_name))
    _clear_texts(cython.address(columns.user_value))


def _place(data, size):
    return cython.cast(cython.size_t, data), size


def _bits(bits):
    return _place(bits.data(), bits.size()) if bits.size() else None


def _text_buffers(texts):
    """Validity, offsets and data."""
    return (
        _bits(cython.address(texts.valid)),
        _place(texts.ends.data(), texts.ends.size() * 4),
        _place(texts.data.data(), texts.data.size()),
    )


def _find_ends(columns, first_us, last_us):
    """When the first and the last of the messages came, one at least: they stand reactor by reactor."""
    time_us: int64_t = columns.received_us[0]
    first_us[0] = last_us[0] = time_us
    row: int64_t
    for row in range(1, columns.rows):
        time_us = columns.received_us[row]
        if time_us < first_us[0]:
            first_us[0] = time_us
        if time_us > last_us[0]:
            last_us[0] = time_us


@cython.cclass
class CapturedRows:
    """The messages of some sections for one stream, as batches of columns; iterate over it once.

    A batch is when its first and its last message came (µs of the wall clock), the buffers of each column by
    name, and the number of rows. A buffer is an address and a size, or None; it is good until the next batch
    is asked for, or another object is made with the same ``columns``.
    """

    def __iter__(self) -> CapturedRows:
        return self

    def __next__(self) -> tuple:
        columns: cython.pointer[Columns] = self.columns
        first_us: int64_t = 0
        last_us: int64_t = 0
        with cython.nogil:
            _clear(columns)
            _fill(
                columns,
                self.sections,
                cython.address(self.section),
                cython.address(self.place),
                self.stream,
                self.offset,
                self.origin,
            )
            _complete(columns)
            if columns.rows:
                _find_ends(columns, cython.address(first_us), cython.address(last_us))
        rows: int64_t = columns.rows
        if rows == 0:
            raise StopIteration
        self.offset += rows
        return first_us, last_us, self._buffers(), rows

    def _buffers(self):
        columns: cython.pointer[Columns] = self.columns
        return {
            "offset": (None, _place(columns.offset.data(), columns.rows * 8)),
            "topic": _text_buffers(cython.address(columns.topic)),
            "payload": _text_buffers(cython.address(columns.payload)),
            "qos": (None, _place(columns.qos.data(), columns.rows)),
            "retain": (None, _bits(cython.address(columns.retain))),
            "dup": (None, _bits(cython.address(columns.dup))),
            "packet_id": (
                _bits(cython.address(columns.packet_id_valid)),
                _place(columns.packet_id.data(), columns.rows * 4),
            ),
            "client_id": _text_buffers(cython.address(columns.client_id)),
            "received": (None, _place(columns.received_us.data(), columns.rows * 8)),
            "message_id": _text_buffers(cython.address(columns.message_id)),
            "content_type": _text_buffers(cython.address(columns.content_type)),
            "response_topic": _text_buffers(cython.address(columns.response_topic)),
            "correlation_data": _text_buffers(cython.address(columns.correlation_data)),
            "user_properties": (None, _place(columns.user_ends.data(), columns.user_ends.size() * 4)),
            "name": _text_buffers(cython.address(columns.user_name)),
            "value": _text_buffers(cython.address(columns.user_value)),
        }


def captured_rows(columns, sections, stream, first_offset, origin):
    """The rows of a stream in these sections, which outlive the result, as does ``columns``."""
    result = CapturedRows()
    result.columns = columns
    result.sections = sections
    result.stream = cython.cast(uint64_t, 1) << stream
    result.offset = first_offset
    result.origin = origin
    return result
