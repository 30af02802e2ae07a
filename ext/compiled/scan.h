/* Chunks of Kineto's events to columns. */
#ifndef STEPTRACE_SCAN_H
#define STEPTRACE_SCAN_H

#include "intern.h"
#include "json.h"

enum { OP, CALL, GPU, FRAME, LABEL, MEMORY, KINDS };
enum { PLAIN, NOT_PLAIN, NEEDS_EXACT, NO_MEMORY };

#define COLUMNS 12

typedef struct {
    int64_t *values; /* row by row */
    size_t rows, room;
} Rows;

typedef struct {
    size_t begin, end;
} Span;

typedef struct {
    Span *spans;
    size_t count, room;
} Spans;

typedef struct {
    Intern names, threads, types, sorts;
    size_t told[4];     /* how many of each of them Python knows */
    int8_t kinds[64];   /* the kind of each sort (phase and category) that is read; the first of `sorts` */
    size_t known_sorts;
    int64_t *counts; /* events of each sort in the chunk */
    size_t counts_room;
    Rows rows[KINDS];
    Spans thread_names, collectives; /* the text of events that name threads; of arguments that tell of a collective */
    int busy;
} Scanner;

/* How many columns each kind has, and which of them hold small numbers (a bit each). */
extern const int COLUMN_COUNTS[KINDS];
extern const unsigned SMALL_COLUMNS[KINDS];

/* One of the four results above; with PLAIN the scanner holds the chunk's columns. */
int scan_chunk(Scanner *scanner, const char *text, size_t length, int exact);

#endif
