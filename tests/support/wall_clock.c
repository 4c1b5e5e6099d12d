// Shifts the wall clock of the process that this is loaded into (LD_PRELOAD), and no other clock: by as many milliseconds
// as the file $CLOCKSHIFT says, a little-endian int64 that may change at any time. If the second one there is not zero, the clock
// is held at so many microseconds since 1970.
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *shift;

__attribute__((constructor)) static void init(void) {
    const char *path = getenv("CLOCKSHIFT");
    int fd = path ? open(path, O_RDONLY) : -1;
    if (fd < 0) return;
    void *map = mmap(0, 16, PROT_READ, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) shift = map;
    close(fd);
}

// By system calls, which cannot come back here through an allocator.
static void wall(struct timespec *t) {
    int64_t held = shift ? shift[1] : 0;
    if (held) {
        t->tv_sec = held / 1000000;
        t->tv_nsec = held % 1000000 * 1000;
        return;
    }
    syscall(SYS_clock_gettime, CLOCK_REALTIME, t);
    int64_t ns = (int64_t)t->tv_sec * 1000000000 + t->tv_nsec + (shift ? *shift * 1000000 : 0);
    t->tv_sec = ns / 1000000000;
    t->tv_nsec = ns % 1000000000;
}

int clock_gettime(clockid_t clock, struct timespec *t) {
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) {
        wall(t);
        return 0;
    }
    return (int)syscall(SYS_clock_gettime, clock, t);
}

int gettimeofday(struct timeval *v, void *zone) {
    struct timespec t;
    (void)zone;
    wall(&t);
    v->tv_sec = t.tv_sec;
    v->tv_usec = t.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec t;
    wall(&t);
    if (out) *out = t.tv_sec;
    return t.tv_sec;
}
