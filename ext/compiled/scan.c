#include "scan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* As LATEST_NS, LARGEST and MOST of steptrace.trace.decode. */
#define LATEST_NS ((int64_t)1 << 62)
#define LARGEST 1125899906842624.0
#define MOST 2147483648ll
/* Beyond so many distinct lists they count as null, so that memory does not grow with the text. */
#define MOST_LISTS 65536

#define TRY(call)                    \
    do {                             \
        int failed_ = (call);        \
        if (failed_)                 \
            return failed_;          \
    } while (0)
#define PLAINLY(call)                \
    do {                             \
        if (call)                    \
            return NOT_PLAIN;        \
    } while (0)

const char *const FORM_NAMES[FORMS] = {"start",   "length", "thread",  "name", "sort",
                                       "integer", "real",   "product", "list", "convolution", "collective", "text"};

enum { PH, CAT, NAME, PID, TID, TS, DUR, ARGS, EVENT_KEYS };

static const Keys EVENT_NAMES = {{"ph", "cat", "name", "pid", "tid", "ts", "dur", "args"},
                                 {2, 3, 4, 3, 3, 2, 3, 4},
                                 {PH, CAT, NAME, PID, TID, TS, DUR, ARGS},
                                 EVENT_KEYS,
                                 EVENT_KEYS};

/* The place of a key among some, -1 for none. */
static int key_of(const Value *key, const Keys *keys)
{
    size_t length = (size_t)(key->end - key->begin);
    for (int i = 0; i < keys->count; i++)
        if (keys->lengths[i] == length && keys->names[i][0] == *key->begin && !memcmp(keys->names[i], key->begin, length))
            return keys->places[i];
    return -1;
}

typedef struct {
    Value of[EVENT_KEYS];
    Value args[MOST_ARGS];
    const Keys *arg_keys;
} Event;

/* An object's members among `keys` into `values`, of several with one name the last; the others are passed over. */
static int object(Text *text, const Keys *keys, Value *values, int (*member)(Text *, int, Value *, Event *), Event *event)
{
    Value key, passed;
    for (int i = 0; i < keys->place_count; i++)
        values[i].kind = ABSENT;
    text->at++;
    if (json_space(text))
        return -1;
    if (*text->at == '}') {
        text->at++;
        return 0;
    }
    for (;;) {
        if (*text->at != '"' || json_string(text, &key) || json_space(text) || *text->at++ != ':' ||
            json_space(text))
            return -1;
        int place = key.begin == key.end ? -1 : key_of(&key, keys);
        if (place < 0) {
            if (json_value(text, &passed))
                return -1;
        } else if (member(text, place, &values[place], event))
            return -1;
        if (json_space(text))
            return -1;
        if (*text->at == '}') {
            text->at++;
            return 0;
        }
        if (*text->at++ != ',' || json_space(text))
            return -1;
    }
}

static int arg_member(Text *text, int place, Value *value, Event *event)
{
    (void)place;
    (void)event;
    return json_value(text, value);
}

static int event_member(Text *text, int place, Value *value, Event *event)
{
    if (place != ARGS)
        return json_value(text, value);
    value->begin = text->at;
    if (*text->at != '{') {
        for (int i = 0; i < event->arg_keys->place_count; i++)
            event->args[i].kind = ABSENT;
        return json_value(text, value) || value->kind != NULL_VALUE ? -1 : 0;
    }
    value->kind = CONTAINER;
    if (object(text, event->arg_keys, event->args, arg_member, event))
        return -1;
    value->end = text->at;
    return 0;
}

/* Microseconds to the nearest ns, 0 where there are none; MISSING for what is no number, or beyond LATEST_NS. */
static int64_t to_ns(const Value *value)
{
    Number number;
    if (value->kind == ABSENT)
        return 0;
    if (number_of(value, &number))
        return MISSING;
    int power = number.power - number.places + 3;
    unsigned __int128 size = number.digits, divisor = 1;
    if (power < -20)
        size = 0;
    else if (power < 0) {
        for (; power; power++)
            divisor *= 10;
        unsigned __int128 twice = size % divisor * 2;
        size /= divisor;
        size += twice > divisor || (twice == divisor && (size & 1 || number.rest));
    } else if (number.rest)
        size += number.rest == ABOVE_HALF || (number.rest == HALF && size & 1);
    for (; power > 0 && size && size < (unsigned __int128)LATEST_NS; power--)
        size *= 10;
    if (size >= (unsigned __int128)LATEST_NS)
        return MISSING;
    return number.negative ? -(int64_t)size : (int64_t)size;
}

static int64_t integer(const Value *value)
{
    Number number;
    return number_of(value, &number) ? MISSING : number_to_int(&number);
}

