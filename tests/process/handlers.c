/* What a library in C has called at forks: pthread_atfork's handlers, counted over all processes.
 *
 * `hangs`: the nth call of that handler never returns. `keeps`: the lock that is taken before a fork
 * is not given back in the parent, or in the child. */
#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static const char *file, *hanging, *keeping;
static int nth;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static void called(const char *when) {
    struct stat now;
    int fd;
    if (strcmp(when, hanging))
        return;
    fd = open(file, O_WRONLY | O_APPEND | O_CREAT, 0600);
    if (write(fd, "x", 1) == 1 && fstat(fd, &now) == 0 && now.st_size >= nth)
        for (;;)
            pause();
    close(fd);
}

static void prepare(void) {
    if (*keeping)
        pthread_mutex_lock(&lock);
    called("prepare");
}

static void parent(void) {
    if (*keeping && strcmp(keeping, "parent"))
        pthread_mutex_unlock(&lock);
    called("parent");
}

static void child(void) {
    if (*keeping && strcmp(keeping, "child"))
        pthread_mutex_unlock(&lock);
    called("child");
}

void begin(const char *counted, const char *hangs, int number, const char *keeps) {
    file = strdup(counted), hanging = strdup(hangs), nth = number, keeping = strdup(keeps);
    pthread_atfork(prepare, parent, child);
}
