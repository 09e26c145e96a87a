"""The system calls that the load generator and the relay make, as C sees them."""
from libc.stdint cimport int64_t, uint8_t, uint16_t, uint32_t, uint64_t

cdef extern from "<sys/epoll.h>" nogil:
    enum:
        EPOLLIN
        EPOLLOUT
        EPOLLERR
        EPOLLHUP
        EPOLLRDHUP
        EPOLL_CTL_ADD
    const uint32_t EPOLLET
    ctypedef union epoll_data:
        uint32_t u32
    struct epoll_event:
        uint32_t events
        epoll_data data
    int epoll_create1(int flags)
    int epoll_ctl(int epoll, int operation, int fd, epoll_event* event)
    int epoll_wait(int epoll, epoll_event* events, int count, int timeout_ms)

cdef extern from "<sys/socket.h>" nogil:
    enum:
        AF_INET
        AF_UNIX
        SOCK_STREAM
        SOCK_NONBLOCK
        SOL_SOCKET
        SO_ERROR
        SO_REUSEADDR
        MSG_NOSIGNAL
    ctypedef unsigned int socklen_t
    struct sockaddr:
        pass
    struct sockaddr_storage:
        pass
    int socket(int family, int kind, int protocol)
    int connect(int fd, const sockaddr* address, socklen_t size)
    int bind(int fd, const sockaddr* address, socklen_t size)
    int listen(int fd, int backlog)
    int accept4(int fd, sockaddr* address, socklen_t* size, int flags)
    int getsockname(int fd, sockaddr* address, socklen_t* size)
    int getsockopt(int fd, int level, int name, void* value, socklen_t* size)
    int setsockopt(int fd, int level, int name, const void* value, socklen_t size)
    ssize_t recv(int fd, void* data, size_t size, int flags)
    ssize_t send(int fd, const void* data, size_t size, int flags)

cdef extern from "<netinet/in.h>" nogil:
    enum:
        IPPROTO_IP
        IPPROTO_TCP
        IP_BIND_ADDRESS_NO_PORT
        INADDR_LOOPBACK
    struct in_addr:
        uint32_t s_addr
    struct sockaddr_in:
        uint16_t sin_family
        uint16_t sin_port
        in_addr sin_addr
    uint16_t htons(uint16_t value)
    uint16_t ntohs(uint16_t value)
    uint32_t htonl(uint32_t value)

cdef extern from "<netinet/tcp.h>" nogil:
    enum:
        TCP_NODELAY

cdef extern from "<sys/timerfd.h>" nogil:
    enum:
        TFD_NONBLOCK
    struct timespec:
        int64_t tv_sec
        long tv_nsec
    struct itimerspec:
        timespec it_interval
        timespec it_value
    int timerfd_create(int clock, int flags)
    int timerfd_settime(int fd, int flags, const itimerspec* new, itimerspec* old)

cdef extern from "<time.h>" nogil:
    enum:
        CLOCK_MONOTONIC
        CLOCK_THREAD_CPUTIME_ID
    int clock_gettime(int clock, timespec* out)

cdef extern from "<sys/prctl.h>" nogil:
    enum:
        PR_SET_TIMERSLACK
    int prctl(int option, unsigned long value)

cdef extern from "<unistd.h>" nogil:
    int close(int fd)
    ssize_t read(int fd, void* data, size_t size)

cdef extern from "<errno.h>" nogil:
    int errno
    enum:
        EAGAIN
        EINPROGRESS
        EINTR
