/* One start of a job, from the fork to the proof that no process of it is left.
 *
 *   FORKING --> RUNNING --main ends--> SWEEPING --nothing left--> (CHECKING outputs) --> over
 *                  `--TERM, main ends--> TERMINATING --kill_at, or nothing left--^
 *
 * A worker's answer ends the attempt as its main process's end would. A worker that stays is not swept;
 * one that is to go has its input closed, and the attempt is TERMINATING until it is gone. */
#define _GNU_SOURCE
#include "keeper.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define OUTPUT_CHECK_LIMIT 60.0 /* seconds */
#define TERM_COMES 50000000     /* ns within which a TERM sent to many processes reaches them all */
#define MISSING_MOST 40         /* outputs that a record names at most */
#define AT_FORK "what is called at forks (os.register_at_fork, pthread_atfork)"

enum phase { FORKING, RUNNING, TERMINATING, SWEEPING, CHECKING };

struct moment {
  double mono, utc;
};

struct station station;
pid_t term_sender;

static struct {
  bool on;
  struct launch l;
  enum phase phase;
  pid_t pid;
  bool has_status, checked, main_was_killed, alone;
  int status, leftovers, end, exec_pipe;
  char *cause, *by, *error, *cut_cause, *cut_by; /* NULL: none */
  char *otherwise, *otherwise_by; /* cause and by of an end that is no success; NULL: its own */
  const char *note;                              /* for people; NULL: none */
  bool loading, keep; /* of a worker's item: its worker is; that has answered, and stays */
  bool no_space;
  struct text words, answer; /* of the child, of the helper */
  char *missing[MISSING_MOST];
  size_t nmissing;
  struct pids told, helpers; /* INVARIANT: a helper listed is not reaped, so its number is its own */
  pid_t helper;
  int helper_pipe;
  double asked, fork_at, fork_pause, check_at, check_limit;
  double term_at, kill_at, silence_at; /* below zero: never */
  double stop_at; /* when the TERM is due of a stop that it was warned of; below zero: of none */
  struct moment warned_at;             /* mono 0: it was not */
  int warned;                          /* processes that took the warning */
  const char *warned_why;
  struct moment started, answered;     /* the second only of a worker's item */
  double clock, silent_since, looked_at; /* clock: from when its time is counted */
  long long log_size, log_time;
  int64_t since; /* ns; an output that is older is not this attempt's */
  double spent;
  struct sweep sweep;
} a;

bool attempt_on(void) { return a.on; }
const char *attempt_id(void) { return a.l.id; }

static struct moment moment(void) { return (struct moment){monotonic(), clock_now(CLOCK_REALTIME)}; }

/* The seconds that it may take, or its worker's loading. */
static double limit(void) {
  return a.loading && a.l.load_timeout >= 0 ? a.l.load_timeout : a.l.timeout;
}

static void set_text(char **place, const char *text) {
  char *copy = copy_of(text);
  free(*place);
  *place = copy;
}

/* ── The end's file ────────────────────────────────────────────────────────────────────────────── */

static off_t end_place(void) { return a.l.slot > 0 ? (off_t)a.l.slot * END_SIZE : 0; }

static void give_up_end(void) { /* it has no end; a file of its own is deleted */
  if (a.l.slot < 0) unlink(a.l.end);
  close(a.end);
  a.end = -1;
}

/* Its blocks are allocated first, so that a full disk cannot lose an end. */
static bool allocate_end(void) {
  static const char zeros[END_SIZE];
  size_t size = 1; /* an end that was there before is none any more */
  if (fallocate(a.end, 0, end_place(), END_SIZE)) {
    if (errno != EOPNOTSUPP && errno != EINVAL && errno != ENOSYS) return false;
    size = END_SIZE;
  }
  ssize_t got = pwrite(a.end, zeros, size, end_place());
  if (got >= 0 && (size_t)got < size) errno = ENOSPC;
  return got == (ssize_t)size;
}

