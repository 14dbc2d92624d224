/* The keepers' program with some calls of the system changed, as variables of its environment say.
 *
 *   WRAPPED_SCARCE=1      two of three forks fail, as where processes are scarce
 *   WRAPPED_SPY=FILE      signals to processes that are no children, or their groups, are noted there
 *   WRAPPED_ROOM=CODE     no room for the record of an end can be allocated, with this errno */
#define _GNU_SOURCE
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

#include "keeper.h"

pid_t __real_fork(void);
int __real_kill(pid_t pid, int number);
int __real_fallocate(int fd, int mode, off_t at, off_t size);

pid_t __wrap_fork(void) {
  static int calls;
  if (!getenv("WRAPPED_SCARCE") || ++calls % 3 == 0) return __real_fork();
  errno = EAGAIN;
  return -1;
}

int __wrap_kill(pid_t pid, int number) {
  const char *record = getenv("WRAPPED_SPY");
  static struct pids mine;
  if (record) {
    children(&mine);
    if (!has_pid(&mine, abs(pid))) {
      FILE *file = fopen(record, "ae");
      if (file) fprintf(file, "%d %d\n", (int)pid, number), fclose(file);
    }
  }
  return __real_kill(pid, number);
}

int __wrap_fallocate(int fd, int mode, off_t at, off_t size) {
  const char *code = getenv("WRAPPED_ROOM");
  if (!code) return __real_fallocate(fd, mode, at, size);
  errno = atoi(code);
  return -1;
}
