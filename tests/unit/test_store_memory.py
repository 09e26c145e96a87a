"""The memory store keeps batches, in families, in key order, for as long as its object lives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tidemq.store import FAMILIES, MemoryStore

FAMILY = st.sampled_from(FAMILIES)
KEY = st.binary(max_size=3)
WRITE = st.tuples(FAMILY, KEY, st.none() | st.binary(max_size=4))


@given(st.lists(st.lists(WRITE, max_size=8), max_size=8), FAMILY, KEY)
def test_scan_and_get_agree_with_a_dict(batches, family, prefix):
    store, model = MemoryStore(), {}
    store.open()
    for batch in batches:
        store.write(batch)
        for name, key, value in batch:
            model.pop((name, key), None)
            if value is not None:
                model[name, key] = value
        expected = sorted((k, v) for (f, k), v in model.items() if f == family and k.startswith(prefix))
        assert list(store.scan(family, prefix)) == expected
        assert store.get(family, prefix) == model.get((family, prefix))


def test_a_scan_is_of_the_moment_it_was_asked():
    store = MemoryStore()
    store.write([("queue", b"a", b"1"), ("queue", b"b", b"2")])
    scan = store.scan("queue")
    store.write([("queue", b"b", None), ("queue", b"c", b"3")])
    assert list(scan) == [(b"a", b"1"), (b"b", b"2")]


def test_a_batch_with_an_unknown_family_changes_nothing():
    store = MemoryStore()
    with pytest.raises(KeyError):
        store.write([("queue", b"a", b"1"), ("quue", b"a", b"1")])
    assert store.get("queue", b"a") is None


def test_values_survive_close_and_open():
    store = MemoryStore()
    store.open()
    store.write([("session", b"c", b"1")])
    store.close()
    store.close()
    store.open()
    assert store.get("session", b"c") == b"1"
