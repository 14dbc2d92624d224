/* tracer OUT MODE COMMAND...: run a command, and write what each process below it has used.

   A line when a process becomes another program, and when one ends, of what it used since the last:
       fork PARENT CHILD
       exec|exit THREAD NANOSECONDS FAULTS CALLS COMMAND LINE
   NANOSECONDS of CPU and minor page FAULTS are the kernel's own counts, exact for the shortest
   process. CALLS are system calls; they are counted in the mode `calls`, which stops a process
   twice at each of them, and are 0 in the mode `time`. Whatever is traced dies with the tracer. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#define PIDS (1 << 22) /* the kernel's own limit */

static struct {
    unsigned calls;
    unsigned entered;
    long long spent, faults;
} *threads;
static FILE *out;

static size_t take(const char *form, int thread, char *text, size_t room) {
    char path[64];
    snprintf(path, sizeof path, form, thread, thread);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t size = file < 0 ? -1 : read(file, text, room - 1);
    if (file >= 0) close(file);
    text[size > 0 ? size : 0] = 0;
    return size > 0 ? (size_t)size : 0;
}

static void tell(const char *what, int thread) {
    char text[1024];
    take("/proc/%d/task/%d/schedstat", thread, text, sizeof text);
    long long spent = atoll(text), faults = 0;
    take("/proc/%d/task/%d/stat", thread, text, sizeof text);
    char *rest = strrchr(text, ')');
    if (rest) sscanf(rest + 1, " %*c %*d %*d %*d %*d %*d %*u %lld", &faults);
    size_t size = take("/proc/%d/cmdline", thread, text, 256);
    for (size_t at = 0; at < size; at++)
        if ((unsigned char)text[at] < ' ') text[at] = ' ';
    fprintf(out, "%s %d %lld %lld %u %s\n", what, thread, spent - threads[thread].spent,
            faults - threads[thread].faults, threads[thread].calls, text);
    threads[thread].spent = spent;
    threads[thread].faults = faults;
    threads[thread].calls = 0;
    if (!strcmp(what, "exit")) memset(&threads[thread], 0, sizeof threads[thread]);
}

static void forked(int thread) {
    unsigned long child = 0;
    ptrace(PTRACE_GETEVENTMSG, thread, 0, &child);
    fprintf(out, "fork %d %lu\n", thread, child);
}

/* How a stopped thread goes on. */
static int stopped(int thread, int status, int on, long *given) {
    int number = WSTOPSIG(status), event = status >> 16;
    *given = 0;
    if (event == PTRACE_EVENT_FORK || event == PTRACE_EVENT_VFORK || event == PTRACE_EVENT_CLONE)
        forked(thread);
    else if (event == PTRACE_EVENT_EXEC)
        tell("exec", thread);
    else if (event == PTRACE_EVENT_EXIT)
        tell("exit", thread);
    else if (event == PTRACE_EVENT_STOP && number != SIGTRAP)
        return PTRACE_LISTEN; /* stopped as a shell stops a job */
    else if (number == (SIGTRAP | 0x80))
        threads[thread].calls += (threads[thread].entered ^= 1);
    else if (!event)
        *given = number;
    return on;
}

int main(int count, char **words) {
    if (count < 4) return 64;
    out = fopen(words[1], "we");
    threads = calloc(PIDS, sizeof *threads);
    int on = strcmp(words[2], "calls") ? PTRACE_CONT : PTRACE_SYSCALL, ready[2], result = 125;
    if (!out || !threads || pipe(ready)) return 125;
    int first = fork();
    if (!first) {
        char byte;
        close(ready[1]);
        if (read(ready[0], &byte, 1) == 1) {
            close(ready[0]);
            execvp(words[3], words + 3);
        }
        _exit(127);
    }
    long options = PTRACE_O_TRACEFORK | PTRACE_O_TRACEVFORK | PTRACE_O_TRACECLONE |
                   PTRACE_O_TRACEEXEC | PTRACE_O_TRACEEXIT | PTRACE_O_TRACESYSGOOD |
                   PTRACE_O_EXITKILL;
    if (ptrace(PTRACE_SEIZE, first, 0, options)) {
        perror("ptrace");
        kill(first, SIGKILL);
        return 125;
    }
    if (on == PTRACE_SYSCALL) ptrace(PTRACE_INTERRUPT, first, 0, 0);
    if (write(ready[1], "", 1) != 1) return 125;
    close(ready[0]), close(ready[1]);
    for (;;) {
        int status, thread = waitpid(-1, &status, __WALL);
        if (thread < 0 && errno == EINTR) continue;
        if (thread < 0) break;
        if (!WIFSTOPPED(status)) {
            if (thread == first) result = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
            continue;
        }
        long given;
        int how = stopped(thread, status, on, &given);
        ptrace(how, thread, 0, given);
    }
    return fclose(out) ? 125 : result;
}
