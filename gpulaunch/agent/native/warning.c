/* Which processes of a job are sent its warning: those that take the signal.
 *
 * A signal that a process neither handles nor waits for would end it. So the main process gets the
 * warning if it takes that signal, otherwise its nearest descendants that do: a shell that waits for its
 * command, `torchrun` and `uv run` hand nothing on. Below a process that takes it nobody gets it as well:
 * forked helpers inherit handlers. Nothing is sent where no process takes it. */
#define _GNU_SOURCE
#include "keeper.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static bool has(unsigned long long set, int number) { return set >> (number - 1) & 1; }

/* The signals that a process handles, and those that it blocks to wait for them. None for one that
 * has ended, or has another parent: it is another process by now. */
static void taken_by(pid_t pid, pid_t parent, unsigned long long *caught,
                     unsigned long long *blocked) {
  char path[64], line[512];
  int above;
  snprintf(path, sizeof path, "/proc/%d/status", (int)pid);
  FILE *file = fopen(path, "re");
  bool other = false;
  *caught = *blocked = 0;
  while (file && fgets(line, sizeof line, file)) {
    if (sscanf(line, "PPid: %d", &above) == 1) other = parent && above != parent;
    sscanf(line, "SigBlk: %llx", blocked);
    sscanf(line, "SigCgt: %llx", caught);
  }
  if (file) fclose(file);
  if (other) *caught = *blocked = 0;
}

static void children_of(pid_t pid, struct pids *found) {
  char path[64], each[352];
  int child;
  snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
  DIR *tasks = opendir(path);
  for (struct dirent *entry; tasks && (entry = readdir(tasks));) {
    if (entry->d_name[0] == '.') continue;
    snprintf(each, sizeof each, "%s/%s/children", path, entry->d_name);
    FILE *file = fopen(each, "re");
    while (file && fscanf(file, "%d", &child) == 1) add_pid(found, child);
    if (file) fclose(file);
  }
  if (tasks) closedir(tasks);
}

static int warn_below(pid_t pid, int number, pid_t parent) {
  /* Its number cannot become another's while this descriptor is open. */
  int held = parent ? pidfd_of(pid) : -1, count = 0;
  unsigned long long caught, blocked;
  taken_by(pid, parent, &caught, &blocked);
  bool takes = has(caught | blocked, number);
  bool general = has(caught, SIGVTALRM) && number != SIGVTALRM; /* bash with a trap on EXIT */
  if (takes && !general) {
    count = send_to(pid, held, number);
  } else {
    struct pids below = {0};
    children_of(pid, &below);
    for (size_t i = 0; i < below.count; i++) count += warn_below(below.at[i], number, pid);
    free(below.at);
    if (!count && takes) count = send_to(pid, held, number);
  }
  if (held >= 0) close(held);
  return count;
}

int warn(pid_t pid, int number) { return warn_below(pid, number, 0); }
