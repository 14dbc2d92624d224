/* The first process of a job's container, where a daemon or another program of the engine's made it.
 * It runs the job for the carrier (../contain), which stands in the job's place outside.
 *
 *   carrier ── what to run, with its descriptors; then signals ──▶ inside ──fork, exec──▶ the job
 *           ◀── how it ended ─────────────────────────────────────
 *
 * When the connection ends, by whatever end of the carrier, all below is killed at once, and this
 * process exits: no container outlives its job, whether or not an engine answers. It is PID 1 there
 * or, with the machine's own processes in view, any; so it signals its descendants alone. */
#define _GNU_SOURCE
#include "keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#define UNFIT_PROGRAM 126 /* the status, as a shell has it, where a program cannot be executed */
#define MAX_NUMBER (1 << 20) /* of a descriptor: the kernel's own limit, fs.nr_open, as it comes */

static struct {
  int link, signals, words_pipe; /* the last below zero: closed */
  struct launch l;
  int fds[MAX_FDS], numbers[MAX_FDS], nfds;
  long leases_from; /* the least number of a lease, which is kept open here too */
  pid_t main;
  bool over, asked; /* the main process has ended; its end was asked for with TERM */
  bool pressed;     /* and, when it had ended, that of the others too: with TERM or INT */
  int status, leftovers;
  struct text words; /* why it could not become the job */
  struct pids told;  /* INVARIANT: not reaped yet */
  struct sweep sweep;
  long oom_kills;    /* before it began */
  const char **first; /* variables whose value goes before the container's own */
  size_t nfirst;
} in;

/* ── The beginning ─────────────────────────────────────────────────────────────────────────────── */

static int connect_to(const char *path) {
  struct sockaddr_un address = {.sun_family = AF_UNIX};
  int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
  if (fd < 0) die("socket");
  errno = ENAMETOOLONG;
  if (strlen(path) >= sizeof address.sun_path) die(path);
  strcpy(address.sun_path, path);
  if (connect(fd, (struct sockaddr *)&address, sizeof address)) die(path);
  return fd;
}

/* All signals come through a descriptor. A blocked signal reaches even PID 1, for which those without
 * a handler are else dropped. */
static int take_signals(void) {
  static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
  sigset_t set;
  sigfillset(&set);
  for (size_t i = 0; i < sizeof faults / sizeof *faults; i++) sigdelset(&set, faults[i]);
  sigprocmask(SIG_SETMASK, &set, NULL);
  for (int number = 1; number < NSIG; number++) signal(number, SIG_DFL);
  int fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (fd < 0) die("signalfd");
  return fd;
}

static bool parse_run(struct fields f) {
  struct launch *l = &in.l;
  l->fields = f;
  struct fields *p = &l->fields;
  bool run = !strcmp(next_field(p), "run");
  l->argv = next_list(p, &l->nargv);
  l->cwd = next_field(p);
  l->set = next_list(p, &l->nset);
  for (size_t i = 0; i < l->nset; i++) p->wrong = p->wrong || !strchr(l->set[i], '=');
  l->unset = next_list(p, &l->nunset);
  in.first = next_list(p, &in.nfirst);
  l->cpus = next_list(p, &l->ncpus);
  long warn_signal = next_number(p);
  p->wrong = p->wrong || warn_signal > MAX_SIGNAL;
  l->warn_signal = p->wrong ? 0 : (int)warn_signal;
  in.leases_from = next_number(p);
  long count = next_number(p);
  if (run && !p->wrong && count > in.nfds) die("not all of the job's descriptors came in");
  for (long i = 0; i < in.nfds; i++) {
    long number = next_number(p);
    p->wrong = p->wrong || number > MAX_NUMBER;
    in.numbers[i] = p->wrong ? 0 : (int)number;
  }
  return run && l->nargv && !p->wrong && p->at == p->end;
}

static long count_in(const char *path) {
  char line[128];
  long count = -1;
  FILE *file = fopen(path, "re");
  while (file && count < 0 && fgets(line, sizeof line, file)) sscanf(line, "oom_kill %ld", &count);
  if (file) fclose(file);
  return count;
}

