/* What the node's files share. See node.c for what the program is there. */
#ifndef NODE_H
#define NODE_H

#include "keeper.h"

/* ── shared.c: files on a file system that machines share, and the JSON in them ────────────────── */

void *kept(void *memory); /* which lives as long as the program, as all texts do that are made here */
__attribute__((format(printf, 1, 2))) char *words(const char *format, ...);
char *folder_of(const char *path);
void look_anew(const char *folder);
char *read_file(const char *path, size_t *size); /* NULL: it cannot be read */
bool sync_path(const char *path);
char *new_name(const char *folder);
int claim(const char *path, const struct text *record, const char **where);

const char *json_member(const char *text, const char *name);
char *json_text(const char *value, const char **after, bool bytes);

/* ── grant.c: what Slurm granted, and the launch that is filled with it ────────────────────────── */

#define MASK "CUDA_VISIBLE_DEVICES"

struct card {
  long index;
  char *uuid, *name;
};

struct grant {
  char *node;
  const char *mask; /* NULL: Slurm set none */
  char **words;     /* the cards as the mask names them */
  struct card *cards;
  size_t count;
};

char *plain(const char *text);
char *node_name(void);
char *slurm_id(void);
pid_t slurms_own(void);
void take_grant(struct grant *g);
char *fault_of_grant(const struct grant *g, long gpus); /* NULL: none */
void ask_driver(struct grant *g);
void put_cards(struct text *t, const struct grant *g);
char *memory_counter(const char *own, const char *mounted); /* NULL: there is none */

struct ticket { /* a launch, with marks for what only the node knows */
  long gpus;
  const char **marks, **after;
  size_t nmarks, nafter;
  const char *launch;
  size_t size;
};
char *fill(const struct ticket *t, const struct grant *g, struct text *launch); /* NULL: done */

#endif
