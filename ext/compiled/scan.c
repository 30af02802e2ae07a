#include "scan.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* As FLOAT_LIMIT_US of steptrace.trace.events, and LATEST_NS of steptrace.trace.bounds. */
#define FLOAT_LIMIT_US 8796093022208.0
#define LATEST_NS ((int64_t)1 << 62)
#define LATEST_US 4611686018427387.904
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

const char *const FORM_NAMES[FORMS] = {"start",   "length",  "thread", "name",       "sort",     "integer",
                                       "real",    "product", "list",   "list begin", "list end", "collective"};

enum { PH, CAT, NAME, PID, TID, TS, DUR, ARGS, EVENT_KEYS };

static const Keys EVENT_NAMES = {
    {"ph", "cat", "name", "pid", "tid", "ts", "dur", "args"}, {2, 3, 4, 3, 3, 2, 3, 4}, EVENT_KEYS};

/* The place of a key among some, -1 for none. */
static int key_of(const Value *key, const Keys *keys)
{
    size_t length = (size_t)(key->end - key->begin);
    for (int i = 0; i < keys->count; i++)
        if (keys->lengths[i] == length && keys->names[i][0] == *key->begin && !memcmp(keys->names[i], key->begin, length))
            return i;
    return -1;
}

typedef struct {
    Value of[EVENT_KEYS];
    Value args[MOST_ARGS];
    const Keys *arg_keys;
} Event;