static bool lay_out_end(void) {
  struct stat seen;
  int how = a.l.slot < 0 ? O_EXCL : O_NOFOLLOW;
  a.since = (int64_t)(clock_now(CLOCK_REALTIME_COARSE) * 1e9);
  a.end = open(a.l.end, O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | how, 0600);
  if (a.end < 0) return false;
  if (!allocate_end()) {
    int why = errno;
    give_up_end();
    errno = why;
    return false;
  }
  if (!fstat(a.end, &seen)) { /* a file server's clock may be behind ours */
    int64_t theirs = seen.st_mtim.tv_sec * INT64_C(1000000000) + seen.st_mtim.tv_nsec;
    if (theirs < a.since) a.since = theirs;
  }
  return true;
}

/* How many processes the kernel killed for memory, by a cgroup's file; else 0. */
static long kills_counted(void) {
  char line[256];
  long count = 0;
  FILE *file = *a.l.oom_kills ? fopen(a.l.oom_kills, "re") : NULL;
  while (file && fgets(line, sizeof line, file))
    if (sscanf(line, "oom_kill %ld", &count) == 1) break;
  if (file) fclose(file);
  return count;
}

static bool has_succeeded(void) { /* by its own status; its outputs may still be missing */
  if (a.cause || a.error || !a.has_status || !WIFEXITED(a.status)) return false;
  for (size_t i = 0; i < a.l.ncodes; i++)
    if (strtol(a.l.codes[i], NULL, 10) == WEXITSTATUS(a.status)) return true;
  return false;
}

static void put_missing(struct text *r) {
  struct text list = {0};
  for (size_t count = a.nmissing;; count--) { /* as many as fit, with ", " between them */
    list.size = 0;
    for (size_t i = 0; i < count; i++) {
      if (i) put(&list, ", ", 2);
      put_string(&list, a.missing[i], REPLACE, 900);
    }
    if (list.size + 2 > 2000 && count) continue;
    putf(r, "\"missing\":[");
    for (size_t i = 0; i < count; i++) {
      if (i) put(r, ",", 1);
      put_string(r, a.missing[i], REPLACE, 900);
    }
    putf(r, "],");
    free(list.at);
    return;
  }
}

static void put_warned(struct text *r) {
  if (a.warned_at.mono > 0)
    putf(r, "[%.9f,%.7f,%d,%d,\"%s\"]", a.warned_at.mono, a.warned_at.utc, a.l.warn_signal,
         a.warned, a.warned_why);
  else putf(r, "null");
}

static void put_record(struct text *r) {
  struct moment ended = a.answered.mono > 0 ? a.answered : moment();
  const char *seconds = "";
  if (a.cause && !strcmp(a.cause, "timeout"))
    seconds = a.loading && a.l.load_timeout >= 0 ? a.l.load_timeout_text : a.l.timeout_text;
  if (a.cause && !strcmp(a.cause, "idle_timeout")) seconds = a.l.idle_timeout_text;
  putf(r, "{\"attempt\":");
  put_string(r, a.l.id, ESCAPE, 2000);
  if (a.pid) putf(r, ",\"pid\":%d", (int)a.pid);
  else putf(r, ",\"pid\":null");
  if (a.has_status) putf(r, ",\"status\":%d", a.status);
  else putf(r, ",\"status\":null");
  putf(r, ",\"cause\":");
  if (a.cause) put_string(r, a.cause, ESCAPE, 0);
  else putf(r, "null");
  putf(r, ",\"by\":");
  put_string(r, a.by ? a.by : "", ESCAPE, 600);
  putf(r, ",\"seconds\":%s,", *seconds ? seconds : "null");
  put_missing(r);
  putf(r, "\"error\":");
  if (a.error) put_string(r, a.error, REPLACE, 2000);
  else putf(r, "null");
  putf(r, ",\"kind\":%s", a.no_space ? "\"no_space\"" : "null");
  putf(r, ",\"leftovers\":%d,\"oom_kills\":%ld", a.leftovers, kills_counted());
  if (a.pid) putf(r, ",\"started\":[%.9f,%.7f]", a.started.mono, a.started.utc);
  else putf(r, ",\"started\":null");
  putf(r, ",\"ended\":[%.9f,%.7f],\"warned\":", ended.mono, ended.utc);
  put_warned(r);
  putf(r, "}");
}

