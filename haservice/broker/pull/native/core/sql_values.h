/* Values of SQL92 expressions: texts as numbers, and how two values compare.  No Python in here.

   The rules are those of haservice/broker/pull/sql_values.py.  A text that is written oddly (digits of other scripts,
   hexadecimal doubles, more digits than a double surely holds) is HS_SQL_ODD here: the reference reads it. */
#pragma once
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum { HS_SQL_ODD = -1, HS_SQL_NO_NUMBER = 0, HS_SQL_NUMBER = 1 };

/* Kinds of values; what is above HS_SQL_TRUE is no truth value. */
enum { HS_SQL_NONE, HS_SQL_FALSE, HS_SQL_TRUE, HS_SQL_TEXT, HS_SQL_INT, HS_SQL_LONG, HS_SQL_DOUBLE, HS_SQL_FAULT };

typedef union {
    int64_t integer;
    double number;
} hs_sql_number;

/* Reads what is HS_SQL_ODD, as a double or as an integer; HS_SQL_NUMBER or HS_SQL_NO_NUMBER. */
typedef int (*hs_sql_reader)(const uint8_t *p, size_t n, int is_double, hs_sql_number *number);

static inline int hs_sql_is_digit(uint8_t c) { return c >= '0' && c <= '9'; }

static inline size_t hs_sql_digits(const uint8_t *p, size_t n) {
    size_t i = 0;
    while (i < n && hs_sql_is_digit(p[i])) i++;
    return i;
}

/* A sign and digits, within 64 bits. */
static inline int hs_sql_read_integer(const uint8_t *p, size_t n, int64_t *value) {
    const int negative = n > 0 && *p == '-';
    if (n > 0 && (*p == '-' || *p == '+')) p++, n--;
    const size_t digits = hs_sql_digits(p, n);
    if (digits < n) {
        for (size_t i = digits; i < n; i++)
            if (p[i] >= 0x80) return HS_SQL_ODD;
        return HS_SQL_NO_NUMBER;
    }
    if (n == 0) return HS_SQL_NO_NUMBER;
    while (n > 1 && *p == '0') p++, n--;
    if (n > 19) return HS_SQL_NO_NUMBER;
    uint64_t sum = 0;
    for (size_t i = 0; i < n; i++) sum = sum * 10 + (uint64_t)(p[i] - '0');
    if (sum > (uint64_t)INT64_MAX + (uint64_t)negative) return HS_SQL_NO_NUMBER;
    *value = negative ? (int64_t)(0 - sum) : (int64_t)sum;
    return HS_SQL_NUMBER;
}

/* Mantissa and power of ten of a double that is exact: both are, and one operation rounds once. */
static inline int hs_sql_exact(uint64_t mantissa, int64_t power, double *value) {
    static const double TENS[] = {1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                  1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22};
#if defined(__FLT_EVAL_METHOD__) && __FLT_EVAL_METHOD__ != 0
    return HS_SQL_ODD;
#endif
    if (mantissa == 0) power = 0;
    if (mantissa > (uint64_t)1 << 53 || power < -22 || power > 22) return HS_SQL_ODD;
    *value = power < 0 ? (double)mantissa / TENS[-power] : (double)mantissa * TENS[power];
    return HS_SQL_NUMBER;
}

/* Digits, a point, an exponent, as literals and texts have them; `used` bytes of it are such a number. */
static inline int hs_sql_read_decimal(const uint8_t *p, size_t n, size_t *used, double *value) {
    uint64_t mantissa = 0;
    int64_t power = 0;
    int odd = 0;
    const size_t whole = hs_sql_digits(p, n);
    size_t at = whole, fraction = 0;
    if (at < n && p[at] == '.') {
        fraction = hs_sql_digits(p + at + 1, n - at - 1);
        at += 1 + fraction;
    }
    if (whole + fraction == 0) return HS_SQL_NO_NUMBER;
    for (size_t i = 0; i < at; i++) {
        if (p[i] == '.') continue;
        if (mantissa > (UINT64_MAX - 9) / 10) {
            odd = 1;
            break;
        }
        mantissa = mantissa * 10 + (uint64_t)(p[i] - '0');
    }
    if (at < n && (p[at] == 'e' || p[at] == 'E')) {
        size_t sign = at + 1 < n && (p[at + 1] == '+' || p[at + 1] == '-');
        const size_t digits = hs_sql_digits(p + at + 1 + sign, n - at - 1 - sign);
        if (digits > 0) {
            const uint8_t *exponent = p + at + 1 + sign;
            for (size_t i = 0; i < digits && power < 1000000; i++) power = power * 10 + (exponent[i] - '0');
            if (sign && p[at + 1] == '-') power = -power;
            at += 1 + sign + digits;
        }
    }
    *used = at;
    return odd ? HS_SQL_ODD : hs_sql_exact(mantissa, power - (int64_t)fraction, value);
}

/* What Java's Double.valueOf reads. */
static inline int hs_sql_read_double(const uint8_t *p, size_t n, double *value) {
    while (n > 0 && *p <= ' ') p++, n--;
    while (n > 0 && p[n - 1] <= ' ') n--;
    const int negative = n > 0 && *p == '-';
    if (n > 0 && (*p == '-' || *p == '+')) p++, n--;
    if (n > 0 && (*p == 'N' || *p == 'I')) return HS_SQL_ODD;
    if (n > 1 && *p == '0' && (p[1] == 'x' || p[1] == 'X')) return HS_SQL_ODD;
    size_t used = 0;
    const int read = hs_sql_read_decimal(p, n, &used, value);
    if (read == HS_SQL_NO_NUMBER) return read;
    if (used < n && strchr("fFdD", p[used]) != NULL && p[used] != 0) used++;
    if (used < n) return HS_SQL_NO_NUMBER;
    if (read == HS_SQL_NUMBER && negative) *value = -*value;
    return read;
}

/* -- order -------------------------------------------------------------------------------------------------- */

static inline int hs_sql_rank(double number) { return isnan(number) ? 2 : number == 0 && signbit(number) ? 0 : 1; }

static inline int hs_sql_order_doubles(double left, double right) {
    if (left < right) return -1;
    if (left > right) return 1;
    return hs_sql_rank(left) - hs_sql_rank(right);
}

static inline int hs_sql_order_integers(int64_t left, int64_t right) { return (left > right) - (left < right); }
