/* A walk over JSON text that takes no more than the text and answers "not plain" to whatever it is not sure of. */
#ifndef STEPTRACE_JSON_H
#define STEPTRACE_JSON_H

#include <stddef.h>
#include <stdint.h>

/* As MISSING of steptrace.trace.decode. */
#define MISSING INT64_MIN
/* Brackets within brackets; PyTorch writes four. */
#define DEEPEST 64

enum { ABSENT, NULL_VALUE, BOOLEAN, NUMBER, STRING, CONTAINER };

/* What the digits that do not fit are, of one unit of the last digit that does. */
enum { NO_REST, BELOW_HALF, HALF, ABOVE_HALF };

/* A number as written: sign, the first 19 or 20 digits as an integer, how many of them stand behind the point, the power
   of ten, and how the digits that do not fit round. */
typedef struct {
    uint64_t digits;
    int places;
    int power;
    unsigned char negative, fraction, exponent;
    unsigned char full, beyond, rest; /* whether there is no room for more digits, whether there were, what they are */
    int dropped;                      /* how many of them stand before the point */
} Number;

/* One value: its kind and its text, a string's without the quotation marks. */
typedef struct {
    int kind;
    const char *begin, *end;
    Number number;
} Value;

typedef struct {
    const char *at, *end;
} Text;

/* All return 0, or -1 for text that is not plain. A bare nan or inf counts as null. */

/* Moves past spaces; -1 at the end of the text. */
static inline int json_space(Text *text)
{
    const char *at = text->at, *end = text->end;
    while (at < end && (*at == ' ' || *at == '\n' || *at == '\t' || *at == '\r'))
        at++;
    text->at = at;
    return at < end ? 0 : -1;
}

int json_string(Text *text, Value *value); /* at the opening quotation mark */
int json_value(Text *text, Value *value);

/* The number of a value, or of the text in a string; -1 for anything else. */
int number_of(const Value *value, Number *number);
double number_to_double(const Number *number);
/* What is before the point; MISSING where an int64 does not hold it. */
int64_t number_to_int(const Number *number);

#endif
