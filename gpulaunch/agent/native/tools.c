/* Memory, time, processes, descriptors. */
#define _GNU_SOURCE
#include "keeper.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#ifndef SYS_pidfd_send_signal
#define SYS_pidfd_send_signal 424
#endif
#ifndef SYS_pidfd_open
#define SYS_pidfd_open 434
#endif

#define LEASES_FROM 100 /* descriptor numbers from here on: programs do not use them themselves */

void die(const char *what) { /* the supervisor reads the spawner's standard error */
  dprintf(2, "keeper %d: %s: %s\n", (int)getpid(), what, strerror(errno));
  _exit(70);
}

void *must(void *memory) {
  if (!memory) die("no memory");
  return memory;
}

char *copy_of(const char *text) { return must(strdup(text)); }

double clock_now(clockid_t clock) {
  struct timespec t;
  clock_gettime(clock, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

double monotonic(void) { return clock_now(CLOCK_MONOTONIC); }

void nap(double seconds) {
  struct timespec t = {(time_t)seconds, (long)(fmod(seconds, 1.0) * 1e9)};
  nanosleep(&t, NULL);
}

bool is_scarce(int code) {
  return code == EAGAIN || code == ENOMEM || code == EMFILE || code == ENFILE;
}

double spent_by_children(void) {
  struct rusage u;
  getrusage(RUSAGE_CHILDREN, &u);
  return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
         (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

void add_pid(struct pids *list, pid_t pid) {
  if (list->count == list->room) {
    list->room = list->room * 2 + 16;
    list->at = must(realloc(list->at, list->room * sizeof *list->at));
  }
  list->at[list->count++] = pid;
}

bool has_pid(const struct pids *list, pid_t pid) {
  for (size_t i = 0; i < list->count; i++)
    if (list->at[i] == pid) return true;
  return false;
}

void drop_pid(struct pids *list, pid_t pid) {
  for (size_t i = list->count; i-- > 0;)
    if (list->at[i] == pid) list->at[i] = list->at[--list->count];
}

static char *title_start, *title_end; /* where `ps` finds our command line */

void remember_title(int argc, char **argv) {
  title_start = argv[0];
  title_end = argv[argc - 1] + strlen(argv[argc - 1]) + 1;
}

/* The first command line holds the package's path, and `pkill -f gpulaunch` must not kill
 * supervisor and keepers together. */
void rename_self(const char *title) {
  prctl(PR_SET_NAME, title);
  size_t room = (size_t)(title_end - title_start), size = strlen(title);
  memset(title_start, 0, room);
  memcpy(title_start, title, size < room ? size : room - 1);
}

/* A number of a stat file in /proc, the state being field 3; for the state, its letter. -1: it is
 * gone. */
static long long number_in(const char *path, int field) {
  char text[2048];
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  ssize_t got = read(fd, text, sizeof text - 1);
  close(fd);
  if (got <= 0) return -1;
  text[got] = 0;
  char *at = strrchr(text, ')');
  if (!at || !at[1]) return -1;
  at += 2;
  if (field == 3) return *at;
  for (int i = 3; i < field && at; i++)
    if ((at = strchr(at, ' '))) at++;
  return at ? atoll(at) : -1;
}

long long stat_number(pid_t pid, int field) {
  char path[64];
  snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
  return number_in(path, field);
}

long long started_at(pid_t pid) { return stat_number(pid, 22); }

bool is_stopped(pid_t pid) {
  long long state = stat_number(pid, 3);
  return state == 'T' || state == 't';
}

/* Whether every thread of a process sleeps: none is in the midst of sending signals, not even one
 * that waits for a CPU. False where that cannot be seen. */
bool is_at_rest(pid_t pid) {
  char path[64], each[352];
  snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
  DIR *tasks = opendir(path);
  bool rests = tasks;
  for (struct dirent *entry; rests && (entry = readdir(tasks));) {
    if (entry->d_name[0] == '.') continue;
    snprintf(each, sizeof each, "%s/%s/stat", path, entry->d_name);
    rests = number_in(each, 3) == 'S';
  }
  if (tasks) closedir(tasks);
  return rests;
}

/* Slurm's process above this one, which signals all processes of the job; 0: it is not seen. */
pid_t slurms_own(void) {
  pid_t pid = getppid();
  for (int above = 0; pid > 1 && above < 20; above++) { /* a site may wrap the batch script */
    char path[64], name[32] = "";
    snprintf(path, sizeof path, "/proc/%d/comm", (int)pid);
    FILE *file = fopen(path, "re");
    if (file && !fgets(name, sizeof name, file)) *name = 0;
    if (file) fclose(file);
    if (!strcmp(name, "slurmstepd\n")) return pid;
    pid = (pid_t)stat_number(pid, 4);
  }
  return 0;
}

void children(struct pids *found) {
  char path[64];
  pid_t me = getpid();
  int pid;
  found->count = 0;
  snprintf(path, sizeof path, "/proc/self/task/%d/children", (int)me);
  FILE *file = fopen(path, "re");
  if (file) {
    while (fscanf(file, "%d", &pid) == 1) add_pid(found, pid);
    fclose(file);
    return;
  }
  DIR *proc = opendir("/proc"); /* a kernel without CONFIG_PROC_CHILDREN */
  if (!proc) die("/proc");
  for (struct dirent *entry; (entry = readdir(proc));)
    if ((pid = atoi(entry->d_name)) > 0 && stat_number(pid, 4) == me) add_pid(found, pid);
  closedir(proc);
}

bool has_ended(pid_t pid) { /* of a direct child, reaped or not */
  siginfo_t info = {0};
  if (waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT)) return errno == ECHILD;
  return info.si_pid == pid;
}

/* TERM to a direct child's group, and CONT: stopped, it would not see the TERM. A child that has not
 * called setsid yet has no group. */
void terminate(pid_t pid) {
  if (kill(-pid, SIGTERM)) kill(pid, SIGTERM);
  if (kill(-pid, SIGCONT)) kill(pid, SIGCONT);
}

/* A descriptor of a process, whose number cannot become another's while it is open. Below zero: an
 * old kernel, or it is gone. */
int pidfd_of(pid_t pid) { return (int)syscall(SYS_pidfd_open, pid, 0); }

/* Signal a process, by its descriptor where there is one; whether it was sent. */
bool send_to(pid_t pid, int pidfd, int number) {
  if (pidfd < 0) return !kill(pid, number);
  return !syscall(SYS_pidfd_send_signal, pidfd, number, NULL, 0);
}

pid_t fork_patiently(void) {
  for (double pause = 0.01;; pause *= 2) {
    pid_t pid = fork();
    if (pid >= 0 || !is_scarce(errno) || pause > 1.0) return pid;
    nap(pause);
  }
}

/* In a forked child, of whatever use: a session of its own, and no life without its keeper. */
void settle_in(pid_t parent) {
  sigset_t none;
  setsid();
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) _exit(127); /* the keeper died before the line above */
  sigemptyset(&none);
  sigprocmask(SIG_SETMASK, &none, NULL);
}

void close_all_but(const int *kept, int count) {
  DIR *dir = opendir("/proc/self/fd");
  if (!dir) die("/proc/self/fd");
  for (struct dirent *entry; (entry = readdir(dir));) {
    if (entry->d_name[0] == '.') continue;
    int fd = atoi(entry->d_name);
    bool keep = fd <= 2 || fd == dirfd(dir);
    for (int i = 0; i < count; i++) keep = keep || kept[i] == fd;
    if (!keep) close(fd);
  }
  closedir(dir);
}

/* A copy at LEASES_FROM or above; with a low limit, in the upper half of it. Below zero: none. */
int copy_high(int fd) {
  struct rlimit limit;
  int least = LEASES_FROM;
  if (!getrlimit(RLIMIT_NOFILE, &limit) && limit.rlim_cur / 2 < LEASES_FROM)
    least = (int)(limit.rlim_cur / 2);
  return fcntl(fd, F_DUPFD_CLOEXEC, least);
}

/* A descriptor that is readable when a child has ended. SIGCHLD is blocked: no handler ever runs. */
int child_ends(void) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGCHLD);
  return signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
}

void clear(int fd) {
  struct signalfd_siginfo info[8];
  while (read(fd, info, sizeof info) == sizeof info) {
  }
}
