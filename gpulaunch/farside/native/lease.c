/* Holds leases beside the command of `exec` and of `hold`.
 *
 *   gpulaunch exec --spawn--> keeper lease, exits --fork--> keeper-lease: the leases
 *        `--exec--> CMD, which may close what it inherited (closefrom(3): sudo, daemons)
 *
 * The command must not get a child that it does not know: so the holder is an orphan. It has a
 * session of its own and blocks signals, so that no key of the terminal ends it before the command.
 * It never listens on a lease: the kernel names the command as the holder (SO_PEERCRED). */
#define _GNU_SOURCE
#include "keeper.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define LOOK 1.0 /* seconds between two looks at a process for which there is no pidfd */

bool holds_leases(pid_t pid) {
  char path[64], name[32] = "";
  snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t got = read(fd, name, sizeof name - 1);
  close(fd);
  return got > 0 && !strcmp(name, LEASE_TITLE "\n");
}

/* Wait for the end of a process; `fd` is its pidfd, or below zero. */
static void await_end(pid_t pid, long long start, int fd) {
  struct pollfd end = {fd, POLLIN, 0};
  if (fd < 0)
    while (started_at(pid) == start) nap(LOOK);
  else
    while (poll(&end, 1, -1) < 0 && errno == EINTR) {
    }
}

/* Whether a process has this NAME=VALUE in the environment that it was executed with. */
static bool has_mark(const char *pid, const char *mark) {
  char path[300], *line = NULL;
  size_t room = 0;
  bool found = false;
  snprintf(path, sizeof path, "/proc/%s/environ", pid);
  FILE *file = fopen(path, "re");
  while (file && !found && getdelim(&line, &room, 0, file) > 0) found = !strcmp(line, mark);
  if (file) fclose(file);
  free(line);
  return found;
}

/* Wait for the end of one process with the mark; false: there is none. */
static bool await_marked(const char *mark) {
  DIR *proc = opendir("/proc");
  bool found = false;
  for (struct dirent *entry; proc && !found && (entry = readdir(proc));) {
    pid_t pid = atoi(entry->d_name);
    if (pid <= 0 || pid == getpid() || !has_mark(entry->d_name, mark)) continue;
    long long start = started_at(pid);
    int fd = (int)syscall(SYS_pidfd_open, pid, 0);
    /* Its number may have been given to another process since. */
    if ((found = start >= 0 && has_mark(entry->d_name, mark))) await_end(pid, start, fd);
    if (fd >= 0) close(fd);
  }
  if (proc) closedir(proc);
  return found;
}

/* keeper lease PID MARK FD...: hold the descriptors until the parent, which has that PID, has ended
 * and all that has MARK. */
int lease(int argc, char **argv) {
  int kept[MAX_FDS + 1], count = 0;
  char *mark = copy_of(argv[3]);
  pid_t command = atoi(argv[2]);
  for (int i = 4; i < argc && count < MAX_FDS; i++) kept[count++] = atoi(argv[i]);
  if (getppid() != command) return 1; /* it was killed meanwhile */
  long long start = started_at(command);
  int end = (int)syscall(SYS_pidfd_open, command, 0);
  if (end >= 0) kept[count++] = end;
  sigset_t all;
  sigfillset(&all);
  sigprocmask(SIG_SETMASK, &all, NULL);
  close_all_but(kept, count);
  pid_t pid = fork_patiently();
  if (pid < 0) die("fork");
  if (pid > 0) return 0;
  setsid();
  rename_self(LEASE_TITLE);
  if (chdir("/")) die("/");
  await_end(command, start, end);
  while (await_marked(mark)) {
  }
  return 0;
}
