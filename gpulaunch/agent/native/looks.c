/* What became of outputs: paths and patterns, which are those of Python's glob (recursive=True). */
#define _GNU_SOURCE
#include "keeper.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

struct search {
  int64_t since;
  char *fault; /* of the last match */
};

static char *in_brackets(const char *words) {
  char *text;
  if (asprintf(&text, " (%s)", words) < 0) die("asprintf");
  return text;
}

static bool is_dir(const char *path) {
  struct stat seen;
  return !stat(path, &seen) && S_ISDIR(seen.st_mode);
}

static bool is_here_or_above(const char *name) { return !strcmp(name, ".") || !strcmp(name, ".."); }

/* When a file was last written, renamed, linked or given another time, in ns: `cp -p`, `tar` and `mv`
 * keep the time of its contents, and a file system may keep only that one. */
static int64_t changed(const struct stat *seen) {
  const struct timespec *m = &seen->st_mtim, *c = &seen->st_ctim;
  int64_t contents = m->tv_sec * INT64_C(1000000000) + m->tv_nsec;
  int64_t any = c->tv_sec * INT64_C(1000000000) + c->tv_nsec;
  return any > contents ? any : contents;
}

/* What is wrong with a file or a directory; NULL: nothing. A link counts as new if it is, or what it
 * leads to. */
static char *fault_of_file(const char *path, int64_t since) {
  struct stat seen, itself;
  DIR *dir = NULL;
  if (stat(path, &seen) || (S_ISDIR(seen.st_mode) && !(dir = opendir(path))))
    return in_brackets(errno == ENOENT ? "absent" : strerror(errno));
  if (dir) {
    bool any = false;
    for (struct dirent *e; !any && (e = readdir(dir));) any = !is_here_or_above(e->d_name);
    closedir(dir);
    return any ? NULL : in_brackets("an empty directory");
  }
  if (!seen.st_size) return in_brackets("empty");
  bool fresh = changed(&seen) >= since || (!lstat(path, &itself) && changed(&itself) >= since);
  return fresh ? NULL : in_brackets("older than the attempt");
}

static bool is_good(struct search *s, const char *path) {
  free(s->fault);
  s->fault = fault_of_file(path, s->since);
  return !s->fault;
}

/* Match a character against the set after a `[`; NULL where no `]` ends it, else what follows. */
static const char *match_set(const char *p, const char *end, unsigned char c, bool *matches) {
  bool negated = p < end && *p == '!', found = false;
  const char *from = negated ? p + 1 : p, *close = from;
  if (close < end && *close == ']') close++;
  while (close < end && *close != ']') close++;
  if (close >= end) return NULL;
  for (const char *at = from; at < close; at++)
    if (at + 2 < close && at[1] == '-') {
      found = found || ((unsigned char)*at <= c && c <= (unsigned char)at[2]);
      at += 2;
    } else {
      found = found || (unsigned char)*at == c;
    }
  *matches = found != negated;
  return close + 1;
}

static bool matches(const char *p, const char *end, const char *name) {
  const char *star = NULL, *retry = NULL;
  for (;;) {
    bool one = false;
    const char *after = p;
    if (p < end && *p == '*') {
      star = ++p;
      retry = name;
      continue;
    }
    if (p == end && !*name) return true;
    if (p < end && *name) {
      after = *p == '[' ? match_set(p + 1, end, (unsigned char)*name, &one) : NULL;
      if (!after) {
        after = p + 1;
        one = *p == '?' || *p == *name;
      }
    }
    if (one) {
      p = after;
      name++;
    } else if (star && *retry) {
      p = star;
      name = ++retry;
    } else {
      return false;
    }
  }
}

struct names {
  char **at;
  size_t count;
};

static struct names names_in(const char *folder, bool folders_only) {
  struct names found = {0};
  DIR *dir = opendir(*folder ? folder : ".");
  for (struct dirent *e; dir && (e = readdir(dir));) {
    if (is_here_or_above(e->d_name)) continue;
    if (folders_only && e->d_type != DT_DIR) {
      char *path;
      if (asprintf(&path, "%s%s", folder, e->d_name) < 0) die("asprintf");
      bool wanted = (e->d_type == DT_LNK || e->d_type == DT_UNKNOWN) && is_dir(path);
      free(path);
      if (!wanted) continue;
    }
    found.at = must(realloc(found.at, (found.count + 1) * sizeof *found.at));
    found.at[found.count++] = copy_of(e->d_name);
  }
  if (dir) closedir(dir);
  return found;
}

static bool search(struct search *s, const char *folder, const char *pattern);

/* Go on with one name of a folder. The pattern's rest is NULL at its end. */
static bool step(struct search *s, const char *folder, const char *name, const char *rest) {
  char *path;
  if (asprintf(&path, "%s%s%s", folder, name, rest ? "/" : "") < 0) die("asprintf");
  bool good = rest ? search(s, path, rest) : is_good(s, path);
  free(path);
  return good;
}

static bool search_below(struct search *s, const char *folder, const char *rest) {
  struct names found = names_in(folder, rest);
  bool good = false;
  for (size_t i = 0; i < found.count; i++) {
    if (!good && *found.at[i] != '.') {
      char *below;
      good = step(s, folder, found.at[i], rest);
      if (asprintf(&below, "%s%s/", folder, found.at[i]) < 0) die("asprintf");
      good = good || search_below(s, below, rest);
      free(below);
    }
    free(found.at[i]);
  }
  free(found.at);
  return good;
}

static bool search_matches(struct search *s, const char *folder, const char *part, const char *end,
                           const char *rest) {
  struct names found = names_in(folder, rest);
  bool good = false;
  for (size_t i = 0; i < found.count; i++) {
    bool hidden = *found.at[i] == '.' && *part != '.';
    if (!good && !hidden && matches(part, end, found.at[i])) good = step(s, folder, found.at[i], rest);
    free(found.at[i]);
  }
  free(found.at);
  return good;
}

/* Look for a good match in a folder, which is empty or ends with a slash; true: there is one. */
static bool search(struct search *s, const char *folder, const char *pattern) {
  while (*folder && *pattern == '/') pattern++;
  if (!*pattern) return is_dir(folder) && is_good(s, folder);
  const char *end = pattern + strcspn(pattern, "/"), *rest = *end ? end + 1 : NULL;
  size_t size = (size_t)(end - pattern), plain = strcspn(pattern, "*?[/");
  if (size == 2 && !memcmp(pattern, "**", 2)) {
    if (*folder && !is_dir(folder)) return false;
    bool here = rest ? search(s, folder, rest) : *folder && is_good(s, folder);
    return here || search_below(s, folder, rest);
  }
  if (plain < size) return search_matches(s, folder, pattern, end, rest);
  char *path;
  struct stat seen;
  if (asprintf(&path, "%s%.*s%s", folder, (int)size, pattern, rest ? "/" : "") < 0) die("asprintf");
  bool good = rest ? search(s, path, rest) : !lstat(path, &seen) && is_good(s, path);
  free(path);
  return good;
}

/* What is wrong with an output; NULL if it, or one match of its pattern, is good. */
char *fault_of_output(const char *pattern, int64_t since) {
  struct stat seen;
  if (!lstat(pattern, &seen)) return fault_of_file(pattern, since);
  struct search s = {since, in_brackets("absent")};
  return search(&s, "", pattern) ? NULL : s.fault;
}
