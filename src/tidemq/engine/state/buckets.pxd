"""Tables that are gone through in parts, a bucket at a time: what changes meanwhile may do so as long as the table has
as many buckets as when that began; where it has got more, one begins anew."""
from libc.stdint cimport uint64_t
from libcpp.string cimport string
from libcpp.unordered_map cimport unordered_map
from libcpp.vector cimport vector

from tidemq.engine.state.client cimport Session, SubscriptionMap

cdef extern from * nogil:
    """
    #ifndef TIDEMQ_BUCKETS
    #define TIDEMQ_BUCKETS
    template <class Table, class Keys>
    static inline void tidemq_keys_in(const Table& table, size_t bucket, Keys& keys) {
        for (auto each = table.begin(bucket); each != table.end(bucket); ++each) keys.push_back(each->first);
    }
    #endif
    """
    void sessions_in "tidemq_keys_in"(unordered_map[uint64_t, Session*]& table, size_t bucket, vector[uint64_t]& numbers)
    void filters_in "tidemq_keys_in"(SubscriptionMap& table, size_t bucket, vector[string]& filters)