static void forget(void) {
  free(a.cause), free(a.by), free(a.error), free(a.cut_cause), free(a.cut_by);
  free(a.otherwise), free(a.otherwise_by);
  for (size_t i = 0; i < a.nmissing; i++) free(a.missing[i]);
  free_launch(&a.l);
}

static bool has_term(long wait) { /* in so many ns */
  sigset_t term;
  sigemptyset(&term);
  sigaddset(&term, SIGTERM);
  return sigtimedwait(&term, NULL, &(struct timespec){0, wait}) == SIGTERM;
}

/* Slurm sends TERM to all processes of a job, one by one: the job may have ended at it before it
 * reaches us. So a success waits for it, until the sender is seen to rest (what it sent has come
 * then) or TERM_COMES is over. */
static bool term_comes(void) {
  double until = monotonic() + TERM_COMES / 1e9;
  do {
    if (term_sender && is_at_rest(term_sender)) return has_term(0);
    if (has_term(TERM_COMES / 50)) return true;
  } while (monotonic() < until);
  return false;
}

/* Record the end: first in the file, then to the supervisor. No process of it is left. */
static void finish(void) {
  struct text r = {0}, t = {0};
  a.on = false;
  if (*a.l.term_by && has_succeeded() && term_comes()) {
    set_text(&a.cause, "interrupted");
    set_text(&a.by, a.l.term_by);
  }
  /* An end that followed a warning, and is no success, is what that announced. */
  if (a.otherwise && !a.cause && !a.error && !(has_succeeded() && !a.nmissing)) {
    set_text(&a.cause, a.otherwise);
    set_text(&a.by, a.otherwise_by);
  }
  put_record(&r);
  if (a.end >= 0 && a.no_space) { /* nothing was run: it goes again */
    give_up_end();
  } else if (a.end >= 0) {
    putf(&t, "%08x ", crc32_of(r.at, r.size));
    put(&t, r.at, r.size);
    put(&t, "\n", 1);
    if (pwrite(a.end, t.at, t.size, end_place()) < 0) errno = 0; /* the supervisor is told anyhow */
    close(a.end);
    t.size = 0;
  }
  putf(&t, "{\"is\":\"ended\",\"end\":");
  put(&t, r.at, r.size);
  putf(&t, ",\"kept\":%s,\"note\":", worker.pid ? "true" : "false");
  put_string(&t, a.note ? a.note : "", ESCAPE, 0);
  if (a.l.key) putf(&t, ",\"cpu\":null}");
  else putf(&t, ",\"cpu\":%.6f}", spent_by_children() - a.spent);
  say(station.channel, &t);
  free(r.at), free(t.at);
  forget();
}

/* ── Start ─────────────────────────────────────────────────────────────────────────────────────── */

static void tell_started(void) {
  struct text t = {0};
  putf(&t, "{\"is\":\"started\",\"attempt\":");
  put_string(&t, a.l.id, ESCAPE, 0);
  putf(&t, ",\"pid\":%d,\"keeper\":%d,\"keeper_start\":%lld,\"spent\":%.6f}", (int)a.pid,
       (int)station.self, station.start, a.spent);
  say(station.channel, &t);
  free(t.at);
}

/* Start the timeout and the idle timeout; a worker's loading has a limit of its own. */
static void start_clock(double now) {
  a.clock = a.silent_since = a.looked_at = now;
  if (a.l.idle_timeout > 0 && !a.loading) a.silence_at = now + a.l.idle_timeout;
}

static void now_running(pid_t pid, int exec_pipe) {
  a.pid = pid;
  a.exec_pipe = exec_pipe;
  a.phase = RUNNING;
  a.started = moment();
  start_clock(a.started.mono);
}

