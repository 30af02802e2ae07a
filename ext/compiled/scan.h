/* Chunks of Kineto's events to columns. */
#ifndef STEPTRACE_SCAN_H
#define STEPTRACE_SCAN_H

#include "intern.h"
#include "json.h"

/* What a column holds, by the names that Python declares: two of the event's own times, its thread and its name, the
   sort of event, or from an argument an integer, a number, the product of a list of three integers, the text of a list
   as a number, the same of convolutions alone, which of the chunk's collectives the argument names, or the
   argument's text as a number of `names`, -1 for none. */
enum { START, LENGTH, THREAD, NAME_TEXT, SORT, INTEGER, REAL, PRODUCT, LIST, CONVOLUTION, COLLECTIVE, TEXT, FORMS };
extern const char *const FORM_NAMES[FORMS];
enum { PLAIN, NOT_PLAIN, NO_MEMORY };

#define MOST_KINDS 8
#define MOST_COLUMNS 14
#define MOST_ARGS 40
#define MOST_ENDINGS 8

typedef struct {
    int8_t form, arg, small; /* `arg` is a place in `args`, -1 for none; small columns are given as int32 */
} Column;

/* Keys of an object that are looked for; the texts belong to whoever made the list. */
typedef struct {
    const char *names[MOST_ARGS];
    size_t lengths[MOST_ARGS];
    int8_t places[MOST_ARGS]; /* of each key's value; several keys may have one place */
    int count, place_count;
} Keys;

typedef struct {
    char text[32];
    size_t length;
    int8_t kind;
} Ending;

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
    size_t given[4];    /* how many of each of them Python has */
    int8_t kinds[64];   /* the kind of each sort (phase and category) that is read; the first of `sorts` */
    Column columns[MOST_KINDS][MOST_COLUMNS];
    int kind_count, column_counts[MOST_KINDS];
    Keys args;
    size_t declared_sorts;
    Ending endings[MOST_ENDINGS]; /* kinds by the ending of a category, for complete events that are no declared sort */
    int ending_count;
    int64_t *counts; /* events of each sort so far */
    size_t counts_room;
    Rows rows[MOST_KINDS];
    Spans others, collectives; /* the text of events that name threads; of arguments that tell of a collective */
    int busy, some, ended; /* whether there was an event before, and whether the array has ended */
    size_t taken;
} Scanner;

/* Takes the events of an array as far as they are whole and plain and another or the array's end follows, from where the
   last call stopped: `taken` says how much of the text that is. PLAIN or NO_MEMORY; with PLAIN the scanner holds the columns of these events. A scanner without
   kinds takes the text of every event among the `others`. */
int scan_chunk(Scanner *scanner, const char *text, size_t length);

#endif
