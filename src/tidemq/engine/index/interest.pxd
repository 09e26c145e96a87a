from libcpp cimport bool
from libcpp.string cimport string
from libcpp.vector cimport vector

from tidemq.engine.index.subscriptions cimport SubscriptionIndex
from tidemq.wire.protocol cimport Span

# The exclusive lock is held.
cdef void note_interest(SubscriptionIndex* index, Span filter, Span group, bint there) noexcept nogil
# These need the shared (or the exclusive) lock. Those of the tree's nodes from `begin` on, so many; false: there are no more.
cdef bint list_filters(SubscriptionIndex* index, size_t begin, size_t count, vector[string]* found) noexcept nogil
cdef bint list_groups(SubscriptionIndex* index, size_t begin, size_t count, vector[string]* found) noexcept nogil

# `$share/group/filter`, or, where `group` is empty, the filter.
cdef string whole_filter(Span filter, Span group) noexcept nogil

# of this module alone
cdef bint _is_own(Span filter) noexcept nogil