/* Fork the job, with a pipe for its exec's result and, for a worker, for items and answers. */
static pid_t fork_job(int *exec_pipe) {
  int pipes[3][2], count = a.l.key ? 3 : 1, n = 0;
  pid_t pid = -1;
  while (n < count && !pipe2(pipes[n], n ? O_CLOEXEC : O_CLOEXEC | O_NONBLOCK)) n++;
  if (n == count) pid = fork();
  if (pid == 0) become_job(&a.l, pipes[0][1], n == 3 ? (int[]){pipes[1][0], pipes[2][1]} : NULL);
  if (pid < 0) {
    int why = errno;
    while (n-- > 0) close(pipes[n][0]), close(pipes[n][1]);
    errno = why;
    return -1;
  }
  close(pipes[0][1]);
  *exec_pipe = pipes[0][0];
  if (n == 3) {
    close(pipes[1][0]), close(pipes[2][1]);
    worker_begin(&a.l, pid, pipes[1][1], pipes[2][0]);
  }
  return pid;
}

static void fork_later(void) { /* processes are scarce: that is not the job's failure */
  if (!is_scarce(errno)) die("fork");
  a.fork_at = monotonic() + a.fork_pause;
  a.fork_pause = fmin(a.fork_pause * 2, 1.0);
}

static void start_process(void) { /* or hand its item to the worker that waits */
  int exec_pipe;
  a.fork_at = -1;
  if (warm.link >= 0) return; /* advance_warm follows */
  if (a.l.key && worker.pid) {
    now_running(worker.pid, -1);
    worker_hand(&a.l, false);
    tell_started();
    return;
  }
  pid_t pid = fork_job(&exec_pipe);
  if (pid < 0) {
    fork_later();
    return;
  }
  a.loading = a.l.key;
  if (a.l.key) worker_hand(&a.l, true);
  now_running(pid, exec_pipe);
}

void attempt_begin(struct launch launch) {
  struct text words = a.words, answer = a.answer;
  struct pids told = a.told, helpers = a.helpers;
  struct sweep sweep = a.sweep;
  memset(&a, 0, sizeof a);
  words.size = answer.size = told.count = helpers.count = 0;
  a.words = words, a.answer = answer, a.told = told, a.helpers = helpers, a.sweep = sweep;
  a.on = true;
  a.l = launch;
  a.exec_pipe = a.helper_pipe = -1;
  a.fork_at = a.term_at = a.kill_at = a.silence_at = a.stop_at = -1;
  a.fork_pause = 0.01;
  a.log_size = a.log_time = -1;
  a.spent = spent_by_children();
  a.asked = monotonic();
  if (lay_out_end()) {
    start_process();
    return;
  }
  a.no_space = errno == ENOSPC;
  if (asprintf(&a.error, "cannot lay out %s: %s", a.l.end, strerror(errno)) < 0) die("asprintf");
  finish();
}

/* Kill the child of the preload server, and execute the job instead. */
static void start_cold(const char *why, bool for_good) {
  struct text t = {0};
  putf(&t, "{\"is\":\"cold\",\"attempt\":");
  put_string(&t, a.l.id, ESCAPE, 0);
  putf(&t, ",\"why\":");
  put_string(&t, why, REPLACE, 0);
  putf(&t, ",\"for_good\":%s}", for_good ? "true" : "false");
  say(station.channel, &t);
  free(t.at);
  warm_end();
  sweep_to_the_end(station.channel); /* it is not the job yet */
  a.helpers.count = 0;
  a.pid = 0;
  a.phase = FORKING;
  start_process();
}

/* The child of the preload server becomes the job, once the hooks of imports let it. */
static void give_to_warm(void) {
  int pipes[2];
  pid_t giver = -1;
  if (!pipe2(pipes, O_CLOEXEC)) {
    if ((giver = warm_give(&a.l, pipes[1])) < 0) close(pipes[0]);
    close(pipes[1]);
  }
  if (giver < 0) {
    fork_later();
    return;
  }
  fcntl(pipes[0], F_SETFL, O_NONBLOCK);
  add_pid(&a.helpers, giver);
  now_running(warm.pid, pipes[0]);
}

static void advance_warm(double now) {
  enum warmth is = warm_look();
  char *why;
  if (is == WARM) {
    if (a.fork_at < 0 || now >= a.fork_at) give_to_warm();
    return;
  }
  if (is == GONE && warm.pid) {
    start_cold("its process was killed before it began", false);
    return;
  }
  if (is == WARMING && now < a.asked + warm.limit) return;
  if (asprintf(&why, is == GONE ? AT_FORK " ended the process" : AT_FORK " had not returned after %g s",
               warm.limit) < 0)
    die("asprintf");
  start_cold(why, true);
  free(why);
}

