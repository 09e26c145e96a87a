"""The memory store, the model of the others, keeps batches in families, in key order, as a dict would."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemq.config import Config
from tidemq.store import FAMILIES, MemoryStore, make_memory_store

FAMILY = st.sampled_from(FAMILIES)
KEY = st.binary(max_size=3)
WRITE = st.tuples(FAMILY, KEY, st.none() | st.binary(max_size=4))


@given(st.lists(st.lists(WRITE, max_size=8), max_size=8), FAMILY, KEY, KEY)
def test_scan_and_get_agree_with_a_dict(
    batches: list[list[tuple[str, bytes, bytes | None]]], family: str, prefix: bytes, after: bytes
) -> None:
    store = MemoryStore()
    model: dict[Any, Any] = {}
    for batch in batches:
        store.write(batch, sync=True)
        for name, key, value in batch:
            model.pop((name, key), None)
            if value is not None:
                model[name, key] = value
        rows = sorted((k, v) for (f, k), v in model.items() if f == family and k.startswith(prefix))
        assert list(store.scan(family, prefix)) == rows
        behind = [row for row in rows if not after or row[0] > after]
        assert list(store.scan(family, prefix, after)) == behind
        assert store.get(family, prefix) == model.get((family, prefix))
        assert store.get_many(family, [after, prefix]) == [model.get((family, k)) for k in (after, prefix)]


def test_a_batch_with_an_unknown_family_changes_nothing() -> None:
    store = MemoryStore()
    with pytest.raises(KeyError):
        store.write([("queue", b"a", b"1"), ("quue", b"a", b"1")], sync=True)
    assert store.get("queue", b"a") is None


def test_values_survive_close_and_open() -> None:
    store = MemoryStore()
    assert store.open() == []
    store.write([("session", b"c", b"1")], sync=True)
    store.close()
    store.close()
    assert store.open() == []
    assert store.get("session", b"c") == b"1"
    assert store.size_bytes() == 0


def test_the_broker_s_store_of_that_name_is_none() -> None:
    assert make_memory_store(Config(), {}) is None  # type: ignore[func-returns-value]
