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
/* Beyond so many distinct lists of types they are told apart elsewhere, so that memory does not grow with the text. */
#define MOST_TYPES 65536

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

const int COLUMN_COUNTS[KINDS] = {9, 7, 12, 5, 9, 10};
/* thread and name of all; dtypes and collective of operators; collective and category of GPU activities. */
const unsigned SMALL_COLUMNS[KINDS] = {0xc | 0x180, 0xc, 0xc | 0x300, 0xc, 0xc, 0xc};

enum { PH, CAT, NAME, PID, TID, TS, DUR, ARGS, EVENT_KEYS };

enum {
    EXTERNAL_ID,
    SEQUENCE,
    FORWARD_THREAD,
    PYTHON_ID,
    INPUT_DIMS,
    INPUT_TYPE,
    CORRELATION,
    COPY_KIND,
    DEVICE,
    STREAM,
    BYTES,
    BLOCKS_PER_SM,
    GRID,
    THREAD_NAME,
    DEVICE_TYPE,
    DEVICE_ID,
    ADDRESS,
    SIZE,
    ALLOCATED,
    RESERVED,
    COLLECTIVE,
    GROUP,
    GROUP_RANKS,
    GROUP_SIZE,
    COLLECTIVE_SEQUENCE,
    DTYPE,
    IN_ELEMENTS,
    OUT_ELEMENTS,
    ARG_KEYS
};

static const char *const EVENT_NAMES[EVENT_KEYS] = {"ph", "cat", "name", "pid", "tid", "ts", "dur", "args"};
static const char *const ARG_NAMES[ARG_KEYS] = {
    "External id",
    "Sequence number",
    "Fwd thread id",
    "Python id",
    "Input Dims",
    "Input type",
    "correlation",
    "kind",
    "device",
    "stream",
    "bytes",
    "blocks per SM",
    "grid",
    "name",
    "Device Type",
    "Device Id",
    "Addr",
    "Bytes",
    "Total Allocated",
    "Total Reserved",
    "Collective name",
    "Process Group Name",
    "Process Group Ranks",
    "Group size",
    "Seq",
    "dtype",
    "In msg nelems",
    "Out msg nelems",
};

/* The place of a key among some names, -1 for none. */
static int key_of(const Value *key, const char *const *names, int count)
{
    size_t length = (size_t)(key->end - key->begin);
    for (int i = 0; i < count; i++)
        if (names[i][0] == *key->begin && strlen(names[i]) == length && !memcmp(names[i], key->begin, length))
            return i;
    return -1;
}

typedef struct {
    Value of[EVENT_KEYS];
    Value args[ARG_KEYS];
} Event;