/* The exec's result: words are an error, an end of file without words is a start. A child that was
 * killed before its exec shows as a start too. */
static void read_child(void) {
  char part[4096];
  ssize_t got;
  if (a.exec_pipe < 0) return;
  while ((got = read(a.exec_pipe, part, sizeof part)) > 0) put(&a.words, part, (size_t)got);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  close(a.exec_pipe);
  a.exec_pipe = -1;
  warm_end(); /* it has its launch, or is never to have it */
  if (a.words.size && *a.words.at == STALE && !a.cause) {
    char *why = copy_of(a.words.at + 1);
    a.words.size = 0;
    unlink(a.l.log); /* which is empty: the job opens it again */
    start_cold(why, false);
    free(why);
    return;
  }
  if (a.words.size && *a.words.at == ELSEWHERE) {
    a.note = "the CPUs near its card were not allowed any more: it ran on those that were";
    memmove(a.words.at, a.words.at + 1, a.words.size--);
  }
  if (a.words.size) {
    a.no_space = *a.words.at == FULL;
    set_text(&a.error, a.words.at + (a.no_space ? 1 : 0));
    return;
  }
  tell_started();
}

/* ── Looks at the file system, by a helper: a look may hang, the keeper may not ────────────────── */

static bool ask(void (*look)(int pipe)) {
  int pipes[2];
  if (pipe2(pipes, O_CLOEXEC)) return false;
  pid_t pid = fork();
  if (pid == 0) {
    settle_in(station.self);
    look(pipes[1]);
    _exit(0);
  }
  close(pipes[1]);
  if (pid < 0) {
    close(pipes[0]);
    return false;
  }
  fcntl(pipes[0], F_SETFL, O_NONBLOCK);
  a.helper = pid;
  a.helper_pipe = pipes[0];
  a.answer.size = 0;
  add_pid(&a.helpers, pid);
  return true;
}

static void look_at_log(int pipe) {
  struct stat seen;
  if (stat(a.l.log, &seen)) return;
  long long changed = seen.st_mtim.tv_sec * 1000000000LL + seen.st_mtim.tv_nsec;
  dprintf(pipe, "%lld %lld ", (long long)seen.st_size, changed);
}

static size_t noutputs(void) { return a.l.noutputs + a.l.nkept; }

static const char *output(size_t i) {
  return i < a.l.noutputs ? a.l.outputs[i] : a.l.kept[i - a.l.noutputs];
}

static void look_for_outputs(int pipe) { /* "!", what is missing, each with its NUL, and "." */
  struct text t = {0};
  put(&t, "!", 1);
  for (size_t i = 0, told = 0; i < noutputs() && told < MISSING_MOST; i++) {
    /* What is kept may be an earlier attempt's. */
    char *fault = fault_of_output(output(i), i < a.l.noutputs ? a.since : INT64_MIN);
    if (!fault) continue;
    putf(&t, "%s%s", output(i), fault);
    put(&t, "", 1);
    free(fault);
    told++;
  }
  put(&t, ".", 1);
  for (size_t at = 0; at < t.size;) {
    ssize_t got = write(pipe, t.at + at, t.size - at);
    if (got < 0) return;
    at += (size_t)got;
  }
}

static void drop_helper(void) {
  if (!a.helper) return;
  close(a.helper_pipe);
  if (has_pid(&a.helpers, a.helper)) kill(a.helper, SIGKILL);
  a.helper = 0;
  a.helper_pipe = -1;
}

static void start_sweep(void) {
  a.phase = SWEEPING;
  drop_helper();
  sweep_begin(&a.sweep, station.channel, a.l.id);
}

static void conclude(void) {
  a.checked = true;
  if (a.keep) {
    drop_helper();
    finish();
  } else {
    start_sweep(); /* of the helper */
  }
}

static void outputs_looked_for(double now) {
  const char *end = a.answer.at + a.answer.size;
  if (!a.answer.size || end[-1] != '.') { /* it failed: no memory */
    a.check_at = now + 1.0;
    return;
  }
  for (const char *at = a.answer.at + 1; at + 1 < end; at += strlen(at) + 1)
    a.missing[a.nmissing++] = copy_of(at);
  conclude();
}

