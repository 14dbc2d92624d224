/* A process that is handed one item after the other, and the pipes to it. */
#define _GNU_SOURCE
#include "keeper.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define LONGEST_ANSWER 65536 /* bytes */
#define DIGITS 9             /* of a number in an answer, at most */

struct worker worker = {.items = -1, .answers = -1};

static struct text outbox, words; /* what is to be written; what was read, and is no line yet */
static size_t written, taken;     /* of them */

static void take_limits(const struct launch *l) {
  free(worker.by), free(worker.key);
  worker.by = copy_of(l->id);
  worker.key = copy_of(l->key);
  worker.most = l->items;
  worker.memory = l->memory;
  worker.grace = l->grace;
}

void worker_begin(const struct launch *l, pid_t pid, int items, int answers) {
  take_limits(l);
  worker.pid = pid;
  worker.count = 0;
  worker.items = items;
  worker.answers = answers;
  worker.silent = false;
  outbox.size = words.size = written = taken = 0;
  fcntl(items, F_SETFL, O_NONBLOCK);
  fcntl(answers, F_SETFL, O_NONBLOCK);
}

void worker_hand(const struct launch *l, bool fresh) {
  worker.grace = l->grace;
  outbox.size = written = 0;
  putf(&outbox, "{\"item\": %lu, \"fresh\": %s, ", ++worker.count, fresh ? "true" : "false");
  put(&outbox, l->item + 1, strlen(l->item + 1));
  put(&outbox, "\n", 1);
  worker_flush();
}

void worker_flush(void) {
  while (written < outbox.size) {
    ssize_t got = write(worker.items, outbox.at + written, outbox.size - written);
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (got < 0) outbox.size = written = 0; /* the worker closed its input: it is about to end */
    else written += (size_t)got;
  }
}

bool worker_has_more(void) { return written < outbox.size; }

/* ── Answers ───────────────────────────────────────────────────────────────────────────────────── */

static bool take_number(char **at, unsigned long *number) { /* with the space behind it */
  size_t size = strspn(*at, "0123456789");
  if (!size || size > DIGITS || (*at)[size] != ' ') return false;
  *number = strtoul(*at, NULL, 10);
  *at += size + 1;
  return true;
}

static enum heard parse_answer(char *line, struct answer *answer) {
  unsigned long spoiled;
  if (!take_number(&line, &answer->item) || !take_number(&line, &answer->code) ||
      !take_number(&line, &spoiled) || answer->code > 255)
    return INVALID;
  answer->spoiled = spoiled;
  answer->error = line;
  return ANSWER;
}

static void read_answers(void) {
  char part[4096];
  ssize_t got;
  while (!worker.silent && words.size < LONGEST_ANSWER) {
    got = read(worker.answers, part, sizeof part);
    if (got < 0 && errno != EINTR) return;
    if (got == 0) worker.silent = true; /* it closed its answers: it is about to end */
    if (got > 0) put(&words, part, (size_t)got);
  }
}

/* Return the next answer; its text lives until the next call. */
enum heard worker_hear(struct answer *answer) {
  if (!worker.pid) return NOTHING;
  if (taken) memmove(words.at, words.at + taken, words.size - taken);
  words.size -= taken;
  taken = 0;
  read_answers();
  char *end = words.size ? memchr(words.at, '\n', words.size) : NULL;
  if (!end && words.size < LONGEST_ANSWER) return NOTHING;
  taken = end ? (size_t)(end - words.at) + 1 : words.size;
  if (!end) return INVALID;
  *end = 0;
  return words.at + strlen(words.at) == end ? parse_answer(words.at, answer) : INVALID;
}

bool worker_suits(const struct launch *l) {
  struct answer answer;
  return l->key && !strcmp(l->key, worker.key) && worker_hear(&answer) == NOTHING;
}

/* ── How it stays, and its end ─────────────────────────────────────────────────────────────────── */

static long long resident(pid_t pid) { /* bytes; below zero: it has ended */
  char path[64];
  long long pages;
  snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
  FILE *file = fopen(path, "re");
  if (!file) return -1;
  int got = fscanf(file, "%*d %lld", &pages);
  fclose(file);
  return got == 1 ? pages * sysconf(_SC_PAGESIZE) : -1;
}

static void add_children(struct pids *found, pid_t pid) { /* of all the process's threads */
  char path[64 + NAME_MAX];
  int child;
  snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
  DIR *dir = opendir(path);
  for (struct dirent *e; dir && (e = readdir(dir));) {
    snprintf(path, sizeof path, "/proc/%d/task/%s/children", (int)pid, e->d_name);
    FILE *file = *e->d_name == '.' ? NULL : fopen(path, "re");
    while (file && fscanf(file, "%d", &child) == 1) add_pid(found, child);
    if (file) fclose(file);
  }
  if (dir) closedir(dir);
}

static long long tree_memory(pid_t pid) { /* bytes, as far as /proc shows them */
  static struct pids todo;
  long long total = 0;
  todo.count = 0;
  add_pid(&todo, pid);
  while (todo.count) {
    pid_t one = todo.at[--todo.count];
    long long bytes = resident(one);
    if (bytes < 0) continue;
    total += bytes;
    add_children(&todo, one);
  }
  return total;
}

bool worker_may_stay(void) {
  if (worker.most >= 0 && worker.count >= (unsigned long)worker.most) return false;
  return worker.memory < 0 || tree_memory(worker.pid) <= worker.memory;
}

/* Tell whether it has died between items; its dead descendants are reaped on the way. */
bool worker_has_died(void) {
  static struct pids mine;
  children(&mine);
  for (size_t i = 0; i < mine.count; i++)
    if (mine.at[i] != worker.pid) waitpid(mine.at[i], NULL, WNOHANG);
  return has_ended(worker.pid);
}

void worker_close_input(void) {
  if (worker.items >= 0) close(worker.items);
  worker.items = -1;
  outbox.size = written = 0;
}

/* Forget the worker if it was the process just reaped; true if so. */
bool worker_reaped(pid_t pid) {
  if (!worker.pid || worker.pid != pid) return false;
  worker_close_input();
  close(worker.answers);
  worker.answers = -1;
  worker.pid = 0;
  return true;
}
