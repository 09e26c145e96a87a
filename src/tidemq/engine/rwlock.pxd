"""POSIX readers-writer lock and the atomic builtins that Cython has no declarations for. Declarations only: nothing is
compiled from this file."""
from libc.stdint cimport int64_t, uint64_t

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_rwlock_t:
        pass
    ctypedef struct pthread_rwlockattr_t:
        pass
    int pthread_rwlockattr_init(pthread_rwlockattr_t* attributes)
    int pthread_rwlockattr_setkind_np(pthread_rwlockattr_t* attributes, int kind)
    int pthread_rwlockattr_destroy(pthread_rwlockattr_t* attributes)
    int pthread_rwlock_init(pthread_rwlock_t* lock, const pthread_rwlockattr_t* attributes)
    int pthread_rwlock_destroy(pthread_rwlock_t* lock)
    int pthread_rwlock_rdlock(pthread_rwlock_t* lock)
    int pthread_rwlock_wrlock(pthread_rwlock_t* lock)
    int pthread_rwlock_unlock(pthread_rwlock_t* lock)
    int PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP

    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* mutex, const void* attributes)
    int pthread_mutex_destroy(pthread_mutex_t* mutex)
    int pthread_mutex_lock(pthread_mutex_t* mutex)
    int pthread_mutex_unlock(pthread_mutex_t* mutex)

cdef extern from * nogil:
    int __ATOMIC_RELAXED
    int __ATOMIC_ACQUIRE
    int __ATOMIC_RELEASE
    uint64_t atomic_load_u64 "__atomic_load_n" (const uint64_t* at, int order)
    void atomic_store_u64 "__atomic_store_n" (uint64_t* at, uint64_t value, int order)
    int64_t atomic_load_i64 "__atomic_load_n" (const int64_t* at, int order)
    int64_t atomic_add_i64 "__atomic_add_fetch" (int64_t* at, int64_t value, int order)

# Readers must not take the lock twice: a waiting writer goes before new readers, so that a stream of matches cannot
# keep a SUBSCRIBE waiting.
cdef inline void init_rwlock(pthread_rwlock_t* lock) noexcept nogil:
    cdef pthread_rwlockattr_t attributes
    pthread_rwlockattr_init(&attributes)
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP)
    pthread_rwlock_init(lock, &attributes)
    pthread_rwlockattr_destroy(&attributes)
