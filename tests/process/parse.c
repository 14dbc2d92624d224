/* Reads messages as keepers get them (a length and so many bytes each) and prints what it understood:
 * for a launch its fields as JSON strings, else a line without any. For tests/process/test_native.py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "keeper.h"

struct station station;

static void show(struct text *t, const char *field) {
  put_string(t, field, ESCAPE, 0);
  put_string(t, field, REPLACE, 60);
}

static void show_all(struct text *t, const char **list, size_t count) {
  putf(t, "[%zu]", count);
  for (size_t i = 0; i < count; i++) show(t, list[i]);
}

int main(void) {
  unsigned size;
  while (fread(&size, sizeof size, 1, stdin) == 1) {
    char *memory = must(malloc(size + 1));
    struct text t = {0};
    struct launch l;
    if (fread(memory, 1, size, stdin) != size) return 1;
    memory[size] = 0;
    struct fields f = {memory, memory, memory + size};
    const char *verb = next_field(&f);
    putf(&t, "%08x ", crc32_of(memory, size));
    if (strcmp(verb, "launch")) {
      show(&t, verb);
      free(memory);
    } else if (parse_launch(f, &l)) {
      show(&t, l.id), show(&t, l.end), show(&t, l.log), show(&t, l.cwd);
      show_all(&t, l.codes, l.ncodes), show_all(&t, l.outputs, l.noutputs);
      show_all(&t, l.argv, l.nargv), show_all(&t, l.set, l.nset), show_all(&t, l.unset, l.nunset);
      show_all(&t, l.hidden, l.nhidden), putf(&t, l.isolated ? "True" : "False");
      if (l.key) putf(&t, "%ld %lld", l.items, l.memory), show(&t, l.key), show(&t, l.item);
      free_launch(&l);
    } else {
      putf(&t, "none");
    }
    puts(t.at);
    free(t.at);
  }
  return 0;
}