static int64_t as_bits(double value)
{
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The bits of a double; NaN for what is no number, or too large. */
static int64_t real(const Value *value)
{
    Number number;
    double size = number_of(value, &number) ? NAN : number_to_double(&number);
    return as_bits(fabs(size) < LARGEST ? size : NAN);
}

/* The product of three integers in a list, as the bits of a double; NaN for anything else. */
static int64_t product(const Value *list)
{
    double blocks = 1;
    if (list->kind != CONTAINER || *list->begin != '[')
        return as_bits(NAN);
    Text text = {list->begin + 1, list->end};
    for (int side = 0; side < 3; side++) {
        Value number;
        if (json_space(&text) || json_value(&text, &number) || json_space(&text) || *text.at++ != (side < 2 ? ',' : ']'))
            return as_bits(NAN);
        int64_t length = number.kind == NUMBER ? integer(&number) : MISSING;
        if (length < 0 || length >= MOST)
            return as_bits(NAN);
        blocks *= (double)length;
    }
    return as_bits(blocks);
}

static int add_span(Spans *spans, size_t begin, size_t end)
{
    if (grow((void **)&spans->spans, &spans->room, spans->count, 1, sizeof *spans->spans))
        return NO_MEMORY;
    spans->spans[spans->count++] = (Span){begin, end};
    return PLAIN;
}

static int number_text(Intern *table, const char *begin, size_t length, int64_t *number)
{
    *number = intern(table, begin, length);
    return *number < 0 ? NO_MEMORY : PLAIN;
}

/* The number of a thread: its process and its own id as written, a byte between them that no JSON text has. */
static int number_thread(Scanner *scanner, const Event *event, int64_t *number)
{
    char key[256];
    size_t used = 0;
    for (int place = PID; place <= TID; place++) {
        const Value *id = &event->of[place];
        size_t quotes = id->kind == STRING;
        if (id->kind == NUMBER && (id->number.fraction || id->number.exponent)) {
            /* Tools write whole numbers as 7.0. */
            int64_t whole = number_to_int(&id->number);
            if (whole != MISSING)
                used += (size_t)snprintf(key + used, 32, "%lld", (long long)whole);
        } else if (id->kind == NUMBER || id->kind == STRING) {
            size_t length = (size_t)(id->end - id->begin) + 2 * quotes;
            PLAINLY(length > sizeof key / 2 - 1);
            memcpy(key + used, id->begin - quotes, length);
            used += length;
        }
        key[used++] = 0;
    }
    return number_text(&scanner->threads, key, used - 1, number);
}

/* Whether a name is that of a convolution, such as `aten::cudnn_convolution`. */
static int is_convolution(const Value *name)
{
    static const char part[] = "conv";
    if (name->kind != STRING)
        return 0;
    for (const char *at = name->begin; name->end - at >= (ptrdiff_t)(sizeof part - 1); at++)
        if (!memcmp(at, part, sizeof part - 1))
            return 1;
    return 0;
}

/* The value of a column in the row of an event. */
static int fill(Scanner *scanner, const Event *event, const Column *column, int64_t *out, const char *text)
{
    const Value *name = &event->of[NAME], *args = &event->of[ARGS];
    const Value *arg = column->arg < 0 ? NULL : &event->args[column->arg];
    int given = arg && arg->kind != ABSENT && arg->kind != NULL_VALUE, list = given && arg->kind == CONTAINER;
    switch (column->form) {
    case THREAD:
        return number_thread(scanner, event, out);
    case NAME_TEXT: {
        size_t length = name->kind == STRING ? (size_t)(name->end - name->begin) : 0;
        return number_text(&scanner->names, length ? name->begin : "", length, out);
    }
    case INTEGER:
        *out = integer(arg);
        return PLAIN;
    case REAL:
        *out = real(arg);
        return PLAIN;
    case PRODUCT:
        *out = product(arg);
        return PLAIN;
    case CONVOLUTION: /* of other operators the arguments may differ from call to call, and nothing asks for them */
        list = list && is_convolution(name);
        /* fall through */
    case LIST:
        list = list && scanner->types.count < MOST_LISTS;
        return number_text(&scanner->types, list ? arg->begin : "null", list ? (size_t)(arg->end - arg->begin) : 4, out);
    case COLLECTIVE:
        *out = given ? (int64_t)scanner->collectives.count : -1;
        return given ? add_span(&scanner->collectives, (size_t)(args->begin - text), (size_t)(args->end - text)) : PLAIN;
    case TEXT:
        *out = -1;
        if (!given || arg->kind != STRING || arg->begin == arg->end)
            return PLAIN;
        return number_text(&scanner->names, arg->begin, (size_t)(arg->end - arg->begin), out);
    default: /* the times and the sort, which the caller knows */
        return PLAIN;
    }
}

/* Adds the row of an event that is read. */
static int add_row(Scanner *scanner, const Event *event, int kind, int64_t sort, const int64_t times[2], const char *text)
{
    Rows *rows = &scanner->rows[kind];
    if (grow((void **)&rows->values, &rows->room, rows->rows * MOST_COLUMNS, MOST_COLUMNS, sizeof *rows->values))
        return NO_MEMORY;
    int64_t *row = rows->values + rows->rows * MOST_COLUMNS;
    for (int place = 0; place < scanner->column_counts[kind]; place++) {
        const Column *column = &scanner->columns[kind][place];
        row[place] = column->form == START ? times[0] : column->form == LENGTH ? times[1] : sort;
        TRY(fill(scanner, event, column, &row[place], text));
    }
    rows->rows++;
    return PLAIN;
}

/* The number of an event's phase and category, the category in front: a byte between them that no JSON text has. */
static int number_sort(Scanner *scanner, const Event *event, int64_t *sort)
{
    const Value *phase = &event->of[PH], *category = &event->of[CAT];
    char key[256];
    PLAINLY(phase->kind != ABSENT && phase->kind != STRING);
    PLAINLY(category->kind != ABSENT && category->kind != NULL_VALUE && category->kind != STRING);
    size_t first = category->kind == STRING ? (size_t)(category->end - category->begin) : 0;
    size_t second = phase->kind == STRING ? (size_t)(phase->end - phase->begin) : 0;
    PLAINLY(first > 120 || second > 120);
    if (first)
        memcpy(key, category->begin, first);
    key[first] = category->kind == STRING ? 0 : 1;
    if (second)
        memcpy(key + first + 1, phase->begin, second);
    TRY(number_text(&scanner->sorts, key, first + 1 + second, sort));
    size_t before = scanner->counts_room;
    if (grow((void **)&scanner->counts, &scanner->counts_room, 0, (size_t)*sort + 1, sizeof *scanner->counts))
        return NO_MEMORY;
    if (scanner->counts_room > before)
        memset(scanner->counts + before, 0, (scanner->counts_room - before) * sizeof *scanner->counts);
    scanner->counts[*sort]++;
    return PLAIN;
}

/* The kind of a sort, -1 for one that is not read. */
static int kind_of(const Scanner *scanner, const Event *event, int64_t sort)
{
    if ((size_t)sort < scanner->declared_sorts)
        return scanner->kinds[sort];
    const Value *phase = &event->of[PH], *category = &event->of[CAT];
    if (category->kind != STRING || phase->kind != STRING || phase->end - phase->begin != 1 || *phase->begin != 'X')
        return -1;
    size_t length = (size_t)(category->end - category->begin);
    for (int i = 0; i < scanner->ending_count; i++) {
        const Ending *ending = &scanner->endings[i];
        if (length > ending->length && !memcmp(category->end - ending->length, ending->text, ending->length))
            return ending->kind;
    }
    return -1;
}

static int is_text(const Value *value, const char *text)
{
    size_t length = strlen(text);
    return value->kind == STRING && (size_t)(value->end - value->begin) == length && !memcmp(value->begin, text, length);
}

static int add_event(Scanner *scanner, Text *text, const char *begin)
{
    Event event;
    int64_t sort;
    const char *at = text->at;
    PLAINLY(*at != '{');
    event.arg_keys = &scanner->args;
    for (int i = 0; i < scanner->args.place_count; i++)
        event.args[i].kind = ABSENT;
    PLAINLY(object(text, &EVENT_NAMES, event.of, event_member, &event));
    /* A name with a quotation mark that is not escaped can look like the end of an event. */
    Text after = *text;
    PLAINLY(json_space(&after) || (*after.at != ',' && *after.at != ']'));
    const Value *name = &event.of[NAME];
    PLAINLY(name->kind != ABSENT && name->kind != STRING);
    int64_t times[2] = {to_ns(&event.of[TS]), to_ns(&event.of[DUR])};
    /* A complete event without a length was not completed. */
    if (event.of[DUR].kind == ABSENT && is_text(&event.of[PH], "X"))
        times[1] = MISSING;
    TRY(number_sort(scanner, &event, &sort));
    int kind = kind_of(scanner, &event, sort);
    if (kind >= 0)
        return add_row(scanner, &event, kind, sort, times, begin);
    if (!scanner->kind_count ||
        (event.of[CAT].kind != STRING && is_text(&event.of[PH], "M") && is_text(name, "thread_name")))
        return add_span(&scanner->others, (size_t)(at - begin), (size_t)(text->at - begin));
    return PLAIN;
}

int scan_chunk(Scanner *scanner, const char *begin, size_t length)
{
    Text text = {begin, begin + length};
    for (int kind = 0; kind < scanner->kind_count; kind++)
        scanner->rows[kind].rows = 0;
    scanner->others.count = scanner->collectives.count = scanner->taken = 0;
    while (!scanner->ended && !json_space(&text)) {
        if (*text.at == ']') {
            text.at++;
            scanner->ended = 1;
        } else {
            if (scanner->some && (*text.at++ != ',' || json_space(&text)))
                break;
            int status = add_event(scanner, &text, begin);
            if (status == NO_MEMORY)
                return status;
            if (status != PLAIN)
                break;
            scanner->some = 1;
        }
        scanner->taken = (size_t)(text.at - begin);
    }
    return PLAIN;
}
