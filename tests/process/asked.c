/* Answers questions to parts of the node's program, a line each. For tests/process/test_node.py.
 *
 *   counter OWN MOUNTED   the file that counts kills for memory, or "none"
 *   json BYTES TEXT...    each JSON string, decoded; "none" for what is none
 *   plain TEXT...         each text as it is put into commands
 *   claim PATH [twice]    1 if it is ours, 0 if another has it; where a link is made twice, as NFS does
 *   sender                Slurm's process above this one
 *   rest PID              whether the process is at rest: 0 or 1 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "node.h"

static bool twice;
int __real_link(const char *from, const char *to);

int __wrap_link(const char *from, const char *to) {
  return twice && __real_link(from, to) ? -1 : __real_link(from, to);
}

int main(int argc, char **argv) {
  char *found = NULL;
  if (argc < 2) return 1;
  if (!strcmp(argv[1], "counter")) {
    found = memory_counter(argv[2], argv[3]);
    puts(found ? found : "none");
  } else if (!strcmp(argv[1], "json")) {
    for (int i = 3; i < argc; i++) {
      found = json_text(argv[i], NULL, !strcmp(argv[2], "1"));
      puts(found ? found : "none");
    }
  } else if (!strcmp(argv[1], "plain")) {
    for (int i = 2; i < argc; i++) puts(plain(argv[i]));
  } else if (!strcmp(argv[1], "claim")) {
    struct text record = {0};
    const char *where;
    twice = argc > 3;
    putf(&record, "{\"a\": %d}\n", (int)getpid());
    printf("%d\n", claim(argv[2], &record, &where));
    free(record.at);
  } else if (!strcmp(argv[1], "sender")) {
    printf("%d\n", (int)slurms_own());
  } else if (!strcmp(argv[1], "rest")) {
    printf("%d\n", is_at_rest(atoi(argv[2])));
  }
  return 0;
}
