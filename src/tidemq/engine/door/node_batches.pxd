from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from tidemq.engine.base.hashing cimport SeededHash
from tidemq.engine.state.nodes cimport NodeRecord
from tidemq.wire.protocol cimport Fault, Span

cdef enum BatchFault:            # what is wrong with a batch
    BATCH_WHOLE = 0
    BATCH_NO_HEAD
    BATCH_FOREIGN                # not of this magic
    BATCH_FORMAT                 # of none that this node reads
    BATCH_CUT                    # a record goes beyond the end
    BATCH_KIND
    BATCH_FIELD                  # a field has a value that it cannot have
    BATCH_TOPIC
    BATCH_GROUP
    BATCH_PROPERTIES
    BATCH_TAKERS                 # who takes what was offered

cdef struct BatchFormats:         # of batches, that this node reads
    uint32_t lowest
    uint32_t highest

cdef struct BatchCheck:
    BatchFault fault
    size_t at                    # of the record that is wrong

cdef BatchCheck check_batch(Span batch, BatchFormats formats) noexcept nogil
# Deals out the records of a batch that was checked, to as many reactors as there are strings. Notes the last id of
# each of the sender's reactors, 64 at most, and returns its incarnation.
cdef uint64_t deal_batch(
    Span batch, const SeededHash* hash, vector[string]* dealt, unsigned long long* taken
) noexcept nogil
# Where a piece ends that begins at `at`, is no larger than `bytes_max`, and has at least one record.
cdef size_t cut_records(const string* records, size_t at, size_t bytes_max) noexcept nogil

# of this module alone
cdef size_t _record_size(const NodeRecord* record) noexcept nogil
cdef BatchFault _check_record(const NodeRecord* record, const uint8_t* at) noexcept nogil
cdef BatchFault _check_answer(const NodeRecord* record, const uint8_t* at) noexcept nogil
cdef bint _are_takers(const uint8_t* at, const uint8_t* end) noexcept nogil
cdef BatchFault _check_message(const NodeRecord* record) noexcept nogil
cdef bint _is_group(Span text) noexcept nogil
cdef bint _is_topic(Span topic) noexcept nogil
cdef bint _are_properties(const uint8_t* at, uint32_t size) noexcept nogil
