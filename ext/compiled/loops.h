/* Recurrences over rows that numpy cannot express. */
#ifndef STEPTRACE_LOOPS_H
#define STEPTRACE_LOOPS_H

#include <stddef.h>
#include <stdint.h>

/* As `nesting_parents` of steptrace.intervals. */
void nesting_parents(size_t count, const int64_t *group, const int64_t *start, const int64_t *end, int64_t *parent);

/* As `enclosing` of steptrace.intervals: `count` spans, `queries` instants. -1 without memory. */
int enclosing(size_t count, const int64_t *group, const int64_t *start, const int64_t *end, size_t queries,
              const int64_t *of, const int64_t *time, int64_t *row);

/* As `nearest` of steptrace.trace.columns. -1 where a parent is no row, or parents go round in a circle. */
int nearest(size_t count, const int32_t *parent, const int8_t *wanted, int32_t *row);

/* For each query the last of the first `place` items whose rank is below `limit` and whose group is not `not_of`, -1 for
   none; queries come in order of `place`. -1 without memory, or for a rank or place that is none. */
int latest(size_t count, const int64_t *rank, const int64_t *group, size_t queries, const int64_t *place,
           const int64_t *limit, const int64_t *not_of, int64_t *item);

/* One of the tables that make up the call tree, in order of (thread, ts, -end). */
typedef struct {
    const int64_t *thread, *ts, *dur;
    size_t count;
} Events;

#define TABLES 4

/* As `tree_of` of steptrace.analysis.common.call_tree: `count` rows, those of all tables. -1 without memory. */
typedef struct {
    int8_t *kind;
    int32_t *row, *thread, *parent, *depth, *size;
    int64_t *ts, *host, *own;
} Tree;
int call_tree(const Events tables[TABLES], size_t count, const Tree *tree);

/* As `inside_same` of steptrace.analysis.common.call_tree, with keys below `keys`. -1 without memory, or for others. */
int inside_same(size_t count, const int32_t *key, const int32_t *size, size_t keys, int8_t *inside);

#endif
