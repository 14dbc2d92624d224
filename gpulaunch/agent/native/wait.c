/* Waits in line for `gpulaunch exec` and `gpulaunch hold`, and then becomes the launcher again.
 *
 *   ...gpulaunch/1/line/LINE/SINCE-PID   a place in a line: a listening socket, gone with its process
 *
 *   the first     a launcher, which asks for cards; it becomes its command, which closes the place
 *   all others    this program, each connected to the nearest place ahead of its own
 *
 * Nobody accepts these connections. The kernel ends one when the place is closed, so that a freed
 * card wakes one process of the line. Which launchers stand in one line, and what they do for those
 * in other lines, ../../run/wait_queue.py has.
 *
 * Only places of this user's processes count, because a place keeps all behind it waiting, and no
 * place of a stopped or frozen process: the kernel tells nobody of that, so that is looked at. */
#define _GNU_SOURCE
#include "keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define LOOK 10.0     /* seconds between two looks of the second in line at the first */
#define LOOK_FAR 60.0 /* the same of those further behind */
#define OWN_FAILURE 125 /* as in ../../base/errors.py */

static struct sockaddr_un own; /* the place: a NUL, and its name */
static const char *const own_name = own.sun_path + 1;
static size_t line_size; /* of the name's beginning, which all places of the line have */

/* Find the nearest place before a name in the line; false: there is none. */
static bool before(const char *name, char *found) {
  char *row = NULL;
  size_t room = 0;
  found[0] = 0;
  for (int reading = 0; reading < 2; reading++) { /* one may leave a socket out: gpus/socket_locks.py */
    FILE *table = fopen("/proc/net/unix", "re");
    while (table && getline(&row, &room, table) > 0) {
      row[strcspn(row, "\n")] = 0;
      char *at = strstr(row, " @");
      if (!at || strlen(at += 2) >= sizeof own.sun_path || strncmp(at, own_name, line_size)) continue;
      if (strcmp(at, name) < 0 && strcmp(at, found) > 0) strcpy(found, at);
    }
    if (table) fclose(table);
  }
  free(row);
  return found[0];
}

/* Connect to a place of this user; below zero: it is gone, or another user's. `pid` is 0 for a
 * process in another PID namespace. */
static int reach(const char *name, pid_t *pid) {
  struct sockaddr_un there = {.sun_family = AF_UNIX};
  struct ucred peer;
  socklen_t size = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + strlen(name));
  socklen_t room = sizeof peer;
  int link = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (link < 0) return -1;
  strcpy(there.sun_path + 1, name);
  if (!connect(link, (struct sockaddr *)&there, size) &&
      !getsockopt(link, SOL_SOCKET, SO_PEERCRED, &peer, &room) && peer.uid == geteuid()) {
    *pid = peer.pid;
    return link;
  }
  close(link);
  return -1;
}

static bool has_line(const char *path, const char *sought) {
  char line[256];
  bool found = false;
  FILE *file = fopen(path, "re");
  while (file && !found && fgets(line, sizeof line, file)) found = !strcmp(line, sought);
  if (file) fclose(file);
  return found;
}

static bool is_frozen(pid_t pid) { /* as ../proc.py: both versions of control groups */
  char path[64], state[4400], *row = NULL;
  size_t room = 0;
  bool found = false;
  snprintf(path, sizeof path, "/proc/%d/cgroup", (int)pid);
  FILE *file = fopen(path, "re");
  while (file && !found && getline(&row, &room, file) > 0) {
    char *controllers = strchr(row, ':'), *group = controllers ? strchr(controllers + 1, ':') : NULL;
    if (!group) continue;
    *group++ = 0;
    group[strcspn(group, "\n")] = 0;
    if (!strcmp(controllers, ":freezer")) {
      snprintf(state, sizeof state, "/sys/fs/cgroup/freezer%s/freezer.state", group);
      found = has_line(state, "FROZEN\n");
    } else if (!strcmp(controllers, ":")) {
      snprintf(state, sizeof state, "/sys/fs/cgroup%s/cgroup.events", group);
      found = has_line(state, "frozen 1\n");
      snprintf(state, sizeof state, "/sys/fs/cgroup/unified%s/cgroup.events", group);
      found = found || has_line(state, "frozen 1\n");
    }
  }
  if (file) fclose(file);
  free(row);
  return found;
}

static bool is_suspended(pid_t pid) { return pid && (is_stopped(pid) || is_frozen(pid)); }

/* Wait until the process of the place ahead is gone or suspended; false: the time is over first. */
static bool await(int link, pid_t pid, const char *ahead, double until) {
  struct pollfd end = {link, 0, 0}; /* its end alone, whatever it may send */
  char further[sizeof own.sun_path];
  for (;;) {
    double left = fmin(until - monotonic(), before(ahead, further) ? LOOK_FAR : LOOK);
    if (left <= 0) return false;
    if (poll(&end, 1, (int)ceil(left * 1000)) > 0 || is_suspended(pid)) return true;
  }
}

static void wait_until_first(double until) {
  char name[sizeof own.sun_path], ahead[sizeof own.sun_path];
  strcpy(name, own_name);
  while (before(name, ahead)) {
    pid_t pid;
    int link = reach(ahead, &pid);
    bool counts = link >= 0 && !is_suspended(pid), over = counts && !await(link, pid, ahead, until);
    if (link >= 0) close(link);
    if (over) return;
    strcpy(name, counts ? own_name : ahead);
  }
}

/* keeper wait PLACE UNTIL TITLE PROGRAM ARGUMENT...: wait until no place is ahead of the descriptor
 * PLACE in its line, or until then, in monotonic seconds. TITLE is for people who list processes. */
int wait_in_line(char **argv) {
  char **program = argv + 5;
  socklen_t size = sizeof own;
  double until = atof(argv[3]);
  if (getsockname(atoi(argv[2]), (struct sockaddr *)&own, &size) || size >= sizeof own ||
      !strrchr(own_name, '/'))
    die("a place in line");
  line_size = (size_t)(strrchr(own_name, '/') + 1 - own_name);
  for (char **word = argv + 4; *word; word++) *word = copy_of(*word);
  rename_self(argv[4]);
  wait_until_first(until);
  execv(program[0], program);
  fprintf(stderr, "gpulaunch: the turn has come, but %s cannot be started: %s\n", program[0],
          strerror(errno));
  return OWN_FAILURE;
}
