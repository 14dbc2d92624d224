/* The program in a job's place on a node of a Slurm cluster, until the job is over: as ../node, whose
 * introduction says what it owns and what its exit status tells.
 *
 *   keeper node RUN_DIR BATCH [SECONDS]
 *
 *   slurmd --batch script, exec--> node --fork--> spawner --fork--> ... --> job */
#define _GNU_SOURCE
#include "node.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

/* As ../node/status.py has them. */
enum { LOST = 70, NO_ROOM = 73, STARTED_BEFORE = 75, UNFIT = 78, TIMED_OUT = 124 };
#define SLURM_ENDED_IT "{\"kind\": \"by_cluster\", \"what\": \"told_to_end\"}" /* core.causes */

#define NFS_VISIBILITY_TIMEOUT 60.0 /* seconds for which NFS clients may cache what they last saw */
#define LEAVING_TIMEOUT 10.0        /* seconds for the keepers to exit before this process does */
#define LOOK_AGAIN 0.5              /* seconds between two looks for a file that NFS does not show yet */
#ifndef NODE_LOOK
#define NODE_LOOK 5.0  /* seconds between two looks whether the client wants an attempt stopped */
#define NODE_BEAT 15.0 /* seconds between two signs of life */
#endif
#define MAX_MESSAGE 60000 /* bytes of a message to keepers, as in ../wire.py */

struct stop {
  const char *reason, *by;
  bool now, known; /* known: the client has asked for it */
};

static struct { /* the attempt that is to be run, and its files */
  char *name, *ticket_file, *start_file, *stop_file, *end_file, *ends, *results;
  struct ticket ticket;
  bool has_ticket;
  struct launch order; /* the ticket's launch, its marks unfilled */
  double patience, beat_at;
  ino_t stop_inode;
  struct timespec stop_time;
} n;

static struct grant granted;

/* ── Words for people ──────────────────────────────────────────────────────────────────────────── */

__attribute__((format(printf, 1, 2))) static void tell(const char *format, ...) {
  struct text t = {0};
  char *line;
  va_list list;
  va_start(list, format);
  if (vasprintf(&line, format, list) < 0) die("vasprintf");
  va_end(list);
  putf(&t, "gpulaunch: %s\n", line);
  if (write(2, t.at, t.size) < 0) errno = 0;
  free(line), free(t.at);
}

static const char *id(void) { return n.has_ticket ? n.order.id : n.name; }

/* ── Stops: TERM and USR1 with the job's grace; USR2, or TERM after either, at once ─────────────── */

static struct {
  int fd;
  bool stop, now, signalled;
} asked;

static void hear_signals(void) {
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGUSR1);
  sigaddset(&set, SIGUSR2);
  asked.fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  if (asked.fd < 0) die("signalfd");
  sigaddset(&set, SIGCHLD);
  sigprocmask(SIG_SETMASK, &set, NULL);
  signal(SIGCHLD, SIG_DFL);
  signal(SIGINT, SIG_IGN); /* there is no terminal here */
  signal(SIGHUP, SIG_IGN);
  signal(SIGPIPE, SIG_IGN);
}

static bool stop_asked(void) {
  struct signalfd_siginfo one;
  while (read(asked.fd, &one, sizeof one) == sizeof one) {
    bool again = one.ssi_signo == SIGTERM && asked.signalled;
    if (again || one.ssi_signo == SIGUSR2) asked.now = true;
    asked.stop = asked.signalled = true;
  }
  return asked.stop;
}

/* Wait for a signal, for `other` to be readable, or for so many seconds; whether `other` is. */
static bool wait_for(double seconds, int other) {
  struct pollfd fds[] = {{asked.fd, POLLIN, 0}, {other, POLLIN, 0}};
  if (poll(fds, 2, (int)ceil(seconds * 1000)) < 0 && errno != EINTR) die("poll");
  stop_asked();
  return fds[1].revents;
}

/* ── Files of the client's ─────────────────────────────────────────────────────────────────────── */

