from libc.stdint cimport uint32_t, uint64_t, uint8_t
from libcpp.string cimport string
from libcpp.vector cimport vector

from tidemq.engine.index.levels cimport LevelTree
from tidemq.engine.base.system cimport pthread_mutex_t, pthread_rwlock_t
from tidemq.wire.protocol cimport Span

cdef enum:
    VISITS_PER_MESSAGE = 8             # nodes that a slice may visit, for each message that it may report

cdef cppclass RetainedIndex:
    pthread_rwlock_t lock
    uint64_t count                     # messages
    LevelTree* topics                  # topic name -> message
    RetainedWalk* walks                # those that wait between two slices
    pthread_mutex_t walks_mutex        # around every use of the list; the lock is taken before it

# A look-up by topic filter that goes on from slice to slice. A topic that holds a message during the whole walk is
# reported exactly once, with the message that it holds then; one that gains or loses its message meanwhile may be
# reported or not.
cdef struct RetainedWalk:
    RetainedIndex* index
    uint32_t node                      # visited next
    uint32_t level_count               # levels of the filter, a last `#` not counted
    uint32_t depth                     # of the node; the root's is 0
    bint multi_level                   # the filter ends with `#`
    bint done
    bint waiting                       # is in the index's list
    RetainedWalk* next_walk
    RetainedWalk* previous_walk
    Span* levels                       # of the filter's copy; allocated with the walk

cdef RetainedIndex* new_retained_index() noexcept nogil
cdef void free_retained_index(RetainedIndex* index) noexcept nogil   # messages are the caller's: take them all out first; no walk may be open

cdef void lock_shared(RetainedIndex* index) noexcept nogil      # not twice by one thread
cdef void unlock_shared(RetainedIndex* index) noexcept nogil
cdef void lock_exclusive(RetainedIndex* index) noexcept nogil
cdef void unlock_exclusive(RetainedIndex* index) noexcept nogil

# Both need the exclusive lock. They return the message that the topic held, NULL if none: the caller owns it now.
cdef void* put_retained(RetainedIndex* index, Span topic, void* message) noexcept nogil
cdef void* remove_retained(RetainedIndex* index, Span topic) noexcept nogil

# These need the shared (or the exclusive) lock. Take references to what they report before unlocking.
cdef void* find_retained(RetainedIndex* index, Span topic) noexcept nogil   # NULL: none
# Appends at most `messages_max` messages and looks at a bounded number of topics, so a slice may be empty before the
# walk's end. Returns whether more may follow.
cdef bint continue_walk(RetainedWalk* walk, uint32_t messages_max, vector[void*]* messages) noexcept nogil
# Where a walk that has more stands, and a walk that has not begun goes on from such a place. False: it cannot be one
# of this walk's. Where the topic has gone meanwhile it goes on at the level above, and reports some once more.
cdef void walk_place(RetainedWalk* walk, string* place) noexcept nogil
cdef bint resume_walk(RetainedWalk* walk, Span place) noexcept nogil

# These need no lock. A walk must be closed, ended or not, before its index is freed.
cdef RetainedWalk* open_walk(RetainedIndex* index, Span filter) noexcept nogil
cdef void close_walk(RetainedWalk* walk) noexcept nogil

# of this module alone
cdef uint32_t count_levels(Span text) noexcept nogil
cdef bint is_wildcard(Span level, uint8_t byte) noexcept nogil
cdef bint _leads_to(RetainedWalk* walk, Span level, uint32_t depth) noexcept nogil
cdef bint takes_all(RetainedWalk* walk, uint32_t depth) noexcept nogil
cdef uint32_t skip_reserved(RetainedWalk* walk, uint32_t node, uint32_t depth) noexcept nogil
cdef uint32_t first_below(RetainedWalk* walk) noexcept nogil
cdef void step_over(RetainedWalk* walk) noexcept nogil
cdef void step(RetainedWalk* walk) noexcept nogil
cdef void stand(RetainedWalk* walk, int change) noexcept nogil
cdef void start_waiting(RetainedWalk* walk) noexcept nogil
cdef void stop_waiting(RetainedWalk* walk) noexcept nogil
cdef void move_walks(RetainedIndex* index, uint32_t node) noexcept nogil
