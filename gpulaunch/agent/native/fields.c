/* What keepers are told, in fields each with a NUL at its end, and what they say, in JSON. */
#define _GNU_SOURCE
#include "keeper.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define DIGITS 18 /* of a number: it fits into a long, as ../wire.py has it */

const char *next_field(struct fields *f) {
  char *field = f->at;
  if (f->at < f->end) f->at += strlen(field) + 1;
  if (f->at <= f->end && f->at > field) return field;
  f->wrong = true; /* missing, or without the NUL at its end */
  return "";
}

bool next_flag(struct fields *f) { return !strcmp(next_field(f), "1"); }

/* What the readers of numbers in libc let pass, signs, spaces, other letters, is none here. */
static long number_of(struct fields *f, const char *text) {
  size_t digits = strspn(text, "0123456789");
  if (digits && digits <= DIGITS && !text[digits]) return strtol(text, NULL, 10);
  f->wrong = true;
  return 0;
}

long next_number(struct fields *f) { return number_of(f, next_field(f)); }

static double seconds_of(struct fields *f, const char *text) { /* below zero: it is empty */
  if (!*text) return -1;
  char *end;
  double seconds = strtod(text, &end);
  bool plain = strspn(text, "0123456789") && !text[strspn(text, "0123456789.e+-")];
  if (plain && !*end && isfinite(seconds)) return seconds;
  f->wrong = true;
  return -1;
}

static long limit_of(struct fields *f, const char *text) { /* below zero: it is empty */
  return *text ? number_of(f, text) : -1;
}

/* A list that ends with NULL; empty where it has not as many fields as it says. */
const char **next_list(struct fields *f, size_t *count) {
  *count = (size_t)next_number(f);
  if (f->wrong || *count > (size_t)(f->end - f->at)) { /* each field has one byte at least */
    f->wrong = true;
    *count = 0;
  }
  const char **list = must(calloc(*count + 1, sizeof *list));
  for (size_t i = 0; i < *count; i++) list[i] = next_field(f);
  return list;
}

static void parse_worker(struct fields *p, struct launch *l) {
  size_t count;
  const char **list = next_list(p, &count);
  if (count == 5) {
    l->key = list[0];
    l->items = limit_of(p, list[1]);
    l->memory = limit_of(p, list[2]);
    l->load_timeout_text = list[3];
    l->load_timeout = seconds_of(p, list[3]);
    l->item = list[4];
  }
  p->wrong = p->wrong || (count && (count != 5 || *l->item != '{'));
  free(list);
}

/* Read a launch after its verb; false, and nothing is kept, if it is none for these keepers. */
bool parse_launch(struct fields f, struct launch *l) {
  struct fields *p = &l->fields;
  *l = (struct launch){.fields = f};
  l->id = next_field(p);
  l->end = next_field(p);
  l->slot = limit_of(p, next_field(p));
  l->log = next_field(p);
  l->cwd = next_field(p);
  l->timeout = seconds_of(p, l->timeout_text = next_field(p));
  l->idle_timeout = seconds_of(p, l->idle_timeout_text = next_field(p));
  l->grace = seconds_of(p, next_field(p));
  if (!(l->grace > 0)) l->grace = 0;
  l->oom_kills = next_field(p);
  l->cgroup = next_field(p);
  l->term_by = next_field(p);
  long number = limit_of(p, next_field(p));
  p->wrong = p->wrong || number == 0 || number > MAX_SIGNAL;
  l->warn_signal = number > 0 ? (int)number : 0;
  l->warn_before = seconds_of(p, next_field(p));
  if (!(l->warn_before > 0)) l->warn_before = 0;
  l->codes = next_list(p, &l->ncodes);
  for (size_t i = 0; i < l->ncodes; i++) number_of(p, l->codes[i]);
  l->outputs = next_list(p, &l->noutputs);
  l->kept = next_list(p, &l->nkept);
  l->argv = next_list(p, &l->nargv);
  l->set = next_list(p, &l->nset);
  for (size_t i = 0; i < l->nset; i++) p->wrong = p->wrong || !strchr(l->set[i], '=');
  l->unset = next_list(p, &l->nunset);
  l->isolated = next_flag(p);
  l->hidden = next_list(p, &l->nhidden);
  l->cpus = next_list(p, &l->ncpus);
  for (size_t i = 0; i < l->ncpus; i++) number_of(p, l->cpus[i]);
  parse_worker(p, l);
  next_field(p); /* how a job looks that goes on in an interpreter: here it is executed */
  if (!p->wrong && l->nargv && p->at == p->end) return true;
  free_launch(l);
  return false;
}

