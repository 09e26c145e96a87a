/* A disk that fails on demand, and that remembers what power loss would leave: loaded with LD_PRELOAD.

   Between a process and libc, for the files below one directory ($CRASH_DISK_DATA) and for no others. What it
   shall do is read at each call from shared memory, the file $CRASH_DISK_CONTROL, which `disk.py` writes:

   - fsync slow, fsync failing with EIO, writes failing with ENOSPC, a write of which half arrives before the
     process is killed.

   Where $CRASH_DISK_SHADOW is set, that folder holds what has been made durable: `blobs/N` the bytes of file
   N as of its last fsync, `names` the creations, renames and removals in order, with a line for each fsync of
   a directory. The harsher of what real file systems allow is taken:

   - bytes reach the blob at fsync or fdatasync of their file and not before; nothing is written back on its
     own, and sync_file_range and msync make nothing durable;
   - a name, of a directory as well, reaches the disk at fsync of the directory it is in, never by fsync of the
     file itself (ext4, XFS and Btrfs do more, POSIX does not ask it);
   - bytes whose fsync has failed are lost for good: a later fsync that succeeds does not bring them (Linux
     marks the pages clean).

   The real fsync is then not called: the machine's own disk is not what is tested.

   The table of files is in the shared memory as well, since what is not yet durable outlives the process.
   Not seen: stdio's own writes, mmap, and descriptors that dup() made. `disk.py` checks that no file of the
   directory was made behind this layer's back. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define DESCRIPTORS 65536
#define FILES_MAX 8192
#define PATH_BYTES 232

enum state { FREE, LIVE, GONE };

struct file {            /* `disk.py` knows this layout */
    char path[PATH_BYTES]; /* below the directory */
    int64_t dirty_from;  /* bytes that are not durable; none where from >= to */
    int64_t dirty_to;
    uint64_t inode;
    int32_t state;
    int32_t filled;      /* has taken the half write that a full disk still has room for */
};

struct control {
    _Atomic int32_t fsync_delay_us;
    _Atomic int32_t fsync_failures; /* how many more fail; -1: all */
    _Atomic int32_t full;           /* writes and new files fail with ENOSPC */
    _Atomic int32_t torn_write;     /* the n-th write from now is torn; 0: none */
    _Atomic int32_t writes, fsyncs; /* seen so far */
    _Atomic int32_t failed;         /* calls that were made to fail */
    _Atomic int32_t file_count;
    int32_t unused[8];
    struct file files[FILES_MAX];
};

static struct control *control;
static char data[PATH_MAX], shadow[PATH_MAX];
static size_t data_bytes;
static int names = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static struct { int32_t file; int32_t append; char *directory; } descriptors[DESCRIPTORS]; /* file: index + 1 */

#define REAL(type, name, ...) static type (*real_##name)(__VA_ARGS__)
REAL(int, open, const char *, int, ...);
REAL(int, close, int);
REAL(ssize_t, write, int, const void *, size_t);
REAL(ssize_t, pwrite, int, const void *, size_t, off_t);
REAL(int, fsync, int);
REAL(int, ftruncate, int, off_t);
REAL(int, fallocate, int, int, off_t, off_t);
REAL(int, renameat, int, const char *, int, const char *);
REAL(int, unlinkat, int, const char *, int);
REAL(int, mkdirat, int, const char *, mode_t);

static void die(const char *why) {
    dprintf(2, "disk.c: %s: %s\n", why, strerror(errno));
    _exit(99);
}

