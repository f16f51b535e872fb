/* SQL92 expressions under ASan and UBSan: what they are made of in any order, and properties, each in a block of
   exactly its size.

   fuzz_sql CASES SEED      prints how many were taken; CHECK and the sanitizers end it */
#include <stdio.h>
#include <stdlib.h>
#include "haservice/broker/pull/native/core/sql_evaluate.h"

#define CHECK(what)                                                        \
    do                                                                     \
        if (!(what)) fprintf(stderr, "CHECK(%s) line %d\n", #what, __LINE__), exit(1); \
    while (0)

static uint64_t state;
static uint32_t below(uint32_t n) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return n ? (uint32_t)(state >> 32) % n : 0;
}

static uint8_t buffer[1 << 14];
static size_t used;

static void put(const char *text) {
    const size_t n = strlen(text);
    if (used + n <= sizeof buffer) memcpy(buffer + used, text, n), used += n;
}

static const char *value(void) {
    static const char *values[] = {
        "a", "b", "$x", "5", "5L", "2147483648", "9223372036854775807", "0.5", ".5", "5.", "1e23", "'5'", "'it''s'",
        "''", "TRUE", "NULL", "-5", "+ a", "- - -b", "(a)", "'\xc3\xa9'", "99999999999999999999", "1e400", "'''"};
    return values[below(sizeof values / sizeof *values)];
}

static void condition(uint32_t depth) {
    static const char *signs[] = {"=", "<>", " > ", ">=", "<", " <= ", "=="};
    switch (below(depth ? 10 : 6)) {
    case 0: put(value()), put(" BETWEEN "), put(value()), put(" AND "), put(value()); break;
    case 1: put("a NOT IN ('x','5' , "), put(value()), put(")"); break;
    case 2: put(value()), put(below(2) ? " IS NULL" : " IS NOT NULL"); break;
    case 3: put(value()), put(" NOT BETWEEN "), put(value()), put(" AND "), put(value()); break;
    case 4:
    case 5: put(value()), put(signs[below(7)]), put(value()); break;
    case 6: put("NOT "), condition(depth - 1); break;
    case 7: put("("), condition(depth - 1), put(")"); break;
    default:
        for (uint32_t parts = 2 + below(3); parts--; put(parts ? below(2) ? " AND " : " OR " : ""))
            condition(depth - 1);
    }
    if (below(12) == 0) put(below(2) ? " -- x\n" : "/* **/");
}

static void spoil(void) {
    static const char pieces[] = "'\"()-/*<>=.,eEL0129 \n\t\xc3\xa9" "ANDOR$_+";
    for (uint32_t changes = below(3) ? 0 : 1 + below(3); used && changes--;) {
        if (below(4) == 0) used = below((uint32_t)used + 1);
        else buffer[below((uint32_t)used)] = (uint8_t)pieces[below(sizeof pieces)];
    }
}

static size_t properties(void) {
    static const char *pieces[] = {
        "a", "b", "$x", "\1", "\1", "\1", "\2", "\2", "5", "-5", "0.5", "TRUE", "it's", "NaN", "0x1p3", "1e400",
        "9223372036854775808", "\xc3\xa9", " 5f ", "''", "e", "2147483648"};
    used = 0;
    for (uint32_t n = below(24); n--;) put(pieces[below(sizeof pieces / sizeof *pieces)]);
    if (below(4) == 0) put("\2a\1it"), put(below(2) ? "'" : ""); /* a literal goes on where the message ends */
    return used;
}

static uint8_t *exactly(size_t n) {
    uint8_t *block = (uint8_t *)malloc(n ? n : 1);
    memcpy(block, buffer, n);
    return block;
}

static uint64_t odd;

static int read_odd(const uint8_t *p, size_t n, int is_double, hs_sql_number *number) {
    odd++;
    for (size_t i = 0; i < n; i++) odd += p[i];
    if (is_double) number->number = 1e23;
    else number->integer = 5;
    return n % 2 ? HS_SQL_NUMBER : HS_SQL_NO_NUMBER;
}

static void check_nodes(const hs_sql_program *program, size_t n) {
    CHECK(program->count > 0 && program->root < program->count && program->count <= 2 * n + 2);
    for (uint32_t i = 0; i < program->count; i++) {
        const hs_sql_node *node = &program->nodes[i];
        if (node->op == HS_SQL_PROPERTY || (node->op == HS_SQL_CONSTANT && node->kind == HS_SQL_TEXT))
            CHECK(node->a <= n && node->b <= n - node->a);
        else if (node->op != HS_SQL_CONSTANT && node->op != HS_SQL_PART) CHECK(node->a < i);
    }
}

static int play(const uint8_t *text, size_t n) {
    hs_sql_program program;
    hs_sql_message message;
    hs_sql_fault fault;
    uint32_t end;
    const uint32_t seed = below(1u << 31); /* one for both, or no name is ever found */
    if (!hs_sql_parse(text, (uint32_t)n, seed, read_odd, &program, &end, &fault)) {
        CHECK(fault.code > HS_SQL_NO_MEMORY || fault.code == HS_SQL_NO_MEMORY);
        CHECK(fault.position <= n && fault.start <= n && fault.bytes <= n - fault.start);
        return 0;
    }
    CHECK(end <= n);
    check_nodes(&program, n);
    for (int i = 0; i < 3; i++) {
        const size_t bytes = properties();
        uint8_t *block = exactly(bytes);
        CHECK(hs_sql_gather(&message, block, bytes, seed, read_odd));
        const uint8_t outcome = hs_sql_outcome(&program, text, &message);
        CHECK(outcome == HS_SQL_NONE || outcome == HS_SQL_FALSE || outcome == HS_SQL_TRUE || outcome == HS_SQL_FAULT);
        CHECK(hs_sql_outcome(&program, text, &message) == outcome);
        hs_sql_forget(&message);
        free(block);
    }
    free(program.nodes);
    return 1;
}

int main(int count, char **words) {
    CHECK(count == 3);
    const long cases = atol(words[1]);
    long taken = 0;
    state = 0x9E3779B97F4A7C15u ^ (uint64_t)atol(words[2]) << 7;
    for (long i = 0; i < cases; i++) {
        used = 0;
        condition(below(5));
        spoil();
        const size_t n = used;
        uint8_t *exact = exactly(n);
        taken += play(exact, n);
        free(exact);
    }
    printf("taken %ld\n", taken);
    return 0;
}
