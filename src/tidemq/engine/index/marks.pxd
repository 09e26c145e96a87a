from libc.stdint cimport uint16_t, uint64_t

from tidemq.wire.protocol cimport Span

cdef enum:
    MARKS = 4096                       # a power of two
    MARKS_OF_TOPIC = 10
    MARKED_LEVELS = 4                  # of what stands before the first wildcard of a filter with `#`

cdef struct Marks:
    uint64_t secret[2]
    uint64_t moved[4096]               # the index's version when a filter with this mark last came, changed or went

cdef void draw_marks(Marks* marks) noexcept nogil
cdef uint16_t mark_of_filter(const Marks* marks, Span filter) noexcept nogil   # one of those of each topic that it matches
cdef uint16_t mark_of_all(const Marks* marks) noexcept nogil                   # one of those of every topic
cdef void marks_of_topic(const Marks* marks, Span topic, uint16_t* out) noexcept nogil   # MARKS_OF_TOPIC of them

cdef void check_mark(const Marks* marks, Span filter, uint16_t mark) noexcept nogil   # for builds that check invariants

# of this module alone
cdef uint64_t _hash(const Marks* marks, Span level) noexcept nogil
cdef uint64_t _extend(const Marks* marks, uint64_t path, uint64_t level) noexcept nogil
cdef uint16_t _mark(const Marks* marks, uint64_t form, uint64_t hash) noexcept nogil
cdef uint16_t _mark_between(const Marks* marks, uint64_t count, uint64_t first, uint64_t last) noexcept nogil