/* An object's members among `keys` into `values`; the others are passed over. */
static int object(Text *text, const Keys *keys, Value *values, int (*member)(Text *, int, Value *, Event *), Event *event)
{
    Value key, passed;
    for (int i = 0; i < keys->count; i++)
        values[i].kind = ABSENT;
    text->at++;
    if (json_space(text))
        return -1;
    if (*text->at == '}') {
        text->at++;
        return 0;
    }
    for (;;) {
        if (*text->at != '"' || json_string(text, &key) || key.odd || json_space(text) || *text->at++ != ':' ||
            json_space(text))
            return -1;
        int place = key.begin == key.end ? -1 : key_of(&key, keys);
        if (place < 0) {
            if (json_value(text, &passed))
                return -1;
        } else if (values[place].kind != ABSENT || member(text, place, &values[place], event))
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
    if (*text->at != '{')
        return json_value(text, value) || value->kind != NULL_VALUE ? -1 : 0;
    value->kind = CONTAINER;
    value->begin = text->at;
    if (object(text, event->arg_keys, event->args, arg_member, event))
        return -1;
    value->end = text->at;
    return 0;
}

/* Microseconds to ns. From a double it is the nearest; `exact` cuts off what is below a nanosecond. */
static int to_ns(const Value *value, int exact, int is_start, int64_t *ns)
{
    static const uint64_t tens[] = {1, 10, 100, 1000};
    *ns = 0;
    if (value->kind == ABSENT)
        return PLAIN;
    const Number *number = &value->number;
    if (value->kind != NUMBER || number->long_)
        return NOT_PLAIN;
    if (!number->exponent && number->places <= 3 && number->digits < ((uint64_t)1 << 43) * tens[number->places]) {
        int64_t size = (int64_t)(number->digits * tens[3 - number->places]);
        *ns = number->negative ? -size : size;
        return PLAIN;
    }
    if (exact) {
        if (number->exponent || number->places > 19)
            return NOT_PLAIN;
        unsigned __int128 divisor = 1, size = (unsigned __int128)number->digits * 1000;
        for (int i = 0; i < number->places; i++)
            divisor *= 10;
        if (size >= divisor * (unsigned __int128)LATEST_NS)
            *ns = MISSING;
        else
            *ns = number->negative ? -(int64_t)(size / divisor) : (int64_t)(size / divisor);
        return PLAIN;
    }
    double us;
    PLAINLY(number_to_double(number, &us));
    double whole = floor(us);
    if (is_start && us > FLOAT_LIMIT_US && whole < us)
        return NEEDS_EXACT;
    *ns = fabs(us) < LATEST_US ? (int64_t)whole * 1000 + (int64_t)rint((us - whole) * 1000) : MISSING;
    return PLAIN;
}

/* An integer argument. */
static int integer(const Value *value, int64_t *out)
{
    *out = MISSING;
    if (value->kind == ABSENT || value->kind == NULL_VALUE)
        return PLAIN;
    return value->kind == NUMBER && !number_to_int(&value->number, out) ? PLAIN : NOT_PLAIN;
}

static int64_t as_bits(double value)
{
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* The bits of a double; NaN for a number that is none or too large. */
static int real(const Value *value, int64_t *out)
{
    double number = NAN;
    PLAINLY(value->kind != ABSENT && value->kind != NULL_VALUE &&
            (value->kind != NUMBER || number_to_double(&value->number, &number)));
    *out = as_bits(fabs(number) < LARGEST ? number : NAN);
    return PLAIN;
}

/* The product of three integers in a list, as the bits of a double. */
static int product(const Value *list, int64_t *out)
{
    *out = as_bits(NAN);
    if (list->kind == ABSENT || list->kind == NULL_VALUE)
        return PLAIN;
    PLAINLY(list->kind != CONTAINER || *list->begin != '[');
    Text text = {list->begin + 1, list->end};
    unsigned __int128 blocks = 1;
    for (int side = 0; side < 3; side++) {
        Value number;
        int64_t length;
        PLAINLY(json_space(&text) || json_value(&text, &number) || number.kind != NUMBER);
        PLAINLY(number_to_int(&number.number, &length) || length < 0 || length >= MOST || json_space(&text));
        PLAINLY(*text.at++ != (side < 2 ? ',' : ']'));
        blocks *= (unsigned __int128)length;
    }
    *out = as_bits((double)blocks);
    return PLAIN;
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
        int64_t value;
        PLAINLY(id->kind == CONTAINER || id->kind == BOOLEAN);
        PLAINLY(id->kind == NUMBER && number_to_int(&id->number, &value));
        if (id->kind != ABSENT && id->kind != NULL_VALUE) {
            size_t length = (size_t)(id->end - id->begin) + 2 * quotes;
            PLAINLY(length > sizeof key / 2 - 1);
            memcpy(key + used, id->begin - quotes, length);
            used += length;
        }
        key[used++] = 0;
    }
    return number_text(&scanner->threads, key, used - 1, number);
}

/* The value of a column in the row of an event. */
static int fill(Scanner *scanner, const Event *event, const Column *column, int64_t *out, const char *text)
{
    const Value *name = &event->of[NAME], *args = &event->of[ARGS];
    const Value *arg = column->arg < 0 ? NULL : &event->args[column->arg];
    int given = arg && arg->kind != ABSENT && arg->kind != NULL_VALUE;
    switch (column->form) {
    case THREAD:
        return number_thread(scanner, event, out);
    case NAME_TEXT: {
        size_t length = name->kind == STRING ? (size_t)(name->end - name->begin) : 0;
        return number_text(&scanner->names, length ? name->begin : "", length, out);
    }
    case INTEGER:
        return integer(arg, out);
    case REAL:
        return real(arg, out);
    case PRODUCT:
        return product(arg, out);
    case LIST:
        PLAINLY(given && arg->kind != CONTAINER);
        given = given && scanner->types.count < MOST_LISTS;
        return number_text(&scanner->types, given ? arg->begin : "null", given ? (size_t)(arg->end - arg->begin) : 4, out);
    case LIST_BEGIN:
    case LIST_END:
        PLAINLY(given && arg->kind != CONTAINER);
        *out = given ? (column->form == LIST_BEGIN ? arg->begin : arg->end) - text : -1;
        return PLAIN;
    case COLLECTIVE:
        *out = given ? (int64_t)scanner->collectives.count : -1;
        return given ? add_span(&scanner->collectives, (size_t)(args->begin - text), (size_t)(args->end - text)) : PLAIN;
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

static int is_text(const Value *value, const char *text)
{
    size_t length = strlen(text);
    return value->kind == STRING && (size_t)(value->end - value->begin) == length && !memcmp(value->begin, text, length);
}

static int add_event(Scanner *scanner, Text *text, const char *begin, int exact)
{
    Event event;
    int64_t sort, times[2];
    const char *at = text->at;
    PLAINLY(*at != '{');
    event.arg_keys = &scanner->args;
    for (int i = 0; i < scanner->args.count; i++)
        event.args[i].kind = ABSENT;
    PLAINLY(object(text, &EVENT_NAMES, event.of, event_member, &event));
    const Value *name = &event.of[NAME];
    PLAINLY(name->kind != ABSENT && name->kind != STRING);
    for (int place = PID; place <= TID; place++) {
        int64_t ignored;
        const Value *id = &event.of[place];
        PLAINLY(id->kind == CONTAINER || id->kind == BOOLEAN);
        PLAINLY(id->kind == NUMBER && number_to_int(&id->number, &ignored));
    }
    TRY(to_ns(&event.of[TS], exact, 1, &times[0]));
    TRY(to_ns(&event.of[DUR], exact, 0, &times[1]));
    TRY(number_sort(scanner, &event, &sort));
    if ((size_t)sort < scanner->known_sorts)
        return add_row(scanner, &event, scanner->kinds[sort], sort, times, begin);
    if (event.of[CAT].kind != STRING && is_text(&event.of[PH], "M") && is_text(name, "thread_name"))
        return add_span(&scanner->thread_names, (size_t)(at - begin), (size_t)(text->at - begin));
    return PLAIN;
}

int scan_chunk(Scanner *scanner, const char *begin, size_t length, int exact)
{
    Text text = {begin, begin + length};
    for (int kind = 0; kind < scanner->kind_count; kind++)
        scanner->rows[kind].rows = 0;
    scanner->thread_names.count = scanner->collectives.count = 0;
    if (scanner->counts_room)
        memset(scanner->counts, 0, scanner->counts_room * sizeof *scanner->counts);
    PLAINLY(json_space(&text) || *text.at++ != '[' || json_space(&text));
    if (*text.at != ']')
        for (;;) {
            TRY(add_event(scanner, &text, begin, exact));
            PLAINLY(json_space(&text));
            if (*text.at == ']')
                break;
            PLAINLY(*text.at++ != ',' || json_space(&text));
        }
    text.at++;
    return json_space(&text) ? PLAIN : NOT_PLAIN;
}
