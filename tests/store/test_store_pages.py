"""Of a damaged SQLite file, rows on damaged pages are lost and no others."""

from __future__ import annotations

import random
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tidemq.errors import StoreError
from tidemq.store import FAMILIES
from tidemq.store.sqlite import SQLiteStore

PAGE = 4096
SMALL, LARGE, DELETED = 9000, 30, 1500
Rows = dict[bytes, bytes]


def make_row(number: int) -> tuple[bytes, bytes]:
    """Wherever a page holds some of it, its mark is there."""
    size = random.Random(number).randrange(20, 120) if number < SMALL else 20_000
    key = b"<%06d>" % number
    return key, key * (size // len(key))


LARGE_KEYS = [make_row(number)[0] for number in range(SMALL, SMALL + LARGE)]


@pytest.fixture(scope="module")
def snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two families with the same keys, some rows longer than a page, and pages that are not in use."""
    data = tmp_path_factory.mktemp("pages") / "data"
    store = SQLiteStore(data)
    store.open()
    rows = [make_row(number) for number in range(SMALL + LARGE)]
    random.Random(1).shuffle(rows)
    store.write([("queue", *row) for row in rows], sync=True)
    store.write([("retained", *row) for row in rows[:SMALL]], sync=True)
    gone = [make_row(number)[0] for number in range(DELETED)]
    store.write([(family, key, None) for family in ("queue", "retained") for key in gone], sync=True)
    store.close()
    return data


@pytest.fixture
def data(snapshot: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(snapshot, tmp_path / "data"))


def file_of(data: Path) -> Path:
    return data / "sqlite/tidemq.db"


def read_all(store: SQLiteStore) -> dict[str, Rows]:
    return {family: dict(store.scan(family)) for family in FAMILIES}


def read_whole(data: Path) -> dict[str, Rows]:
    store = SQLiteStore(data)
    assert store.open() == []
    rows = read_all(store)
    store.close()
    return rows


def pages_of(data: Path, family: str, kind: int) -> list[int]:
    """The pages of a table's tree that are of a type, its root first."""
    database = sqlite3.connect(file_of(data))
    (root,) = database.execute("SELECT rootpage FROM sqlite_master WHERE name = ?", [family]).fetchone()
    database.close()
    text = file_of(data).read_bytes()
    found, todo = [], [root]
    while todo:
        number = todo.pop(0)
        page = text[(number - 1) * PAGE : number * PAGE]
        found += [number] * (page[0] == kind)
        if page[0] == INTERIOR:
            count = int.from_bytes(page[3:5])
            places = [int.from_bytes(page[12 + 2 * index : 14 + 2 * index]) for index in range(count)]
            todo += [int.from_bytes(page[place : place + 4]) for place in (*places, 8)]
    return found


INTERIOR, LEAF = 2, 10
FILLINGS: list[Callable[[int], bytes]] = [
    lambda _: b"\xff" * PAGE,
    lambda _: bytes(PAGE),
    lambda number: random.Random(number).randbytes(PAGE),
]


def damage(data: Path, numbers: list[int], fill: Callable[[int], bytes] = FILLINGS[0]) -> set[bytes]:
    """Overwrites pages; the marks of the rows that were on them."""
    text = bytearray(file_of(data).read_bytes())
    marks: set[bytes] = set()
    for number in numbers:
        page = text[(number - 1) * PAGE : number * PAGE]
        marks |= {key for key in (make_row(each)[0] for each in range(SMALL + LARGE)) if key in page}
        text[(number - 1) * PAGE : number * PAGE] = fill(number)
    file_of(data).write_bytes(text)
    return marks


def check(data: Path, before: dict[str, Rows], lost: set[bytes]) -> None:
    """All rows but those are there, and no others, once they have been read."""
    store = SQLiteStore(data)
    store.open()
    read_all(store)
    found = read_all(store)
    for family, rows in before.items():
        assert found[family].items() <= rows.items()
        assert rows.keys() - found[family].keys() <= lost, family
    store.close()
    assert read_whole(data) == found


@pytest.mark.parametrize("fill", FILLINGS)
@pytest.mark.parametrize("family", ["queue", "retained"])
def test_rows_between_two_damaged_pages_are_kept(data: Path, family: str, fill: Callable[..., Any]) -> None:
    before = read_whole(data)
    leaves = pages_of(data, family, LEAF)
    lost = damage(data, [leaves[2], leaves[len(leaves) // 2], leaves[-3]], fill)
    assert 0 < len(lost) < 200
    check(data, before, lost)


@pytest.mark.parametrize("fill", FILLINGS)
@pytest.mark.parametrize("which", [0, -1])
def test_what_hangs_below_a_damaged_page_is_found(data: Path, which: int, fill: Callable[..., Any]) -> None:
    before = read_whole(data)
    interior = pages_of(data, "queue", INTERIOR)
    leaves = pages_of(data, "retained", LEAF)
    assert len(interior) > 1 or which == 0
    check(data, before, damage(data, [interior[which], leaves[3]], fill))


def test_a_row_whose_rest_is_on_a_damaged_page_is_lost_alone(data: Path) -> None:
    before = read_whole(data)
    number = file_of(data).read_bytes().index(make_row(SMALL + 3)[0] * 400) // PAGE + 1
    lost = damage(data, [number])
    assert lost == {make_row(SMALL + 3)[0]}
    check(data, before, lost)


def test_a_row_between_two_pages_whose_rest_is_damaged_is_lost_alone(data: Path) -> None:
    before = read_whole(data)
    text = file_of(data).read_bytes()
    page = pages_of(data, "queue", INTERIOR)[-1]
    (key, *_) = (key for key in LARGE_KEYS if key in text[(page - 1) * PAGE : page * PAGE])
    damage(data, [text.index(key * 400) // PAGE + 1])
    check(data, before, {key})


def test_where_the_first_page_is_damaged_all_rows_are_kept(data: Path) -> None:
    before = read_whole(data)
    damage(data, [1])
    with pytest.raises(StoreError, match="not a database"):
        SQLiteStore(data, strict=True).open()
    check(data, before, set())


def test_a_compacted_file_has_its_tables_where_they_are_looked_for(data: Path) -> None:
    store = SQLiteStore(data)
    store.open()
    store.compact()
    store.close()
    before = read_whole(data)
    damage(data, [1])
    check(data, before, set())


@pytest.mark.parametrize(
    "seed", [0, 1, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(2, 12))]
)
def test_whatever_leaves_are_damaged_no_other_row_is_lost(data: Path, seed: int) -> None:
    chance = random.Random(seed)
    before = read_whole(data)
    leaves = pages_of(data, "queue", LEAF) + pages_of(data, "retained", LEAF)
    numbers = chance.sample(leaves, chance.randrange(1, 30))
    check(data, before, damage(data, numbers, chance.choice(FILLINGS)))
