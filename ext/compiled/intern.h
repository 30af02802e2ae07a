/* Distinct byte strings, numbered in order of appearance. */
#ifndef STEPTRACE_INTERN_H
#define STEPTRACE_INTERN_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    uint64_t seed;
    uint32_t *slots; /* number + 1, 0 for an empty slot; a power of two of them */
    size_t slot_count;
    uint64_t *hashes;
    size_t *ends; /* where in `bytes` each string ends */
    size_t count, room;
    char *bytes;
    size_t size, bytes_room;
} Intern;

int intern_init(Intern *table, uint64_t seed);
void intern_free(Intern *table);
/* The number of a string, -1 without memory for it. */
int64_t intern(Intern *table, const char *text, size_t length);
const char *intern_text(const Intern *table, size_t number, size_t *length);

/* Makes room for `count` more things of some size; -1 without memory for it. */
int grow(void **buffer, size_t *room, size_t used, size_t count, size_t size);

#endif
