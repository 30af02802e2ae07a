#include "loops.h"

void nesting_parents(size_t count, const int64_t *group, const int64_t *start, const int64_t *end, int64_t *parent)
{
    for (size_t row = 0; row < count; row++) {
        int64_t above = row && group[row] == group[row - 1] ? (int64_t)row - 1 : -1;
        while (above >= 0 && end[above] <= start[row])
            above = parent[above];
        parent[row] = above;
    }
}

void nest(size_t count, const int64_t *group, const int64_t *start, int64_t *end, int64_t *parent, int64_t *open)
{
    size_t height = 0;
    for (size_t row = 0; row < count; row++) {
        if (row && group[row] != group[row - 1])
            height = 0;
        while (height && end[open[height - 1]] <= start[row])
            height--;
        parent[row] = height ? open[height - 1] : -1;
        if (height && end[row] > end[parent[row]])
            end[row] = end[parent[row]];
        open[height++] = (int64_t)row;
    }
}

int longest_paths(size_t edges, const int64_t *source, const int64_t *target, const int64_t *weight, size_t nodes,
                  int64_t *reached)
{
    for (size_t edge = 0; edge < edges; edge++) {
        if (source[edge] < 0 || target[edge] < 0 || (size_t)source[edge] >= nodes || (size_t)target[edge] >= nodes)
            return -1;
        int64_t at = reached[source[edge]] + weight[edge];
        if (at > reached[target[edge]])
            reached[target[edge]] = at;
    }
    return 0;
}

int64_t path(size_t nodes, size_t edges, const int64_t *binding, const int64_t *source, const int64_t *time,
             int64_t *found, int64_t node, int64_t begin)
{
    size_t count = 0;
    for (;;) {
        if (node < 0 || (size_t)node >= nodes)
            return -1;
        if (time[node] <= begin)
            return (int64_t)count;
        int64_t edge = binding[node];
        if (edge < 0 || (size_t)edge >= edges || count == nodes)
            return -1;
        found[count++] = edge;
        node = source[edge];
    }
}