/* The log's time of change counts only where it is plausible: a file server's clock may be wrong. */
static void log_looked_at(double now) {
  long long size, changed;
  if (!a.answer.size || sscanf(a.answer.at, "%lld %lld ", &size, &changed) != 2) {
    a.silence_at = now + 1.0; /* it failed: no memory, no file yet */
    return;
  }
  if (size != a.log_size || changed != a.log_time) {
    double age = clock_now(CLOCK_REALTIME) - (double)changed / 1e9;
    a.silent_since = age >= 0 && age <= now - a.looked_at + 0.02 ? now - age : now;
  }
  a.log_size = size, a.log_time = changed, a.looked_at = now;
  if (now >= a.silent_since + a.l.idle_timeout - 0.005) attempt_stop("idle_timeout", "", false, false);
  else a.silence_at = a.silent_since + a.l.idle_timeout;
}

static void read_helper(void) {
  char part[4096];
  ssize_t got;
  if (a.helper_pipe < 0) return;
  while ((got = read(a.helper_pipe, part, sizeof part)) > 0) put(&a.answer, part, (size_t)got);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  close(a.helper_pipe);
  a.helper_pipe = -1;
  a.helper = 0;
  if (a.phase == CHECKING) outputs_looked_for(monotonic());
  else if (a.phase == RUNNING && !a.cause) log_looked_at(monotonic());
}

/* ── What happens meanwhile ────────────────────────────────────────────────────────────────────── */

static void answered(const struct answer *answer) {
  if (*answer->error) set_text(&a.error, answer->error);
  a.status = (int)answer->code << 8;
  a.has_status = true;
  a.answered = moment();
  a.keep = !a.cause && !answer->spoiled && worker_may_stay();
}

/* Handle the worker's answers; kill a worker that gives an invalid one. */
static void hear_worker(void) {
  struct answer answer;
  enum heard heard;
  if (!a.l.key || !worker.pid) return;
  worker_flush();
  while ((heard = worker_hear(&answer)) != NOTHING) {
    if (heard == ANSWER && answer.item == 0 && a.loading) {
      a.loading = false;
      if (a.phase == RUNNING) start_clock(monotonic());
    } else if (heard == ANSWER && answer.item == worker.count && !a.has_status) {
      answered(&answer);
    } else {
      a.note = "its worker gave an answer that is none, and was killed";
      a.keep = false;
      kill(-worker.pid, SIGKILL);
    }
  }
}

static void main_reaped(pid_t pid, int status) {
  hear_worker(); /* its last answer, which it gave before it died */
  bool unanswered = worker_reaped(pid) && !a.has_status && !a.cause;
  a.keep = false;
  if (unanswered && !a.error && status == 0) {
    status = 1 << 8;
    a.note = "its worker ended, with status 0, before it answered";
  }
  if (!a.has_status) a.status = status, a.has_status = true;
}

static void reaped(pid_t pid, int status) {
  drop_pid(&a.told, pid);
  a.sweep.nap = 0.0005;
  if (pid == a.pid) {
    read_child();
    if (pid == a.pid) main_reaped(pid, status);
  } else if (has_pid(&a.helpers, pid)) {
    drop_pid(&a.helpers, pid);
  } else if (a.has_status && !a.main_was_killed && WIFSIGNALED(status)) {
    a.leftovers += WTERMSIG(status) == SIGKILL && !has_pid(&a.sweep.ours, pid);
  }
}

static void reap(void) {
  if (!a.pid) return;
  if (!a.has_status && !a.cause && has_ended(a.pid))
    kill(-a.pid, SIGKILL); /* while it is unreaped its group is the job's: no fork escapes this */
  a.alone = false;
  for (;;) {
    int status;
    pid_t pid = waitpid(-1, &status, WNOHANG);
    if (pid < 0 && errno == ECHILD) a.alone = true;
    if (pid <= 0) return;
    reaped(pid, status);
  }
}