/* The JSON object in a file; NULL if it is absent or not whole. */
static char *read_object(const char *path) {
  size_t size;
  look_anew(folder_of(path));
  char *text = read_file(path, &size);
  if (!text) return NULL;
  text[strcspn(text, "\n")] = 0;
  size = strlen(text);
  return size > 1 && *text == '{' && text[size - 1] == '}' ? text : NULL;
}

/* Look for a file again and again, until `read` finds it whole, the time is over or a stop is asked
 * for: no file system reports another machine's writes. */
static bool await(bool (*read)(const char *path), const char *path) {
  double until = monotonic() + n.patience;
  for (;;) {
    if (read(path)) return true;
    double left = until - monotonic();
    if (left <= 0 || stop_asked()) return false;
    wait_for(fmin(LOOK_AGAIN, left), -1);
  }
}

static char *batch; /* the list of attempts */

static bool read_batch(const char *path) {
  batch = read_object(path);
  return batch != NULL;
}

/* The name of the batch's attempt that this task of the array is; NULL, and why there is none. */
static char *name_of_ours(const char *run, const char *name, char **why) {
  char *path = words("%s/slurm/batches/%s.json", run, name);
  if (!await(read_batch, path)) {
    *why = words("%s was not to be seen on node %s within %.0f s: is the run directory on a file"
                 " system that all nodes share?", path, node_name(), n.patience);
    return NULL;
  }
  const char *task = getenv("SLURM_ARRAY_TASK_ID");
  const char *at = json_member(batch, "attempts");
  long index = task ? atol(task) : 0, count = 0;
  char *found = NULL;
  while (at && (at = strpbrk(at, "\"]")) && *at == '"') {
    char *one = json_text(at, &at, true);
    if (!one) break;
    if (count++ == index) found = one;
  }
  if (!found) *why = words("%s lists %ld attempts, and this is number %ld", path, count, index);
  return found;
}

static void be_attempt(const char *run, char *name) {
  n.name = name;
  n.ticket_file = words("%s/slurm/tickets/%s", run, name);
  n.start_file = words("%s/slurm/starts/%s", run, name);
  n.stop_file = words("%s/slurm/stops/%s", run, name);
  n.ends = words("%s/ends", run);
  n.end_file = words("%s/%s", n.ends, name);
  n.results = words("%s/results", run);
  n.beat_at = monotonic();
}

/* Take the ticket as ../launch.py has it; false if it is absent, not whole, or of another version. */
static bool read_ticket(const char *path) {
  size_t size;
  struct ticket *t = &n.ticket;
  look_anew(folder_of(path));
  char *data = read_file(path, &size);
  if (!data) return false;
  struct fields f = {data, data, data + size, false};
  const char *checksum = next_field(&f);
  size_t left = f.at < f.end ? (size_t)(f.end - f.at) : 0;
  if (!left || strtoul(checksum, NULL, 16) != crc32_of(f.at, left)) return false;
  bool known = !strcmp(next_field(&f), PROTOCOL);
  t->gpus = atol(next_field(&f));
  t->marks = next_list(&f, &t->nmarks);
  t->after = next_list(&f, &t->nafter);
  if (!known || f.wrong) return false;
  t->launch = f.at;
  t->size = (size_t)(f.end - f.at);
  f.memory = must(malloc(t->size + 1)); /* a copy, which is the order's own */
  memcpy(f.memory, t->launch, t->size);
  f.memory[t->size] = 0;
  f.at = f.memory;
  f.end = f.memory + t->size;
  next_field(&f); /* the verb */
  n.has_ticket = parse_launch(f, &n.order);
  return n.has_ticket;
}

