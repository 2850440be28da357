/* memset, memcpy, memmove, memcmp: hidden, in vectors of 16 bytes (compiled without the pass that
 * would turn their loops into calls of themselves). */
#include "memory.h"

#include <stdint.h>

typedef uint8_t block __attribute__((vector_size(16), aligned(1), may_alias));

void *memset(void *to, int value, size_t bytes) {
  uint8_t *t = to;
  block all = (block){0} + (uint8_t)value;
  for (; bytes >= sizeof(block); bytes -= sizeof(block), t += sizeof(block)) *(block *)t = all;
  while (bytes--) *t++ = (uint8_t)value;
  return to;
}

void *memcpy(void *restrict to, const void *restrict from, size_t bytes) {
  uint8_t *t = to;
  const uint8_t *f = from;
  for (; bytes >= sizeof(block); bytes -= sizeof(block), t += sizeof(block), f += sizeof(block))
    *(block *)t = *(const block *)f;
  while (bytes--) *t++ = *f++;
  return to;
}

void *memmove(void *to, const void *from, size_t bytes) {
  uint8_t *t = to;
  const uint8_t *f = from;
  if (t <= f || t >= f + bytes) {
    while (bytes--) *t++ = *f++;
  } else {
    while (bytes--) t[bytes] = f[bytes];
  }
  return to;
}

int memcmp(const void *a, const void *b, size_t bytes) {
  const uint8_t *x = a, *y = b;
  for (size_t i = 0; i < bytes; i++)
    if (x[i] != y[i]) return x[i] - y[i];
  return 0;
}
