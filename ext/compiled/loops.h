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

/* The binding edges from a node back to an instant, the last first; how many, -1 where they lead nowhere. */
int64_t path(size_t nodes, size_t edges, const int64_t *binding, const int64_t *source, const int64_t *time,
             int64_t *found, int64_t node, int64_t begin);

#endif
