from libc.stdint cimport int32_t, int64_t, uint64_t, uint8_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from tidemq.engine.state.captured cimport CapturedHead
from tidemq.engine.state.section cimport Section
from tidemq.wire.protocol cimport Span

cdef cppclass Texts:                 # a column of texts or bytes, as Arrow lays them out
    vector[int32_t] ends             # where each begins, and where the last one ends
    string data
    vector[uint8_t] valid            # a bit each; empty: none is missing

cdef cppclass Columns:               # of some messages of one stream
    int64_t rows
    vector[int64_t] offset
    Texts topic
    Texts payload
    vector[uint8_t] qos
    vector[uint8_t] retain           # a bit each
    vector[uint8_t] dup
    vector[int32_t] packet_id
    vector[uint8_t] packet_id_valid
    Texts client_id
    vector[int64_t] received_us
    Texts message_id
    Texts content_type
    Texts response_topic
    Texts correlation_data
    vector[int32_t] user_ends
    Texts user_name
    Texts user_value

cdef class CapturedRows:
    cdef Columns* columns
    cdef vector[Section*]* sections
    cdef size_t section              # where it goes on
    cdef size_t place
    cdef uint64_t stream             # bit mask
    cdef int64_t offset
    cdef uint64_t origin
    cdef dict _buffers(self)

cdef CapturedRows captured_rows(
    Columns* columns, vector[Section*]* sections, int stream, int64_t first_offset, uint64_t origin
)

# of this module alone
cdef void _set_bit(vector[uint8_t]* bits, int64_t row) noexcept nogil
cdef void _pad_bits(vector[uint8_t]* bits, int64_t rows) noexcept nogil
cdef void _pad(Texts* texts, int64_t rows) noexcept nogil
cdef void _put(Texts* texts, Span text) noexcept nogil
cdef void _put_maybe(Texts* texts, int64_t row, Span text) noexcept nogil
cdef void _put_properties(Columns* columns, Span block) noexcept nogil
cdef void _put_row(
    Columns* columns, CapturedHead* head, const uint8_t* at, int64_t offset, uint64_t origin,
) noexcept nogil
cdef void _complete(Columns* columns) noexcept nogil
cdef void _complete_texts(Texts* texts, int64_t rows) noexcept nogil
cdef bint _has_rows(const Texts* texts, int64_t rows) noexcept nogil
cdef void _check(const Columns* columns) noexcept nogil
cdef void _fill(
    Columns* columns, vector[Section*]* sections, size_t* section, size_t* place, uint64_t stream, int64_t offset, uint64_t origin,
) noexcept nogil
cdef void _clear_texts(Texts* texts) noexcept nogil
cdef void _clear(Columns* columns) noexcept nogil
cdef tuple _place(const void* data, size_t size)
cdef object _bits(vector[uint8_t]* bits)
cdef tuple _text_buffers(Texts* texts)
cdef void _find_ends(Columns* columns, int64_t* first_us, int64_t* last_us) noexcept nogil
