/* Recurrences over rows that numpy cannot express. All arrays are int64. */
#ifndef STEPTRACE_LOOPS_H
#define STEPTRACE_LOOPS_H

#include <stddef.h>
#include <stdint.h>

/* As `nesting_parents` of steptrace.intervals. */
void nesting_parents(size_t count, const int64_t *group, const int64_t *start, const int64_t *end, int64_t *parent);
/* As `nest` of steptrace.analysis.common.call_tree: `end` is cut in place. `open` is room for `count` rows. */
void nest(size_t count, const int64_t *group, const int64_t *start, int64_t *end, int64_t *parent, int64_t *open);
/* The latest that each node is reached from any other, 0 at least; edges stand in the order of their targets. */
int longest_paths(size_t edges, const int64_t *source, const int64_t *target, const int64_t *weight, size_t nodes,
                  int64_t *reached);

#endif
