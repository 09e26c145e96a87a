"""A dump holds every row, any engine takes it back, and a damaged or cut one is refused."""

from __future__ import annotations

import io
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemq.errors import StoreError
from tidemq.store import FAMILIES, MemoryStore
from tidemq.store.portable import MAGIC, fill_store, read_dump, read_store, set_aside_rows, write_dump

ROW = st.tuples(st.sampled_from(FAMILIES), st.binary(max_size=20), st.binary(max_size=40))
ROWS = [("queue", b"%d" % index, b"x" * index) for index in range(20)]


def dump(rows: list[tuple[str, bytes, bytes]]) -> bytes:
    file = io.BytesIO()
    assert write_dump(rows, file) == len(rows)
    return file.getvalue()


@given(st.lists(ROW))
def test_rows_come_back(rows: list[tuple[str, bytes, bytes]]) -> None:
    assert list(read_dump(io.BytesIO(dump(rows)))) == rows


def test_more_rows_than_a_block_and_large_ones_come_back() -> None:
    rows = [("payload", b"%06d" % index, bytes(5000)) for index in range(1000)]
    rows.insert(500, ("payload", b"big", bytes(3 << 20)))
    assert list(read_dump(io.BytesIO(dump(rows)))) == rows


def test_every_cut_is_found() -> None:
    text = dump(ROWS)
    for end in range(len(text)):
        with pytest.raises(StoreError, match=r"cut off|no dump"):
            list(read_dump(io.BytesIO(text[:end])))


def test_every_flipped_byte_is_found() -> None:
    text = dump(ROWS)
    for at in range(len(text)):
        damaged = bytearray(text)
        damaged[at] ^= 0x41
        with pytest.raises(StoreError):
            list(read_dump(io.BytesIO(damaged)))


def test_what_is_no_dump_is_refused_before_a_row_is_asked_for() -> None:
    for text in (b"", b"SQLite format 3\0", MAGIC + b"\0\2"):
        with pytest.raises(StoreError, match=r"no dump|has version 2, this version of TideMQ reads 1"):
            read_dump(io.BytesIO(text))


def test_a_family_of_a_later_version_is_refused() -> None:
    with pytest.raises(StoreError, match="unknown family 'later'"):
        list(read_dump(io.BytesIO(dump([("later", b"a", b"1")]))))


def test_a_store_is_filled_with_all_of_another() -> None:
    old, new = MemoryStore(), MemoryStore()
    old.open()
    old.write([*ROWS, ("meta", b"clock", bytes(8))], sync=True)
    assert fill_store(new, read_store(old)) == len(ROWS) + 2
    assert list(read_store(new)) == list(read_store(old))


@pytest.mark.parametrize("row_format", [None, b"1"])
def test_a_store_that_is_not_filled_to_the_end_stays_incomplete(row_format: bytes | None) -> None:
    store = MemoryStore()
    rows = ROWS if row_format is None else [*ROWS, ("meta", b"format", row_format)]
    with pytest.raises(StoreError, match="have format"):
        fill_store(store, rows)
    assert store.get("meta", b"format") == b"incomplete"


def test_rows_set_aside_are_a_dump_in_the_data_directory(tmp_path: Path) -> None:
    places = [set_aside_rows(tmp_path, rows) for rows in (ROWS, ROWS[:1])]
    assert [place.parent for place in places] == [tmp_path / "corrupt"] * 2
    for place, rows in zip(places, (ROWS, ROWS[:1]), strict=True):
        with place.open("rb") as file:
            assert list(read_dump(file)) == rows
