/* The processes between the supervisor and a job, as one static program.
 *
 *   supervisor --exec once--> spawner --fork--> guardian --fork--> monitor --fork, exec--> job
 *
 * It starts a job, keeps its signals and its limits of time, records its end, and proves that no process
 * of it is left; a worker stays between the items that it takes. It decides nothing that a job file
 * does not say, touches no card, and writes the value of no variable anywhere.
 *
 * Who adopts whom: all three are subreapers, so an orphan goes to the nearest one that lives.
 *
 *   dies                   then
 *   supervisor             the monitor sees the end of file: TERM, grace, KILL, sweep, end written
 *   monitor                the guardian adopts the job's processes, kills them, exits
 *   guardian               the spawner adopts the monitor, which finishes its job and leaves
 *   monitor and guardian   the spawner kills what it adopts; until then it holds socket and leases
 *   spawner                pairs go on; the supervisor starts another spawner
 *
 * INVARIANT: the supervisor sees the end of file of a pair's socket only when no process of its job is
 * left. Spawner, guardian and monitor each hold the socket, and each closes it only after its own
 * sweep. sweep.c says why a sweep is a proof.
 *
 *   keeper CONTROL               the spawner, with this socket
 *   keeper --self-test PROTOCOL  exit with 0 if such a spawner would work here
 *   keeper try-isolation         exit with 0 if jobs can be isolated here
 *   keeper guardian MONITOR CHANNEL ALIVE LEASE...
 *   keeper monitor GUARDIAN SERVER LIMIT CHANNEL LINK ALIVE LEASE...
 *                                a pair that a preload server forked: see warm.c
 *   keeper inside SOCKET         the first process of a job's container: see inside.c
 *   keeper lease PID MARK SECONDS GRACE FD...  what holds leases beside a command: see lease.c
 *   keeper wait PLACE UNTIL TITLE PROGRAM...   a launcher that waits in line: see wait.c
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

/* Keepers block all signals but these. They block rather than ignore them, so that one call gives a
 * job its defaults, and a TERM that comes between fork and exec stays pending instead of being lost. */
static void block_signals(void) {
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

static void become_keeper(void) {
  block_signals();
  for (int number = 1; number < NSIG; number++) signal(number, SIG_DFL);
  if (prctl(PR_SET_CHILD_SUBREAPER, 1) || chdir("/")) die("a keeper");
}

static void become_spawner(int control) {
  become_keeper();
  rename_self("keeper-spawner");
  term_sender = slurms_own();
  close_all_but(&control, 1);
  fcntl(control, F_SETFD, FD_CLOEXEC);
  spawner(control);
  exit(0);
}

/* Take the descriptors that are arguments and keep only these, for no program that is executed. */
static int take(char **argv, int *fds) {
  int count = 0;
  for (; argv[count] && count < MAX_FDS; count++) fds[count] = atoi(argv[count]);
  close_all_but(fds, count);
  for (int i = 0; i < count; i++) fcntl(fds[i], F_SETFD, FD_CLOEXEC);
  return count;
}

__attribute__((noreturn)) static void become_guardian(char **argv) {
  int fds[MAX_FDS];
  become_keeper();
  take(argv + 1, fds);
  guard(atoi(argv[0]), fds[0]);
}

__attribute__((noreturn)) static void become_monitor(char **argv) {
  int fds[MAX_FDS];
  become_keeper();
  warm.limit = atof(argv[2]);
  int count = take(argv + 3, fds); /* the channel, the child's link, the name, the leases */
  warm.link = fds[1];
  monitor(fds[0], fds + 3, count - 3, atoi(argv[0]), atoi(argv[1]));
}

int main(int argc, char **argv) {
  signal(SIGCHLD, SIG_DFL); /* where it is ignored, as whoever started us may, no end is told */
  if (argc == 3 && !strcmp(argv[1], "--self-test")) return self_test(argv[2]);
  remember_title(argc, argv);
  if (argc == 2 && !strcmp(argv[1], "try-isolation")) return try_isolation();
  if (argc >= 5 && !strcmp(argv[1], "guardian")) become_guardian(argv + 2);
  if (argc >= 8 && !strcmp(argv[1], "monitor")) become_monitor(argv + 2);
  if (argc == 3 && !strcmp(argv[1], "inside")) _exit(inside(argv[2]));
  if (argc >= 7 && !strcmp(argv[1], "lease")) _exit(lease(argc, argv));
  if (argc >= 6 && !strcmp(argv[1], "wait")) return wait_in_line(argv);
  if (argc != 2) return UNKNOWN_PROTOCOL;
  become_spawner(atoi(argv[1]));
}
