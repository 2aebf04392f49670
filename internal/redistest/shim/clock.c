/*
 * A wall clock that a test can step, for LD_PRELOAD into redis-server.
 *
 * REDISTEST_CLOCK names a file whose first 8 bytes are an offset in ns, in the
 * byte order of the machine. It is mapped, so a step is seen by the next
 * reading, whatever the process is doing. The monotonic clocks are left alone.
 *
 * The time comes from the kernel by a plain system call, not from the libc
 * function that dlsym would find: dlsym allocates, the allocator asks for the
 * time, and that is where libfaketime hangs under jemalloc. For 64-bit systems.
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

#define SECOND 1000000000LL

static int64_t *offset; /* NULL before the constructor has run */

__attribute__((constructor)) static void map_offset(void) {
	const char *path = getenv("REDISTEST_CLOCK");
	int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
	if (fd < 0)
		abort(); /* true time in place of what was asked for would prove anything */
	void *page = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
	close(fd);
	if (page == MAP_FAILED)
		abort();
	offset = page;
}

int clock_gettime(clockid_t clock, struct timespec *ts) {
	int failed = syscall(SYS_clock_gettime, clock, ts);
	if (failed || !offset)
		return failed;
	if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE || clock == CLOCK_TAI) {
		int64_t ns = ts->tv_sec * SECOND + ts->tv_nsec + __atomic_load_n(offset, __ATOMIC_SEQ_CST);
		ts->tv_sec = ns / SECOND;
		ts->tv_nsec = ns % SECOND;
	}
	return 0;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
	struct timespec ts;
	(void)zone;
	if (clock_gettime(CLOCK_REALTIME, &ts))
		return -1;
	tv->tv_sec = ts.tv_sec;
	tv->tv_usec = ts.tv_nsec / 1000;
	return 0;
}

time_t time(time_t *t) {
	struct timespec ts;
	if (clock_gettime(CLOCK_REALTIME, &ts))
		return -1;
	if (t)
		*t = ts.tv_sec;
	return ts.tv_sec;
}

int timespec_get(struct timespec *ts, int base) {
	return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, ts) == 0 ? base : 0;
}