static long oom_kills(void) { /* of this container, as its cgroup is seen here; 0: not known */
  long count = count_in("/sys/fs/cgroup/memory.events");
  if (count < 0) count = count_in("/sys/fs/cgroup/memory/memory.oom_control");
  return count < 0 ? 0 : count;
}

/* ── The job ───────────────────────────────────────────────────────────────────────────────────── */

static int room_above(void) { /* the least number that the job uses for nothing */
  int top = 3;
  for (int i = 0; i < in.nfds; i++)
    if (in.numbers[i] >= top) top = in.numbers[i] + 1;
  return top;
}

static void lift(int *fd, int top) {
  int high = fcntl(*fd, F_DUPFD_CLOEXEC, top);
  if (high < 0) die("the job's descriptors");
  close(*fd);
  *fd = high;
}

/* Put the container's own value behind a search path that is to go first. */
static void keep_own_paths(void) {
  for (size_t i = 0; i < in.l.nset; i++)
    for (size_t k = 0; k < in.nfirst; k++) {
      size_t size = strlen(in.first[k]);
      const char *own = getenv(in.first[k]);
      if (!own || !*own || strncmp(in.l.set[i], in.first[k], size) || in.l.set[i][size] != '=')
        continue;
      char *both;
      if (asprintf(&both, "%s:%s", in.l.set[i], own) < 0) die("asprintf");
      in.l.set[i] = both;
    }
}

static void start(void) {
  int ends[2], top = room_above();
  if (pipe2(ends, O_CLOEXEC)) die("pipe");
  for (int i = 0; i < in.nfds; i++) lift(&in.fds[i], top);
  lift(&ends[1], top);
  pid_t me = getpid();
  in.main = fork_patiently();
  if (in.main < 0) die("fork");
  if (in.main == 0) {
    settle_in(me);
    unfit_status = UNFIT_PROGRAM;
    /* Not by the engine's option, for which it needs a cgroup that a user may not have. Where it
     * fails, so it did for the carrier, whose keepers have said it. */
    if (in.l.ncpus) run_on(0, in.l.cpus, in.l.ncpus);
    for (int i = 0; i < in.nfds; i++)
      if (dup2(in.fds[i], in.numbers[i]) < 0) refuse(ends[1], "%s", strerror(errno));
    become_program(&in.l, environment_of(&in.l), ends[1]);
  }
  close(ends[1]);
  in.words_pipe = ends[0];
  for (int i = 0; i < in.nfds; i++)
    if (in.numbers[i] < in.leases_from) close(in.fds[i]); /* else its pipes would not end with it */
}

static void hear_words(void) { /* none: its program is executed */
  char part[1024];
  ssize_t got = read(in.words_pipe, part, sizeof part);
  if (got > 0) {
    put(&in.words, part, (size_t)got);
  } else if (got == 0 || errno != EINTR) {
    close(in.words_pipe);
    in.words_pipe = -1;
  }
}

/* ── Signals ───────────────────────────────────────────────────────────────────────────────────── */

/* As keepers do it: the main process's group first, then whoever comes to light below. */
static void tell_others(void) {
  static struct pids found;
  children(&found);
  for (size_t i = 0; i < found.count; i++) {
    pid_t pid = found.at[i];
    if (pid == in.main || has_pid(&in.told, pid)) continue;
    add_pid(&in.told, pid);
    if (getpgid(pid) == in.main) continue;
    kill(pid, SIGTERM);
    kill(pid, SIGCONT);
  }
}

static void pass_on(int number) {
  if (in.over && (number == SIGTERM || number == SIGINT)) {
    in.pressed = true;
  } else if (number == SIGTERM) {
    terminate(in.main);
    in.asked = true;
  } else if (!in.over && number == in.l.warn_signal) {
    warn(in.main, number);
  } else if (!in.over) {
    /* In a session of its own a group is orphaned, and the kernel drops its TSTP. */
    int sent = number == SIGTSTP ? SIGSTOP : number;
    if (kill(-in.main, sent)) kill(in.main, sent); /* it has not called setsid yet */
  }
}