static bool read_stop(struct stop *stop) {
  char *text = read_object(n.stop_file);
  if (!text) return false;
  const char *reason = json_member(text, "reason"), *by = json_member(text, "by");
  const char *now = json_member(text, "now");
  bool cancelled = reason && !strncmp(reason, "\"cancelled\"", 11);
  stop->reason = cancelled ? "cancelled" : "interrupted";
  stop->by = by ? json_text(by, NULL, false) : NULL;
  if (!stop->by) stop->by = "";
  stop->now = now && !strncmp(now, "true", 4);
  stop->known = true;
  return true;
}

/* The client's stop, if it is new since the last call: after one stat. */
static bool new_stop(struct stop *stop) {
  struct stat seen;
  if (stat(n.stop_file, &seen)) return false;
  if (seen.st_ino == n.stop_inode && seen.st_mtim.tv_sec == n.stop_time.tv_sec &&
      seen.st_mtim.tv_nsec == n.stop_time.tv_nsec)
    return false;
  if (!read_stop(stop)) return false;
  n.stop_inode = seen.st_ino;
  n.stop_time = seen.st_mtim;
  return true;
}

/* Touch the claim's file once in a while, as a sign of life. */
static void beat(void) {
  double now = monotonic();
  if (now - n.beat_at < NODE_BEAT) return;
  n.beat_at = now;
  utimensat(AT_FDCWD, n.start_file, NULL, 0);
}

static bool holds_something(const char *folder) {
  DIR *dir = opendir(folder);
  bool any = false;
  for (struct dirent *e; dir && !any && (e = readdir(dir));)
    any = strcmp(e->d_name, ".") && strcmp(e->d_name, "..");
  if (dir) closedir(dir);
  return any;
}

/* Link the outputs of what had to succeed first to results/JOB, where this attempt looks for them. */
static void link_results(void) {
  for (size_t i = 0; i < n.ticket.nafter; i++) {
    const char *name = n.ticket.after[i], *dot = strrchr(name, '.');
    char *left = words("../out/%s", name), *there = words("%s/%s", n.results, left);
    char *link = words("%s/%.*s", n.results, dot ? (int)(dot - name) : 0, name);
    if (dot && holds_something(there)) {
      char *draft = new_name(n.results);
      if (!symlink(left, draft)) rename(draft, link);
    }
  }
}

/* ── Records ───────────────────────────────────────────────────────────────────────────────────── */

static const char *boot(void) {
  size_t size;
  char *text = read_file("/proc/sys/kernel/random/boot_id", &size);
  if (!text) return "";
  text[strcspn(text, "\n")] = 0;
  return text;
}

static void put_start(struct text *t) {
  char host[256] = "";
  const char *restart = getenv("SLURM_RESTART_COUNT");
  gethostname(host, sizeof host - 1);
  putf(t, "{\"attempt\":");
  put_string(t, id(), ESCAPE, 0);
  putf(t, ",\"job\":");
  put_string(t, slurm_id(), REPLACE, 0);
  putf(t, ",\"node\":\"%s\",\"host\":", granted.node);
  put_string(t, host, REPLACE, 0);
  putf(t, ",\"pid\":%d,\"restart\":%ld,\"mask\":", (int)getpid(), restart ? atol(restart) : 0);
  if (granted.mask) put_string(t, granted.mask, REPLACE, 0);
  else putf(t, "null");
  put(t, ",", 1);
  put_cards(t, &granted);
  putf(t, ",\"awaits_cards\":%s,\"boot\":", granted.count ? "true" : "false");
  put_string(t, boot(), REPLACE, 0);
  putf(t, ",\"started\":[%.9f,%.7f]}\n", monotonic(), clock_now(CLOCK_REALTIME));
}

/* Append the cards' names to the claim, as a line that readers take whole or not at all. */
static void tell_cards(void) {
  struct text t = {0};
  int fd = open(n.start_file, O_WRONLY | O_APPEND | O_CLOEXEC);
  put(&t, "{", 1);
  put_cards(&t, &granted);
  put(&t, "}\n", 2);
  if (fd >= 0 && write(fd, t.at, t.size) < 0) errno = 0; /* readers have the cards' numbers */
  if (fd >= 0) close(fd);
  free(t.at);
}

