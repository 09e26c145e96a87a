"""Invariants, checked in builds for it (`make assert`). In all others `holds` is nothing."""
cdef extern from *:
    """
    #ifdef TIDEMQ_ASSERT
    #define TIDEMQ_ASSERTS 1
    #else
    #define TIDEMQ_ASSERTS 0
    #endif
    """
    const bint ASSERTS "TIDEMQ_ASSERTS"   # for what is needed to check alone: `if ASSERTS: ...`

cdef extern from *:
    """
    static inline int *tidemq_thread(void) { static thread_local int thread; return &thread; }
    """
    int* own_thread "tidemq_thread" () noexcept nogil   # 1 + the reactor whose it is; for `asserting.py` alone

cdef void end_process() noexcept nogil
cdef void set_reactor(int index) noexcept nogil          # the calling thread is that reactor's from now on
cdef bint may_touch(int index) noexcept nogil
cdef void report_broken(const char* invariant) noexcept nogil

# What follows it relies on `condition`, which has no effects. `invariant` says it in words, and once in the engine.
cdef inline void holds(bint condition, const char* invariant) noexcept nogil:
    if ASSERTS and not condition:
        report_broken(invariant)
