/* The operating system as the engine sees it, see system.pxd.

   A build with TIDEMQ_SYSTEM="/path/to/other.h" has that header in its place: one that includes this and then
   redirects what it wants to have done otherwise (#define recv ...), such as another way of I/O, or a network, a
   clock and a scheduler for tests of the whole engine. It is chosen when the engine is compiled, so it costs
   nothing on a message's way. */
#if defined(TIDEMQ_SYSTEM) && !defined(TIDEMQ_SYSTEM_CHOSEN)
#define TIDEMQ_SYSTEM_CHOSEN
#include TIDEMQ_SYSTEM
#else
#ifndef TIDEMQ_SYSTEM_H
#define TIDEMQ_SYSTEM_H
#include <arpa/inet.h>
#include <errno.h>
#include <linux/sockios.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <execinfo.h>
#else /* musl has neither: readers may pass a writer that waits, and a broken invariant has no trace */
#define PTHREAD_RWLOCK_PREFER_WRITER_NONRECURSIVE_NP 0
static inline int pthread_rwlockattr_setkind_np(pthread_rwlockattr_t *attributes, int kind) {
    return (void)attributes, kind;
}
static inline int backtrace(void **frames, int size) { return (void)frames, 0 * size; }
static inline void backtrace_symbols_fd(void *const *frames, int size, int fd) {
    (void)frames, (void)size, (void)fd;
}
#endif
#endif
#endif