/* Flush the record of the end to the disk, before Slurm hears of the end. */
static void make_durable(const char *record) {
  if (sync_path(n.end_file) && sync_path(n.ends)) return;
  tell("%s may be lost (%s): %s", n.end_file, strerror(errno), record);
}

/* Record the end of an attempt that no keeper ran, in a keeper's format. NULL: there is no such. */
static void write_end(const char *cause, const char *by, const char *error, const char *kind) {
  struct text r = {0}, t = {0};
  putf(&r, "{\"attempt\":");
  put_string(&r, id(), ESCAPE, 2000);
  putf(&r, ",\"pid\":null,\"status\":null,\"cause\":");
  if (cause) put_string(&r, cause, ESCAPE, 0);
  else putf(&r, "null");
  putf(&r, ",\"by\":");
  put_string(&r, by, ESCAPE, 600);
  putf(&r, ",\"seconds\":null,\"missing\":[],\"error\":");
  if (error) put_string(&r, error, REPLACE, 2000);
  else putf(&r, "null");
  putf(&r, ",\"kind\":%s%s%s", kind ? "\"" : "", kind ? kind : "null", kind ? "\"" : "");
  putf(&r, ",\"leftovers\":0,\"oom_kills\":0,\"started\":null,\"ended\":[%.9f,%.7f],\"warned\":null}", monotonic(),
       clock_now(CLOCK_REALTIME));
  putf(&t, "%08x %s\n", crc32_of(r.at, r.size), r.at);
  int fd = open(n.end_file, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0 && errno == EEXIST) die(n.end_file); /* a keeper has begun: this is not for us to say */
  if (fd < 0 || write(fd, t.at, t.size) < 0)
    tell("%s cannot be written: %s", n.end_file, strerror(errno));
  else make_durable(r.at);
  if (fd >= 0) close(fd);
  free(r.at), free(t.at);
}

static int not_started(const char *why, const char *kind) {
  tell("%s: %s", id(), why);
  write_end(NULL, "", why, kind);
  return kind ? NO_ROOM : UNFIT;
}

static int not_started_for(int code, const char *where) { /* what the system said of a file */
  char *why = words("%s%s%s, on node %s", strerror(code), where ? ": " : "", where ? where : "",
                    granted.node);
  return not_started(why, code == ENOSPC ? "no_space" : NULL);
}

static char *member(const char *record, const char *name) {
  const char *value = record ? json_member(record, name) : NULL;
  return value ? json_text(value, NULL, false) : NULL;
}

static int not_again(void) {
  char *start = read_object(n.start_file), *job = member(start, "job");
  char *node = member(start, "node"), *by = member(start, "by");
  if (start && json_member(start, "withdrawn"))
    tell("%s was withdrawn (%s): it is not started", id(), by ? by : "");
  else if (job)
    tell("%s was started before, as Slurm job %s on node %s: it is not started again", id(), job,
         node ? node : "");
  else tell("%s was started before: it is not started again", id());
  return STARTED_BEFORE;
}

/* ── Keepers ───────────────────────────────────────────────────────────────────────────────────── */

static struct {
  pid_t spawner;
  int control, pair;
} keepers;

/* A file without a name for a message that is too long for one. */
static int file_of(const struct text *t) {
  int fd = memfd_create("gpulaunch-launch", MFD_CLOEXEC);
  if (fd < 0) fd = open("/dev/shm", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600); /* an old kernel */
  if (fd < 0 || pwrite(fd, t->at, t->size, 0) != (ssize_t)t->size) die("a launch's file");
  return fd;
}

static void send_launch(const struct text *t) {
  if (t->size <= MAX_MESSAGE) {
    say_fields(keepers.pair, t->at, t->size, NULL, 0);
    return;
  }
  int file = file_of(t);
  say_fields(keepers.pair, "file", sizeof "file", &file, 1);
  close(file);
}