int attempt_pipes(int *fds) {
  int count = 0;
  if (a.exec_pipe >= 0) fds[count++] = a.exec_pipe;
  if (a.helper_pipe >= 0) fds[count++] = a.helper_pipe;
  if (a.phase == FORKING && warm.link >= 0 && !warm.pid) fds[count++] = warm.link;
  if (a.l.key && worker.pid && !worker.silent) fds[count++] = worker.answers;
  return count;
}

void attempt_look(int only) {
  bool begins = only >= 0 && only == a.exec_pipe; /* and nothing has ended */
  read_child();
  hear_worker();
  if (!begins) reap(); /* before the helper: a job that has ended cannot be too silent */
  read_helper();
}

static void send_warning(const char *why) {
  struct text t = {0};
  a.warned_at = moment();
  a.warned_why = why;
  a.warned = warn(a.pid, a.l.warn_signal);
  putf(&t, "{\"is\":\"warned\",\"attempt\":");
  put_string(&t, a.l.id, ESCAPE, 0);
  putf(&t, ",\"warned\":");
  put_warned(&t);
  putf(&t, "}");
  say(station.channel, &t);
  free(t.at);
}

static void then(const char *cause, const char *by) { /* what an end is that is no success */
  set_text(&a.otherwise, cause);
  set_text(&a.otherwise_by, by);
}

/* Warn the job of a stop, which follows later; false: it cannot be, and is to stop now. */
static bool announce(const char *reason, const char *by) {
  /* Before its exec it has the keeper's signals blocked, and takes none. */
  bool runs = a.phase == RUNNING && a.exec_pipe < 0;
  if (!a.l.warn_signal || !runs || a.cause || a.has_status) return false;
  if (a.stop_at >= 0) return true;
  if (!(a.warned_at.mono > 0)) send_warning("stop");
  if (!a.warned) return false;
  a.stop_at = monotonic() + a.l.warn_before;
  if (limit() > 0) a.stop_at = fmin(a.stop_at, a.clock + limit());
  then(reason, by);
  return true;
}

void attempt_stop(const char *reason, const char *by, bool now, bool gently) {
  if (gently && !now && announce(reason, by)) return;
  a.stop_at = -1;
  double at = monotonic() + (now ? 0.0 : a.l.grace);
  if (a.phase == CHECKING) {
    if (!a.cut_cause) {
      set_text(&a.cut_cause, reason);
      set_text(&a.cut_by, by);
    }
    a.check_limit = fmin(a.check_limit, at);
  } else if (a.phase == TERMINATING || a.cause) {
    if (now) a.kill_at = at;
  } else if (a.phase != SWEEPING && !a.has_status) { /* else it ended by itself */
    set_text(&a.cause, reason);
    set_text(&a.by, by);
    a.kill_at = at;
    if (a.pid && !now) terminate(a.pid); /* once: a second TERM means "at once" to many programs */
  }
}

/* ── What follows from it ──────────────────────────────────────────────────────────────────────── */

static void check_or_finish(void) {
  if (a.checked || !noutputs() || !has_succeeded()) {
    finish();
    return;
  }
  a.phase = CHECKING;
  a.check_at = monotonic();
  a.check_limit = a.check_at + OUTPUT_CHECK_LIMIT;
}

static void advance_forking(double now) {
  if (warm.link >= 0 && !a.cause) {
    advance_warm(now);
    return;
  }
  if (a.l.timeout > 0 && now >= a.asked + a.l.timeout && !a.cause) set_text(&a.cause, "timeout");
  if (a.cause) {
    if (warm.link >= 0) {
      warm_end();
      sweep_to_the_end(station.channel);
    }
    finish();
  } else if (a.fork_at >= 0 && now >= a.fork_at) start_process();
}

/* A worker that stays is not swept; one that is to go has its input closed, and then as a stop. */
static void item_is_over(double now) {
  if (a.keep) {
    check_or_finish();
    return;
  }
  worker_close_input();
  if (a.kill_at < 0) {
    a.term_at = now + a.l.grace / 2;
    a.kill_at = now + a.l.grace;
  }
  a.phase = TERMINATING;
}

