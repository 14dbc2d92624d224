/* What Slurm granted, as the node sees it, and the launch that is filled with it: as
 * ../node/grant.py, which says why each is as it is. */
#define _GNU_SOURCE
#include "node.h"

#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define NO_CARD "NoDevFiles" /* what Slurm 20.11 and older put into the mask of a job without cards */
#define DRIVER_TIMEOUT 5.0   /* seconds for nvidia-smi to list the cards */
#define FIRST_PORT 20000
#define LAST_PORT 65535

static const char *variable(const char *name) {
  const char *value = getenv(name);
  return value ? value : "";
}

/* The text with `_` for characters that JSON, shells, paths or patterns interpret. */
char *plain(const char *text) {
  char *copy = kept(strdup(text)), *to = copy;
  for (const char *at = copy; *at; at++) {
    if ((*at & 0xc0) == 0x80 && to > copy) continue; /* the rest of a character */
    bool good = (*at & 0x80) == 0 && (isalnum(*at) || strchr("._:/-", *at));
    *to++ = good ? *at : '_';
  }
  *to = 0;
  return copy;
}

char *node_name(void) {
  char host[256] = "";
  gethostname(host, sizeof host - 1);
  return plain(*variable("SLURMD_NODENAME") ? variable("SLURMD_NODENAME") : host);
}

/* Slurm's job number as squeue shows it: `12`, or `12_3` for a task of an array. */
char *slurm_id(void) {
  const char *task = getenv("SLURM_ARRAY_TASK_ID");
  if (!task) return words("%s", variable("SLURM_JOB_ID"));
  return words("%s_%s", variable("SLURM_ARRAY_JOB_ID"), task);
}

/* Slurm's process above this one, which signals all processes of the job; 0: it is not seen. */
pid_t slurms_own(void) {
  size_t size;
  pid_t pid = getppid();
  for (int above = 0; pid > 1 && above < 20; above++) { /* a site may wrap the batch script */
    const char *name = read_file(words("/proc/%d/comm", (int)pid), &size);
    if (name && !strcmp(name, "slurmstepd\n")) return pid;
    pid = (pid_t)stat_number(pid, 4);
  }
  return 0;
}

/* ── Cards ─────────────────────────────────────────────────────────────────────────────────────── */

/* The words of a list with commas, without the empty ones; ends with NULL. */
static char **split(const char *text, size_t *count) {
  char *rest = kept(strdup(text)), *word;
  char **list = kept(calloc(strlen(text) / 2 + 2, sizeof *list));
  *count = 0;
  while ((word = strsep(&rest, ","))) {
    word += strspn(word, " \t\r\n");
    size_t size = strlen(word);
    while (size && strchr(" \t\r\n", word[size - 1])) word[--size] = 0;
    if (size) list[(*count)++] = word;
  }
  return list;
}

static bool is_number(const char *word) {
  return *word && strlen(word) < 10 && strspn(word, "0123456789") == strlen(word);
}

/* Whether a text like `0,2-3` has so many numbers, and no other words; the numbers. */
static bool spread(const char *text, long *numbers, size_t wanted) {
  size_t nwords, count = 0;
  char **list = split(text, &nwords);
  for (size_t i = 0; i < nwords; i++) {
    char *dash = strchr(list[i], '-');
    if (dash) *dash = 0;
    if (!is_number(list[i]) || (dash && !is_number(dash + 1))) return false;
    long last = atol(dash ? dash + 1 : list[i]);
    for (long n = atol(list[i]); n <= last; n++)
      if (count == wanted) return false;
      else numbers[count++] = n;
  }
  return count == wanted;
}

static void name_cards(struct grant *g) {
  long *numbers = must(calloc(g->count + 1, sizeof *numbers));
  bool told = spread(variable("SLURM_JOB_GPUS"), numbers, g->count);
  for (size_t i = 0; i < g->count; i++) {
    struct card *card = &g->cards[i];
    const char *word = g->words[i], *uuid = is_number(word) ? card->uuid : word;
    card->index = told ? numbers[i] : is_number(word) ? atol(word) : (long)i;
    card->uuid = plain(uuid && *uuid ? uuid : words("%s/%ld", g->node, card->index));
    if (!card->name) card->name = "";
  }
  free(numbers);
}

void take_grant(struct grant *g) {
  size_t count;
  g->node = node_name();
  g->mask = getenv(MASK);
  g->words = split(g->mask ? g->mask : "", &count);
  g->count = 0;
  for (size_t i = 0; i < count; i++)
    if (strcmp(g->words[i], NO_CARD)) g->words[g->count++] = g->words[i];
  g->cards = kept(calloc(g->count + 1, sizeof *g->cards));
  name_cards(g);
}

static char *cards(long count) { return words("%ld card%s", count, count == 1 ? "" : "s"); }

char *fault_of_grant(const struct grant *g, long gpus) {
  if (!gpus || (long)g->count == gpus) return NULL; /* a job without cards sees none */
  return words("Slurm granted %s on node %s (" MASK " is %s%s%s), %s %s asked for",
               cards((long)g->count), g->node, g->mask ? "'" : "", g->mask ? g->mask : "not set",
               g->mask ? "'" : "", cards(gpus), gpus == 1 ? "was" : "were");
}

