/* A forked child becomes the job: its log, its directory, its file, and words for what is wrong. */
#define _GNU_SOURCE
#include "keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAX_CPUS (1 << 16) /* numbers beyond are of no machine */

extern char **environ;
int unfit_status = NO_PROGRAM;

void refuse(int pipe, const char *format, ...) {
  va_list list;
  va_start(list, format);
  vdprintf(pipe, format, list);
  va_end(list);
  _exit(unfit_status);
}

static size_t name_size(const char *entry) { return strcspn(entry, "="); }

static bool is_named(const char *entry, const char *name, size_t size) {
  return name_size(entry) == size && !memcmp(entry, name, size);
}

static bool is_changed(const struct launch *l, const char *entry) {
  size_t size = name_size(entry);
  for (size_t i = 0; i < l->nset; i++)
    if (is_named(l->set[i], entry, size)) return true;
  for (size_t i = 0; i < l->nunset; i++)
    if (is_named(l->unset[i], entry, size)) return true;
  return false;
}

const char **environment_of(const struct launch *l) {
  size_t count = 0, n = 0;
  while (environ[count]) count++;
  const char **all = must(calloc(count + l->nset + 1, sizeof *all));
  for (size_t i = 0; i < count; i++)
    if (!is_changed(l, environ[i])) all[n++] = environ[i];
  for (size_t i = 0; i < l->nset; i++) all[n++] = l->set[i];
  return all;
}

static const char *value_of(const char **environment, const char *name) {
  for (; *environment; environment++)
    if (is_named(*environment, name, strlen(name))) return strchr(*environment, '=') + 1;
  return NULL;
}

static bool exists(const char *path) {
  struct stat seen;
  return !lstat(path, &seen);
}

/* The place of `name` in the first folder of the search path `from`. */
static char *place_in(const char *from, const char *name) {
  char *place;
  int size = (int)strcspn(from, ":");
  const char *slash = size && from[size - 1] == '/' ? "" : "/";
  if (asprintf(&place, "%.*s%s%s", size ? size : 1, size ? from : ".", slash, name) < 0)
    die("asprintf");
  return place;
}

__attribute__((noreturn)) static void missing_interpreter(int pipe, const char *place) {
  char line[257];
  int fd = open(place, O_RDONLY | O_CLOEXEC);
  ssize_t got = fd < 0 ? -1 : read(fd, line, 256);
  if (got < 0) refuse(pipe, "%s is a link to a file that does not exist", place);
  line[got] = 0;
  line[strcspn(line, "\n")] = 0;
  size_t size = strlen(line);
  if (strncmp(line, "#!", 2))
    refuse(pipe, "%s exists, but the loader it asks for does not (built for another system?)",
           place);
  if (line[size - 1] == '\r')
    refuse(pipe,
           "%s has Windows line ends, so its #! line names no interpreter: convert it (dos2unix)",
           place);
  char *word = strtok(line + 2, " \t\r\v\f");
  refuse(pipe, "%s exists, but its interpreter %s does not", place, word ? word : "");
}

static size_t total_size(const char **list) {
  size_t total = 0;
  for (; *list; list++) total += strlen(*list) + 1;
  return total;
}

__attribute__((noreturn)) static void too_long(int pipe, const char *place, size_t size) {
  char digits[32], grouped[48];
  size_t n = 0, count = (size_t)snprintf(digits, sizeof digits, "%zu", size);
  for (size_t i = 0; i < count; i++) {
    if (i && (count - i) % 3 == 0) grouped[n++] = ',';
    grouped[n++] = digits[i];
  }
  grouped[n] = 0;
  refuse(pipe, "%s: arguments and environment are too long for the kernel (%s bytes)", place,
         grouped);
}

