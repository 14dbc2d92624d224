/* What the keepers' files share. See keeper.c for what the program is. */
#ifndef KEEPER_H
#define KEEPER_H

#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include <time.h>

#define PROTOCOL "6" /* as in ../wire.py, with these three */
#define UNKNOWN_PROTOCOL 64
#define MAX_FDS 253
#define END_SIZE 8192
#define MAX_SIGNAL 64

/* ── tools.c: memory, time, processes, descriptors ─────────────────────────────────────────────── */

__attribute__((noreturn)) void die(const char *what);
void *must(void *memory);
char *copy_of(const char *text);
double clock_now(clockid_t clock);
double monotonic(void);
void nap(double seconds);
bool is_scarce(int code);
double spent_by_children(void);

struct pids {
  pid_t *at;
  size_t count, room;
};
void add_pid(struct pids *list, pid_t pid);
bool has_pid(const struct pids *list, pid_t pid);
void drop_pid(struct pids *list, pid_t pid);

void remember_title(int argc, char **argv);
void rename_self(const char *title);
long long stat_number(pid_t pid, int field);
long long started_at(pid_t pid);
bool is_stopped(pid_t pid);
bool is_at_rest(pid_t pid);
pid_t slurms_own(void);
void children(struct pids *found);
bool has_ended(pid_t pid);
void terminate(pid_t pid);
int pidfd_of(pid_t pid);
bool send_to(pid_t pid, int pidfd, int number);
pid_t fork_patiently(void);
void settle_in(pid_t parent);
void close_all_but(const int *kept, int count);
int copy_high(int fd);
int child_ends(void);
void clear(int fd);

/* ── text.c: growing text, and JSON as Python writes it ────────────────────────────────────────── */

struct text {
  char *at;
  size_t size, room;
};
void put(struct text *t, const char *bytes, size_t count);
__attribute__((format(printf, 2, 3))) void putf(struct text *t, const char *format, ...);

enum reading { ESCAPE, REPLACE }; /* what is no UTF-8: a surrogate for each byte, or U+FFFD */
void put_string(struct text *t, const char *bytes, enum reading how, size_t limit);
uint32_t crc32_of(const char *data, size_t size);

/* ── fields.c: what keepers are told and say ───────────────────────────────────────────────────── */

struct fields { /* a message, taken field by field; what it points to lives as long as `memory` */
  char *memory, *at, *end;
  bool wrong; /* a field was missing or not what it was read as; it is empty or 0 then */
};
const char *next_field(struct fields *f);
bool next_flag(struct fields *f);
long next_number(struct fields *f);
const char **next_list(struct fields *f, size_t *count);

struct launch {
  struct fields fields;
  const char *id, *end, *log, *cwd, *oom_kills, *cgroup, *term_by;
  int warn_signal;                               /* 0: none */
  double warn_before;                            /* seconds */
  long slot;                                     /* below zero: `end` is this attempt's own file */
  const char *timeout_text, *idle_timeout_text;  /* as the record has them */
  double timeout, idle_timeout, grace;           /* below zero: none */
  const char **codes, **outputs, **kept, **argv, **set, **unset, **hidden; /* kept: outputs too */
  const char **cpus; /* on which it runs; none: as its keeper */
  size_t ncodes, noutputs, nkept, nargv, nset, nunset, nhidden, ncpus;
  bool isolated;
  const char *key, *item;        /* of a worker; NULL: the job is none */
  long items;                    /* this and the next two below zero: no limit */
  long long memory;              /* bytes */
  double load_timeout;
  const char *load_timeout_text; /* as the record has it */
};
bool parse_launch(struct fields f, struct launch *l);
void free_launch(struct launch *l);

bool receive(int fd, struct fields *f, int *fds, int *count);
void say(int fd, const struct text *t);
void say_words(int fd, const char *words);
void say_fields(int fd, const char *bytes, size_t size, const int *fds, int count);
ssize_t send_with(int fd, const char *bytes, size_t size, const int *fds, int count, int how);

/* ── program.c: a forked child becomes the job ─────────────────────────────────────────────────── */

#define ELSEWHERE '\2' /* through the pipe: the job runs on other CPUs than it was to have */
#define FULL '\1' /* begins a refusal for want of room on the disk: no failure of the job's */
#define STALE '\3' /* begins why the job is to be executed: a file changed since it was imported */
/* `items`: what a worker reads and answers to; NULL: the job is none. */
__attribute__((noreturn)) void become_job(const struct launch *l, int pipe, const int *items);
/* Keep a process and what it starts to these CPUs; false where none of them is allowed now. */
bool run_on(pid_t pid, const char **cpus, size_t count);
/* Do what the job's process is to have before its program: its cgroup, its CPUs, and a log, which is
 * this process's output then. `pid`: that process, 0 for this one. */
void prepare_for(const struct launch *l, pid_t pid, int pipe);
int open_directory(const char *cwd, int pipe); /* or refuse */
/* This process's environment, with the job's changes. */
const char **environment_of(const struct launch *l);
/* Only what makes a program of the job: its directory, and its file, found in that PATH. */
__attribute__((noreturn)) void become_program(const struct launch *l, const char **environment,
                                              int pipe);
