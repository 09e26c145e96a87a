"""Steps of a turn, counted in builds that check invariants (`make assert`). In all others `count_steps` and the like are
nothing."""
from libc.stdint cimport uint64_t
from libcpp cimport bool

from tidemq.engine.base.asserting cimport ASSERTS

cdef extern from *:
    """
    typedef struct { bool in_turn; uint64_t taken, allowed; } tidemq_steps_t;
    static inline tidemq_steps_t *tidemq_steps(void) { static thread_local tidemq_steps_t steps; return &steps; }
    """
    ctypedef struct StepCount "tidemq_steps_t":
        bint in_turn
        uint64_t taken
        uint64_t allowed
    StepCount* own_step_count "tidemq_steps" () noexcept nogil   # of this thread; for `steps.py` alone

cdef enum:
    STEPS_MAX = 20000            # of a turn that is given nothing to do
    STEPS_PER_PACKET = 64        # more, for each packet and each mail that it handles
    STEPS_PER_RECEIVER = 8       # more, for each receiver of these, up to so many, see work.pxd

cdef void begin_counting() noexcept nogil
cdef void end_counting() noexcept nogil
cdef void take_steps(uint64_t count) noexcept nogil
cdef void grant_steps(uint64_t count) noexcept nogil

cdef inline void begin_turn() noexcept nogil:
    if ASSERTS:
        begin_counting()

cdef inline void end_turn() noexcept nogil:
    if ASSERTS:
        end_counting()

# In each loop of a turn over things of which there can be many. Outside a turn it counts nothing.
cdef inline void count_steps(uint64_t count) noexcept nogil:
    if ASSERTS:
        take_steps(count)

# For packets and mails that the turn handles.
cdef inline void allow_steps(uint64_t packets) noexcept nogil:
    if ASSERTS:
        grant_steps(packets * STEPS_PER_PACKET)

# For those who get a message, or are asked about it: that is one piece of work, and is not spread over turns.
cdef inline void allow_receivers(uint64_t receivers) noexcept nogil:
    if ASSERTS:
        grant_steps(receivers * STEPS_PER_RECEIVER)