void put_cards(struct text *t, const struct grant *g) {
  putf(t, "\"gpus\":[");
  for (size_t i = 0; i < g->count; i++) {
    putf(t, "%s{\"index\":%ld,\"uuid\":\"%s\",\"name\":", i ? "," : "", g->cards[i].index,
         g->cards[i].uuid); /* which is plain */
    put_string(t, g->cards[i].name, REPLACE, 0);
    put(t, "}", 1);
  }
  put(t, "]", 1);
}

/* ── The driver ────────────────────────────────────────────────────────────────────────────────── */

static pid_t start_driver(int *from) {
  int pipes[2];
  sigset_t none;
  if (pipe2(pipes, O_CLOEXEC)) return -1;
  pid_t pid = fork_patiently();
  if (pid == 0) {
    int nothing = open("/dev/null", O_RDWR);
    dup2(nothing, 0), dup2(pipes[1], 1), dup2(nothing, 2);
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    signal(SIGPIPE, SIG_DFL);
    execlp("nvidia-smi", "nvidia-smi", "-L", NULL);
    _exit(127);
  }
  close(pipes[1]);
  *from = pipes[0];
  if (pid < 0) close(pipes[0]);
  return pid;
}

/* What `nvidia-smi -L` says; false if it takes too long: a faulty driver never answers. */
static bool driver_says(struct text *said) {
  char part[4096];
  int from;
  ssize_t got = -1;
  double until = monotonic() + DRIVER_TIMEOUT;
  pid_t pid = start_driver(&from);
  if (pid < 0) return false;
  put(said, "", 0);
  for (;;) {
    struct pollfd fd = {from, POLLIN, 0};
    double left = until - monotonic();
    int ready = left > 0 ? poll(&fd, 1, (int)ceil(left * 1000)) : 0;
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0 || (got = read(from, part, sizeof part)) <= 0) break;
    put(said, part, (size_t)got);
  }
  close(from);
  if (got) kill(pid, SIGKILL); /* without waiting: inside the driver it may have no effect */
  return !got;
}

/* Take a line like `GPU 0: NVIDIA A100-SXM4-80GB (UUID: GPU-5f3c...)` for the cards that it is of. */
static void take_line(struct grant *g, char *line) {
  static const char mark[] = " (UUID: ";
  char *colon = strstr(line, ": "), *uuid = NULL;
  if (strncmp(line, "GPU ", 4) || !colon) return;
  *colon = 0;
  if (!is_number(line + 4)) return;
  for (char *at = colon + 1; (at = strstr(at + 1, mark));) uuid = at;
  if (!uuid) return;
  *uuid = 0;
  uuid += strlen(mark);
  uuid[strcspn(uuid, " \t\r\v\f")] = 0;
  char *end = strrchr(uuid, ')');
  if (!end || end == uuid) return;
  *end = 0;
  for (size_t i = 0; i < g->count; i++)
    if (!strcmp(g->words[i], line + 4) || !strcmp(g->words[i], uuid)) {
      g->cards[i].uuid = uuid;
      g->cards[i].name = colon + 2;
    }
}

/* Have the cards' names from the node's driver, which may take seconds if it is faulty. */
void ask_driver(struct grant *g) {
  struct text said = {0};
  bool answered = driver_says(&said);
  if (said.at) kept(said.at);
  if (!answered) return;
  for (size_t i = 0; i < g->count; i++) g->cards[i] = (struct card){0};
  for (char *rest = said.at, *line; (line = strsep(&rest, "\n"));) take_line(g, line);
  name_cards(g);
}

/* ── The kernel's kills for memory ─────────────────────────────────────────────────────────────── */

static bool has_word(const char *list, const char *word) {
  size_t size = strlen(word);
  for (; list; list = strchr(list, ',') ? strchr(list, ',') + 1 : NULL)
    if (strcspn(list, ",") == size && !memcmp(list, word, size)) return true;
  return false;
}

/* The file that counts them in this Slurm job's own cgroup, by one line of /proc/self/cgroup. */
static char *counter_at(char *line, const char *job, const char *mounted) {
  char *controllers = strchr(line, ':'), *path = controllers ? strchr(controllers + 1, ':') : NULL;
  if (!path) return NULL;
  *controllers++ = 0;
  *path++ = 0;
  if (*controllers && !has_word(controllers, "memory")) return NULL;
  const char *folder = *controllers ? "/memory" : "";
  const char *file = *controllers ? "memory.oom_control" : "memory.events";
  for (;;) {
    char *within = words("%s/", path), *step = words("/%s/", job);
    if (!strstr(within, step)) return NULL;
    char *counter = words("%s%s%s/%s", mounted, folder, path, file);
    if (!access(counter, F_OK)) return counter;
    *strrchr(path, '/') = 0;
  }
}