void free_launch(struct launch *l) {
  free(l->codes), free(l->outputs), free(l->kept), free(l->argv), free(l->set), free(l->unset);
  free(l->hidden), free(l->cpus);
  free(l->fields.memory);
}

static char *file_of(int fd, size_t *size) { /* does not move its position */
  struct stat seen;
  if (fstat(fd, &seen)) die("fstat");
  *size = (size_t)seen.st_size;
  char *memory = must(malloc(*size + 1));
  for (size_t at = 0; at < *size;) {
    ssize_t got = pread(fd, memory + at, *size - at, (off_t)at);
    if (got <= 0) die("pread");
    at += (size_t)got;
  }
  return memory;
}

/* Receive a message and its descriptors; false: nobody is at the other end any more. */
bool receive(int fd, struct fields *f, int *fds, int *count) {
  static char room[1 << 16];
  union {
    char bytes[CMSG_SPACE(MAX_FDS * sizeof(int))];
    struct cmsghdr align;
  } control;
  struct iovec part = {room, sizeof room};
  struct msghdr message = {.msg_iov = &part,
                           .msg_iovlen = 1,
                           .msg_control = &control,
                           .msg_controllen = sizeof control};
  ssize_t got;
  do got = recvmsg(fd, &message, MSG_CMSG_CLOEXEC);
  while (got < 0 && errno == EINTR);
  *count = 0;
  if (got == 0 || (got < 0 && errno == ECONNRESET)) return false; /* it left our words unread */
  if (got < 0) die("recvmsg");
  for (struct cmsghdr *c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c))
    if (c->cmsg_level == SOL_SOCKET && c->cmsg_type == SCM_RIGHTS) {
      *count = (int)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
      memcpy(fds, CMSG_DATA(c), (size_t)*count * sizeof(int));
    }
  size_t size = (size_t)got;
  char *memory;
  if (size == sizeof "file" && !memcmp(room, "file", size)) { /* too long for a message */
    errno = EMFILE;
    if (!*count) die("a command's file");
    memory = file_of(fds[0], &size);
    close(fds[0]);
    memmove(fds, fds + 1, (size_t)--*count * sizeof(int));
  } else {
    memory = must(malloc(size + 1));
    memcpy(memory, room, size);
  }
  memory[size] = 0;
  *f = (struct fields){.memory = memory, .at = memory, .end = memory + size};
  return true;
}

void say(int fd, const struct text *t) { /* nobody listens: the end is in its file */
  if (send(fd, t->at, t->size, MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return;
}

void say_words(int fd, const char *words) {
  if (send(fd, words, strlen(words), MSG_DONTWAIT | MSG_NOSIGNAL) < 0) return;
}

void say_fields(int fd, const char *bytes, size_t size, const int *fds, int count) {
  if (send_with(fd, bytes, size, fds, count, MSG_DONTWAIT) < 0) return;
}

ssize_t send_with(int fd, const char *bytes, size_t size, const int *fds, int count, int how) {
  union {
    char bytes[CMSG_SPACE(MAX_FDS * sizeof(int))];
    struct cmsghdr align;
  } control = {{0}};
  struct iovec part = {(char *)bytes, size};
  struct msghdr message = {.msg_iov = &part, .msg_iovlen = 1};
  if (count) {
    message.msg_control = &control;
    message.msg_controllen = CMSG_SPACE((size_t)count * sizeof(int));
    struct cmsghdr *c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN((size_t)count * sizeof(int));
    memcpy(CMSG_DATA(c), fds, (size_t)count * sizeof(int));
  }
  return sendmsg(fd, &message, how | MSG_NOSIGNAL);
}