static void send_stop(const struct stop *stop) {
  struct text t = {0};
  /* Slurm's own TERM comes early enough for the job's warning (`--signal`). */
  const char *gently = stop->known ? "0" : "1", *now = asked.now ? "1" : "0";
  const char *fields[] = {"stop", n.order.id, stop->reason, stop->by, now, gently};
  for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
    put(&t, fields[i], strlen(fields[i]) + 1);
  say_fields(keepers.pair, t.at, t.size, NULL, 0);
  free(t.at);
}

__attribute__((noreturn)) static void be_spawner(int control) {
  int nothing = open("/dev/null", O_RDWR);
  dup2(nothing, 0), dup2(nothing, 1);
  setsid();
  become_spawner(control);
}

/* Start a spawner and one pair, as the launcher's own machine has them for its cards. When this
 * process dies, they stop the job and exit. False: errno. */
static bool start_keepers(void) {
  static const char pair[] = "pair\0" PROTOCOL "\0" "1\0" "0\0" "0\0" "0";
  int ends[2], link[2], kind = SOCK_SEQPACKET | SOCK_CLOEXEC;
  if (socketpair(AF_UNIX, kind, 0, ends)) return false;
  keepers.spawner = fork_patiently();
  if (keepers.spawner == 0) be_spawner(ends[1]);
  close(ends[1]);
  if (keepers.spawner < 0 || socketpair(AF_UNIX, kind, 0, link)) return false;
  say_fields(ends[0], pair, sizeof pair, &link[1], 1);
  close(link[1]);
  keepers.control = ends[0];
  keepers.pair = link[0];
  return true;
}

/* Close the sockets and wait for the keepers to exit: if this process exited first, Slurm would kill
 * them and report that. */
static void leave_keepers(void) {
  double until = monotonic() + LEAVING_TIMEOUT, left;
  sigset_t ends;
  sigemptyset(&ends);
  sigaddset(&ends, SIGCHLD);
  close(keepers.pair);
  close(keepers.control);
  while (!waitpid(keepers.spawner, NULL, WNOHANG) && (left = until - monotonic()) > 0) {
    struct timespec wait = {(time_t)left, (long)(fmod(left, 1.0) * 1e9)};
    sigtimedwait(&ends, NULL, &wait);
  }
}

/* What a keeper's message tells of the end; NULL: it is about something else. */
static char *end_in(const char *message) {
  static const char ended[] = "{\"is\":\"ended\",\"end\":", unkillable[] = "{\"is\":\"unkillable\"";
  if (!strncmp(message, unkillable, strlen(unkillable))) {
    const char *pids = json_member(message, "pids");
    if (pids)
      tell("%s: process %.*s cannot be killed, and is waited for", id(),
           (int)strcspn(pids + 1, "]"), pids + 1);
  }
  if (strncmp(message, ended, strlen(ended))) return NULL;
  const char *record = message + strlen(ended), *after = strstr(record, ",\"kept\":");
  return kept(strndup(record, after ? (size_t)(after - record) : strlen(record)));
}

/* The end, once no process of the attempt is left; NULL if both keepers are gone. */
static char *await_end(void) {
  bool told_stop = false, told_now = false;
  for (;;) {
    struct stop stop = {"interrupted", SLURM_ENDED_IT, false, false};
    bool is_new = new_stop(&stop);
    if (is_new) {
      asked.stop = true;
      asked.now = asked.now || stop.now;
    }
    if (asked.stop != told_stop || asked.now != told_now) {
      told_stop = asked.stop;
      told_now = asked.now;
      if (!is_new) read_stop(&stop);
      send_stop(&stop);
    }
    beat();
    if (!wait_for(NODE_LOOK, keepers.pair)) continue;
    struct fields f;
    int fds[MAX_FDS], count;
    errno = 0;
    if (!receive(keepers.pair, &f, fds, &count)) {
      if (errno == ECONNRESET) continue; /* it left a word of ours unread; its last ones still come */
      return NULL;
    }
    char *end = end_in(f.memory);
    free(f.memory);
    if (end) return end;
  }
}

