"""Which changes of the subscription index concern a topic, told without a look at the filters that changed.

Each filter has one mark, a number below ``MARKS``, and each topic name has ten, among which is the mark of
every filter that matches it. So what is known of a topic still holds when none of its marks has moved since.
Others may share a mark by chance: then a topic is looked up once more than it had to be.

A filter without wildcard is marked by its text; one with ``#`` by the levels before its first wildcard, four
at most; any other by how many levels it has and by its first and its last one. A topic has the marks of the
filters of these forms that match it: one of the first, five of the second, four of the third.

The marks are keyed with a secret from the system: who chooses filters cannot choose those that share a mark
with somebody's topics.
"""

import cython
from cython.cimports.libc.stdint import uint8_t, uint16_t, uint32_t, uint64_t
from cython.cimports.libc.stdlib import abort
from cython.cimports.tidemq.engine.base.asserting import holds
from cython.cimports.tidemq.engine.base.system import getrandom
from cython.cimports.tidemq.engine.index.levels import (
    LevelReader,
    fold_multiply,
    load_u32,
    load_u64,
    next_level,
    read_levels,
)
from cython.cimports.tidemq.engine.index.marks import MARKED_LEVELS, MARKS, MARKS_OF_TOPIC
from cython.cimports.tidemq.wire.protocol import Span
from cython.cimports.tidemq.wire.topics import HASH, PLUS

_EXACT = cython.declare(uint64_t, 1)  # the forms of filters
_BELOW = cython.declare(uint64_t, 2)
_BETWEEN = cython.declare(uint64_t, 3)


def draw_marks(marks):
    """Draws the secret; no mark has moved yet. Ends the process where the system has no random numbers."""
    size: cython.Py_ssize_t = cython.sizeof(uint64_t) * 2
    if getrandom(marks.secret, size, 0) != size:
        abort()
    marks.secret[1] |= 1


def _hash(marks, level):
    """A keyed hash of a level's bytes; every step multiplies two values that both depend on the secret."""
    at: cython.pointer[cython.const[uint8_t]] = level.data
    left: uint32_t = level.size
    state: uint64_t = marks.secret[0] ^ (level.size * cython.cast(uint64_t, 0x9E3779B97F4A7C15))
    while left >= 8:
        state = fold_multiply(load_u64(at) ^ marks.secret[1], state)
        at += 8
        left -= 8
    rest: uint64_t = 0
    if left >= 4:
        rest = load_u32(at) << 32 | load_u32(at + left - 4)
    elif left > 0:
        rest = cython.cast(uint64_t, at[0]) << 16 | cython.cast(uint64_t, at[left >> 1]) << 8 | at[left - 1]
    return fold_multiply(rest ^ marks.secret[1], state)


def _extend(marks, path, level):
    """The hash of a path with one level more."""
    return fold_multiply(path ^ level, marks.secret[1]) + 1


def _mark(marks, form, hash):
    mixed: uint64_t = fold_multiply(hash ^ marks.secret[0], marks.secret[1] + (form << 32))
    return cython.cast(uint16_t, (mixed ^ mixed >> 32) & (MARKS - 1))


def _mark_between(marks, count, first, last):
    """Of filters with ``+`` and so many levels; a level's hash is 0 where it is the ``+``."""
    return _mark(marks, _BETWEEN, _extend(marks, _extend(marks, count, first), last))


def mark_of_all(marks):
    return _mark(marks, _BELOW, 0)


def mark_of_filter(marks, filter):
    reader: LevelReader = read_levels(filter)
    level = cython.declare(Span)
    path: uint64_t = 0  # of all levels
    before: uint64_t = 0  # of those before the first wildcard
    first: uint64_t = 0
    last: uint64_t = 0
    count: uint32_t = 0
    wild: cython.bint = False
    while next_level(cython.address(reader), cython.address(level)):
        if level.size == 1 and level.data[0] == HASH:
            return _mark(marks, _BELOW, before)
        last = 0
        if level.size == 1 and level.data[0] == PLUS:
            wild = True
        else:
            last = _hash(marks, level)
            path = _extend(marks, path, last)
            if not wild and count < MARKED_LEVELS:
                before = path
        if count == 0:
            first = last
        count += 1
    return _mark_between(marks, count, first, last) if wild else _mark(marks, _EXACT, path)


def marks_of_topic(marks, topic, out):
    reader: LevelReader = read_levels(topic)
    level = cython.declare(Span)
    path: uint64_t = 0
    first: uint64_t = 0
    last: uint64_t = 0
    count: uint32_t = 0
    at: uint32_t
    out[0] = mark_of_all(marks)
    while next_level(cython.address(reader), cython.address(level)):
        last = _hash(marks, level)
        path = _extend(marks, path, last)
        if count == 0:
            first = last
        count += 1
        if count <= MARKED_LEVELS:
            out[count] = _mark(marks, _BELOW, path)
    for at in range(count + 1, cython.cast(uint32_t, MARKED_LEVELS) + 1):
        out[at] = out[0]
    out += MARKED_LEVELS + 1
    out[0] = _mark(marks, _EXACT, path)
    out[1] = _mark_between(marks, count, first, last)
    out[2] = _mark_between(marks, count, 0, last)
    out[3] = _mark_between(marks, count, first, 0)
    out[4] = _mark_between(marks, count, 0, 0)


def check_mark(marks, filter, mark):
    """A filter whose wildcards are taken for words is a topic that it matches."""
    own: uint16_t[MARKS_OF_TOPIC]
    at: cython.int
    found: cython.bint = False
    holds(mark < MARKS, b"marks: each is below their number")
    marks_of_topic(marks, filter, own)
    for at in range(MARKS_OF_TOPIC):
        found = found or own[at] == mark
    holds(found, b"marks: a topic has that of each filter that matches it")
