/* Reads messages as keepers get them (a length and so many bytes each) and prints what it understood,
 * a JSON list a line: of a launch all that it tells, else the verb. For tests/process/messages.py. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "keeper.h"

struct station station;

static void show(struct text *t, const char *field) { /* whole, and cut to 60 */
  putf(t, ",[");
  put_string(t, field, ESCAPE, 0);
  putf(t, ",");
  put_string(t, field, REPLACE, 60);
  putf(t, "]");
}

static void show_all(struct text *t, const char **list, size_t count) {
  putf(t, ",[%zu", count);
  if (list[count]) abort(); /* as a NULL ends what execve is given */
  for (size_t i = 0; i < count; i++) show(t, list[i]);
  putf(t, "]");
}

static void show_launch(struct text *t, const struct launch *l) {
  show(t, l->id), show(t, l->end), show(t, l->log), show(t, l->cwd);
  show(t, l->oom_kills), show(t, l->cgroup), show(t, l->term_by);
  putf(t, ",%ld,%.17g,%.17g,%.17g", l->slot, l->timeout, l->idle_timeout, l->grace);
  putf(t, ",%d,%.17g", l->warn_signal, l->warn_before);
  putf(t, ",[%zu", l->ncodes);
  for (size_t i = 0; i < l->ncodes; i++) putf(t, ",%ld", strtol(l->codes[i], NULL, 10));
  putf(t, "]"), show_all(t, l->outputs, l->noutputs);
  show_all(t, l->kept, l->nkept);
  show_all(t, l->argv, l->nargv), show_all(t, l->set, l->nset), show_all(t, l->unset, l->nunset);
  if (l->isolated) show_all(t, l->hidden, l->nhidden);
  else putf(t, ",null");
  putf(t, ",[%zu", l->ncpus);
  for (size_t i = 0; i < l->ncpus; i++) putf(t, ",%ld", atol(l->cpus[i]));
  putf(t, "]");
  if (!l->key) return;
  show(t, l->key), show(t, l->item);
  putf(t, ",%ld,%lld,%.17g", l->items, l->memory, l->load_timeout);
}

int main(void) {
  unsigned size;
  setvbuf(stdout, NULL, _IOLBF, 0); /* what ends the program came after the last line */
  while (fread(&size, sizeof size, 1, stdin) == 1) {
    char *memory = must(malloc(size + 1));
    struct text t = {0};
    struct launch l;
    if (fread(memory, 1, size, stdin) != size) return 1;
    memory[size] = 0;
    putf(&t, "[%u", crc32_of(memory, size));
    struct fields f = {.memory = memory, .at = memory, .end = memory + size};
    const char *verb = next_field(&f);
    if (strcmp(verb, "launch")) {
      show(&t, verb);
      free(memory);
    } else if (parse_launch(f, &l)) {
      show_launch(&t, &l);
      free_launch(&l);
    }
    putf(&t, "]");
    puts(t.at);
    free(t.at);
  }
  return 0;
}
