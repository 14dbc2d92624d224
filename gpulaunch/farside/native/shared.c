/* Files on a file system that machines share, as ../shared.py; and the JSON that is read from them. */
#define _GNU_SOURCE
#include "node.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

void *kept(void *memory) {
  static void **all;
  static size_t count;
  if (!(count & (count - 1))) all = must(realloc(all, (count ? count * 2 : 1) * sizeof *all));
  return all[count++] = must(memory);
}

char *words(const char *format, ...) {
  char *text;
  va_list list;
  va_start(list, format);
  if (vasprintf(&text, format, list) < 0) die("vasprintf");
  va_end(list);
  return kept(text);
}

char *folder_of(const char *path) {
  const char *slash = strrchr(path, '/');
  return kept(strndup(path, slash ? (size_t)(slash - path) : 0));
}

/* Open a directory, which makes an NFS client ask its server for what is there now. */
void look_anew(const char *folder) {
  int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd >= 0) close(fd);
}

char *read_file(const char *path, size_t *size) {
  struct text t = {0};
  char part[1 << 16];
  ssize_t got;
  int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY);
  if (fd < 0) return NULL;
  put(&t, "", 0);
  while ((got = read(fd, part, sizeof part)) > 0) put(&t, part, (size_t)got);
  close(fd);
  if (got < 0) {
    free(t.at);
    return NULL;
  }
  *size = t.size;
  return kept(t.at);
}

bool sync_path(const char *path) {
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return false;
  bool done = !fsync(fd) || errno == EINVAL || errno == EBADF; /* not every file system can */
  int why = errno;
  close(fd);
  errno = why;
  return done;
}

/* A name in the folder that no file has: for a draft. */
char *new_name(const char *folder) {
  unsigned char some[12];
  struct text t = {0};
  if (getrandom(some, sizeof some, 0) != sizeof some) die("getrandom");
  putf(&t, "%s/.new-", folder);
  for (size_t i = 0; i < sizeof some; i++) putf(&t, "%02x", some[i]);
  return kept(t.at);
}

static bool write_draft(const char *draft, const struct text *record) {
  int fd = open(draft, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (fd < 0) return false;
  ssize_t got = write(fd, record->at, record->size);
  if (got >= 0 && (size_t)got < record->size) errno = ENOSPC;
  bool whole = got == (ssize_t)record->size && !fsync(fd);
  int why = errno;
  close(fd);
  errno = why;
  return whole;
}

/* Link the draft to the path; 0 if that is taken, below zero for what else went wrong. */
static int links(const char *draft, const char *path) {
  struct stat seen;
  if (!link(draft, path)) return 1;
  int why = errno;
  /* NFS repeats a request whose answer was lost, and then finds its own link: link(2). */
  if (!stat(draft, &seen) && seen.st_nlink > 1) return 1;
  errno = why;
  return why == EEXIST ? 0 : -1;
}

/* Claim an attempt by its file: 1 if it is ours now, 0 if another has it; below zero, and in `where`
 * what could not be written. Durable when it returns.
 *
 * INVARIANT: of all claimants of an attempt, on any machine, only one gets 1, and no reader sees half
 * a file: link(2) either makes the name of a finished file or finds it taken. */
int claim(const char *path, const struct text *record, const char **where) {
  char *folder = folder_of(path), *draft = new_name(folder);
  int won = -1;
  *where = draft;
  if (write_draft(draft, record)) won = links(draft, path);
  if (won > 0 && !sync_path(folder)) {
    *where = folder;
    won = -1;
  }
  int why = errno;
  unlink(draft);
  errno = why;
  return won;
}

/* ── JSON, as Python's json.dumps writes it ────────────────────────────────────────────────────── */

/* The value of an object's member, where no object in it has one of that name; NULL: it has none.
 * Within a string quotes are escaped, so that a name with both of its quotes is a name. */
const char *json_member(const char *text, const char *name) {
  char *key;
  if (asprintf(&key, "\"%s\":", name) < 0) die("asprintf");
  const char *at = strstr(text, key);
  if (at) at += strlen(key);
  while (at && *at == ' ') at++;
  free(key);
  return at;
}

static void put_utf8(struct text *t, uint32_t c) {
  char s[4];
  size_t size = c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
  for (size_t i = size; i-- > 1; c >>= 6) s[i] = (char)(0x80 | (c & 0x3f));
  s[0] = (char)(size == 1 ? c : (0xf00u >> size & 0xf0) | c);
  put(t, s, size);
}

static const char *hex4(const char *at, uint32_t *c) {
  char digits[5] = {0}, *end;
  for (int i = 0; i < 4 && at[i]; i++) digits[i] = at[i];
  *c = (uint32_t)strtoul(digits, &end, 16);
  return end == digits + 4 ? at + 4 : NULL;
}

/* Put the character of an escape, whose letter is at `at`; what follows it, or NULL: it is none. */
static const char *unescape(struct text *t, const char *at, bool bytes) {
  static const char from[] = "\"\\/nrtbf", to[] = "\"\\/\n\r\t\b\f";
  uint32_t c, low;
  const char *found = *at ? strchr(from, *at) : NULL;
  if (found) put(t, &to[found - from], 1);
  if (found || *at != 'u') return found ? at + 1 : NULL;
  if (!(at = hex4(at + 1, &c))) return NULL;
  const char *second = at[0] == '\\' && at[1] == 'u' ? hex4(at + 2, &low) : NULL;
  if (c >= 0xd800 && c < 0xdc00 && second && low >= 0xdc00 && low < 0xe000) {
    put_utf8(t, 0x10000 + ((c - 0xd800) << 10) + (low - 0xdc00));
    return second;
  }
  if (bytes || (c >= 0xdc80 && c <= 0xdcff)) { /* a byte that is no UTF-8 */
    char one = (char)c;
    put(t, &one, 1);
  } else {
    put_utf8(t, c);
  }
  return at;
}

/* A string, and what follows it; NULL if it is none. `bytes`: each character stands for a byte. */
char *json_text(const char *at, const char **after, bool bytes) {
  struct text t = {0};
  if (*at++ != '"') return NULL;
  put(&t, "", 0);
  while (at && *at && *at != '"')
    if (*at == '\\') {
      at = unescape(&t, at + 1, bytes);
    } else {
      put(&t, at++, 1);
    }
  if (!at || !*at) {
    free(t.at);
    return NULL;
  }
  if (after) *after = at + 1;
  return kept(t.at);
}
