/* Answers questions to parts of the node's program, a line each. For tests/process/test_node.py.
 *
 *   counter OWN MOUNTED   the file that counts kills for memory, or "none"
 *   json BYTES TEXT...    each JSON string, decoded; "none" for what is none
 *   plain TEXT...         each text as it is put into commands
 *   rest PID              whether the process is at rest: 0 or 1 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "node.h"

int main(int argc, char **argv) {
  char *found = NULL;
  if (argc < 3) return 1;
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
  } else if (!strcmp(argv[1], "rest")) {
    printf("%d\n", is_at_rest(atoi(argv[2])));
  }
  return 0;
}
