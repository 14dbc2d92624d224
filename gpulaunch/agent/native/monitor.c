/* The monitor: runs attempts, one at a time, in one loop that waits for everything at once. */
#define _GNU_SOURCE
#include "keeper.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

#define SUPERVISOR_GONE "{\"kind\": \"because\", \"cause\": \"supervisor_gone\"}" /* core.causes */

static int ends;            /* readable when a child has ended, or whoever is above this monitor */
static pid_t guardian, spawner_above;
static bool hears, leaving; /* hears: it reads what the supervisor says */
static struct {
  bool on;
  struct launch launch;
} pending, ahead; /* waits for a worker to be gone; what the worker goes on with after the attempt */
static struct {
  char *reason, *by; /* NULL: none */
  bool now;
} early; /* a stop of the pending attempt */

/* Stop the running attempt, or the one that waits for a worker to be gone. */
static void stop(const char *reason, const char *by, bool now, bool gently) {
  if (attempt_on()) {
    attempt_stop(reason, by, now, gently);
  } else if (pending.on) {
    free(early.reason), free(early.by);
    early.reason = copy_of(reason);
    early.by = copy_of(by);
    early.now = now;
  }
}

static void supervisor_is_gone(void) {
  leaving = true;
  hears = false; /* the socket stays open: it says that this keeper lives */
  stop("interrupted", SUPERVISOR_GONE, false, false);
}

/* Look who is above. The guardian may be gone, and the spawner has adopted this monitor. If both are
 * gone, nobody would kill what this monitor leaves when it is killed too: so nothing is left now. */
static void look_above(void) {
  pid_t above = getppid();
  if (above == guardian) return;
  leaving = true;
  if (above == spawner_above) return;
  sweep_to_the_end(station.channel);
  _exit(0);
}

/* ── Workers: a process that stays from one attempt to the next ────────────────────────────────── */

/* Start the pending attempt; first end a worker that cannot take it. */
static void begin(void) {
  if (worker.pid && !retiring()) {
    bool died = worker_has_died(); /* between items: no attempt has failed by that */
    if (died || !worker_suits(&pending.launch)) retire(died, false);
  }
  if (retiring()) return;
  pending.on = false;
  attempt_begin(pending.launch); /* which owns the message's memory */
  if (!early.reason) return;
  if (attempt_on()) attempt_stop(early.reason, early.by, early.now, false);
  free(early.reason), free(early.by);
  early.reason = early.by = NULL;
}

/* Tell the supervisor that what was to follow never begins here. */
static void decline(void) {
  struct text t = {0};
  putf(&t, "{\"is\":\"unbegun\",\"attempt\":");
  put_string(&t, ahead.launch.id, ESCAPE, 0);
  putf(&t, "}");
  say(station.channel, &t);
  free(t.at);
  free_launch(&ahead.launch);
  ahead.on = false;
}

/* Begin what is to follow, if the worker stays. */
static void go_on(void) {
  if (!ahead.on) return;
  if (leaving || retiring() || !worker.pid) {
    decline();
    return;
  }
  pending = ahead;
  ahead.on = false;
  begin();
}

/* Between attempts: reap or end the worker; start the pending attempt once it is gone. */
static void mind_worker(void) {
  if (worker.pid && !retiring()) {
    if (leaving) retire(false, false);
    else if (worker_has_died()) retire(true, false);
  }
  if (retiring()) retire_advance(monotonic());
  if (pending.on && !retiring()) begin();
}

/* ── What it is told ───────────────────────────────────────────────────────────────────────────── */

static void listen_to_supervisor(void) {
  struct fields f;
  int fds[MAX_FDS], count;
  if (!receive(station.channel, &f, fds, &count)) {
    supervisor_is_gone();
    return;
  }
  for (int i = 0; i < count; i++) close(fds[i]);
  const char *verb = next_field(&f);
  if (!strcmp(verb, "launch")) {
    errno = EPROTO;
    if (attempt_on() || pending.on || !parse_launch(f, &pending.launch)) die("a launch");
    pending.on = true;
    begin();
    return;
  }
  if (!strcmp(verb, "behind")) {
    errno = EPROTO;
    if (ahead.on || !parse_launch(f, &ahead.launch)) die("a launch behind another");
    ahead.on = true;
    if (!attempt_on()) go_on();
    return;
  }
  if (!strcmp(verb, "stop")) {
    const char *attempt = next_field(&f), *reason = next_field(&f), *by = next_field(&f);
    bool now = next_flag(&f), gently = next_flag(&f);
    const char *here = attempt_on() ? attempt_id() : pending.on ? pending.launch.id : NULL;
    if (here && !strcmp(attempt, here)) stop(reason, by, now, gently);
    else if (ahead.on && !strcmp(attempt, ahead.launch.id)) decline();
  } else if (!strcmp(verb, "back")) {
    if (ahead.on && !strcmp(next_field(&f), ahead.launch.id)) decline();
  } else if (!strcmp(verb, "end")) {
    leaving = true;
  } else if (!strcmp(verb, "retire")) {
    if (!attempt_on()) retire(next_flag(&f), true);
  }
  free(f.memory);
}

static int milliseconds_to(double at) {
  return at < 0 ? -1 : (int)fmin(ceil(fmax(0.0, at - monotonic()) * 1000), 86400000.0);
}

static void serve(void) {
  while (attempt_on() || worker.pid || pending.on || !leaving) {
    int more[3], count = attempt_on() ? attempt_pipes(more) : 0;
    struct pollfd fds[6] = {{ends, POLLIN, 0}, {hears ? station.channel : -1, POLLIN, 0}};
    for (int i = 0; i < count; i++) fds[2 + i] = (struct pollfd){more[i], POLLIN, 0};
    if (attempt_on() && worker_has_more())
      fds[2 + count++] = (struct pollfd){worker.items, POLLOUT, 0};
    double at = attempt_on() ? attempt_deadline() : retiring() ? retire_deadline() : -1;
    int ready = poll(fds, (nfds_t)(2 + count), milliseconds_to(at));
    if (ready < 0) {
      if (errno != EINTR) die("poll");
      continue;
    }
    if (fds[0].revents) {
      clear(ends);
      look_above();
    }
    /* First: an end that came before a stop is the job's own. */
    if (attempt_on()) attempt_look(ready == 1 && count && fds[2].revents ? fds[2].fd : -1);
    if (fds[1].revents & POLLHUP) supervisor_is_gone();
    else if (fds[1].revents) listen_to_supervisor();
    if (attempt_on()) attempt_advance();
    if (!attempt_on()) go_on();
    if (!attempt_on()) mind_worker();
  }
}

void monitor(int channel, const int *leases, int nleases, pid_t parent, pid_t spawner) {
  station.channel = channel;
  station.nleases = nleases;
  memcpy(station.leases, leases, (size_t)nleases * sizeof *leases);
  station.self = getpid();
  station.start = started_at(station.self);
  guardian = parent;
  spawner_above = spawner;
  hears = true;
  setsid();
  prctl(PR_SET_CHILD_SUBREAPER, 1); /* not inherited by fork */
  if ((ends = child_ends()) < 0) die("signalfd");
  prctl(PR_SET_PDEATHSIG, SIGCHLD); /* from whichever parent it has */
  rename_self("keeper-monitor");
  look_above(); /* it may have died before the line above */
  serve();
  sweep_to_the_end(channel);
  _exit(0);
}