/* ── The way of an attempt ─────────────────────────────────────────────────────────────────────── */

static bool is_null(const char *end, const char *name) {
  const char *value = json_member(end, name);
  return !value || !strncmp(value, "null", 4);
}

/* The exit status for Slurm, by which `afterok` goes. */
static int exit_status(const char *end) {
  const char *status = json_member(end, "status"), *missing = json_member(end, "missing");
  bool none = is_null(end, "status"), cut = !is_null(end, "cause");
  char *cause = member(end, "cause");
  if (cause && (!strcmp(cause, "timeout") || !strcmp(cause, "idle_timeout"))) return TIMED_OUT;
  if (!cut && (!is_null(end, "error") || none)) return is_null(end, "kind") ? UNFIT : NO_ROOM;
  if (none) return 1;
  int raw = atoi(status), code = WEXITSTATUS(raw);
  if (WIFSIGNALED(raw)) return 128 + WTERMSIG(raw);
  for (size_t i = 0; !cut && missing && !strncmp(missing, "[]", 2) && i < n.order.ncodes; i++)
    if (strtol(n.order.codes[i], NULL, 10) == code) return 0;
  return code ? code : 1;
}

/* Remove the log of a success that wrote nothing: a file less on a shared file system. */
static void forget_silence(void) {
  struct stat seen;
  if (!lstat(n.order.log, &seen) && S_ISREG(seen.st_mode) && !seen.st_size) unlink(n.order.log);
}

static int run_it(void) {
  struct text launch = {0};
  if (!n.has_ticket)
    return not_started(words("%s was not to be seen on node %s within %.0f s", n.ticket_file,
                        granted.node, n.patience), NULL);
  char *why = fault_of_grant(&granted, n.ticket.gpus);
  if (why) return not_started(why, NULL);
  link_results();
  if ((why = fill(&n.ticket, &granted, &launch))) return not_started(why, NULL);
  if (!start_keepers()) return not_started_for(errno, NULL);
  send_launch(&launch);
  char *end = await_end();
  leave_keepers();
  if (end) {
    make_durable(end);
    int status = exit_status(end);
    if (!status) forget_silence();
    return status;
  }
  struct stat seen;
  if (lstat(n.end_file, &seen)) /* a keeper makes this file first of all */
    return not_started(words("its keepers did not start on node %s", granted.node), NULL);
  tell("%s: its keepers were killed; how it ended nobody saw", id());
  return LOST;
}

/* Claim the attempt, run it, wait for its end; the exit status. */
static int serve(void) {
  struct stat seen;
  struct text start = {0};
  const char *where;
  look_anew(folder_of(n.start_file));
  if (!lstat(n.start_file, &seen)) return not_again(); /* its ticket may be gone: do not wait for it */
  await(read_ticket, n.ticket_file);
  take_grant(&granted);
  put_start(&start);
  int won = claim(n.start_file, &start, &where);
  if (won < 0) return not_started_for(errno, where);
  if (!won) return not_again();
  if (granted.count && !stop_asked()) {
    ask_driver(&granted); /* slow, but the attempt is claimed: no other node starts it */
    tell_cards();
  }
  struct stop stop = {"interrupted", SLURM_ENDED_IT, false, false};
  bool told = read_stop(&stop);
  if (stop_asked() || told) { /* before the job began; it may be told without a signal */
    write_end(stop.reason, stop.by, NULL, NULL);
    return 1;
  }
  return run_it();
}

int node(int argc, char **argv) {
  char *why = NULL;
  hear_signals();
  term_sender = slurms_own();
  n.patience = argc > 4 ? atof(argv[4]) : NFS_VISIBILITY_TIMEOUT;
  char *name = name_of_ours(argv[2], argv[3], &why);
  if (name) {
    be_attempt(argv[2], name);
    return serve();
  }
  tell("%s", why);
  return asked.stop ? 128 + SIGTERM : UNFIT;
}
