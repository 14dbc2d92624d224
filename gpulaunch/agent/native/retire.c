/* The end of an idle worker: its input is closed, TERM after half its grace, KILL after all of it. */
#define _GNU_SOURCE
#include "keeper.h"

#include <errno.h>
#include <math.h>
#include <sys/wait.h>

static struct {
  bool on, asked;
  double term_at, kill_at; /* term_at below zero: it has had its TERM */
  struct sweep sweep;
} r;

bool retiring(void) { return r.on; }

static void tell_gone(void) {
  say_words(station.channel, "{\"is\":\"worker_gone\"}");
}

void retire(bool now, bool asked) {
  double at = monotonic();
  if (r.on) {
    if (now) r.kill_at = at;
  } else if (worker.pid) {
    double grace = now ? 0 : worker.grace;
    r.on = true;
    r.asked = false;
    r.term_at = at + grace / 2;
    r.kill_at = at + grace;
    sweep_begin(&r.sweep, station.channel, worker.by);
    worker_close_input();
  } else if (asked) {
    tell_gone();
  }
  r.asked = r.on && (r.asked || asked);
}

double retire_deadline(void) {
  double now = monotonic();
  if (!worker.pid || now >= r.kill_at) return now + r.sweep.nap;
  return r.term_at < 0 ? r.kill_at : fmin(r.term_at, r.kill_at);
}

static bool reap(void) { /* true, and it is over, once no process is left */
  pid_t pid;
  while ((pid = waitpid(-1, NULL, WNOHANG)) > 0) {
    r.sweep.nap = 0.0005;
    worker_reaped(pid);
  }
  if (pid == 0 || errno != ECHILD) return false;
  r.on = false;
  if (r.asked) tell_gone();
  return true;
}

void retire_advance(double now) {
  if (reap()) return;
  if (!worker.pid || now >= r.kill_at) {
    if (worker.pid) kill(-worker.pid, SIGKILL);
    sweep_kill(&r.sweep);
    reap();
  } else if (r.term_at >= 0 && now >= r.term_at) {
    r.term_at = -1;
    terminate(worker.pid);
  }
}