__attribute__((constructor)) static void load(void) {
    if (real_open) return;
#define FIND(name) *(void **)&real_##name = dlsym(RTLD_NEXT, #name)
    FIND(close), FIND(write), FIND(pwrite), FIND(fsync), FIND(ftruncate), FIND(fallocate);
    FIND(renameat), FIND(unlinkat), FIND(mkdirat), FIND(open);
    const char *directory = getenv("CRASH_DISK_DATA"), *path = getenv("CRASH_DISK_CONTROL");
    if (!directory || !path) return;
    data_bytes = strlen(strcpy(data, directory));
    int fd = real_open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) die(path);
    void *memory = mmap(NULL, sizeof(struct control), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory == MAP_FAILED) die(path);
    real_close(fd);
    if (getenv("CRASH_DISK_SHADOW")) {
        char log[PATH_MAX + 8];
        snprintf(log, sizeof log, "%s/names", strcpy(shadow, getenv("CRASH_DISK_SHADOW")));
        names = real_open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        if (names < 0) die(log);
    }
    control = memory;
}

/* The path below the directory ("" is the directory itself), or NULL where it is elsewhere. */
static const char *below(int at, const char *path, char *buffer) {
    if (!real_open) load();
    if (!control) return NULL;
    char whole[2 * PATH_MAX], base[64];
    if (path[0] == '/') {
        snprintf(whole, sizeof whole, "%s", path);
    } else {
        ssize_t size;
        snprintf(base, sizeof base, at == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", at);
        if ((size = readlink(base, whole, PATH_MAX)) < 0) return NULL;
        snprintf(whole + size, sizeof whole - size, "/%s", path);
    }
    char *to = buffer;
    for (const char *from = whole; *from; from++) { /* "//" and "/./" are "/" */
        while (from[0] == '/' && (from[1] == '/' || (from[1] == '.' && (from[2] == '/' || !from[2]))))
            from += from[1] == '/' ? 1 : 2;
        if (*from) *to++ = *from;
        else break;
        if (to - buffer >= PATH_MAX - 1) return NULL;
    }
    while (to > buffer && to[-1] == '/') to--;
    *to = 0;
    if (strncmp(buffer, data, data_bytes) || (buffer[data_bytes] != '/' && buffer[data_bytes])) return NULL;
    return buffer[data_bytes] ? buffer + data_bytes + 1 : "";
}

static void note(const char *operation, int file, const char *path, const char *other) {
    char line[2 * PATH_BYTES + 64];
    if (names < 0) return;
    int size = snprintf(line, sizeof line, "%s\t%d\t%s\t%s\n", operation, file, path, other);
    if (real_write(names, line, size) != size) die("names"); /* in one call: a kill leaves no half line */
}

static int live(const char *path) {
    for (int i = 0; i < control->file_count; i++)
        if (control->files[i].state == LIVE && !strcmp(control->files[i].path, path)) return i;
    return -1;
}

/* The file's place in the table; a new one where the path has none. Called under the lock. */
static int entered(const char *path, const struct stat *status) {
    int i = live(path);
    if (i >= 0) return i;
    i = control->file_count;
    if (i == FILES_MAX || strlen(path) >= PATH_BYTES) die("too many files, or too long a path");
    struct file *file = &control->files[i];
    strcpy(file->path, path);
    file->dirty_from = 0;
    file->dirty_to = status->st_size;
    file->inode = status->st_ino;
    file->state = LIVE;
    control->file_count = i + 1;
    note("create", i, path, "");
    return i;
}

static void mark(struct file *file, int64_t from, int64_t to) {
    pthread_mutex_lock(&lock);
    if (file->dirty_from >= file->dirty_to) {
        file->dirty_from = from;
        file->dirty_to = to;
    } else {
        if (from < file->dirty_from) file->dirty_from = from;
        if (to > file->dirty_to) file->dirty_to = to;
    }
    pthread_mutex_unlock(&lock);
}

/* The file of a descriptor, or NULL. Descriptors may be closed behind our back, by fclose() above all, and be
   somebody else's by now. */
static struct file *file_of(int fd) {
    struct stat status;
    if (!control || fd < 0 || fd >= DESCRIPTORS || !descriptors[fd].file) return NULL;
    struct file *file = &control->files[descriptors[fd].file - 1];
    return !fstat(fd, &status) && status.st_ino == file->inode ? file : NULL;
}

static const char *directory_of(int fd) {
    struct stat status;
    if (!control || fd < 0 || fd >= DESCRIPTORS || !descriptors[fd].directory) return NULL;
    return !fstat(fd, &status) && S_ISDIR(status.st_mode) ? descriptors[fd].directory : NULL;
}

static void forget(int fd) { /* called under the lock */
    descriptors[fd].file = 0;
    free(descriptors[fd].directory);
    descriptors[fd].directory = NULL;
}

static int refused(int error) {
    control->failed++;
    errno = error;
    return -1;
}

static int opened(int at, const char *path, int flags, mode_t mode) {
    char buffer[PATH_MAX], whole[PATH_MAX + 64];
    struct stat before, after;
    const char *name = below(at, path, buffer);
    if (path[0] == '/' || at == AT_FDCWD) snprintf(whole, sizeof whole, "%s", path);
    else snprintf(whole, sizeof whole, "/proc/self/fd/%d/%s", at, path);
    if (!name) return real_open(whole, flags, mode);
    int there = !stat(buffer, &before);
    if (control->full && !there && flags & O_CREAT) return refused(ENOSPC);
    int fd = real_open(whole, flags, mode);
    if (fd < 0 || fd >= DESCRIPTORS || fstat(fd, &after)) return fd;
    pthread_mutex_lock(&lock);
    forget(fd);
    if (S_ISDIR(after.st_mode)) {
        descriptors[fd].directory = strdup(name);
    } else {
        descriptors[fd].file = entered(name, &after) + 1;
        descriptors[fd].append = flags & O_APPEND;
    }
    pthread_mutex_unlock(&lock);
    if (there && flags & O_TRUNC && file_of(fd)) mark(file_of(fd), 0, before.st_size);
    return fd;
}

static mode_t mode_of(int flags, va_list arguments) {
    return flags & (O_CREAT | __O_TMPFILE) ? va_arg(arguments, mode_t) : 0;
}

int open(const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    int fd = opened(AT_FDCWD, path, flags, mode_of(flags, arguments));
    va_end(arguments);
    return fd;
}

int openat(int at, const char *path, int flags, ...) {
    va_list arguments;
    va_start(arguments, flags);
    int fd = opened(at, path, flags, mode_of(flags, arguments));
    va_end(arguments);
    return fd;
}

int open64(const char *, int, ...) __attribute__((alias("open")));
int openat64(int, const char *, int, ...) __attribute__((alias("openat")));

int close(int fd) {
    if (!real_open) load();
    if (control && fd >= 0 && fd < DESCRIPTORS) {
        pthread_mutex_lock(&lock);
        forget(fd);
        pthread_mutex_unlock(&lock);
    }
    return real_close(fd);
}

static ssize_t put(int fd, const void *bytes, size_t count, off_t at) { /* at -1: at the file's own place */
    return at < 0 ? real_write(fd, bytes, count) : real_pwrite(fd, bytes, count, at);
}

/* Whether this write is the one to be torn. RocksDB's log for people, LOG, is not what shall be torn. */
static int torn(const struct file *file) {
    return control->torn_write && strcmp(file->path, "LOG") && atomic_fetch_sub(&control->torn_write, 1) == 1;
}

static ssize_t written(int fd, const void *bytes, size_t count, off_t at) {
    struct file *file = file_of(fd);
    if (!file || !count) return put(fd, bytes, count, at);
    control->writes++;
    off_t from = at;
    if (at < 0) {
        struct stat status;
        from = descriptors[fd].append && !fstat(fd, &status) ? status.st_size : lseek(fd, 0, SEEK_CUR);
    }
    size_t part = (count + 1) / 2;
    mark(file, from, from + count); /* before: a kill during the write forgets nothing */
    if (torn(file)) {
        put(fd, bytes, part, at);
        kill(getpid(), SIGKILL);
        for (;;) pause();
    }
    if (!control->full) {
        file->filled = 0;
    } else if (file->filled || count == 1) {
        return refused(ENOSPC);
    } else {
        file->filled = 1;
        count = part;
    }
    ssize_t done = put(fd, bytes, count, at);
    mark(file, from, from + count); /* after: an fsync in between has seen nothing yet */
    return done;
}

ssize_t write(int fd, const void *bytes, size_t count) {
    if (!real_open) load();
    return written(fd, bytes, count, -1);
}

ssize_t pwrite(int fd, const void *bytes, size_t count, off_t at) { return written(fd, bytes, count, at); }
ssize_t pwrite64(int, const void *, size_t, off_t) __attribute__((alias("pwrite")));

ssize_t pwritev(int fd, const struct iovec *parts, int count, off_t at) {
    size_t size = 0, used = 0;
    for (int i = 0; i < count; i++) size += parts[i].iov_len;
    char *bytes = malloc(size + 1);
    for (int i = 0; i < count; used += parts[i++].iov_len) memcpy(bytes + used, parts[i].iov_base, parts[i].iov_len);
    ssize_t done = written(fd, bytes, size, at);
    int error = errno;
    free(bytes);
    errno = error;
    return done;
}

ssize_t pwritev64(int, const struct iovec *, int, off_t) __attribute__((alias("pwritev")));

/* What os.pwritev of Python calls. */
ssize_t pwritev2(int fd, const struct iovec *parts, int count, off_t at, int flags) {
    (void)flags;
    return pwritev(fd, parts, count, at);
}

ssize_t pwritev64v2(int, const struct iovec *, int, off_t, int) __attribute__((alias("pwritev2")));

ssize_t writev(int fd, const struct iovec *parts, int count) {
    static ssize_t (*real_writev)(int, const struct iovec *, int);
    if (file_of(fd)) return pwritev(fd, parts, count, -1);
    if (!real_writev) *(void **)&real_writev = dlsym(RTLD_NEXT, "writev");
    return real_writev(fd, parts, count);
}

static void copy(int from, int to, int64_t at, int64_t end) {
    static _Thread_local char piece[1 << 16];
    while (at < end) {
        size_t want = end - at < (int64_t)sizeof piece ? (size_t)(end - at) : sizeof piece;
        ssize_t got = pread(from, piece, want, at);
        if (got <= 0) return; /* the file ends here */
        if (real_pwrite(to, piece, got, at) != got) die("blob");
        at += got;
    }
}

/* The bytes that were dirty when this began are in the blob when it ends. */
static void persist(int fd, struct file *file) {
    char path[PATH_MAX + 32];
    struct stat status;
    pthread_mutex_lock(&lock);
    int64_t from = file->dirty_from, to = file->dirty_to;
    pthread_mutex_unlock(&lock);
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    int source = real_open(path, O_RDONLY | O_CLOEXEC); /* the descriptor itself may be for writing only */
    snprintf(path, sizeof path, "%s/blobs/%d", shadow, (int)(file - control->files));
    int blob = real_open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    if (source < 0 || blob < 0 || fstat(source, &status)) die(path);
    copy(source, blob, from, to < status.st_size ? to : status.st_size);
    if (real_ftruncate(blob, status.st_size)) die(path);
    real_close(source);
    real_close(blob);
    pthread_mutex_lock(&lock);
    if (file->dirty_from == from && file->dirty_to == to) file->dirty_to = file->dirty_from = 0;
    pthread_mutex_unlock(&lock);
}

static int fsync_fails(void) {
    int32_t left = control->fsync_failures;
    while (left > 0 && !atomic_compare_exchange_weak(&control->fsync_failures, &left, left - 1)) {}
    return left != 0;
}

int fsync(int fd) {
    struct file *file = file_of(fd);
    const char *directory = directory_of(fd);
    if (!file && !directory) return real_fsync(fd);
    control->fsyncs++;
    int32_t delay_us = control->fsync_delay_us;
    if (delay_us) nanosleep(&(struct timespec){delay_us / 1000000, delay_us % 1000000 * 1000L}, NULL);
    if (fsync_fails()) {
        pthread_mutex_lock(&lock);
        if (file) file->dirty_to = file->dirty_from = 0;
        pthread_mutex_unlock(&lock);
        return refused(EIO);
    }
    if (names < 0) return real_fsync(fd);
    if (file) {
        persist(fd, file);
    } else {
        pthread_mutex_lock(&lock);
        note("sync", -1, directory, "");
        pthread_mutex_unlock(&lock);
    }
    return 0;
}

int fdatasync(int fd) { return fsync(fd); }

int ftruncate(int fd, off_t size) {
    struct stat status;
    struct file *file = file_of(fd);
    if (file && control->full) return refused(ENOSPC);
    if (file && !fstat(fd, &status)) mark(file, size < status.st_size ? size : status.st_size,
                                          size < status.st_size ? status.st_size : size);
    return real_ftruncate(fd, size);
}

int ftruncate64(int, off_t) __attribute__((alias("ftruncate")));

int fallocate(int fd, int mode, off_t from, off_t size) {
    if (file_of(fd) && control->full) return refused(ENOSPC);
    return real_fallocate(fd, mode, from, size);
}

int fallocate64(int, int, off_t, off_t) __attribute__((alias("fallocate")));

int renameat(int from_at, const char *from, int to_at, const char *to) {
    char from_buffer[PATH_MAX], to_buffer[PATH_MAX];
    const char *old = below(from_at, from, from_buffer), *new = below(to_at, to, to_buffer);
    if (!old && !new) return real_renameat(from_at, from, to_at, to);
    pthread_mutex_lock(&lock);
    int done = real_renameat(from_at, from, to_at, to), error = errno;
    if (!done) {
        int file = old ? live(old) : -1, replaced = new ? live(new) : -1;
        if (replaced >= 0) control->files[replaced].state = GONE;
        if (file >= 0 && new) {
            strncpy(control->files[file].path, new, PATH_BYTES - 1);
            note("rename", file, old, new);
        }
    }
    pthread_mutex_unlock(&lock);
    errno = error;
    return done;
}

int rename(const char *from, const char *to) { return renameat(AT_FDCWD, from, AT_FDCWD, to); }

int unlinkat(int at, const char *path, int flags) {
    char buffer[PATH_MAX];
    const char *name = below(at, path, buffer);
    if (!name) return real_unlinkat(at, path, flags);
    pthread_mutex_lock(&lock);
    int done = real_unlinkat(at, path, flags), error = errno, file = live(name);
    if (!done && file >= 0) {
        control->files[file].state = GONE;
        note("unlink", file, name, "");
    }
    pthread_mutex_unlock(&lock);
    errno = error;
    return done;
}

int unlink(const char *path) { return unlinkat(AT_FDCWD, path, 0); }

int mkdirat(int at, const char *path, mode_t mode) {
    char buffer[PATH_MAX];
    const char *name = below(at, path, buffer);
    if (name && control->full) return refused(ENOSPC);
    int done = real_mkdirat(at, path, mode), error = errno;
    if (name && *name && !done) {
        pthread_mutex_lock(&lock);
        note("mkdir", -1, name, "");
        pthread_mutex_unlock(&lock);
    }
    errno = error;
    return done;
}

int mkdir(const char *path, mode_t mode) { return mkdirat(AT_FDCWD, path, mode); }

int statvfs(const char *path, struct statvfs *status) {
    static int (*real_statvfs)(const char *, struct statvfs *);
    char buffer[PATH_MAX];
    if (!real_statvfs) *(void **)&real_statvfs = dlsym(RTLD_NEXT, "statvfs");
    int done = real_statvfs(path, status);
    if (!done && below(AT_FDCWD, path, buffer) && control->full) status->f_bavail = status->f_bfree = 0;
    return done;
}

int statvfs64(const char *, struct statvfs64 *) __attribute__((alias("statvfs")));
