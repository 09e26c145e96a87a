"""What this node wants of others: the filters that have at least one session of it, with a client or without.

Ten million subscriptions to ten filters are ten filters. While somebody asks (``noting``), a filter that gets
its first session or loses its last one is noted, once however often that changes; what is noted last is what
is so. A shared group is its whole filter, ``$share/group/filter``, and is noted
also when a member comes or goes, or its client does. Filters of streams, plugins and other
nodes are nobody's wish here, and ``$SYS`` is each node's own.
"""

import cython
from cython.cimports.libc.string import memcmp
from cython.cimports.libcpp.string import string
from cython.cimports.tidemq.engine.index.levels import LevelNode, append_path, node_at
from cython.cimports.tidemq.engine.index.subscribers import Subscription, sessions_of
from cython.cimports.tidemq.engine.index.subscriptions import SharedGroup
from cython.cimports.tidemq.wire.protocol import Span


def _is_own(filter):
    return filter.size >= 5 and memcmp(filter.data, cython.cast(cython.p_char, b"$SYS/"), 5) == 0


def whole_filter(filter, group):
    """As SUBSCRIBE has it."""
    text: string
    if group.size:
        text.append(cython.cast(cython.p_char, b"$share/"))
        text.append(cython.cast(cython.p_char, group.data), group.size)
        text.push_back(0x2F)  # '/'
    text.append(cython.cast(cython.p_char, filter.data), filter.size)
    return text


def note_interest(index, filter, group, there):
    """A filter, or a shared group on it, has sessions now, or has none any more."""
    if not _is_own(filter):
        index.interest[whole_filter(filter, group)] = there


def list_filters(index, begin, count, found):
    """Appends the filters of a part of the tree that have sessions."""
    end: cython.size_t = min(begin + count, cython.cast(cython.size_t, index.filters.node_end))
    at: cython.size_t
    for at in range(begin, end):
        node: cython.pointer[LevelNode] = node_at(index.filters, cython.cast(cython.uint, at))
        if sessions_of(cython.cast(cython.pointer[Subscription], cython.address(node.value))):
            path: string
            path.clear()
            append_path(index.filters, node, cython.address(path))
            path.erase(0, 1)
            filter: Span = Span(
                cython.cast(cython.pointer[cython.const[cython.uchar]], path.data()),
                cython.cast(cython.uint, path.size()),
            )
            if not _is_own(filter):
                found.push_back(path)
    return end < index.filters.node_end


def list_groups(index, begin, count, found):
    """The same of shared groups."""
    end: cython.size_t = min(begin + count, cython.cast(cython.size_t, index.groups.node_end))
    at: cython.size_t
    for at in range(begin, end):
        group: cython.pointer[SharedGroup] = cython.cast(
            cython.pointer[SharedGroup], node_at(index.groups, cython.cast(cython.uint, at)).value
        )
        if group != cython.NULL and group.locals and not _is_own(group.filter):
            found.push_back(whole_filter(group.filter, group.name))
    return end < index.groups.node_end
