#include "loops.h"

#include <stdlib.h>
#include <string.h>

#include "intern.h"

void nesting_parents(size_t count, const int64_t *group, const int64_t *start, const int64_t *end, int64_t *parent)
{
    for (size_t row = 0; row < count; row++) {
        int64_t above = row && group[row] == group[row - 1] ? (int64_t)row - 1 : -1;
        while (above >= 0 && end[above] <= start[row])
            above = parent[above];
        parent[row] = above;
    }
}

int enclosing(size_t count, const int64_t *group, const int64_t *start, const int64_t *end, size_t queries,
              const int64_t *of, const int64_t *time, int64_t *row)
{
    int64_t *parent = malloc((count ? count : 1) * sizeof *parent);
    if (!parent)
        return -1;
    nesting_parents(count, group, start, end, parent);
    for (size_t query = 0; query < queries; query++) {
        /* The last span of the group that starts by then, or else the nearest around it that has not ended. */
        size_t low = 0, high = count;
        while (low < high) {
            size_t middle = low + (high - low) / 2;
            if (group[middle] < of[query] || (group[middle] == of[query] && start[middle] <= time[query]))
                low = middle + 1;
            else
                high = middle;
        }
        int64_t at = low && group[low - 1] == of[query] ? (int64_t)low - 1 : -1;
        while (at >= 0 && end[at] <= time[query])
            at = parent[at];
        row[query] = at;
    }
    free(parent);
    return 0;
}

int nearest(size_t count, const int32_t *parent, const int8_t *wanted, int32_t *row)
{
    enum { OPEN = -3, UNKNOWN = -2 };
    for (size_t i = 0; i < count; i++)
        row[i] = UNKNOWN;
    for (size_t i = 0; i < count; i++) {
        int32_t at = (int32_t)i;
        while (row[at] == UNKNOWN) {
            if (wanted[at])
                row[at] = at;
            else if (parent[at] < 0)
                row[at] = -1;
            else if ((size_t)parent[at] >= count)
                return -1;
            else {
                row[at] = OPEN;
                at = parent[at];
            }
        }
        int32_t nearest_row = row[at];
        if (nearest_row == OPEN)
            return -1;
        for (at = (int32_t)i; row[at] == OPEN; at = parent[at])
            row[at] = nearest_row;
    }
    return 0;
}

/* The last item of some, and the last one of another group than that. */
typedef struct {
    int64_t last, other;
} Latest;

static void add_item(Latest *latest, int64_t item, const int64_t *group)
{
    if (item < 0 || item == latest->last)
        return;
    if (item > latest->last) {
        if (latest->last >= 0 && group[latest->last] != group[item])
            latest->other = latest->last;
        latest->last = item;
    } else if (group[item] != group[latest->last] && item > latest->other)
        latest->other = item;
}

int latest(size_t count, const int64_t *rank, const int64_t *group, size_t queries, const int64_t *place,
           const int64_t *limit, const int64_t *not_of, int64_t *item)
{
    /* A tree of prefixes: slot k holds what is known of the ranks that end with k, as many as its lowest bit says. */
    Latest *tree = malloc((count + 1) * sizeof *tree);
    if (!tree)
        return -1;
    for (size_t k = 0; k <= count; k++)
        tree[k] = (Latest){-1, -1};
    int64_t next = 0;
    for (size_t query = 0; query < queries; query++) {
        if (place[query] < next || (size_t)place[query] > count || limit[query] < 0 || (size_t)limit[query] > count) {
            free(tree);
            return -1;
        }
        for (; next < place[query]; next++) {
            if (rank[next] < 0 || (size_t)rank[next] >= count) {
                free(tree);
                return -1;
            }
            for (size_t k = (size_t)rank[next] + 1; k <= count; k += k & (~k + 1))
                add_item(&tree[k], next, group);
        }
        Latest found = {-1, -1};
        for (size_t k = (size_t)limit[query]; k; k -= k & (~k + 1)) {
            add_item(&found, tree[k].last, group);
            add_item(&found, tree[k].other, group);
        }
        item[query] = found.last >= 0 && group[found.last] == not_of[query] ? found.other : found.last;
    }
    free(tree);
    return 0;
}

/* Sums may wrap where a caller's numbers are none of a trace; that must not be undefined. */
static int64_t add(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a + (uint64_t)b);
}

static int64_t subtract(int64_t a, int64_t b)
{
    return (int64_t)((uint64_t)a - (uint64_t)b);
}

static int before(const Events *a, size_t row, const Events *b, size_t other)
{
    if (a->thread[row] != b->thread[other])
        return a->thread[row] < b->thread[other];
    if (a->ts[row] != b->ts[other])
        return a->ts[row] < b->ts[other];
    return a->dur[row] > b->dur[other];
}

typedef struct {
    int32_t row;
    int64_t end;
} Open;

int call_tree(const Events tables[TABLES], size_t count, const Tree *tree)
{
    size_t next[TABLES] = {0}, height = 0, room = 0;
    Open *open = NULL;
    for (size_t row = 0; row < count; row++) {
        int first = -1;
        for (int kind = 0; kind < TABLES; kind++)
            if (next[kind] < tables[kind].count &&
                (first < 0 || before(&tables[kind], next[kind], &tables[first], next[first])))
                first = kind;
        if (first < 0)
            break;
        const Events *table = &tables[first];
        size_t place = next[first]++;
        int64_t start = table->ts[place], end = add(start, table->dur[place]);
        int32_t thread = (int32_t)table->thread[place];
        int others = row && thread != tree->thread[row - 1];
        while (height && (others || open[height - 1].end <= start)) {
            int32_t done = open[--height].row;
            tree->size[done] = (int32_t)row - done;
        }
        int32_t parent = height ? open[height - 1].row : -1;
        if (height && end > open[height - 1].end)
            end = open[height - 1].end;
        int64_t host = subtract(end, start);
        tree->kind[row] = (int8_t)first;
        tree->row[row] = (int32_t)place;
        tree->thread[row] = thread;
        tree->parent[row] = parent;
        tree->depth[row] = (int32_t)height;
        tree->ts[row] = start;
        tree->host[row] = tree->own[row] = host;
        if (parent >= 0)
            tree->own[parent] = subtract(tree->own[parent], host);
        if (grow((void **)&open, &room, height, 1, sizeof *open)) {
            free(open);
            return -1;
        }
        open[height++] = (Open){(int32_t)row, end};
    }
    while (height--)
        tree->size[open[height].row] = (int32_t)count - open[height].row;
    free(open);
    return 0;
}

int inside_same(size_t count, const int32_t *key, const int32_t *size, size_t keys, int8_t *inside)
{
    int64_t *reach = calloc(keys ? keys : 1, sizeof *reach);
    if (!reach)
        return -1;
    for (size_t row = 0; row < count; row++) {
        if (key[row] < 0 || (size_t)key[row] >= keys) {
            free(reach);
            return -1;
        }
        int64_t end = (int64_t)row + size[row];
        inside[row] = reach[key[row]] > (int64_t)row;
        if (end > reach[key[row]])
            reach[key[row]] = end;
    }
    free(reach);
    return 0;
}
