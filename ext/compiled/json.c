#include "json.h"

#include <math.h>
#include <string.h>
#ifdef __SSE2__
#include <emmintrin.h>
#endif

static int is_hex(char c)
{
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'f');
}

/* At a backslash: moves past the escape. */
static int skip_escape(const char **at, const char *end)
{
    const char *p = *at;
    if (end - p < 2)
        return -1;
    if (p[1] != 'u') {
        if (p[1] == 0 || !strchr("\"\\/bfnrt", p[1]))
            return -1;
        *at = p + 2;
        return 0;
    }
    if (end - p < 6 || !is_hex(p[2]) || !is_hex(p[3]) || !is_hex(p[4]) || !is_hex(p[5]))
        return -1;
    *at = p + 6;
    return 0;
}

int json_string(Text *text, Value *value)
{
    const char *p = text->at + 1, *end = text->end;
    value->kind = STRING;
    value->begin = p;
    for (;;) {
#ifdef __SSE2__
        while (end - p >= 16) {
            __m128i bytes = _mm_loadu_si128((const __m128i *)p);
            __m128i low = _mm_cmpeq_epi8(_mm_min_epu8(bytes, _mm_set1_epi8(0x1f)), bytes);
            __m128i mark = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('"'));
            __m128i escape = _mm_cmpeq_epi8(bytes, _mm_set1_epi8('\\'));
            unsigned stop = (unsigned)_mm_movemask_epi8(_mm_or_si128(low, _mm_or_si128(mark, escape)));
            if (stop) {
                p += __builtin_ctz(stop);
                break;
            }
            p += 16;
        }
#endif
        while (p < end && *p != '"' && *p != '\\' && (unsigned char)*p >= 0x20)
            p++;
        if (p >= end)
            return -1;
        if (*p == '"')
            break;
        if (*p != '\\' || skip_escape(&p, end))
            return -1;
    }
    value->end = p;
    text->at = p + 1;
    return 0;
}

static int is_digit(char c)
{
    return c >= '0' && c <= '9';
}

/* Powers of ten beyond this one are taken as this one. */
#define FARTHEST 1000

/* Takes digits in; false where there is none. */
static int take_digits(const char **at, const char *end, Number *number, int places)
{
    const char *p = *at;
    uint64_t digits = number->digits;
    const char *first = p;
    while (!number->full && p < end && is_digit(*p)) {
        if (digits > (UINT64_MAX - 9) / 10)
            number->full = 1;
        else
            digits = digits * 10 + (uint64_t)(*p++ - '0');
    }
    number->digits = digits;
    if (places)
        number->places = p - first > FARTHEST ? FARTHEST : (int)(p - first);
    for (; p < end && is_digit(*p); p++) {
        int digit = *p - '0';
        if (!number->beyond)
            number->rest = digit > 5 ? ABOVE_HALF : digit == 5 ? HALF : digit ? BELOW_HALF : NO_REST;
        else if (digit)
            number->rest |= 1; /* no rest becomes one below the half, and the half one above it */
        number->beyond = 1;
        if (!places && number->dropped < FARTHEST)
            number->dropped++;
    }
    int some = p > *at;
    *at = p;
    return some;
}

static int parse_number(const char **at, const char *end, Number *number)
{
    const char *p = *at;
    memset(number, 0, sizeof *number);
    if (p < end && *p == '-') {
        number->negative = 1;
        p++;
    }
    const char *first = p;
    if (!take_digits(&p, end, number, 0) || (*first == '0' && p - first > 1))
        return -1;
    if (p < end && *p == '.') {
        p++;
        number->fraction = 1;
        if (!take_digits(&p, end, number, 1))
            return -1;
    }
    if (p < end && (*p | 32) == 'e') {
        Number power;
        memset(&power, 0, sizeof power);
        int negative = 0;
        p++;
        if (p < end && (*p == '+' || *p == '-'))
            negative = *p++ == '-';
        if (!take_digits(&p, end, &power, 0))
            return -1;
        if (power.full || power.digits > FARTHEST)
            power.digits = FARTHEST;
        number->exponent = 1;
        number->power = negative ? -(int)power.digits : (int)power.digits;
    }
    number->power += number->dropped;
    *at = p;
    return 0;
}

/* A bare nan, inf or infinity, as `repair` of steptrace.trace.decode knows them; the letters are given in small. */
static int bare_word(const char **at, const char *end, const char *word)
{
    const char *p = *at;
    for (; *word; word++, p++)
        if (p >= end || (*p | 32) != *word)
            return 0;
    if (p < end && *p != ',' && *p != '}' && *p != ']' && *p != ' ' && *p != '\n' && *p != '\r' && *p != '\t')
        return 0;
    *at = p;
    return 1;
}

static int literal(const char **at, const char *end, const char *word)
{
    size_t length = strlen(word);
    if ((size_t)(end - *at) < length || memcmp(*at, word, length))
        return -1;
    *at += length;
    return 0;
}

