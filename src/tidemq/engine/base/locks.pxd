"""Locks, and the order in which a thread may take them (ARCHITECTURE, Locks): each alone, but INNER also under OUTER."""
from tidemq.engine.base.asserting cimport ASSERTS
from tidemq.engine.base.system cimport (
    pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock, pthread_rwlock_rdlock, pthread_rwlock_t,
    pthread_rwlock_unlock, pthread_rwlock_wrlock,
)

cdef enum:   # kinds of locks
    ALONE = 1
    OUTER = 2                    # RetainedIndex.lock
    INNER = 4                    # RetainedIndex.walks_mutex

cdef extern from *:
    """
    static inline int *tidemq_held(void) { static thread_local int held; return &held; }
    """
    int* own_held "tidemq_held" () noexcept nogil   # kinds that this thread holds; for `locks.py` alone

cdef void note_taken(int kind) noexcept nogil
cdef void note_released(int kind) noexcept nogil
cdef void check_none_held() noexcept nogil

cdef inline void lock(pthread_mutex_t* mutex) noexcept nogil:
    if ASSERTS:
        note_taken(ALONE)
    pthread_mutex_lock(mutex)

cdef inline void unlock(pthread_mutex_t* mutex) noexcept nogil:
    if ASSERTS:
        note_released(ALONE)
    pthread_mutex_unlock(mutex)

cdef inline void lock_inner(pthread_mutex_t* mutex) noexcept nogil:
    if ASSERTS:
        note_taken(INNER)
    pthread_mutex_lock(mutex)

cdef inline void unlock_inner(pthread_mutex_t* mutex) noexcept nogil:
    if ASSERTS:
        note_released(INNER)
    pthread_mutex_unlock(mutex)

# Not twice by one thread: waiting writers go before new readers.
cdef inline void lock_to_read(pthread_rwlock_t* lock, int kind) noexcept nogil:
    if ASSERTS:
        note_taken(kind)
    pthread_rwlock_rdlock(lock)

cdef inline void lock_to_write(pthread_rwlock_t* lock, int kind) noexcept nogil:
    if ASSERTS:
        note_taken(kind)
    pthread_rwlock_wrlock(lock)

cdef inline void unlock_rwlock(pthread_rwlock_t* lock, int kind) noexcept nogil:
    if ASSERTS:
        note_released(kind)
    pthread_rwlock_unlock(lock)

# No message is delivered, sent or freed under a lock.
cdef inline void under_no_lock() noexcept nogil:
    if ASSERTS:
        check_none_held()