char *memory_counter(const char *own, const char *mounted) {
  char *line = NULL, *job = words("job_%s", variable("SLURM_JOB_ID")), *found = NULL;
  size_t room = 0;
  FILE *file = fopen(own, "re");
  while (file && !found && getline(&line, &room, file) > 0) {
    line[strcspn(line, "\n")] = 0;
    found = counter_at(line, job, mounted);
  }
  if (file) fclose(file);
  free(line);
  return found;
}

/* ── Ports ─────────────────────────────────────────────────────────────────────────────────────── */

static void port_range(long *first, long *last) {
  long low = FIRST_PORT, high = FIRST_PORT;
  FILE *file = fopen("/proc/sys/net/ipv4/ip_local_port_range", "re");
  if (file && fscanf(file, "%ld %ld", &low, &high) != 2) low = high = FIRST_PORT;
  if (file) fclose(file);
  *first = FIRST_PORT;
  *last = LAST_PORT;
  if (low - FIRST_PORT >= 1000) *last = low - 1;
  else if (LAST_PORT - high >= 1000) *first = high + 1;
}

static bool is_unused(long port) {
  struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  int probe = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  bool free_ = probe >= 0 && !bind(probe, (struct sockaddr *)&at, sizeof at);
  if (probe >= 0) close(probe);
  return free_;
}

static bool is_reserved(long port) { /* by us, until this process is gone */
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  int size = snprintf(at.sun_path + 1, sizeof at.sun_path - 1, "gpulaunch/1/port/%ld", port);
  socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)size);
  int lease = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (lease >= 0 && !bind(lease, (struct sockaddr *)&at, length) && !listen(lease, 8) &&
      is_unused(port))
    return true;
  if (lease >= 0) close(lease);
  return false;
}

/* Reserve a port that no launcher has and nobody listens on; NULL, and why not. */
static char *reserved_port(char **why) {
  long first, last;
  uint32_t some;
  port_range(&first, &last);
  if (getrandom(&some, sizeof some, 0) != sizeof some) die("getrandom");
  for (long i = 0, count = last - first + 1; i < count; i++) {
    long port = first + (some + i) % count;
    if (is_reserved(port)) return words("%ld", port);
  }
  *why = words("no free TCP port from %ld to %ld", first, last);
  return NULL;
}

/* ── The launch ────────────────────────────────────────────────────────────────────────────────── */

static char *joined(const struct grant *g, char separator, bool uuids) {
  struct text t = {0};
  put(&t, "", 0);
  for (size_t i = 0; i < g->count; i++) {
    if (i) put(&t, &separator, 1);
    if (uuids) putf(&t, "%s", g->cards[i].uuid);
    else putf(&t, "%ld", g->cards[i].index);
  }
  return kept(t.at);
}

static char *card_name(const struct grant *g) {
  char *name = joined(g, '+', true);
  for (char *at = name; (at = strchr(at, '/'));) *at = '_';
  return name;
}

static char *mask_inside(const struct grant *g) { /* for a container, as Slurm spells it */
  struct text t = {0};
  put(&t, "", 0);
  for (size_t i = 0; i < g->count; i++) putf(&t, i ? ",%s" : "%s", plain(g->words[i]));
  return kept(t.at);
}

static char *cpus_granted(void) {
  cpu_set_t set;
  const char *told = variable("SLURM_CPUS_ON_NODE");
  long count = is_number(told) ? atol(told) : 0;
  if (!is_number(told) && !sched_getaffinity(0, sizeof set, &set)) count = CPU_COUNT(&set);
  return words("%ld", count > 1 ? count : 1);
}

/* The value for a mark, by its place in ../launch.py's SLOTS; NULL, and why there is none.
 *
 * INVARIANT: the values are plain: harmless in any quotes of a shell and in a pattern of file names. */
static const char *value_of(size_t slot, const struct grant *g, char **why) {
  switch (slot) {
    case 0: return joined(g, ',', false);
    case 1: return joined(g, ',', true);
    case 2: return card_name(g);
    case 3:
    case 4: return reserved_port(why);
    case 5: return cpus_granted();
    case 6: return mask_inside(g);
  }
  char *counter = memory_counter("/proc/self/cgroup", "/sys/fs/cgroup");
  return counter ? counter : ""; /* a field of its own, which nobody interprets */
}

static void replace_all(struct text *t, const char *mark, const char *value) {
  struct text made = {0};
  const char *at = t->at, *end = t->at + t->size, *found;
  put(&made, "", 0);
  while ((found = memmem(at, (size_t)(end - at), mark, strlen(mark)))) {
    put(&made, at, (size_t)(found - at));
    put(&made, value, strlen(value));
    at = found + strlen(mark);
  }
  put(&made, at, (size_t)(end - at));
  free(t->at);
  *t = made;
}

/* Put the launch with the node's values; why that cannot be, or NULL. */
char *fill(const struct ticket *t, const struct grant *g, struct text *launch) {
  char *why = NULL;
  put(launch, t->launch, t->size);
  for (size_t i = 0; i < t->nmarks; i++) {
    const char *mark = t->marks[i];
    if (!*mark || !memmem(launch->at, launch->size, mark, strlen(mark))) continue;
    const char *value = value_of(i, g, &why);
    if (!value) return why;
    replace_all(launch, mark, value);
  }
  return NULL;
}
