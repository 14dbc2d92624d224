/* A job that does what jobs should not. Called as: nasty MODE TOKEN. Every process of it carries
   TOKEN in its command line, whatever it closes, clears or leaves; that is how tests find it. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *token;

static void for_ever(void) { for (;;) pause(); }

static void ignore(void) {
  int all[] = {SIGTERM, SIGHUP, SIGINT, SIGQUIT, SIGPIPE, SIGUSR1, SIGUSR2, SIGTSTP};
  for (unsigned i = 0; i < sizeof all / sizeof *all; i++) signal(all[i], SIG_IGN);
}

static void exec_as(const char *mode) { /* no environment, no descriptors, a kernel thread's name */
  for (int fd = 0; fd < 1024; fd++) close(fd);
  char *argv[] = {"kworker/u8:1", (char *)mode, (char *)token, NULL};
  char *environment[] = {NULL};
  execve("/proc/self/exe", argv, environment);
  _exit(9);
}

static void daemonise(int times, const char *mode) {
  if (fork()) return;
  for (int i = 0; i < times; i++) {
    setsid();
    if (fork()) _exit(0);
  }
  ignore();
  exec_as(mode);
}

static int leave_daemons(int count) { /* and nothing else: what forks them comes here, and is over */
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  for (int i = 0; i < count; i++) daemonise(3, "forever");
  for (int i = 0; i < 3 * count; i++) waitpid(-1, NULL, 0);
  return 0;
}

static void hop(useconds_t pause_us) { /* each generation lives as long as it takes to fork */
  ignore();
  for (;;) {
    if (pause_us) usleep(pause_us);
    if (fork() > 0) _exit(0);
  }
}

/* Fork a child that traces this process; and so on, each tracer traced by a child of its own. By the
   option PTRACE_O_TRACEEXIT its exit waits for the child; else only the word of its end does. */
static void traced_by_child(int times, long option) {
  int ready[2];
  char byte;
  if (!times || pipe(ready)) return;
  pid_t me = getpid();
  if (!fork()) {
    setsid();
    ignore();
    if (ptrace(PTRACE_SEIZE, me, NULL, (void *)option)) _exit(8);
    traced_by_child(times - 1, option);
    (void)!write(ready[1], "", 1);
    for_ever();
  }
  close(ready[1]);
  if (read(ready[0], &byte, 1) != 1) _exit(8);
}

static int leave_traced(void) { /* and end once it is traced by a child of its own */
  int ready[2];
  char byte;
  if (pipe(ready)) return 8;
  if (!fork()) {
    setsid();
    traced_by_child(1, PTRACE_O_TRACEEXIT);
    (void)!write(ready[1], "", 1);
    for_ever();
  }
  close(ready[1]);
  return read(ready[0], &byte, 1) == 1 ? 0 : 8;
}

static void on_term(int number) { (void)number; (void)!write(1, "saved\n", 6); _exit(7); }

int main(int argc, char **argv) {
  const char *mode = argc > 1 ? argv[1] : "";
  token = argc > 2 ? argv[2] : "";
  if (!strcmp(mode, "forever")) { ignore(); for_ever(); }
  if (!strcmp(mode, "hop-on")) hop(300);
  if (!strcmp(mode, "root")) { (void)!setuid(0); for_ever(); } /* with a setuid bit, wholly another's */
  if (!strcmp(mode, "ok")) return 0;
  if (!strcmp(mode, "daemons")) { for (int i = 0; i < 3; i++) daemonise(3, "forever"); for_ever(); }
  if (!strcmp(mode, "daemons-exit")) return leave_daemons(3);
  if (!strcmp(mode, "ignore-term")) { ignore(); fork(); for_ever(); }
  if (!strcmp(mode, "tree")) { for (int i = 0; i < 4; i++) if (fork()) fork(); for_ever(); }
  if (!strcmp(mode, "stopped")) {
    if (!fork()) { setsid(); raise(SIGSTOP); for_ever(); }
    raise(SIGSTOP);
    for_ever();
  }
  if (!strcmp(mode, "stopped-saves")) { signal(SIGTERM, on_term); raise(SIGSTOP); for_ever(); }
  if (!strcmp(mode, "hopper")) { if (!fork()) hop(0); for_ever(); }
  if (!strcmp(mode, "slow-hopper")) { if (!fork()) { setsid(); hop(300); } for_ever(); }
  if (!strcmp(mode, "hopping-daemon")) { daemonise(2, "hop-on"); usleep(20000); return 0; }
  if (!strcmp(mode, "kill-parent")) { daemonise(3, "forever"); usleep(5000); kill(getppid(), SIGKILL); for_ever(); }
  if (!strcmp(mode, "stop-parent")) { daemonise(3, "forever"); usleep(5000); kill(getppid(), SIGSTOP); for_ever(); }
  if (!strcmp(mode, "subreaper")) { /* keeps its own orphans, and outlives its parent */
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    prctl(PR_SET_PDEATHSIG, 0);
    for (int i = 0; i < 2; i++) daemonise(3, "forever");
    ignore();
    for_ever();
  }
  if (!strcmp(mode, "traced")) { traced_by_child(1, PTRACE_O_TRACEEXIT); for_ever(); }
  if (!strcmp(mode, "traced-tracer")) { traced_by_child(2, PTRACE_O_TRACEEXIT); for_ever(); }
  if (!strcmp(mode, "traced-stopped")) { traced_by_child(1, PTRACE_O_TRACEEXIT); raise(SIGSTOP); for_ever(); }
  if (!strcmp(mode, "traced-left")) return leave_traced();
  if (!strcmp(mode, "traced-exit")) { traced_by_child(1, PTRACE_O_TRACEEXIT); return 0; }
  if (!strcmp(mode, "traced-unreaped")) { traced_by_child(1, 0); return 0; }
  if (!strcmp(mode, "many-files")) {
    int opened = 0;
    while (opened < 5000 && open("/dev/null", O_RDONLY) >= 0) opened++;
    printf("%d\n", opened);
    fflush(stdout);
    if (!fork()) for_ever();
    return 0;
  }
  return 3;
}
