/* Ends every descendant.
 *
 * It kills direct children, again and again until waitpid says ECHILD: their numbers cannot be
 * recycled, since nobody else reaps them, and the kernel gives us a dead child's children before we
 * can reap it, so ECHILD proves that no descendant is left.
 *
 * A child may outlive its SIGKILL: one that is traced stops once more at its exit
 * (PTRACE_O_TRACEEXIT) until its tracer goes on or ends, and the tracer may be a process below it.
 * So what is below such a child is killed too. */
#define _GNU_SOURCE
#include "keeper.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define RESISTS_AFTER 0.5    /* seconds; most processes die within milliseconds */
#define UNKILLABLE_AFTER 8.0 /* seconds */
#define MAX_DEPTH 10000

void sweep_begin(struct sweep *s, int channel, const char *attempt) {
  s->channel = channel;
  s->attempt = attempt;
  s->since = monotonic();
  s->nap = 0.0005;
  s->said.count = s->ours.count = 0;
}

/* Note the processes from `pid` up to a child of ours among `roots`; false: it is below none. */
static bool climb(pid_t pid, const struct pids *roots, struct pids *path) {
  path->count = 0;
  while (path->count < MAX_DEPTH) {
    add_pid(path, pid);
    if ((pid = (pid_t)stat_number(pid, 4)) <= 1) return false;
    if (has_pid(roots, pid)) return true;
  }
  return false;
}

/* Kill a process if it is below one of these children of ours.
 *
 * Its number may become another's at any time, so the signal goes to a pidfd. A second reading that
 * is the same as the first proves it: a process whose parent dies gets an older one, whose number
 * was taken all the while. So all parents of the first reading lived when they were read. */
static void kill_if_below(pid_t pid, const struct pids *roots) {
  static struct pids first, second;
  if (has_pid(roots, pid) || !climb(pid, roots, &first)) return;
  int fd = (int)syscall(SYS_pidfd_open, pid, 0);
  if (fd < 0) return;
  bool below = climb(pid, roots, &first) && climb(pid, roots, &second);
  if (below && first.count == second.count &&
      !memcmp(first.at, second.at, first.count * sizeof *first.at))
    syscall(SYS_pidfd_send_signal, fd, SIGKILL, NULL, 0);
  close(fd);
}

static void kill_below(const struct pids *roots) {
  DIR *proc = roots->count ? opendir("/proc") : NULL;
  if (!proc) return;
  for (struct dirent *entry; (entry = readdir(proc));) {
    pid_t pid = atoi(entry->d_name);
    if (pid > 0) kill_if_below(pid, roots);
  }
  closedir(proc);
}

static void tell_unkillable(struct sweep *s) {
  struct text t = {0};
  putf(&t, "{\"is\":\"unkillable\",\"attempt\":");
  if (s->attempt) put_string(&t, s->attempt, ESCAPE, 0);
  else putf(&t, "null");
  putf(&t, ",\"pids\":[");
  for (size_t i = 0; i < s->found.count && i < 200; i++)
    putf(&t, i ? ",%d" : "%d", (int)s->found.at[i]);
  putf(&t, "]}");
  say(s->channel, &t);
  free(t.at);
}

void sweep_kill(struct sweep *s) {
  children(&s->found);
  sweep_found(s);
}

void sweep_found(struct sweep *s) {
  for (size_t i = 0; i < s->found.count; i++) {
    pid_t pid = s->found.at[i];
    if (!has_pid(&s->ours, pid) && holds_leases(pid)) add_pid(&s->ours, pid);
    kill(pid, SIGKILL);
  }
  s->nap = fmin(s->nap * 2, 1.0);
  if (monotonic() - s->since >= RESISTS_AFTER) kill_below(&s->found);
  /* A bounded number of messages: the socket must keep room for the end, read or not. */
  if (monotonic() - s->since <= UNKILLABLE_AFTER || s->said.count >= 100) return;
  bool news = false;
  for (size_t i = 0; i < s->found.count; i++)
    if (!has_pid(&s->said, s->found.at[i])) {
      news = true;
      add_pid(&s->said, s->found.at[i]);
    }
  if (news) tell_unkillable(s);
}

void sweep_to_the_end(int channel) {
  struct sweep s = {0};
  sweep_begin(&s, channel, NULL);
  for (;;) {
    pid_t pid;
    sweep_kill(&s);
    while ((pid = waitpid(-1, NULL, WNOHANG)) > 0) s.nap = 0.0005;
    if (pid < 0 && errno == ECHILD) return;
    nap(s.nap);
  }
}