#define NO_PROGRAM 127 /* the status, as a shell has it, where a program is not there */
extern int unfit_status; /* with which `refuse` exits: the same, for keepers go by the words */
/* Tell, through the pipe, why this process cannot become the job, and exit. */
__attribute__((format(printf, 2, 3), noreturn)) void refuse(int pipe, const char *format, ...);

/* ── isolation.c ───────────────────────────────────────────────────────────────────────────────── */

/* Hide these paths below /dev from this process and its descendants, or refuse. */
void isolate(const char **paths, size_t count, int pipe);

/* ── looks.c: what became of outputs, looked up by a helper ────────────────────────────────────── */

char *fault_of_output(const char *pattern, int64_t since); /* NULL: none */

/* ── warning.c ─────────────────────────────────────────────────────────────────────────────────── */

/* Send the signal where it is taken, from the job's main process on; to how many. */
int warn(pid_t pid, int number);

/* ── sweep.c ───────────────────────────────────────────────────────────────────────────────────── */

struct sweep {
  int channel;
  const char *attempt; /* NULL: not known here */
  double since, nap;
  struct pids said, found, ours; /* ours: no leftovers of a job */
};
void sweep_begin(struct sweep *s, int channel, const char *attempt);
void sweep_kill(struct sweep *s);  /* all children */
void sweep_found(struct sweep *s); /* the children in `found` */
void sweep_to_the_end(int channel);

/* ── attempt.c: one start of a job, until nothing of it is left ────────────────────────────────── */

struct station { /* the monitor's own */
  int channel;
  int leases[MAX_FDS], nleases;
  pid_t self;
  long long start; /* in clock ticks since boot */
};
extern struct station station;
extern pid_t term_sender; /* Slurm's process above these keepers; 0: none is seen */

extern struct worker {
  pid_t pid;           /* 0: there is none */
  char *by, *key;      /* by: the attempt with which it was started */
  double grace;        /* that of its last item */
  long most;           /* items; this and the next below zero: no limit */
  long long memory;    /* bytes */
  int items, answers;  /* pipes */
  unsigned long count; /* of items that it was handed */
  bool silent;         /* it closed its answers */
} worker;

bool attempt_on(void);
const char *attempt_id(void);
void attempt_begin(struct launch launch);
/* End it; `gently`: the job's warning comes first, where it has one. */
void attempt_stop(const char *reason, const char *by, bool now, bool gently);
int attempt_pipes(int *fds); /* three at most */
void attempt_look(int only); /* only: the one descriptor that is ready; below zero: more, or none */
void attempt_advance(void);
double attempt_deadline(void); /* below zero: none */

/* ── warm.c: a child of a preload server ───────────────────────────────────────────────────────── */

extern struct warm {
  int link;     /* below zero: there is none */
  pid_t pid;    /* 0: not known, because hooks of imports still run */
  double limit; /* seconds that hooks may take */
} warm;
enum warmth { WARMING, WARM, GONE };
enum warmth warm_look(void);
pid_t warm_give(const struct launch *l, int pipe); /* below zero: errno */
void warm_end(void);

/* ── worker.c, retire.c: a process that is handed item after item, and its end ─────────────────── */

enum heard { NOTHING, INVALID, ANSWER };
struct answer {
  unsigned long item, code; /* item 0: the worker has loaded */
  bool spoiled;             /* it is not to be used again */
  const char *error;
};
void worker_begin(const struct launch *l, pid_t pid, int items, int answers);
void worker_hand(const struct launch *l, bool fresh);
void worker_flush(void);
bool worker_has_more(void); /* to be written */
enum heard worker_hear(struct answer *answer);
bool worker_suits(const struct launch *l);
bool worker_may_stay(void);
bool worker_has_died(void);
void worker_close_input(void);
bool worker_reaped(pid_t pid);

bool retiring(void);
/* End the idle worker; `asked`: report that it is gone, at once if there is none. */
void retire(bool now, bool asked);
void retire_advance(double now);
double retire_deadline(void);

/* ── monitor.c, spawner.c ──────────────────────────────────────────────────────────────────────── */

__attribute__((noreturn)) void monitor(int channel, const int *leases, int nleases, pid_t guardian,
                                       pid_t spawner);
void spawner(int control);
/* Wait for the monitor's end, then kill what it left; it is the last process of a pair. */
__attribute__((noreturn)) void guard(pid_t monitor, int channel);

/* ── lease.c: what holds leases beside the command of `exec` and of `hold` ──────────────────────── */

#define LEASE_TITLE "keeper-lease"
int lease(int argc, char **argv);
bool holds_leases(pid_t pid); /* whether a process is one of these */

/* ── wait.c: waits in line for `exec` and `hold` ───────────────────────────────────────────────── */

int wait_in_line(char **argv);

/* ── inside.c: the first process of a container ────────────────────────────────────────────────── */

int inside(const char *path);

#endif