/* Replace this process by the program, found in the job's own PATH; or say why not. */
__attribute__((noreturn)) static void execute(int pipe, const char **argv, const char **all) {
  const char *name = argv[0], *path = value_of(all, "PATH");
  bool direct = strchr(name, '/');
  char *worst = NULL;
  int code = 0;
  if (!path) path = "/bin:/usr/bin";
  for (const char *from = path; from;) {
    char *place = direct ? copy_of(name) : place_in(from, name);
    execve(place, (char *const *)argv, (char *const *)all);
    int why = errno;
    bool searched = !direct || why == ENOENT || why == ENOTDIR;
    bool absent = searched && !exists(place);
    if (!absent && !worst) {
      worst = place;
      code = why;
    }
    if (direct || (!absent && why != EACCES && why != ENOENT && why != ENOTDIR)) break;
    from = strchr(from, ':');
    if (from) from++;
  }
  if (!worst) {
    dprintf(pipe, direct ? "there is no program %s" : "%s: not found in the job's PATH", name);
    _exit(NO_PROGRAM);
  }
  struct stat seen;
  if (!stat(worst, &seen) && S_ISDIR(seen.st_mode))
    refuse(pipe, "%s is a directory, not a program", worst);
  if (code == ENOENT) missing_interpreter(pipe, worst);
  if (code == EACCES)
    refuse(pipe, "%s may not be executed (permission denied): chmod +x it, or name its interpreter",
           worst);
  if (code == ENOEXEC)
    refuse(pipe, "%s is no program for this machine, and has no #! line: name its interpreter",
           worst);
  if (code == E2BIG) too_long(pipe, worst, total_size(argv) + total_size(all));
  refuse(pipe, "%s cannot be executed: %s", worst, strerror(code));
}

bool run_on(pid_t pid, const char **cpus, size_t count) {
  long most = 0;
  for (size_t i = 0; i < count; i++)
    if (atol(cpus[i]) > most) most = atol(cpus[i]);
  size_t size = CPU_ALLOC_SIZE(most + 1);
  cpu_set_t *set = most < MAX_CPUS ? CPU_ALLOC(most + 1) : NULL;
  if (!set) return false;
  CPU_ZERO_S(size, set);
  for (size_t i = 0; i < count; i++) CPU_SET_S((size_t)atol(cpus[i]), size, set);
  bool done = !sched_setaffinity(pid, size, set);
  CPU_FREE(set);
  return done;
}

static void open_log(const char *log, int pipe) {
  int fd = open(log, O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_NOCTTY | O_CLOEXEC, 0600);
  if (fd < 0) {
    const char *mark = errno == ENOSPC ? (const char[]){FULL, 0} : "";
    refuse(pipe, "%scannot create the log %s: %s", mark, log, strerror(errno));
  }
  dup2(fd, 1);
  dup2(fd, 2);
  close(fd);
}

int open_directory(const char *cwd, int pipe) {
  int fd = open(cwd, O_PATH | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0 && !fchdir(fd)) return fd;
  if (errno == ENOENT) refuse(pipe, "the working directory %s does not exist", cwd);
  if (errno == ENOTDIR) refuse(pipe, "the working directory %s is not a directory", cwd);
  if (errno == EACCES)
    refuse(pipe, "the working directory %s may not be entered (permission denied)", cwd);
  refuse(pipe, "the working directory %s cannot be entered: %s", cwd, strerror(errno));
}

/* Let a process (0: this one), and all that it will fork, count in the cgroup whose list of processes
 * `procs` is; empty: it stays where it is. */
static void join_cgroup(const char *procs, pid_t pid, int pipe) {
  if (!*procs) return;
  int fd = open(procs, O_WRONLY | O_CLOEXEC);
  bool joined = fd >= 0 && dprintf(fd, "%d", (int)pid) > 0;
  if (!joined) refuse(pipe, "cannot enter its cgroup by %s: %s", procs, strerror(errno));
  close(fd);
}

/* Connect a worker to its items and, by descriptor 3, its answers; return where the pipe is then. */
static int connect_worker(const int *items, int pipe) {
  int high = copy_high(pipe), answers = copy_high(items[1]);
  if (high < 0 || answers < 0 || dup2(items[0], 0) < 0 || dup2(answers, 3) < 0)
    refuse(pipe, "%s", strerror(errno));
  return high;
}

void prepare_for(const struct launch *l, pid_t pid, int pipe) {
  join_cgroup(l->cgroup, pid, pipe);
  if (l->ncpus && !run_on(pid, l->cpus, l->ncpus) && write(pipe, (char[]){ELSEWHERE}, 1) < 0)
    _exit(0);
  open_log(l->log, pipe);
}

void become_program(const struct launch *l, const char **environment, int pipe) {
  close(open_directory(l->cwd, pipe));
  execute(pipe, l->argv, environment);
}

void become_job(const struct launch *l, int pipe, const int *items) {
  settle_in(station.self);
  for (int i = 0; i < station.nleases; i++) fcntl(station.leases[i], F_SETFD, 0);
  const char **environment = environment_of(l);
  prepare_for(l, 0, pipe);
  if (l->isolated) isolate(l->hidden, l->nhidden, pipe); /* opens 0 anew: before a worker's */
  if (items) pipe = connect_worker(items, pipe);
  become_program(l, environment, pipe);
}
