#include "intern.h"

#include <stdlib.h>
#include <string.h>

int grow(void **buffer, size_t *room, size_t used, size_t count, size_t size)
{
    if (*room - used >= count)
        return 0;
    size_t wanted = *room;
    do {
        if (wanted > SIZE_MAX / size / 4)
            return -1;
        wanted = wanted ? wanted * 2 : 64;
    } while (wanted - used < count);
    void *larger = realloc(*buffer, wanted * size);
    if (!larger)
        return -1;
    *buffer = larger;
    *room = wanted;
    return 0;
}

int intern_init(Intern *table, uint64_t seed)
{
    memset(table, 0, sizeof *table);
    table->seed = seed;
    table->slot_count = 1024;
    table->slots = calloc(table->slot_count, sizeof *table->slots);
    return table->slots ? 0 : -1;
}

void intern_free(Intern *table)
{
    free(table->slots);
    free(table->hashes);
    free(table->ends);
    free(table->bytes);
    memset(table, 0, sizeof *table);
}

/* Seeded, so that no file can be made whose names collide. */
static uint64_t hash_of(uint64_t seed, const char *text, size_t length)
{
    uint64_t hash = seed ^ (length * 0x9e3779b97f4a7c15ull), word;
    for (; length >= 8; text += 8, length -= 8) {
        memcpy(&word, text, 8);
        hash = (hash ^ word) * 0xff51afd7ed558ccdull;
        hash ^= hash >> 32;
    }
    word = 0;
    memcpy(&word, text, length);
    hash = (hash ^ word) * 0xc4ceb9fe1a85ec53ull;
    hash ^= hash >> 29;
    hash = (hash + seed) * 0x9e3779b97f4a7c15ull;
    return hash ^ hash >> 32;
}

const char *intern_text(const Intern *table, size_t number, size_t *length)
{
    size_t begin = number ? table->ends[number - 1] : 0;
    *length = table->ends[number] - begin;
    return table->bytes + begin;
}

static int enlarge(Intern *table)
{
    size_t count = table->slot_count * 2;
    uint32_t *slots = calloc(count, sizeof *slots);
    if (!slots)
        return -1;
    for (size_t number = 0; number < table->count; number++) {
        size_t at = table->hashes[number] & (count - 1);
        while (slots[at])
            at = (at + 1) & (count - 1);
        slots[at] = (uint32_t)number + 1;
    }
    free(table->slots);
    table->slots = slots;
    table->slot_count = count;
    return 0;
}

int64_t intern(Intern *table, const char *text, size_t length)
{
    uint64_t hash = hash_of(table->seed, text, length);
    size_t at = hash & (table->slot_count - 1);
    for (; table->slots[at]; at = (at + 1) & (table->slot_count - 1)) {
        size_t number = table->slots[at] - 1, held;
        const char *other = intern_text(table, number, &held);
        if (table->hashes[number] == hash && held == length && !memcmp(other, text, length))
            return (int64_t)number;
    }
    size_t room = table->room;
    if (table->count >= INT32_MAX || grow((void **)&table->hashes, &room, table->count, 1, sizeof *table->hashes))
        return -1;
    if (grow((void **)&table->ends, &table->room, table->count, 1, sizeof *table->ends) ||
        grow((void **)&table->bytes, &table->bytes_room, table->size, length + 1, 1))
        return -1;
    memcpy(table->bytes + table->size, text, length);
    table->size += length;
    table->hashes[table->count] = hash;
    table->ends[table->count] = table->size;
    table->slots[at] = (uint32_t)++table->count;
    if (table->count * 2 > table->slot_count && enlarge(table))
        return -1;
    return (int64_t)table->count - 1;
}