static double warn_at(void) { /* below zero: never, or it was warned, or is not executed yet */
  if (!a.l.warn_signal || !(limit() > 0) || a.warned_at.mono > 0 || a.exec_pipe >= 0) return -1;
  return a.clock + fmax(0.0, limit() - a.l.warn_before);
}

static void advance_running(double now) {
  if (a.has_status && a.l.key && worker.pid) item_is_over(now);
  else if (a.has_status && a.cause) a.phase = TERMINATING;
  else if (a.has_status || (a.kill_at >= 0 && now >= a.kill_at)) start_sweep();
  else if (a.kill_at >= 0) return;
  else if (a.stop_at >= 0 && now >= a.stop_at)
    attempt_stop(a.otherwise, a.otherwise_by, false, false);
  else if (limit() > 0 && now >= a.clock + limit()) attempt_stop("timeout", "", false, false);
  else if (warn_at() >= 0 && now >= warn_at()) {
    send_warning("timeout");
    if (a.warned) then("timeout", "");
  } else if (a.silence_at >= 0 && now >= a.silence_at && !a.helper)
    a.silence_at = ask(look_at_log) ? -1 : now + 1.0;
}

/* What the main process left behind has the rest of the grace, and a TERM if it had none. */
static void advance_terminating(double now) {
  static struct pids found;
  drop_helper();
  if (a.alone || now >= a.kill_at) {
    start_sweep();
    return;
  }
  if (a.term_at >= 0 && now >= a.term_at && worker.pid) {
    a.term_at = -1;
    terminate(worker.pid);
  }
  children(&found);
  for (size_t i = 0; i < found.count; i++) {
    pid_t pid = found.at[i];
    if (pid == a.pid || has_pid(&a.told, pid)) continue;
    add_pid(&a.told, pid);
    if (getpgid(pid) == a.pid) continue; /* its group has had its TERM */
    kill(pid, SIGTERM);
    kill(pid, SIGCONT);
  }
}

static void advance_sweeping(void) {
  if (!a.alone) {
    if (!a.has_status || worker.pid) {
      a.main_was_killed = true;
      kill(-a.pid, SIGKILL);
    }
    sweep_kill(&a.sweep);
    reap();
  }
  if (a.alone) check_or_finish();
}

static void advance_checking(double now) {
  if (now >= a.check_limit && a.cut_cause) {
    set_text(&a.cause, a.cut_cause);
    set_text(&a.by, a.cut_by);
    conclude();
  } else if (now >= a.check_limit) {
    const char *why = " (its file system gave no answer within 60 s)";
    for (size_t i = 0; i < noutputs() && a.nmissing < MISSING_MOST; i++)
      if (asprintf(&a.missing[a.nmissing++], "%s%s", output(i), why) < 0) die("asprintf");
    conclude();
  } else if (!a.helper && now >= a.check_at) {
    a.check_at = ask(look_for_outputs) ? INFINITY : now + 1.0;
  }
}

void attempt_advance(void) {
  double now = monotonic();
  enum phase before;
  do {
    before = a.phase;
    if (a.phase == FORKING) advance_forking(now);
    else if (a.phase == RUNNING) advance_running(now);
    else if (a.phase == TERMINATING) advance_terminating(now);
    else if (a.phase == SWEEPING) advance_sweeping();
    else advance_checking(now);
  } while (a.on && a.phase != before);
}

static double earliest(double one, double other) {
  return one < 0 ? other : other < 0 ? one : fmin(one, other);
}

double attempt_deadline(void) {
  double most = limit() > 0 ? limit() : -1;
  if (a.phase == SWEEPING) return monotonic() + a.sweep.nap;
  if (a.phase == CHECKING) return fmin(a.check_at, a.check_limit);
  if (a.phase == FORKING && warm.link >= 0) return earliest(a.fork_at, a.asked + warm.limit);
  if (a.phase == FORKING) return earliest(a.fork_at, most < 0 ? -1 : a.asked + most);
  if (a.kill_at >= 0) return earliest(a.term_at, a.kill_at);
  double due = earliest(warn_at(), a.stop_at);
  return earliest(due, earliest(a.silence_at, most < 0 ? -1 : a.clock + most));
}
