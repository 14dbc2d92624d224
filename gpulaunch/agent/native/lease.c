/* Holds leases beside the command of `exec` and of `hold`, and ends the command when its time is over.
 *
 *   gpulaunch exec --spawn--> keeper lease, exits --fork--> keeper-lease: the leases, the time
 *        `--exec--> CMD, which may close what it inherited (closefrom(3): sudo, daemons)
 *
 * The command must not get a child that it does not know, so this process is an orphan. It has a
 * session of its own and blocks signals, so no key of the terminal ends it, or stops it, before the
 * command. It never listens on a lease: the kernel names the command as the holder (SO_PEERCRED).
 *
 * When the time is over, three kinds of processes are ended: the command, the processes below it, and
 * the processes with the command's mark in their environment, wherever they are. */
#define _GNU_SOURCE
#include "keeper.h"

#include <dirent.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK 1.0  /* seconds between two looks at processes that only a look shows */
#define WAIT 60.0 /* seconds of one wait: poll does not count those in which the machine sleeps */

static struct {
  pid_t pid;
  long long start;
  int pidfd;        /* below zero: an old kernel */
  const char *mark; /* a NAME=VALUE in the environment of all that belongs to it */
  bool ended;
} command;

enum awaited { NOBODY, ENDED, TIME_OVER };

static bool is_called(pid_t pid, const char *beginning) {
  char path[64], name[32] = "";
  snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  ssize_t got = read(fd, name, sizeof name - 1);
  close(fd);
  return got > 0 && !strncmp(name, beginning, strlen(beginning));
}

bool holds_leases(pid_t pid) { return is_called(pid, LEASE_TITLE); }

static double now(void) { return clock_now(CLOCK_BOOTTIME); }

/* Wait for the end of a process, or until then; whether it has ended. */
static bool await_end(pid_t pid, long long start, int pidfd, double until) {
  struct pollfd end = {pidfd, POLLIN, 0};
  for (;;) {
    double left = until - now();
    int wait = isinf(left) ? -1 : (int)ceil(fmax(0.0, fmin(left, WAIT)) * 1000);
    if (pidfd < 0 ? started_at(pid) != start : poll(&end, 1, wait) > 0) return true;
    if (left <= 0) return false;
    if (pidfd < 0) nap(fmin(left, LOOK));
  }
}

/* Whether a process has the mark in the environment that it was executed with. */
static bool has_mark(pid_t pid) {
  char path[64], *line = NULL;
  size_t room = 0;
  bool found = false;
  snprintf(path, sizeof path, "/proc/%d/environ", (int)pid);
  FILE *file = fopen(path, "re");
  while (file && !found && getdelim(&line, &room, 0, file) > 0) found = !strcmp(line, command.mark);
  if (file) fclose(file);
  free(line);
  return found;
}

static bool belongs(pid_t pid) {
  if (!command.ended && started_at(command.pid) == command.start)
    for (pid_t each = pid; each > 1; each = (pid_t)stat_number(each, 4))
      if (each == command.pid) return true;
  return has_mark(pid);
}

/* Wait for the end of one process with the mark, or until then; NOBODY: there is none. */
static enum awaited await_marked(double until) {
  DIR *proc = opendir("/proc");
  enum awaited came = NOBODY;
  for (struct dirent *entry; proc && came == NOBODY && (entry = readdir(proc));) {
    pid_t pid = atoi(entry->d_name);
    if (pid <= 0 || pid == getpid() || !has_mark(pid)) continue;
    long long start = started_at(pid);
    int pidfd = pidfd_of(pid);
    /* Its number may have been given to another process since. */
    if (start >= 0 && has_mark(pid)) came = await_end(pid, start, pidfd, until) ? ENDED : TIME_OVER;
    if (pidfd >= 0) close(pidfd);
  }
  if (proc) closedir(proc);
  return came;
}

static enum awaited await_one(double until) {
  if (command.ended) return await_marked(until);
  command.ended = await_end(command.pid, command.start, command.pidfd, until);
  return command.ended ? ENDED : TIME_OVER;
}

static bool ignores_term(pid_t pid) { /* as a shell at a terminal does: it heeds HUP */
  char path[64], line[512];
  unsigned long long ignored = 0;
  snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
  FILE *file = fopen(path, "re");
  while (file && fgets(line, sizeof line, file)) sscanf(line, "SigIgn: %llx", &ignored);
  if (file) fclose(file);
  return ignored >> (SIGTERM - 1) & 1;
}

/* Send TERM or KILL to all that belongs to the command, and CONT, because it may be stopped. The
 * keepers of a run below it are left to end its jobs: they do so once the supervisor has ended. */
static void end_all(int number) {
  struct pids found = {0}, held = {0}; /* all before the first signal: a parent's end hides its child */
  DIR *proc = opendir("/proc");
  for (struct dirent *entry; proc && (entry = readdir(proc));) {
    pid_t pid = atoi(entry->d_name);
    if (pid <= 1 || pid == getpid()) continue;
    int pidfd = pidfd_of(pid); /* before the look: it must be this process that gets the signal */
    if (belongs(pid) && !is_called(pid, "keeper-")) {
      add_pid(&found, pid);
      add_pid(&held, pidfd);
    } else if (pidfd >= 0) {
      close(pidfd);
    }
  }
  if (proc) closedir(proc);
  for (size_t i = 0; i < found.count; i++) {
    send_to(found.at[i], held.at[i], number);
    if (number == SIGTERM && ignores_term(found.at[i])) send_to(found.at[i], held.at[i], SIGHUP);
    send_to(found.at[i], held.at[i], SIGCONT);
    if (held.at[i] >= 0) close(held.at[i]);
  }
  free(found.at);
  free(held.at);
}

/* Say on the command's standard error that its time is over. */
static void tell(void) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/fd/2", (int)command.pid);
  int fd = open(path, O_WRONLY | O_APPEND | O_NOCTTY | O_NONBLOCK | O_CLOEXEC);
  if (fd < 0) return;
  dprintf(fd, "gpulaunch hold: the time is over\n");
  close(fd);
}

/* Hold the leases until the command has ended and all that has its mark. */
static void hold(double until, double grace) {
  bool killing = false;
  for (enum awaited came; (came = await_one(until)) != NOBODY;) {
    if (came == ENDED) continue;
    if (!killing) tell();
    end_all(killing ? SIGKILL : SIGTERM);
    until = now() + (killing ? LOOK : grace);
    killing = true;
  }
}

/* keeper lease PID MARK SECONDS GRACE FD...: hold the descriptors until the parent, which has that
 * PID, has ended and all that has MARK. They are ended after SECONDS: TERM, and KILL after GRACE more.
 * SECONDS is "inf" where they have all the time. */
int lease(int argc, char **argv) {
  int kept[MAX_FDS + 1], count = 0;
  double until = now() + atof(argv[4]), grace = atof(argv[5]);
  command.pid = atoi(argv[2]);
  command.mark = copy_of(argv[3]);
  for (int i = 6; i < argc && count < MAX_FDS; i++) kept[count++] = atoi(argv[i]);
  if (getppid() != command.pid) return 1; /* it was killed meanwhile */
  command.start = started_at(command.pid);
  command.pidfd = pidfd_of(command.pid);
  if (command.pidfd >= 0) kept[count++] = command.pidfd;
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
  hold(until, grace);
  return 0;
}
