/* A child that a preload server has forked. It has imported what jobs import, and becomes one job.
 *
 *   monitor --fork--> forker --fork, which calls hooks of imports--> child: says its PID
 *      `--launch: fork--> giver: cgroup, CPUs, log, directory --the launch, descriptors--> child
 *
 * The forker ends, so that this monitor adopts the child. The monitor was an interpreter until then:
 * an exec keeps its children and its descriptors. See ../preload/server.py for the child's side. */
#define _GNU_SOURCE
#include "keeper.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

struct warm warm = {.link = -1};

enum warmth warm_look(void) {
  char line[32];
  if (!warm.pid) {
    ssize_t got = recv(warm.link, line, sizeof line - 1, MSG_DONTWAIT);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return WARMING;
    if (got <= 0) return GONE;
    line[got] = 0;
    warm.pid = atoi(line);
  }
  return has_ended(warm.pid) ? GONE : WARM;
}

/* Fork a process that hands the launch to the child, with its log, its directory and `pipe`. */
pid_t warm_give(const struct launch *l, int pipe) {
  pid_t pid = fork();
  if (pid) return pid;
  settle_in(station.self);
  int fds[3] = {pipe};
  prepare_for(l, warm.pid, pipe);
  fds[1] = 1;
  fds[2] = open_directory(l->cwd, pipe);
  const char *at = l->fields.memory;
  bool first = true;
  while (at < l->fields.end) {
    ssize_t got = send_with(warm.link, at, (size_t)(l->fields.end - at), fds,
                            first ? 3 : 0, 0);
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) _exit(1); /* it was killed */
    first = false;
    at += got;
  }
  shutdown(warm.link, SHUT_WR);
  _exit(0);
}

void warm_end(void) {
  if (warm.link >= 0) close(warm.link);
  warm.link = -1;
  warm.pid = 0;
}
