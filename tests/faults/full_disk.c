/* A disk that is full after a number of bytes, for the files whose path
   begins in one way. Loaded with
   LD_PRELOAD; `fill_disk` says where and when. Only this process sees it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <unistd.h>

static char beginning[PATH_MAX];
static long left = -1; /* not armed */

void fill_disk(const char *path, long bytes) {
    snprintf(beginning, sizeof beginning, "%s", path);
    left = bytes;
}

static int is_meant(int fd) {
    char link[64], path[PATH_MAX];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    if (length < 0) return 0;
    path[length] = 0;
    return strncmp(path, beginning, strlen(beginning)) == 0;
}

ssize_t write(int fd, const void *data, size_t size) {
    ssize_t (*real)(int, const void *, size_t) =
        (ssize_t (*)(int, const void *, size_t))dlsym(RTLD_NEXT, "write");
    if (left >= 0 && is_meant(fd)) {
        if (left == 0) {
            errno = ENOSPC;
            return -1;
        }
        if ((long)size > left) size = left; /* as the system does: the last bytes still fit */
        left -= size;
    }
    return real(fd, data, size);
}
