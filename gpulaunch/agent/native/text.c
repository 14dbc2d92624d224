/* Growing text, and JSON strings exactly as Python's json.dumps writes them. */
#define _GNU_SOURCE
#include "keeper.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void put(struct text *t, const char *bytes, size_t count) {
  if (t->size + count + 1 > t->room) {
    t->room = (t->size + count + 1) * 2;
    t->at = must(realloc(t->at, t->room));
  }
  memcpy(t->at + t->size, bytes, count);
  t->size += count;
  t->at[t->size] = 0;
}

void putf(struct text *t, const char *format, ...) {
  char *line;
  va_list list;
  va_start(list, format);
  int count = vasprintf(&line, format, list);
  va_end(list);
  if (count < 0) die("vasprintf");
  put(t, line, (size_t)count);
  free(line);
}

/* How many bytes the UTF-8 sequence at `s` has, with its character; 0 where there is none, and in
 * `wrong` how many bytes stand for one that was begun. */
static size_t decode(const unsigned char *s, uint32_t *character, size_t *wrong) {
  *wrong = 1;
  if (s[0] < 0x80) {
    *character = s[0];
    return 1;
  }
  size_t size = s[0] >= 0xc2 && s[0] < 0xe0   ? 2
                : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
                : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
                                              : 0;
  if (!size) return 0;
  *character = s[0] & (0xffu >> (size + 1));
  for (size_t i = 1; i < size; i++) {
    unsigned low = 0x80, high = 0xbf;
    if (i == 1 && s[0] == 0xe0) low = 0xa0;
    if (i == 1 && s[0] == 0xed) high = 0x9f;
    if (i == 1 && s[0] == 0xf0) low = 0x90;
    if (i == 1 && s[0] == 0xf4) high = 0x8f;
    if (s[i] < low || s[i] > high) {
      *wrong = i;
      return 0;
    }
    *character = *character << 6 | (s[i] & 0x3f);
  }
  return size;
}

static size_t json_size(uint32_t c) {
  if (c == '"' || c == '\\' || c == '\n' || c == '\r' || c == '\t' || c == '\f' || c == '\b')
    return 2;
  return c >= 0x10000 ? 12 : c < 0x20 || c > 0x7e ? 6 : 1;
}

static void put_character(struct text *t, uint32_t c) {
  static const char short_form[] = "\"\"\\\\\nn\rr\tt\ff\bb";
  if (json_size(c) == 2) {
    const char *found = short_form;
    while ((uint32_t)*found != c) found += 2;
    putf(t, "\\%c", found[1]);
  } else if (c >= 0x10000) {
    putf(t, "\\u%04x\\u%04x", 0xd800 + ((c - 0x10000) >> 10), 0xdc00 + ((c - 0x10000) & 0x3ff));
  } else if (json_size(c) == 6) {
    putf(t, "\\u%04x", c);
  } else {
    char one = (char)c;
    put(t, &one, 1);
  }
}

/* A JSON string; where it has more than `limit` characters with its quotes, shorter ones of the text
 * with an ellipsis are tried (0: no limit). */
void put_string(struct text *t, const char *bytes, enum reading how, size_t limit) {
  uint32_t *characters = must(calloc(strlen(bytes) + 2, sizeof *characters));
  size_t count = 0, wrong;
  for (const unsigned char *at = (const unsigned char *)bytes; *at;) {
    size_t size = decode(at, &characters[count], &wrong);
    if (!size) characters[count] = how == REPLACE ? 0xfffd : 0xdc00u + *at;
    count++;
    at += size ? size : how == REPLACE ? wrong : 1;
  }
  for (;;) {
    size_t size = 2;
    for (size_t i = 0; i < count; i++) size += json_size(characters[i]);
    if (!limit || size <= limit) break;
    count = count * 4 / 5;
    characters[count++] = 0x2026;
  }
  put(t, "\"", 1);
  for (size_t i = 0; i < count; i++) put_character(t, characters[i]);
  put(t, "\"", 1);
  free(characters);
}

uint32_t crc32_of(const char *data, size_t size) {
  uint32_t crc = ~0u;
  for (size_t i = 0; i < size; i++) {
    crc ^= (unsigned char)data[i];
    for (int k = 0; k < 8; k++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}
