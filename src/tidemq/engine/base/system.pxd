"""The operating system's calls that the engine uses, and the compiler's atomic operations.

Nothing else of the engine calls the system (`tests/source/test_system.py`). `system.h` is what is included for them; a
build may put another header in its place."""
from libc.stdint cimport int64_t, uint16_t, uint32_t, uint64_t, uint8_t
from libcpp cimport bool

cdef extern from "system.h" nogil:  # <errno.h>
    int errno
    int EAGAIN
    int EINTR
    int EMFILE
    int ENFILE
    int ENOBUFS
    int ENOMEM

cdef extern from "system.h" nogil:  # <sys/mman.h>
    void* mmap(void* address, size_t size, int protection, int flags, int fd, int64_t offset)
    int munmap(void* address, size_t size)
    int madvise(void* address, size_t size, int advice)
    void* MAP_FAILED
    int MADV_HUGEPAGE
    int MAP_ANONYMOUS
    int MAP_NORESERVE
    int MAP_PRIVATE
    int PROT_READ
    int PROT_WRITE

cdef extern from "system.h" nogil:  # <sys/epoll.h>
    ctypedef union epoll_data_t:
        uint64_t u64
    cdef struct epoll_event:
        uint32_t events
        epoll_data_t data
    int epoll_create1(int flags)
    int epoll_ctl(int epfd, int op, int fd, epoll_event* event)
    int epoll_wait(int epfd, epoll_event* events, int maxevents, int timeout)
    int EPOLL_CTL_ADD
    int EPOLL_CTL_MOD
    int EPOLL_CTL_DEL
    int EPOLL_CLOEXEC
    uint32_t EPOLLIN
    uint32_t EPOLLOUT
    uint32_t EPOLLERR
    uint32_t EPOLLHUP
    uint32_t EPOLLEXCLUSIVE

cdef extern from "system.h" nogil:  # <sys/eventfd.h>
    int eventfd(unsigned int initval, int flags)
    int EFD_NONBLOCK
    int EFD_CLOEXEC

cdef extern from "system.h" nogil:  # <sys/uio.h>
    cdef struct iovec:
        void* iov_base
        size_t iov_len

cdef extern from "system.h" nogil:  # <sys/socket.h>
    ctypedef unsigned int socklen_t
    cdef struct sockaddr:
        pass
    cdef struct sockaddr_storage:
        unsigned short ss_family
    cdef struct msghdr:
        iovec* msg_iov
        size_t msg_iovlen
    int accept4(int fd, sockaddr* address, socklen_t* size, int flags)
    int getsockopt(int fd, int level, int name, void* value, socklen_t* size)
    int SOL_SOCKET
    int SO_PEERCRED
    cdef struct ucred:
        int pid
    int getpeername(int fd, sockaddr* address, socklen_t* size)
    int setsockopt(int fd, int level, int name, const void* value, socklen_t size)
    ssize_t recv(int fd, void* buffer, size_t size, int flags)
    ssize_t send(int fd, const void* buffer, size_t size, int flags)
    ssize_t sendmsg(int fd, const msghdr* message, int flags)
    int shutdown(int fd, int how)
    int SHUT_WR
    int SOCK_NONBLOCK
    int SOCK_CLOEXEC
    int MSG_NOSIGNAL
    int MSG_DONTWAIT
    int AF_INET
    int AF_INET6
    int AF_UNIX

cdef extern from "system.h" nogil:  # <sys/prctl.h>
    int prctl(int option, unsigned long value)
    int PR_SET_TIMERSLACK

cdef extern from "system.h" nogil:  # <sys/syscall.h>: glibc has these two only since 2.41
    long syscall(long number, int thread, void* attributes, unsigned int size_or_flags, ...)
    long SYS_sched_getattr
    long SYS_sched_setattr

cdef extern from "system.h" nogil:  # <sched.h>
    int SCHED_OTHER
    int SCHED_BATCH

cdef extern from "system.h" nogil:  # <sys/ioctl.h>
    int ioctl(int fd, unsigned long request, int* value)

cdef extern from "system.h" nogil:  # <linux/sockios.h>
    unsigned long SIOCOUTQ

cdef extern from "system.h" nogil:  # <netinet/in.h>
    int IPPROTO_TCP

cdef extern from "system.h" nogil:  # <netinet/tcp.h>
    int TCP_NODELAY

