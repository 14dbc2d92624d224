/* Ends every descendant.
 *
 * It kills direct children alone, again and again until waitpid says ECHILD: their numbers cannot be
 * recycled, since nobody else reaps them, and the kernel gives us a dead child's children before we
 * can reap it, so ECHILD proves that no descendant is left. */
#define _GNU_SOURCE
#include "keeper.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <sys/wait.h>

#define UNKILLABLE_AFTER 8.0 /* seconds */

void sweep_begin(struct sweep *s, int channel, const char *attempt) {
  s->channel = channel;
  s->attempt = attempt;
  s->since = monotonic();
  s->nap = 0.0005;
  s->said.count = s->found.count = 0;
}

static void tell_unkillable(struct sweep *s) {
  struct text t = {0};
  putf(&t, "{\"is\":\"unkillable\",\"attempt\":");
  if (s->attempt) put_string(&t, s->attempt, ESCAPE, 0);
  else putf(&t, "null");
  putf(&t, ",\"pids\":[");
  for (size_t i = 0; i < s->found.count && i < 200; i++)
    putf(&t, i ? ",%d" : "%d", (int)s->found.at[i]);
  putf(&t, "]}");
  say(s->channel, &t);
  free(t.at);
}

void sweep_kill(struct sweep *s) {
  children(&s->found);
  for (size_t i = 0; i < s->found.count; i++) kill(s->found.at[i], SIGKILL);
  s->nap = fmin(s->nap * 2, 1.0);
  /* A bounded number of messages: the socket must keep room for the end, read or not. */
  if (monotonic() - s->since <= UNKILLABLE_AFTER || s->said.count >= 100) return;
  bool news = false;
  for (size_t i = 0; i < s->found.count; i++)
    if (!has_pid(&s->said, s->found.at[i])) {
      news = true;
      add_pid(&s->said, s->found.at[i]);
    }
  if (news) tell_unkillable(s);
}

void sweep_to_the_end(int channel) {
  struct sweep s = {0};
  sweep_begin(&s, channel, NULL);
  for (;;) {
    pid_t pid;
    sweep_kill(&s);
    while ((pid = waitpid(-1, NULL, WNOHANG)) > 0) s.nap = 0.0005;
    if (pid < 0 && errno == ECHILD) return;
    nap(s.nap);
  }
}
