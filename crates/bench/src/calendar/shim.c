/*
 * A calendar that can be set while a server runs: preloaded into the server, it adds to the real time an offset in
 * microseconds that it reads from a mapped file. Monotonic clocks are left alone, as setting a machine's calendar does.
 *
 * The kernel is asked directly: looking up the C library's own functions would allocate, and a server's allocator may ask
 * for the time while it starts.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset_us;

__attribute__((constructor)) static void map_offset(void) {
    const char *path = getenv("REDLOCK_CALENDAR");
    if (path == NULL) return;
    int file = open(path, O_RDONLY);
    if (file < 0) abort();
    void *map = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (map == MAP_FAILED) abort();
    close(file);
    offset_us = map;
}

static void shift(struct timespec *ts) {
    if (offset_us == NULL) return;
    int64_t us = *offset_us;
    ts->tv_sec += us / 1000000;
    ts->tv_nsec += (us % 1000000) * 1000;
    if (ts->tv_nsec < 0) { ts->tv_nsec += 1000000000; ts->tv_sec -= 1; }
    if (ts->tv_nsec >= 1000000000) { ts->tv_nsec -= 1000000000; ts->tv_sec += 1; }
}

int clock_gettime(clockid_t id, struct timespec *ts) {
    int result = (int)syscall(SYS_clock_gettime, id, ts);
    if (result == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) shift(ts);
    return result;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
    (void)zone;
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    tv->tv_sec = ts.tv_sec;
    tv->tv_usec = ts.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec ts;
    clock_gettime(CLOCK_REALTIME, &ts);
    if (out != NULL) *out = ts.tv_sec;
    return ts.tv_sec;
}
