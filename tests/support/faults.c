/* Injects system failures into ragent; loaded with LD_PRELOAD.
 *
 * The files in the folder $FAULTS are the current failures; there are none at first.
 *
 *   clock   seconds by which the wall clock is off
 *   fork    the number of further forks that are refused
 *   names   the resolver takes 20 s and finds nothing
 *   slow    milliseconds that each access to a path with "/slow/" in it takes
 *   full    writes to such a path fail
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

/* Returns the number in the file of a fault; `none` without that file, or if this is not ragent. */
static long fault(const char *name, long none) {
    const char *folder = getenv("FAULTS");
    if (!folder || strcmp(program_invocation_short_name, "ragent")) return none;
    char path[4096], text[32] = "";
    snprintf(path, sizeof path, "%s/%s", folder, name);
    long fd = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return none;
    syscall(SYS_read, fd, text, sizeof text - 1);
    syscall(SYS_close, fd);
    return atol(text);
}

static void rest(long ms) {
    struct timespec time = {ms / 1000, ms % 1000 * 1000000};
    syscall(SYS_nanosleep, &time, NULL);
}

static void access_path(const char *path) {
    if (path && strstr(path, "/slow/")) rest(fault("slow", 0));
}

/* Returns 1 if writing to `fd` is to be refused; delays access to a slow path. */
static int access_fd(int fd) {
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    long len = syscall(SYS_readlinkat, AT_FDCWD, link, path, sizeof path - 1);
    if (len <= 0) return 0;
    path[len] = 0;
    access_path(path);
    return strstr(path, "/slow/") && fault("full", -1) >= 0;
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    int result = (int)syscall(SYS_clock_gettime, clock, time);
    if (!result && clock == CLOCK_REALTIME) time->tv_sec += fault("clock", 0);
    return result;
}

pid_t fork(void) {
    long left = fault("fork", 0);
    if (left <= 0) return NEXT(fork)();
    char path[4096], text[32];
    snprintf(path, sizeof path, "%s/fork", getenv("FAULTS"));
    long fd = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_TRUNC | O_CLOEXEC);
    syscall(SYS_write, fd, text, snprintf(text, sizeof text, "%ld", left - 1));
    syscall(SYS_close, fd);
    errno = EAGAIN;
    return -1;
}

int getaddrinfo(const char *node, const char *service, const struct addrinfo *hints,
                struct addrinfo **result) {
    if (fault("names", -1) < 0) return NEXT(getaddrinfo)(node, service, hints, result);
    rest(20000);
    return EAI_AGAIN;
}

int open64(const char *path, int flags, ...) {
    va_list args;
    va_start(args, flags);
    mode_t mode = va_arg(args, mode_t);
    va_end(args);
    access_path(path);
    return NEXT(open64)(path, flags, mode);
}

int mkdir(const char *path, mode_t mode) {
    access_path(path);
    return NEXT(mkdir)(path, mode);
}

int rename(const char *from, const char *to) {
    access_path(to);
    return NEXT(rename)(from, to);
}

int unlink(const char *path) {
    access_path(path);
    return NEXT(unlink)(path);
}

ssize_t write(int fd, const void *bytes, size_t len) {
    if (fd > 2 && access_fd(fd)) return errno = ENOSPC, -1;
    return syscall(SYS_write, fd, bytes, len);
}

ssize_t pwrite64(int fd, const void *bytes, size_t len, off64_t at) {
    if (access_fd(fd)) return errno = ENOSPC, -1;
    return syscall(SYS_pwrite64, fd, bytes, len, at);
}

ssize_t splice(int from, off64_t *from_at, int to, off64_t *to_at, size_t len, unsigned flags) {
    if (access_fd(to)) return errno = ENOSPC, -1;
    return syscall(SYS_splice, from, from_at, to, to_at, len, flags);
}