cdef extern from "system.h" nogil:  # <arpa/inet.h>
    int inet_pton(int family, const char* text, void* address)

cdef extern from "system.h" nogil:  # <netdb.h>
    int getnameinfo(const sockaddr* address, socklen_t size, char* host, socklen_t host_size,
                    char* service, socklen_t service_size, int flags)
    int NI_NUMERICHOST
    int NI_NUMERICSERV

cdef extern from "system.h" nogil:  # <unistd.h>
    int close(int fd)
    ssize_t read(int fd, void* buffer, size_t size)
    ssize_t write(int fd, const void* buffer, size_t size)

cdef extern from "system.h" nogil:  # <execinfo.h>
    int backtrace(void** frames, int size)
    void backtrace_symbols_fd(void* const* frames, int size, int fd)

cdef extern from "system.h" nogil:  # <sys/random.h>
    ssize_t getrandom(void* buffer, size_t size, unsigned int flags)

cdef extern from "system.h" nogil:  # <time.h>
    cdef struct timespec:
        long tv_sec
        long tv_nsec
    int clock_gettime(int clock, timespec* result)
    int nanosleep(const timespec* wait, timespec* left)
    int CLOCK_MONOTONIC
    int CLOCK_REALTIME

cdef extern from "system.h" nogil:  # <pthread.h>
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_init(pthread_mutex_t* mutex, const void* attributes)
    int pthread_mutex_lock(pthread_mutex_t* mutex)
    int pthread_mutex_unlock(pthread_mutex_t* mutex)
    int pthread_mutex_destroy(pthread_mutex_t* mutex)
    ctypedef struct pthread_cond_t:
        pass
    ctypedef struct pthread_condattr_t:
        pass
    int pthread_condattr_init(pthread_condattr_t* attributes)
    int pthread_condattr_setclock(pthread_condattr_t* attributes, int clock)
    int pthread_cond_init(pthread_cond_t* condition, const pthread_condattr_t* attributes)
    int pthread_cond_timedwait(pthread_cond_t* condition, pthread_mutex_t* mutex, const timespec* until)
    int pthread_cond_signal(pthread_cond_t* condition)
    int pthread_cond_destroy(pthread_cond_t* condition)
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

cdef extern from * nogil:  # builtins of GCC and Clang
    int leading_zeros "__builtin_clzll"(uint64_t number)   # of one that is not 0
    int add_int "__atomic_add_fetch"(int* value, int amount, int order)
    int load_int "__atomic_load_n"(int* value, int order)
    void store_int "__atomic_store_n"(int* value, int amount, int order)
    int64_t add_i64 "__atomic_add_fetch"(int64_t* value, int64_t amount, int order)
    int64_t load_i64 "__atomic_load_n"(int64_t* value, int order)
    void store_i64 "__atomic_store_n"(int64_t* value, int64_t amount, int order)
    bool compare_exchange_i64 "__atomic_compare_exchange_n"(int64_t* value, int64_t* expected, int64_t wanted, bool weak, int order, int failed)
    uint64_t load_u64 "__atomic_load_n"(const uint64_t* value, int order)
    void store_u64 "__atomic_store_n"(uint64_t* value, uint64_t amount, int order)
    uint8_t load_u8 "__atomic_load_n"(uint8_t* value, int order)
    void store_u8 "__atomic_store_n"(uint8_t* value, uint8_t amount, int order)
    int RELAXED "__ATOMIC_RELAXED"
    int ACQUIRE "__ATOMIC_ACQUIRE"
    int RELEASE "__ATOMIC_RELEASE"
    int ACQ_REL "__ATOMIC_ACQ_REL"
    int SEQ_CST "__ATOMIC_SEQ_CST"

# Readers must not take the lock twice: a waiting writer goes before new readers, so that a stream of matches cannot
# keep a SUBSCRIBE waiting.
cdef inline void init_rwlock(pthread_rwlock_t* lock) noexcept nogil:
    cdef pthread_rwlockattr_t attributes
    pthread_rwlockattr_init(&attributes)
    pthread_rwlockattr_setkind_np(&attributes, PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP)
    pthread_rwlock_init(lock, &attributes)
    pthread_rwlockattr_destroy(&attributes)

# How many bits a number takes that is not 0.
cdef inline int bits_of(uint64_t number) noexcept nogil:
    return 64 - leading_zeros(number)
