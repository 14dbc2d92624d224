/* Answers questions to parts of the compiled keepers, a line each. For tests/process/test_node.py.
 *
 *   sender     Slurm's process above this one
 *   rest PID   whether the process is at rest: 0 or 1 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "keeper.h"

int main(int argc, char **argv) {
  if (argc == 2 && !strcmp(argv[1], "sender")) printf("%d\n", (int)slurms_own());
  else if (argc == 3 && !strcmp(argv[1], "rest")) printf("%d\n", is_at_rest(atoi(argv[2])));
  else return 1;
  return 0;
}
