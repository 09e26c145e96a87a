from libc.stdint cimport int32_t, uint32_t, uint64_t

cdef struct Attributes:          # struct sched_attr of sched_setattr(2), in its first version
    uint32_t size
    uint32_t policy
    uint64_t flags
    int32_t nice
    uint32_t priority
    uint64_t slice_ns            # sched_runtime: of SCHED_OTHER and SCHED_BATCH, since Linux 6.12
    uint64_t deadline_ns
    uint64_t period_ns

cdef void ask_for_short_slices() noexcept nogil
