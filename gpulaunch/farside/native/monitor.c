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

#define LOOK 2.0 /* seconds between an idle pair's looks at whether the supervisor is stopped */
#define LOOKS 2  /* looks in a row that find it stopped before the pair returns its leases */
#define SUPERVISOR_GONE "{\"kind\": \"because\", \"cause\": \"supervisor_gone\"}" /* core.causes */

static int ends, watch;     /* watch: readable when the guardian is gone */
static bool hears, leaving; /* hears: it reads what the supervisor says */
static pid_t supervisor;    /* 0: it is not looked at */
static double look_at = -1; /* below zero: not now */
static int found_stopped;

/* Leave, and read no more: what the supervisor sends from here on is never begun. */
static void leave(void) {
  say_with(station.channel, "{\"is\":\"left\"}", NULL, 0);
  hears = false;
  leaving = true;
  look_at = -1;
}

static void look_at_supervisor(double now) {
  if (attempt_on() || leaving) {
    look_at = -1;
    found_stopped = 0;
  } else if (look_at < 0) {
    look_at = now + LOOK;
  } else if (now >= look_at) {
    look_at = now + LOOK;
    found_stopped = is_stopped(supervisor) ? found_stopped + 1 : 0;
    if (found_stopped >= LOOKS) leave();
  }
}

static void supervisor_is_gone(void) {
  leaving = true;
  hears = false; /* the socket stays open: it says that this keeper lives */
  if (attempt_on()) attempt_stop("interrupted", SUPERVISOR_GONE, false);
}

static void listen_to_supervisor(void) {
  struct fields f;
  struct launch launch;
  int fds[MAX_FDS], count;
  if (!receive(station.channel, &f, fds, &count)) {
    supervisor_is_gone();
    return;
  }
  for (int i = 0; i < count; i++) close(fds[i]);
  const char *verb = next_field(&f);
  if (!strcmp(verb, "launch")) {
    errno = EPROTO;
    if (attempt_on() || !parse_launch(f, &launch)) die("a launch that is none");
    attempt_begin(launch); /* which owns the message's memory */
    return;
  }
  if (!strcmp(verb, "stop")) {
    const char *attempt = next_field(&f), *reason = next_field(&f), *by = next_field(&f);
    bool now = next_flag(&f);
    if (attempt_on() && !strcmp(attempt, attempt_id())) attempt_stop(reason, by, now);
  } else if (!strcmp(verb, "end")) {
    leaving = true;
  } else if (!strcmp(verb, "lend")) {
    say_with(station.channel, "{\"is\":\"lent\"}", station.leases, station.nleases);
  } else if (!strcmp(verb, "retire")) {
    say_with(station.channel, "{\"is\":\"worker_gone\"}", NULL, 0); /* there is none */
  }
  free(f.memory);
}

static int milliseconds_to(double at) {
  return at < 0 ? -1 : (int)fmin(ceil(fmax(0.0, at - monotonic()) * 1000), 86400000.0);
}

static void serve(void) {
  while (attempt_on() || !leaving) {
    int more[2], count = attempt_on() ? attempt_pipes(more) : 0;
    struct pollfd fds[5] = {{ends, POLLIN, 0},
                            {watch, POLLIN, 0},
                            {hears ? station.channel : -1, POLLIN, 0}};
    for (int i = 0; i < count; i++) fds[3 + i] = (struct pollfd){more[i], POLLIN, 0};
    double at = attempt_on() ? attempt_deadline() : look_at;
    if (poll(fds, (nfds_t)(3 + count), milliseconds_to(at)) < 0) {
      if (errno != EINTR) die("poll");
      continue;
    }
    clear(ends);
    if (attempt_on()) attempt_look(); /* first: an end that came before a stop is the job's own */
    if (fds[2].revents & POLLHUP) supervisor_is_gone();
    else if (fds[2].revents) listen_to_supervisor();
    if (fds[1].revents) { /* the guardian is gone: the spawner has adopted this monitor */
      close(watch);
      watch = -1;
      leaving = true;
    }
    if (attempt_on()) attempt_advance();
    if (supervisor) look_at_supervisor(monotonic());
  }
}

void monitor(int channel, const int *leases, int nleases, int guardian, bool gives_back) {
  struct ucred peer = {0};
  socklen_t size = sizeof peer;
  station.channel = channel;
  station.nleases = nleases;
  memcpy(station.leases, leases, (size_t)nleases * sizeof *leases);
  station.self = getpid();
  station.start = started_at(station.self);
  watch = guardian;
  hears = true;
  if (gives_back && !getsockopt(channel, SOL_SOCKET, SO_PEERCRED, &peer, &size))
    supervisor = peer.pid;
  setsid();
  prctl(PR_SET_CHILD_SUBREAPER, 1); /* not inherited by fork */
  if ((ends = child_ends()) < 0) die("signalfd");
  rename_self("keeper-monitor");
  serve();
  sweep_to_the_end(channel);
  _exit(0);
}
