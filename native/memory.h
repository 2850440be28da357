/* The four functions that GCC calls by itself; there is no libc behind the library. */
#ifndef EDGE_TRAIN_MEMORY_H
#define EDGE_TRAIN_MEMORY_H

#include <stddef.h>

void *memset(void *to, int value, size_t bytes);
void *memcpy(void *restrict to, const void *restrict from, size_t bytes);
void *memmove(void *to, const void *from, size_t bytes);
int memcmp(const void *a, const void *b, size_t bytes);

#endif