/* A value that is no container. */
static int simple_value(Text *text, Value *value)
{
    const char *p = text->at;
    switch (*p) {
    case '"':
        return json_string(text, value);
    case 't':
    case 'f':
        value->kind = BOOLEAN;
        value->begin = p;
        if (literal(&p, text->end, *p == 't' ? "true" : "false"))
            return -1;
        break;
    default:
        value->begin = p;
        if (*p == 'n' && !literal(&p, text->end, "null")) {
            value->kind = NULL_VALUE;
            break;
        }
        const char *word = p + (*p == '-');
        if (bare_word(&word, text->end, "nan") || bare_word(&word, text->end, "infinity") ||
            bare_word(&word, text->end, "inf")) {
            value->kind = NULL_VALUE;
            p = word;
            break;
        }
        value->kind = NUMBER;
        if (parse_number(&p, text->end, &value->number))
            return -1;
    }
    value->end = p;
    text->at = p;
    return 0;
}

/* After a key's opening quotation mark has been met: past the key and its colon, to the value. */
static int skip_key(Text *text)
{
    Value key;
    if (text->at >= text->end || *text->at != '"' || json_string(text, &key) || json_space(text) || *text->at != ':')
        return -1;
    text->at++;
    return json_space(text);
}

int json_value(Text *text, Value *value)
{
    if (text->at >= text->end)
        return -1;
    if (*text->at != '[' && *text->at != '{')
        return simple_value(text, value);
    uint64_t objects = 0; /* one bit a level: whether it is an object */
    int depth = 0;
    Value inner;
    value->kind = CONTAINER;
    value->begin = text->at;
    for (;;) {
        /* Here a value begins. */
        char c = *text->at;
        if (c == '[' || c == '{') {
            if (++depth >= DEEPEST)
                return -1;
            objects = objects << 1 | (c == '{');
            text->at++;
            if (json_space(text))
                return -1;
            if (*text->at != (c == '{' ? '}' : ']')) {
                if (c == '{' && skip_key(text))
                    return -1;
                continue;
            }
        } else {
            if (simple_value(text, &inner))
                return -1;
            if (json_space(text))
                return -1;
        }
        /* Here one has ended, or a container that is empty is about to. */
        while (*text->at != ',') {
            if (*text->at != (objects & 1 ? '}' : ']'))
                return -1;
            text->at++;
            objects >>= 1;
            if (--depth == 0) {
                value->end = text->at;
                return 0;
            }
            if (json_space(text))
                return -1;
        }
        text->at++;
        if (json_space(text) || (objects & 1 && skip_key(text)))
            return -1;
    }
}

static const uint64_t TENS[20] = {1ull,
                                  10ull,
                                  100ull,
                                  1000ull,
                                  10000ull,
                                  100000ull,
                                  1000000ull,
                                  10000000ull,
                                  100000000ull,
                                  1000000000ull,
                                  10000000000ull,
                                  100000000000ull,
                                  1000000000000ull,
                                  10000000000000ull,
                                  100000000000000ull,
                                  1000000000000000ull,
                                  10000000000000000ull,
                                  100000000000000000ull,
                                  1000000000000000000ull,
                                  10000000000000000000ull};

double number_to_double(const Number *number)
{
    static const double exact[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                   1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
    uint64_t digits = number->digits;
    int power = number->power - number->places;
    double value;
    if (digits == 0)
        value = 0;
    else if (power == 0)
        value = (double)digits;
    else if (digits < (1ull << 53) && power >= -22 && power <= 22)
        value = power < 0 ? (double)digits / exact[-power] : (double)digits * exact[power];
    else if (power < 0 && power >= -19) {
        /* More digits than a double holds: divide as integers and keep in the last bit whether something is left. */
        int shift = __builtin_clzll(digits);
        unsigned __int128 dividend = (unsigned __int128)(digits << shift) << 64;
        unsigned __int128 quotient = dividend / TENS[-power];
        quotient |= quotient * TENS[-power] != dividend;
        value = ldexp((double)quotient, -64 - shift);
    } else {
        long double scaled = (long double)digits;
        for (int left = power < 0 ? -power : power; left > 0; left -= 19) {
            long double tens = (long double)TENS[left > 19 ? 19 : left];
            scaled = power < 0 ? scaled / tens : scaled * tens;
        }
        value = (double)scaled;
    }
    return number->negative ? -value : value;
}

int64_t number_to_int(const Number *number)
{
    if (number->fraction || number->exponent) {
        double value = number_to_double(number);
        return fabs(value) < 9e18 ? (int64_t)value : MISSING;
    }
    if (number->dropped || number->digits > (uint64_t)INT64_MAX)
        return MISSING;
    return number->negative ? -(int64_t)number->digits : (int64_t)number->digits;
}

/* A text such as 0x7f, as tools write addresses and queues; -1 for anything else, or what a uint64 does not hold. */
static int hexadecimal(const Value *value, Number *number)
{
    const char *at = value->begin;
    if (value->end - at < 3 || value->end - at > 18 || at[0] != '0' || (at[1] | 32) != 'x')
        return -1;
    memset(number, 0, sizeof *number);
    for (at += 2; at < value->end; at++) {
        char small = *at | 32;
        int digit = *at >= '0' && *at <= '9' ? *at - '0' : small >= 'a' && small <= 'f' ? small - 'a' + 10 : -1;
        if (digit < 0)
            return -1;
        number->digits = number->digits << 4 | (uint64_t)digit;
    }
    return 0;
}

int number_of(const Value *value, Number *number)
{
    const char *at = value->begin;
    if (value->kind == STRING && !hexadecimal(value, number))
        return 0;
    if (value->kind == NUMBER)
        *number = value->number;
    else if (value->kind != STRING || parse_number(&at, value->end, number) || at != value->end)
        return -1;
    return 0;
}