static bool is_passed(int number) {
  static const int passed[] = {SIGTERM, SIGHUP,  SIGINT,  SIGQUIT, SIGUSR1,
                               SIGUSR2, SIGCONT, SIGTSTP, SIGWINCH};
  for (size_t i = 0; i < sizeof passed / sizeof *passed; i++)
    if (passed[i] == number) return true;
  return number >= SIGRTMIN || number == in.l.warn_signal;
}

static void hear_signals(void) { /* sent to this process, as by `docker stop` */
  struct signalfd_siginfo info;
  while (read(in.signals, &info, sizeof info) == sizeof info)
    if (is_passed((int)info.ssi_signo)) pass_on((int)info.ssi_signo);
}

/* Take a message; false: the carrier is gone, or is none. */
static bool obey(void) {
  char room[64];
  ssize_t got = recv(in.link, room, sizeof room - 1, MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return true;
  if (got <= 0) return false;
  room[got] = 0;
  struct fields f = {.memory = room, .at = room, .end = room + got};
  bool is_signal = !strcmp(next_field(&f), "signal");
  long number = next_number(&f);
  if (!is_signal || f.wrong || number < 1 || number > MAX_SIGNAL) return false;
  pass_on((int)number);
  return true;
}

/* ── The end ───────────────────────────────────────────────────────────────────────────────────── */

/* Reap who has ended; true: nobody is left. */
static bool reap(void) {
  if (!in.over && !in.asked && has_ended(in.main))
    kill(-in.main, SIGKILL); /* while it is unreaped its group is the job's: no fork escapes this */
  for (;;) {
    int status;
    pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid <= 0) return pid < 0 && errno == ECHILD;
    drop_pid(&in.told, pid);
    if (pid == in.main) {
      in.over = true;
      in.status = status;
    } else if (in.over && WIFSIGNALED(status)) {
      in.leftovers += WTERMSIG(status) == SIGKILL && !has_pid(&in.sweep.ours, pid);
    }
  }
}

static void tell_end(void) {
  struct text t = {0};
  while (in.words_pipe >= 0) hear_words(); /* nobody can write any more */
  putf(&t, "{\"is\":\"ended\",\"status\":%d,\"leftovers\":%d,\"oom_kills\":%ld,\"refused\":",
       in.status, in.leftovers, oom_kills() - in.oom_kills);
  if (in.words.size) put_string(&t, in.words.at, REPLACE, 4000);
  else putf(&t, "null");
  putf(&t, "}");
  say(in.link, &t);
}

static void run_to_the_end(void) {
  bool sweeping = false;
  while (!reap()) {
    if (in.asked) tell_others();
    /* After a TERM the others have the time that its sender gives them: keepers kill the carrier
     * then. A terminal does not; who asks there once more need not wait for those that ignore it. */
    if (in.over && (!in.asked || in.pressed) && !sweeping) {
      sweep_begin(&in.sweep, in.link, NULL);
      sweeping = true;
    }
    if (sweeping) sweep_kill(&in.sweep);
    struct pollfd all[] = {
        {in.link, POLLIN, 0}, {in.signals, POLLIN, 0}, {in.words_pipe, POLLIN, 0}};
    poll(all, 3, sweeping ? (int)(in.sweep.nap * 1000) + 1 : -1);
    if (all[0].revents && !obey()) {
      sweep_to_the_end(in.link);
      return;
    }
    if (all[1].revents) hear_signals();
    if (all[2].revents) hear_words();
  }
  tell_end();
}

int inside(const char *path) {
  struct fields f;
  in.signals = take_signals();
  if (prctl(PR_SET_CHILD_SUBREAPER, 1)) die("a subreaper");
  in.link = connect_to(path);
  rename_self("keeper-inside"); /* `pkill -f gpulaunch` is not to find it by its socket's path */
  if (!receive(in.link, &f, in.fds, &in.nfds)) return 0;
  errno = EPROTO;
  if (!parse_run(f)) die("the carrier's message");
  in.oom_kills = oom_kills();
  keep_own_paths();
  start();
  run_to_the_end();
  return 0;
}
