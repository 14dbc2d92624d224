/* Stands for every program of a script: tells a socket how it was called, and ends when told.

   One message: its words, its directory, where its first three descriptors lead, its environment;
   a NUL after each text, an empty text after each list. One byte comes back, the exit status. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

extern char **environ;

static void tell(int to, const char *text) {
    size_t left = strlen(text) + 1;
    while (left > 0) {
        ssize_t sent = write(to, text, left);
        if (sent <= 0)
            exit(120);
        text += sent;
        left -= sent;
    }
}

static void tell_all(int to, char **texts) {
    for (; *texts; texts++)
        if (**texts)
            tell(to, *texts);
        else
            tell(to, "\x01");
    tell(to, "");
}

int main(int argc, char **argv) {
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const char *path = getenv("STANDIN");
    int to = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    char link[32], found[PATH_MAX];
    unsigned char status = 0;

    (void)argc;
    if (!path || to < 0)
        return 121;
    strncpy(at.sun_path, path, sizeof at.sun_path - 1);
    if (connect(to, (struct sockaddr *)&at, sizeof at))
        return 122;
    tell_all(to, argv);
    tell(to, getcwd(found, sizeof found) ? found : "?");
    for (int fd = 0; fd < 3; fd++) {
        snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
        ssize_t length = readlink(link, found, sizeof found - 1);
        found[length > 0 ? length : 0] = 0;
        tell(to, length > 0 ? found : "?");
    }
    tell_all(to, environ);
    shutdown(to, SHUT_WR);
    return read(to, &status, 1) == 1 ? status : 123;
}
