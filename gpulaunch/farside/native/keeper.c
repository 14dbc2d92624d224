/* The processes between the supervisor and a job, as one static program.
 *
 *   supervisor --exec once--> spawner --fork--> guardian --fork--> monitor --fork, exec--> job
 *
 * The same processes, promises, messages and files as ../keeper has, whose introduction says who
 * adopts whom. Preload servers, which are in the jobs' own interpreter, have those keepers. It
 * decides nothing, and its words for people are that one's words.
 *
 *   keeper CONTROL               the spawner, with this socket
 *   keeper --self-test PROTOCOL  exit with 0 if such a spawner would work here
 *   keeper try-isolation         exit with 0 if jobs can be isolated here
 *   keeper inside SOCKET         the first process of a job's container: see inside.c
 *   keeper lease PID MARK FD...  what holds leases beside the command of `exec`: see lease.c
 */
#define _GNU_SOURCE
#include "keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

static void block_signals(void) { /* all but these: see keeper/kernel.py */
  static const int heard[] = {SIGCONT, SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
  sigset_t blocked;
  sigfillset(&blocked);
  for (size_t i = 0; i < sizeof heard / sizeof *heard; i++) sigdelset(&blocked, heard[i]);
  sigprocmask(SIG_SETMASK, &blocked, NULL);
}

static int try_isolation(void) { /* and tell on standard error why it is not possible here */
  isolate(NULL, 0, STDERR_FILENO);
  return 0;
}

static int self_test(const char *protocol) {
  static struct pids mine;
  if (strcmp(protocol, PROTOCOL)) return UNKNOWN_PROTOCOL;
  block_signals();
  if (prctl(PR_SET_CHILD_SUBREAPER, 1)) die("a subreaper");
  int ends = child_ends();
  if (ends < 0) die("signalfd");
  if (started_at(getpid()) < 0) die("/proc");
  pid_t me = getpid(), pid = fork();
  if (pid < 0) die("fork");
  if (pid == 0) {
    settle_in(me);
    pause();
    _exit(1);
  }
  children(&mine);
  if (!has_pid(&mine, pid)) die("children in /proc");
  kill(pid, SIGKILL);
  struct pollfd end = {ends, POLLIN, 0};
  if (poll(&end, 1, 5000) != 1 || !has_ended(pid) || waitpid(pid, NULL, 0) != pid) die("a child");
  return 0;
}

static void become_spawner(int control) {
  block_signals();
  rename_self("keeper-spawner");
  term_sender = slurms_own();
  close_all_but(&control, 1);
  fcntl(control, F_SETFD, FD_CLOEXEC);
  for (int number = 1; number < NSIG; number++) signal(number, SIG_DFL);
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) || chdir("/")) die("the spawner");
  spawner(control);
  exit(0);
}

int main(int argc, char **argv) {
  signal(SIGCHLD, SIG_DFL); /* where it is ignored, as whoever started us may, no end is told */
  if (argc == 3 && !strcmp(argv[1], "--self-test")) return self_test(argv[2]);
  remember_title(argc, argv);
  if (argc == 2 && !strcmp(argv[1], "try-isolation")) return try_isolation();
  if (argc == 3 && !strcmp(argv[1], "inside")) _exit(inside(argv[2]));
  if (argc >= 5 && !strcmp(argv[1], "lease")) _exit(lease(argc, argv));
  if (argc != 2) return UNKNOWN_PROTOCOL;
  become_spawner(atoi(argv[1]));
}
