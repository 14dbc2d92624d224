/* The spawner, which forks pairs of keepers, and the guardian, the first of each pair.
 *
 * Both hold a pair's descriptors until no process below them is left. */
#define _GNU_SOURCE
#include "keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

struct asked { /* a pair that is to be */
  bool alive;
  int count, fds[MAX_FDS]; /* its socket, a name's if `alive`, its leases */
};

struct pair { /* as the spawner knows it, with what is held until no process of it is left */
  pid_t guardian, monitor;
  long long monitor_start;
  bool broken; /* the guardian was killed */
  int count, *fds;
};

static pid_t self; /* the spawner */
static struct pair *pairs;
static size_t npairs;
static double rest = -1; /* seconds until the next sweep; below zero: none is under way */

/* ── The guardian ──────────────────────────────────────────────────────────────────────────────── */

static void wait_for(pid_t monitor_pid) {
  int status;
  for (;;) {
    pid_t pid = waitpid(-1, &status, WUNTRACED);
    if (pid < 0 && errno == ECHILD) return;
    if (pid <= 0) continue;
    if (WIFSTOPPED(status)) kill(pid, SIGCONT); /* a stopped monitor would keep no time limit */
    else if (pid == monitor_pid) return;
  }
}

void guard(pid_t monitor_pid, int channel) {
  rename_self("keeper-guardian");
  wait_for(monitor_pid);
  sweep_to_the_end(channel);
  _exit(0);
}

__attribute__((noreturn)) static void guardian(const struct asked *pair, int forked) {
  int kept[MAX_FDS + 1], leases[MAX_FDS], nleases = 0;
  pid_t me = getpid();
  memcpy(kept, pair->fds, (size_t)pair->count * sizeof *kept);
  kept[pair->count] = forked;
  close_all_but(kept, pair->count + 1);
  setsid();
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  for (int i = pair->alive ? 2 : 1; i < pair->count; i++) {
    if ((leases[nleases] = copy_high(pair->fds[i])) < 0) die("a lease");
    nleases++;
    close(pair->fds[i]);
  }
  pid_t pid = fork_patiently();
  if (pid < 0) die("fork");
  if (pid == 0) {
    close(forked);
    monitor(pair->fds[0], leases, nleases, me, self);
  }
  if (write(forked, &pid, sizeof pid) != sizeof pid) die("pipe");
  close(forked);
  guard(pid, pair->fds[0]);
}

/* ── The spawner ───────────────────────────────────────────────────────────────────────────────── */

static void drop_pair(size_t i) { /* the socket last: leases are free when the supervisor sees that */
  for (int k = pairs[i].count; k-- > 0;) close(pairs[i].fds[k]);
  free(pairs[i].fds);
  pairs[i] = pairs[--npairs];
}

static bool fork_pair(const struct asked *asked) {
  int forked[2];
  pid_t child = 0;
  if (pipe2(forked, O_CLOEXEC)) return false;
  pid_t pid = fork_patiently();
  if (pid == 0) guardian(asked, forked[1]);
  int why = errno;
  close(forked[1]);
  if (pid > 0 && read(forked[0], &child, sizeof child) != sizeof child) child = 0;
  close(forked[0]);
  errno = why;
  if (pid < 0) return false;
  struct pair pair = {.guardian = pid, .monitor = child, .count = asked->count};
  pair.monitor_start = child ? started_at(child) : -1;
  pair.fds = must(malloc((size_t)asked->count * sizeof *pair.fds));
  memcpy(pair.fds, asked->fds, (size_t)asked->count * sizeof *pair.fds);
  pairs = must(realloc(pairs, (npairs + 1) * sizeof *pairs));
  pairs[npairs++] = pair;
  return true;
}

static bool answer(int control) { /* false: the supervisor is gone */
  struct fields f;
  struct asked asked;
  if (!receive(control, &f, asked.fds, &asked.count)) return false;
  if (strcmp(next_field(&f), "pair") || strcmp(next_field(&f), PROTOCOL)) _exit(UNKNOWN_PROTOCOL);
  int expected = atoi(next_field(&f));
  asked.alive = next_flag(&f);
  free(f.memory);
  errno = EMFILE; /* the kernel dropped some: too many open files here */
  bool whole = asked.count == expected && asked.count >= 1 + asked.alive;
  if (!whole || !fork_pair(&asked)) { /* the supervisor sees the end of file and asks again */
    dprintf(2, "keeper-spawner: a pair could not be forked: %s\n", strerror(errno));
    for (int i = 0; i < asked.count; i++) close(asked.fds[i]);
  }
  return true;
}

static bool lives(const struct pair *pair, const struct pids *mine) { /* its monitor, adopted */
  return pair->broken && has_pid(mine, pair->monitor) &&
         started_at(pair->monitor) == pair->monitor_start;
}

static bool is_keeper(pid_t pid, const struct pids *mine) {
  for (size_t k = 0; k < npairs; k++) {
    if (!pairs[k].broken && pairs[k].guardian == pid) return true;
    if (pairs[k].monitor == pid && lives(&pairs[k], mine)) return true;
  }
  return false;
}

static int channel_of_broken(void) { /* of a pair that is, to tell what cannot be killed */
  for (size_t k = 0; k < npairs; k++)
    if (pairs[k].broken) return pairs[k].fds[0];
  return -1;
}

static void sweep(void) { /* kill what was adopted and is no keeper */
  static struct pids mine;
  static struct sweep strangers;
  children(&mine);
  strangers.found.count = 0;
  for (size_t k = 0; k < npairs; k++) /* it may be stopped, and its guardian is dead */
    if (lives(&pairs[k], &mine)) kill(pairs[k].monitor, SIGCONT);
  for (size_t i = 0; i < mine.count; i++)
    if (!is_keeper(mine.at[i], &mine)) add_pid(&strangers.found, mine.at[i]);
  if (strangers.found.count) {
    if (rest < 0) sweep_begin(&strangers, channel_of_broken(), NULL);
    sweep_found(&strangers);
    rest = strangers.nap;
    return;
  }
  rest = -1;
  for (size_t k = npairs; k-- > 0;)
    if (pairs[k].broken && !lives(&pairs[k], &mine)) drop_pair(k);
}

static void reap(void) {
  int status;
  bool broken = false;
  for (pid_t pid; (pid = waitpid(-1, &status, WNOHANG | WUNTRACED)) > 0;) {
    if (WIFSTOPPED(status)) {
      kill(pid, SIGCONT);
      continue;
    }
    for (size_t k = npairs; k-- > 0;)
      if (!pairs[k].broken && pairs[k].guardian == pid) {
        if (status == 0) drop_pair(k); /* the guardian proved that nothing is left */
        else pairs[k].broken = true;
        break;
      }
  }
  for (size_t k = 0; k < npairs; k++) broken = broken || pairs[k].broken;
  if (broken) sweep();
}

/* Fork pairs and reap them until the supervisor and every pair are gone. */
void spawner(int control) {
  int ends = child_ends();
  if (ends < 0) die("signalfd");
  self = getpid();
  while (control >= 0 || npairs) {
    struct pollfd fds[2] = {{ends, POLLIN, 0}, {control, POLLIN, 0}};
    int got = poll(fds, 2, rest < 0 ? -1 : (int)ceil(rest * 1000));
    if (got < 0 && errno != EINTR) die("poll");
    clear(ends);
    reap();
    if (got > 0 && fds[1].revents && !answer(control)) {
      close(control);
      control = -1;
    }
  }
}