/* An object's members among `names` into `values`; the others are passed over. */
static int object(Text *text, const char *const *names, int count, Value *values, int (*member)(Text *, int, Value *, void *),
                  void *with)
{
    Value key, passed;
    for (int i = 0; i < count; i++)
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
        int place = key.begin == key.end ? -1 : key_of(&key, names, count);
        if (place < 0) {
            if (json_value(text, &passed, 0))
                return -1;
        } else if (values[place].kind != ABSENT || member(text, place, &values[place], with))
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

static int arg_member(Text *text, int place, Value *value, void *with)
{
    (void)with;
    int repaired = text->repaired;
    int raw = place == INPUT_DIMS || place == INPUT_TYPE;
    if (json_value(text, value, !raw))
        return -1;
    /* What is given on as text must be what the Python reader would see. */
    return raw && repaired != text->repaired ? -1 : 0;
}

static int event_member(Text *text, int place, Value *value, void *with)
{
    Event *event = with;
    if (place != ARGS)
        return json_value(text, value, 1);
    if (*text->at != '{') {
        return json_value(text, value, 1) || value->kind != NULL_VALUE ? -1 : 0;
    }
    value->kind = CONTAINER;
    value->begin = text->at;
    if (object(text, ARG_NAMES, ARG_KEYS, event->args, arg_member, NULL))
        return -1;
    value->end = text->at;
    return 0;
}

/* Microseconds to ns, as `us_to_ns` and `exact_to_ns` of steptrace.trace.events. */
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

/* A kept integer argument. */
static int integer(const Value *value, int64_t *out)
{
    *out = MISSING;
    if (value->kind == ABSENT || value->kind == NULL_VALUE)
        return PLAIN;
    return value->kind == NUMBER && !number_to_int(&value->number, out) ? PLAIN : NOT_PLAIN;
}

static int integers(const Value *args, const int *wanted, int count, int64_t *out)
{
    for (int i = 0; i < count; i++)
        TRY(integer(&args[wanted[i]], &out[i]));
    return PLAIN;
}

static int64_t as_bits(double value)
{
    int64_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* Blocks per multiprocessor, or else the blocks of the launch grid; the bits of doubles. */
static int launch_size(const Value *args, int64_t *out)
{
    const Value *given = &args[BLOCKS_PER_SM], *grid = &args[GRID];
    double value = NAN;
    out[0] = out[1] = as_bits(NAN);
    if (given->kind != ABSENT && given->kind != NULL_VALUE) {
        PLAINLY(given->kind != NUMBER || number_to_double(&given->number, &value));
        out[0] = as_bits(fabs(value) < LARGEST ? value : NAN);
        return PLAIN;
    }
    if (grid->kind == ABSENT || grid->kind == NULL_VALUE)
        return PLAIN;
    PLAINLY(grid->kind != CONTAINER || *grid->begin != '[');
    Text text = {grid->begin + 1, grid->end, 0};
    unsigned __int128 blocks = 1;
    for (int side = 0; side < 3; side++) {
        Value number;
        int64_t length;
        PLAINLY(json_space(&text) || json_value(&text, &number, 1) || number.kind != NUMBER);
        PLAINLY(number_to_int(&number.number, &length) || length < 0 || length >= MOST || json_space(&text));
        PLAINLY(*text.at++ != (side < 2 ? ',' : ']'));
        blocks *= (unsigned __int128)length;
    }
    out[1] = as_bits((double)blocks);
    return PLAIN;
}

static int add_span(Spans *spans, size_t begin, size_t end)
{
    if (grow((void **)&spans->spans, &spans->room, spans->count, 1, sizeof *spans->spans))
        return NO_MEMORY;
    spans->spans[spans->count++] = (Span){begin, end};
    return PLAIN;
}

/* Text that is given on must be ASCII: of other text it can take the whole chunk to know how Python reads it. */
static int is_ascii(const Value *value)
{
    for (const char *at = value->begin; at < value->end; at++)
        if ((unsigned char)*at >= 0x80)
            return 0;
    return 1;
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
        PLAINLY(id->kind == CONTAINER || id->kind == BOOLEAN || (id->kind == STRING && id->odd));
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

/* Adds the row of an event that is read. */
static int add_row(Scanner *scanner, const Event *event, int kind, int64_t sort, const int64_t times[2], const char *text)
{
    static const int op[] = {EXTERNAL_ID, SEQUENCE, FORWARD_THREAD}, call[] = {EXTERNAL_ID, CORRELATION, COPY_KIND};
    static const int gpu[] = {CORRELATION, DEVICE, STREAM, BYTES}, frame[] = {PYTHON_ID}, label[] = {EXTERNAL_ID};
    static const int memory[] = {DEVICE_TYPE, DEVICE_ID, ADDRESS, SIZE, ALLOCATED, RESERVED};
    static const int *const wanted[KINDS] = {op, call, gpu, frame, label, memory};
    static const int counts[KINDS] = {3, 3, 4, 1, 1, 6};
    Rows *rows = &scanner->rows[kind];
    const Value *args = event->args, *name = &event->of[NAME];
    if (grow((void **)&rows->values, &rows->room, rows->rows * COLUMNS, COLUMNS, sizeof *rows->values))
        return NO_MEMORY;
    int64_t *row = rows->values + rows->rows * COLUMNS, *rest = row + 4 + counts[kind];
    size_t name_length = name->kind == STRING ? (size_t)(name->end - name->begin) : 0;
    if (kind == MEMORY) {
        PLAINLY(name->kind == STRING && name->odd);
        if (name_length != 8 || memcmp(name->begin, "[memory]", 8))
            return PLAIN;
    }
    row[0] = times[0];
    row[1] = times[1];
    TRY(number_thread(scanner, event, &row[2]));
    TRY(number_text(&scanner->names, name_length ? name->begin : "", name_length, &row[3]));
    TRY(integers(args, wanted[kind], counts[kind], row + 4));
    if (kind == OP) {
        const Value *types = &args[INPUT_TYPE];
        int given = types->kind == CONTAINER;
        PLAINLY(types->kind != ABSENT && types->kind != NULL_VALUE && !(given && is_ascii(types)));
        PLAINLY(scanner->types.count >= MOST_TYPES);
        TRY(number_text(&scanner->types, given ? types->begin : "null", given ? (size_t)(types->end - types->begin) : 4,
                        &rest[1]));
    }
    if (kind == OP || kind == GPU) {
        rest[0] = -1;
        if (args[COLLECTIVE].kind != ABSENT && args[COLLECTIVE].kind != NULL_VALUE) {
            rest[0] = (int64_t)scanner->collectives.count;
            TRY(add_span(&scanner->collectives, (size_t)(event->of[ARGS].begin - text),
                         (size_t)(event->of[ARGS].end - text)));
        }
    }
    if (kind == GPU) {
        rest[1] = sort;
        TRY(launch_size(args, rest + 2));
    }
    if (kind == LABEL)
        for (int i = 0; i < 2; i++) {
            const Value *raw = &args[i ? INPUT_TYPE : INPUT_DIMS];
            PLAINLY(raw->kind != ABSENT && raw->kind != NULL_VALUE && !(raw->kind == CONTAINER && is_ascii(raw)));
            rest[2 * i] = raw->kind == CONTAINER ? raw->begin - text : -1;
            rest[2 * i + 1] = raw->kind == CONTAINER ? raw->end - text : -1;
        }
    rows->rows++;
    return PLAIN;
}

/* The number of an event's phase and category, the category in front: a byte between them that no JSON text has. */
static int number_sort(Scanner *scanner, const Event *event, int64_t *sort)
{
    const Value *phase = &event->of[PH], *category = &event->of[CAT];
    char key[256];
    PLAINLY(phase->kind != ABSENT && (phase->kind != STRING || phase->odd));
    PLAINLY(category->kind != ABSENT && category->kind != NULL_VALUE && (category->kind != STRING || category->odd));
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
    for (int i = 0; i < ARG_KEYS; i++)
        event.args[i].kind = ABSENT;
    PLAINLY(object(text, EVENT_NAMES, EVENT_KEYS, event.of, event_member, &event));
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
    if (event.of[CAT].kind != STRING && is_text(&event.of[PH], "M")) {
        PLAINLY(name->kind == STRING && name->odd);
        if (is_text(name, "thread_name"))
            return add_span(&scanner->thread_names, (size_t)(at - begin), (size_t)(text->at - begin));
    }
    return PLAIN;
}

int scan_chunk(Scanner *scanner, const char *begin, size_t length, int exact)
{
    Text text = {begin, begin + length, 0};
    for (int kind = 0; kind < KINDS; kind++)
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
