/* SQL92 expressions: from text to a program.  No Python in here, no state.

   The grammar, its oddities and its bounds are those of haservice/broker/pull/sql_filter.py, rule for rule: a token is
   read when the reference reads it, so that both find the same fault first.  A program is an array of nodes that refers
   to the text; nothing is copied. */
#pragma once
#include "sql_values.h"

#include <stdlib.h>

#define HS_SQL_NESTING_MAX 50
/* Offsets are 32 bits wide. */
#define HS_SQL_BYTES_MAX (1u << 20)

enum {
    HS_SQL_CONSTANT,  /* kind; number, or a text at a of b bytes, quotes not counted */
    HS_SQL_PROPERTY,  /* name at a of b bytes, c its hash */
    HS_SQL_ANY,       /* a the first PART */
    HS_SQL_ALL,
    HS_SQL_PART,      /* a what is asked, b the next PART or 0 */
    HS_SQL_NOT,       /* a */
    HS_SQL_IS_NULL,
    HS_SQL_IS_TRUTH,
    HS_SQL_MINUS,
    HS_SQL_EQUAL,     /* a, b */
    HS_SQL_COMPARE,   /* kind is the sign's token */
    HS_SQL_BETWEEN,   /* a, from b to c */
    HS_SQL_OUTSIDE,   /* NOT BETWEEN */
    HS_SQL_IN,        /* a the property, b its first text, c how many */
    HS_SQL_NOT_IN
};

typedef struct {
    uint8_t op, kind, escaped; /* escaped: the text has doubled quotes */
    uint32_t a;
    union {
        struct {
            uint32_t b, c;
        };
        hs_sql_number number;
    };
} hs_sql_node;

typedef struct {
    hs_sql_node *nodes;
    uint32_t count, root;
} hs_sql_program;

/* Tokens.  From T_PLUS to T_ANY_TEXT a fault names what it wanted instead. */
enum {
    HS_SQL_T_END, HS_SQL_T_FLOAT, HS_SQL_T_INTEGER, HS_SQL_T_TEXT, HS_SQL_T_PROPERTY,
    HS_SQL_T_NOT, HS_SQL_T_AND, HS_SQL_T_OR, HS_SQL_T_BETWEEN, HS_SQL_T_IN, HS_SQL_T_TRUE, HS_SQL_T_FALSE,
    HS_SQL_T_NULL, HS_SQL_T_IS,
    HS_SQL_T_EQUAL, HS_SQL_T_UNEQUAL, HS_SQL_T_ABOVE, HS_SQL_T_ABOVE_OR_EQUAL, HS_SQL_T_BELOW,
    HS_SQL_T_BELOW_OR_EQUAL, HS_SQL_T_OPEN, HS_SQL_T_CLOSE, HS_SQL_T_COMMA, HS_SQL_T_PLUS, HS_SQL_T_MINUS,
    HS_SQL_T_VALUE /* no token: what a fault wanted */
};

/* Why there is no program.  NO_MEMORY is nobody's fault. */
enum {
    HS_SQL_SOUND, HS_SQL_NO_MEMORY,
    HS_SQL_MEANS_NOTHING, /* the character at `start` */
    HS_SQL_UNEXPECTED,    /* the token at `start` of `bytes`; `wanted` is a token */
    HS_SQL_NO_CONDITION, HS_SQL_NULL_COMPARED, HS_SQL_TRUTH_COMPARED,
    HS_SQL_NO_ORDER,      /* `wanted` is the sign */
    HS_SQL_DOWNWARD,      /* low and high */
    HS_SQL_NO_PROPERTY, HS_SQL_TOO_DEEP,
    HS_SQL_TOO_LARGE,     /* the token at `start` of `bytes` */
    HS_SQL_NO_DOUBLE
};

typedef struct {
    uint8_t code, wanted, low_kind, high_kind;
    uint32_t position; /* where the last taken token ends */
    uint32_t start, bytes;
    hs_sql_number low, high;
} hs_sql_fault;

typedef struct {
    uint8_t kind, escaped;
    uint32_t start, bytes;
} hs_sql_token;

/* A part of the expression; see _Node of the reference. */
typedef struct {
    uint32_t node, depth;
    uint8_t is_boolean, is_constant, is_property;
} hs_sql_part;

typedef struct {
    const uint8_t *text;
    uint32_t bytes, position, no_line_end_from;
    int has_token;
    hs_sql_token token;
    uint32_t depth, seed, room;
    hs_sql_program program;
    hs_sql_fault fault;
    hs_sql_reader reader;
} hs_sql_parser;

static inline uint32_t hs_sql_hash(const uint8_t *p, size_t n, uint32_t seed) {
    uint32_t hash = seed ^ 2166136261u;
    for (size_t i = 0; i < n; i++) hash = (hash ^ p[i]) * 16777619u;
    return hash ^ hash >> 15;
}

/* -- tokens ------------------------------------------------------------------------------------------------- */

/* All functions from here on return 0 after a fault. */
static inline int hs_sql_fails(hs_sql_parser *parser, int code) {
    parser->fault.code = (uint8_t)code;
    parser->fault.position = parser->position;
    return 0;
}

static inline int hs_sql_fails_at(hs_sql_parser *parser, int code, int wanted, const hs_sql_token *token) {
    parser->fault.wanted = (uint8_t)wanted;
    parser->fault.start = token->start;
    parser->fault.bytes = token->bytes;
    return hs_sql_fails(parser, code);
}

static inline int hs_sql_is_letter(uint8_t c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_' || c == '$';
}

static inline int hs_sql_word(const uint8_t *p, size_t n) {
    static const struct {
        const char *word;
        uint8_t kind;
    } WORDS[] = {{"NOT", HS_SQL_T_NOT},   {"AND", HS_SQL_T_AND},   {"OR", HS_SQL_T_OR},
                 {"IN", HS_SQL_T_IN},     {"IS", HS_SQL_T_IS},     {"TRUE", HS_SQL_T_TRUE},
                 {"NULL", HS_SQL_T_NULL}, {"FALSE", HS_SQL_T_FALSE}, {"BETWEEN", HS_SQL_T_BETWEEN}};
    if (n < 2 || n > 7) return HS_SQL_T_PROPERTY;
    for (size_t w = 0; w < sizeof WORDS / sizeof *WORDS; w++) {
        const char *word = WORDS[w].word;
        size_t i = 0;
        while (i < n && word[i] && (p[i] & 0xDF) == (uint8_t)word[i] && hs_sql_is_letter(p[i])) i++;
        if (i == n && !word[i]) return WORDS[w].kind;
    }
    return HS_SQL_T_PROPERTY;
}

/* The end of blanks and comments from `at` on. */
static inline uint32_t hs_sql_skip(hs_sql_parser *parser, uint32_t at) {
    const uint8_t *p = parser->text;
    const uint32_t n = parser->bytes;
    while (at < n) {
        const uint8_t c = p[at];
        if (c == ' ' || c == '\t' || c == '\n' || c == '\r' || c == '\f') {
            at++;
        } else if (c == '-' && at + 1 < n && p[at + 1] == '-' && at < parser->no_line_end_from) {
            uint32_t end = at + 2;
            while (end < n && p[end] != '\n' && p[end] != '\r') end++;
            if (end == n) {
                parser->no_line_end_from = at;
                return at;
            }
            at = end + 1;
        } else if (c == '/' && at + 1 < n && p[at + 1] == '*') {
            uint32_t end = at + 2;
            while (end + 1 < n && !(p[end] == '*' && p[end + 1] == '/')) end++;
            if (end + 1 >= n) return at;
            at = end + 2;
        } else {
            return at;
        }
    }
    return at;
}

/* Bytes of the text literal at `at`, 0 if it does not end.  One without an end of its own ends inside its last
   doubled quote, as the reference's pattern does. */
static inline uint32_t hs_sql_literal(const hs_sql_parser *parser, uint32_t at, uint8_t *escaped) {
    const uint8_t *p = parser->text;
    const uint32_t n = parser->bytes;
    uint32_t last_pair = 0, before_last = 0, i = at + 1;
    while (i < n) {
        const uint8_t *quote = (const uint8_t *)memchr(p + i, '\'', n - i);
        if (quote == NULL) break;
        i = (uint32_t)(quote - p);
        if (i + 1 >= n || p[i + 1] != '\'') {
            *escaped = last_pair != 0;
            return i + 1 - at;
        }
        before_last = last_pair;
        last_pair = i;
        i += 2;
    }
    *escaped = before_last != 0;
    return last_pair ? last_pair + 1 - at : 0;
}

/* Bytes of the number at `at`, 0 if none is there. */
static inline uint32_t hs_sql_figure(const uint8_t *p, uint32_t n, uint8_t *kind) {
    const uint32_t whole = (uint32_t)hs_sql_digits(p, n);
    uint32_t used = whole;
    const int point = whole < n && p[whole] == '.';
    if (point) {
        const uint32_t fraction = (uint32_t)hs_sql_digits(p + whole + 1, n - whole - 1);
        if (whole + fraction == 0) return 0;
        used = whole + 1 + fraction;
    }
    if (used == 0) return 0;
    *kind = HS_SQL_T_FLOAT;
    if (used < n && (p[used] == 'e' || p[used] == 'E')) {
        const uint32_t sign = used + 1 < n && (p[used + 1] == '+' || p[used + 1] == '-');
        const uint32_t digits = (uint32_t)hs_sql_digits(p + used + 1 + sign, n - used - 1 - sign);
        if (digits) return used + 1 + sign + digits;
    }
    if (point) return used;
    *kind = HS_SQL_T_INTEGER;
    if (*p == '0') return 1;
    return used < n && (p[used] == 'l' || p[used] == 'L') ? used + 1 : used;
}

static inline int hs_sql_sign(const uint8_t *p, uint32_t n, uint32_t *bytes) {
    const uint8_t next = n > 1 ? p[1] : 0;
    *bytes = 1;
    switch (*p) {
    case '<':
        if (next == '>') return *bytes = 2, HS_SQL_T_UNEQUAL;
        if (next == '=') return *bytes = 2, HS_SQL_T_BELOW_OR_EQUAL;
        return HS_SQL_T_BELOW;
    case '>':
        if (next == '=') return *bytes = 2, HS_SQL_T_ABOVE_OR_EQUAL;
        return HS_SQL_T_ABOVE;
    case '=': return HS_SQL_T_EQUAL;
    case '(': return HS_SQL_T_OPEN;
    case ')': return HS_SQL_T_CLOSE;
    case ',': return HS_SQL_T_COMMA;
    case '+': return HS_SQL_T_PLUS;
    case '-': return HS_SQL_T_MINUS;
    default: return -1;
    }
}

static inline int hs_sql_peek(hs_sql_parser *parser) {
    if (parser->has_token) return 1;
    hs_sql_token *token = &parser->token;
    const uint32_t at = hs_sql_skip(parser, parser->position);
    const uint8_t *p = parser->text + at;
    const uint32_t n = parser->bytes - at;
    *token = (hs_sql_token){HS_SQL_T_END, 0, at, 0};
    parser->has_token = 1;
    if (n == 0) return 1;
    if ((token->bytes = hs_sql_figure(p, n, &token->kind))) return 1;
    if (*p == '\'') {
        token->kind = HS_SQL_T_TEXT;
        if ((token->bytes = hs_sql_literal(parser, at, &token->escaped))) return 1;
    } else if (hs_sql_is_letter(*p)) {
        uint32_t end = 1;
        while (end < n && (hs_sql_is_letter(p[end]) || hs_sql_is_digit(p[end]))) end++;
        token->bytes = end;
        token->kind = (uint8_t)hs_sql_word(p, end);
        return 1;
    } else {
        const int sign = hs_sql_sign(p, n, &token->bytes);
        token->kind = (uint8_t)sign;
        if (sign >= 0) return 1;
    }
    token->bytes = 0;
    return hs_sql_fails_at(parser, HS_SQL_MEANS_NOTHING, 0, token);
}

static inline int hs_sql_next(hs_sql_parser *parser, hs_sql_token *token) {
    if (!hs_sql_peek(parser)) return 0;
    *token = parser->token;
    parser->has_token = 0;
    parser->position = token->start + token->bytes;
    return 1;
}

static inline int hs_sql_take(hs_sql_parser *parser, int kind, hs_sql_token *token) {
    if (!hs_sql_next(parser, token)) return 0;
    return token->kind == kind || hs_sql_fails_at(parser, HS_SQL_UNEXPECTED, kind, token);
}

/* `taken` says whether it was there. */
static inline int hs_sql_accept(hs_sql_parser *parser, int kind, int *taken) {
    if (!hs_sql_peek(parser)) return 0;
    *taken = parser->token.kind == kind;
    if (*taken) {
        parser->has_token = 0;
        parser->position = parser->token.start + parser->token.bytes;
    }
    return 1;
}

/* -- nodes -------------------------------------------------------------------------------------------------- */

static inline int hs_sql_put(hs_sql_parser *parser, hs_sql_node node, uint32_t *number) {
    hs_sql_program *program = &parser->program;
    if (program->count == parser->room) {
        const uint32_t room = parser->room ? parser->room * 2 : 32;
        hs_sql_node *nodes = (hs_sql_node *)realloc(program->nodes, room * sizeof *nodes);
        if (nodes == NULL) return hs_sql_fails(parser, HS_SQL_NO_MEMORY);
        program->nodes = nodes;
        parser->room = room;
    }
    *number = program->count;
    program->nodes[program->count++] = node;
    return 1;
}

static inline int hs_sql_put_three(
    hs_sql_parser *parser, int op, int kind, uint32_t a, uint32_t b, uint32_t c, uint32_t *number
) {
    hs_sql_node node;
    memset(&node, 0, sizeof node);
    node.op = (uint8_t)op, node.kind = (uint8_t)kind;
    node.a = a, node.b = b, node.c = c;
    return hs_sql_put(parser, node, number);
}

static inline int hs_sql_check_depth(hs_sql_parser *parser, uint32_t depth) {
    return depth <= HS_SQL_NESTING_MAX || hs_sql_fails(parser, HS_SQL_TOO_DEEP);
}

static inline uint32_t hs_sql_deeper(uint32_t left, uint32_t right) { return 1 + (left > right ? left : right); }

/* A condition, `depth` deep. */
static inline int hs_sql_condition(
    hs_sql_parser *parser, int op, int kind, uint32_t depth, uint32_t a, uint32_t b, uint32_t c, hs_sql_part *part
) {
    *part = (hs_sql_part){0, depth, 1, 0, 0};
    return hs_sql_check_depth(parser, depth) && hs_sql_put_three(parser, op, kind, a, b, c, &part->node);
}

static inline const hs_sql_node *hs_sql_at(const hs_sql_parser *parser, const hs_sql_part *part) {
    return &parser->program.nodes[part->node];
}

static inline int hs_sql_is_null_literal(const hs_sql_parser *parser, const hs_sql_part *part) {
    return part->is_constant && hs_sql_at(parser, part)->kind == HS_SQL_NONE;
}

static inline int hs_sql_to_condition(hs_sql_parser *parser, hs_sql_part *part) {
    if (part->is_boolean) return 1;
    if (!part->is_property) return hs_sql_fails(parser, HS_SQL_NO_CONDITION);
    return hs_sql_condition(parser, HS_SQL_IS_TRUTH, 0, part->depth + 1, part->node, 0, 0, part);
}

static inline int hs_sql_negate(hs_sql_parser *parser, hs_sql_part *part) {
    return hs_sql_condition(parser, HS_SQL_NOT, 0, part->depth + 1, part->node, 0, 0, part);
}

static inline int hs_sql_equate(hs_sql_parser *parser, hs_sql_part *left, const hs_sql_part *right) {
    if (hs_sql_is_null_literal(parser, left) || hs_sql_is_null_literal(parser, right))
        return hs_sql_fails(parser, HS_SQL_NULL_COMPARED);
    if (left->is_constant && right->is_constant && left->is_boolean && !right->is_boolean)
        return hs_sql_fails(parser, HS_SQL_TRUTH_COMPARED);
    const uint32_t depth = hs_sql_deeper(left->depth, right->depth);
    return hs_sql_condition(parser, HS_SQL_EQUAL, 0, depth, left->node, right->node, 0, left);
}

/* Whether `sign` may stand between these two, and is not too deep. */
static inline int hs_sql_has_order(
    hs_sql_parser *parser, int sign, const hs_sql_part *left, const hs_sql_part *right, uint32_t *depth
) {
    const hs_sql_part *sides[] = {left, right};
    for (int i = 0; i < 2; i++) {
        if (sides[i]->is_boolean || (sides[i]->is_constant && hs_sql_at(parser, sides[i])->kind < HS_SQL_INT)) {
            parser->fault.wanted = (uint8_t)sign;
            return hs_sql_fails(parser, HS_SQL_NO_ORDER);
        }
    }
    *depth = hs_sql_deeper(left->depth, right->depth);
    return hs_sql_check_depth(parser, *depth);
}

static inline int hs_sql_order_numbers(const hs_sql_node *left, const hs_sql_node *right) {
    if (left->kind != HS_SQL_DOUBLE && right->kind != HS_SQL_DOUBLE)
        return hs_sql_order_integers(left->number.integer, right->number.integer);
    return hs_sql_order_doubles(
        left->kind == HS_SQL_DOUBLE ? left->number.number : (double)left->number.integer,
        right->kind == HS_SQL_DOUBLE ? right->number.number : (double)right->number.integer
    );
}

static inline int hs_sql_enclose(
    hs_sql_parser *parser, hs_sql_part *value, const hs_sql_part *low, const hs_sql_part *high, int negated
) {
    uint32_t from = 0, to = 0;
    if (!hs_sql_has_order(parser, negated ? HS_SQL_T_BELOW : HS_SQL_T_ABOVE_OR_EQUAL, value, low, &from)) return 0;
    if (!hs_sql_has_order(parser, negated ? HS_SQL_T_ABOVE : HS_SQL_T_BELOW_OR_EQUAL, value, high, &to)) return 0;
    if (!negated && low->is_constant && high->is_constant) {
        const hs_sql_node *first = hs_sql_at(parser, low), *last = hs_sql_at(parser, high);
        if (hs_sql_order_numbers(last, first) < 0) {
            parser->fault.low = first->number, parser->fault.low_kind = first->kind;
            parser->fault.high = last->number, parser->fault.high_kind = last->kind;
            return hs_sql_fails(parser, HS_SQL_DOWNWARD);
        }
    }
    const int op = negated ? HS_SQL_OUTSIDE : HS_SQL_BETWEEN;
    return hs_sql_condition(parser, op, 0, hs_sql_deeper(from, to), value->node, low->node, high->node, value);
}

/* -- rules -------------------------------------------------------------------------------------------------- */

static int hs_sql_disjunction(hs_sql_parser *parser, hs_sql_part *part);

static inline int hs_sql_constant(hs_sql_parser *parser, const hs_sql_token *token, hs_sql_part *part) {
    const uint8_t *p = parser->text + token->start;
    hs_sql_node node;
    memset(&node, 0, sizeof node);
    node.op = HS_SQL_CONSTANT;
    *part = (hs_sql_part){0, 1, 0, 1, 0};
    switch (token->kind) {
    case HS_SQL_T_TEXT:
        node.kind = HS_SQL_TEXT, node.escaped = token->escaped;
        node.a = token->start + 1, node.b = token->bytes - 2;
        break;
    case HS_SQL_T_INTEGER: {
        const uint32_t digits = (uint32_t)hs_sql_digits(p, token->bytes);
        const hs_sql_token figure = {token->kind, 0, token->start, digits};
        if (hs_sql_read_integer(p, digits, &node.number.integer) != HS_SQL_NUMBER)
            return hs_sql_fails_at(parser, HS_SQL_TOO_LARGE, 0, &figure);
        node.kind = node.number.integer <= INT32_MAX ? HS_SQL_INT : HS_SQL_LONG;
        break;
    }
    case HS_SQL_T_FLOAT: {
        size_t used;
        node.kind = HS_SQL_DOUBLE;
        if (hs_sql_read_decimal(p, token->bytes, &used, &node.number.number) == HS_SQL_ODD &&
            parser->reader(p, token->bytes, 1, &node.number) != HS_SQL_NUMBER)
            return hs_sql_fails(parser, HS_SQL_NO_MEMORY);
        if (node.number.number == 0 || isinf(node.number.number))
            return hs_sql_fails_at(parser, HS_SQL_NO_DOUBLE, 0, token);
        break;
    }
    default:
        node.kind = token->kind == HS_SQL_T_TRUE ? HS_SQL_TRUE : HS_SQL_NONE;
        if (token->kind == HS_SQL_T_FALSE) node.kind = HS_SQL_FALSE;
        part->is_boolean = 1;
    }
    return hs_sql_put(parser, node, &part->node);
}

static inline int hs_sql_primary(hs_sql_parser *parser, hs_sql_part *part) {
    hs_sql_token token;
    if (!hs_sql_next(parser, &token)) return 0;
    switch (token.kind) {
    case HS_SQL_T_TEXT:
    case HS_SQL_T_INTEGER:
    case HS_SQL_T_FLOAT:
    case HS_SQL_T_TRUE:
    case HS_SQL_T_FALSE:
    case HS_SQL_T_NULL: return hs_sql_constant(parser, &token, part);
    case HS_SQL_T_PROPERTY: {
        const uint32_t hash = hs_sql_hash(parser->text + token.start, token.bytes, parser->seed);
        *part = (hs_sql_part){0, 1, 0, 0, 1};
        return hs_sql_put_three(parser, HS_SQL_PROPERTY, 0, token.start, token.bytes, hash, &part->node);
    }
    case HS_SQL_T_OPEN:
        if (!hs_sql_check_depth(parser, ++parser->depth) || !hs_sql_disjunction(parser, part) ||
            !hs_sql_take(parser, HS_SQL_T_CLOSE, &token))
            return 0;
        parser->depth--;
        return 1;
    default: return hs_sql_fails_at(parser, HS_SQL_UNEXPECTED, HS_SQL_T_VALUE, &token);
    }
}

static int hs_sql_unary(hs_sql_parser *parser, hs_sql_part *part) {
    hs_sql_token token;
    if (!hs_sql_peek(parser)) return 0;
    const uint8_t kind = parser->token.kind;
    if (kind != HS_SQL_T_PLUS && kind != HS_SQL_T_MINUS && kind != HS_SQL_T_NOT) return hs_sql_primary(parser, part);
    if (!hs_sql_check_depth(parser, ++parser->depth) || !hs_sql_next(parser, &token) || !hs_sql_unary(parser, part))
        return 0;
    parser->depth--;
    if (kind == HS_SQL_T_PLUS) return 1;
    if (kind == HS_SQL_T_NOT) return hs_sql_to_condition(parser, part) && hs_sql_negate(parser, part);
    *part = (hs_sql_part){part->node, part->depth + 1, 0, 0, 0};
    return hs_sql_put_three(parser, HS_SQL_MINUS, 0, part->node, 0, 0, &part->node);
}

static inline int hs_sql_list(hs_sql_parser *parser, hs_sql_part *left, int negated) {
    hs_sql_token token;
    hs_sql_part text;
    uint32_t first = 0, count = 0;
    int more = 1;
    if (!hs_sql_take(parser, HS_SQL_T_OPEN, &token)) return 0;
    for (; more; count++) {
        if (!hs_sql_take(parser, HS_SQL_T_TEXT, &token) || !hs_sql_constant(parser, &token, &text)) return 0;
        if (count == 0) first = text.node;
        if (!hs_sql_accept(parser, HS_SQL_T_COMMA, &more)) return 0;
    }
    if (!hs_sql_take(parser, HS_SQL_T_CLOSE, &token)) return 0;
    if (!left->is_property) return hs_sql_fails(parser, HS_SQL_NO_PROPERTY);
    const int op = negated ? HS_SQL_NOT_IN : HS_SQL_IN;
    return hs_sql_condition(parser, op, 0, left->depth + 1, left->node, first, count, left);
}

static inline int hs_sql_range(hs_sql_parser *parser, hs_sql_part *left, int negated) {
    hs_sql_token token;
    hs_sql_part low, high;
    return hs_sql_take(parser, HS_SQL_T_BETWEEN, &token) && hs_sql_unary(parser, &low) &&
           hs_sql_take(parser, HS_SQL_T_AND, &token) && hs_sql_unary(parser, &high) &&
           hs_sql_enclose(parser, left, &low, &high, negated);
}

static inline int hs_sql_comparison(hs_sql_parser *parser, hs_sql_part *left) {
    if (!hs_sql_unary(parser, left)) return 0;
    for (;;) {
        hs_sql_token token;
        hs_sql_part right;
        uint32_t depth;
        int negated, listed;
        if (!hs_sql_peek(parser)) return 0;
        const int kind = parser->token.kind;
        if (kind >= HS_SQL_T_ABOVE && kind <= HS_SQL_T_BELOW_OR_EQUAL) {
            if (!hs_sql_next(parser, &token) || !hs_sql_unary(parser, &right)) return 0;
            if (!hs_sql_has_order(parser, kind, left, &right, &depth)) return 0;
            if (!hs_sql_condition(parser, HS_SQL_COMPARE, kind, depth, left->node, right.node, 0, left)) return 0;
        } else if (kind == HS_SQL_T_NOT || kind == HS_SQL_T_BETWEEN || kind == HS_SQL_T_IN) {
            if (!hs_sql_accept(parser, HS_SQL_T_NOT, &negated)) return 0;
            if (!hs_sql_accept(parser, HS_SQL_T_IN, &listed)) return 0;
            if (!(listed ? hs_sql_list : hs_sql_range)(parser, left, negated)) return 0;
        } else {
            return 1;
        }
    }
}

static inline int hs_sql_equality(hs_sql_parser *parser, hs_sql_part *left) {
    if (!hs_sql_comparison(parser, left)) return 0;
    for (;;) {
        hs_sql_token token;
        hs_sql_part right;
        int negated;
        if (!hs_sql_peek(parser)) return 0;
        const int kind = parser->token.kind;
        if (kind == HS_SQL_T_EQUAL || kind == HS_SQL_T_UNEQUAL) {
            if (!hs_sql_next(parser, &token) || !hs_sql_comparison(parser, &right)) return 0;
            if (!hs_sql_equate(parser, left, &right)) return 0;
            if (kind == HS_SQL_T_UNEQUAL && !hs_sql_negate(parser, left)) return 0;
        } else if (kind == HS_SQL_T_IS) {
            if (!hs_sql_next(parser, &token) || !hs_sql_accept(parser, HS_SQL_T_NOT, &negated)) return 0;
            if (!hs_sql_take(parser, HS_SQL_T_NULL, &token)) return 0;
            if (!hs_sql_condition(parser, HS_SQL_IS_NULL, 0, left->depth + 1, left->node, 0, 0, left)) return 0;
            if (negated && !hs_sql_negate(parser, left)) return 0;
        } else {
            return 1;
        }
    }
}

/* One node for a whole chain, so that a long chain is not deep. */
static inline int hs_sql_joined(
    hs_sql_parser *parser, int word, int op, int (*rule)(hs_sql_parser *, hs_sql_part *), hs_sql_part *part
) {
    uint32_t first = 0, last = 0, depth = 0;
    if (!rule(parser, part) || !hs_sql_peek(parser)) return 0;
    if (parser->token.kind != word) return 1;
    for (int more = 1, count = 0; more; count++) {
        uint32_t number;
        if (count > 0 && !rule(parser, part)) return 0;
        if (!hs_sql_to_condition(parser, part)) return 0;
        if (!hs_sql_put_three(parser, HS_SQL_PART, 0, part->node, 0, 0, &number)) return 0;
        if (count == 0) first = number;
        else parser->program.nodes[last].b = number;
        last = number;
        if (part->depth > depth) depth = part->depth;
        if (!hs_sql_accept(parser, word, &more)) return 0;
    }
    return hs_sql_condition(parser, op, 0, depth + 1, first, 0, 0, part);
}

static int hs_sql_conjunction(hs_sql_parser *parser, hs_sql_part *part) {
    return hs_sql_joined(parser, HS_SQL_T_AND, HS_SQL_ALL, hs_sql_equality, part);
}

static int hs_sql_disjunction(hs_sql_parser *parser, hs_sql_part *part) {
    return hs_sql_joined(parser, HS_SQL_T_OR, HS_SQL_ANY, hs_sql_conjunction, part);
}

/* 1 if `text` has become a program, which the caller frees: `end` is where it ends in the text.  Else a fault. */
static int hs_sql_parse(
    const uint8_t *text, uint32_t bytes, uint32_t seed, hs_sql_reader reader, hs_sql_program *program, uint32_t *end,
    hs_sql_fault *fault
) {
    hs_sql_parser parser;
    hs_sql_part whole;
    memset(&parser, 0, sizeof parser);
    parser.text = text, parser.bytes = bytes, parser.seed = seed, parser.reader = reader;
    parser.no_line_end_from = bytes;
    const int sound = hs_sql_disjunction(&parser, &whole) && hs_sql_to_condition(&parser, &whole);
    *fault = parser.fault;
    if (!sound) {
        free(parser.program.nodes);
        return 0;
    }
    hs_sql_node *nodes = (hs_sql_node *)realloc(parser.program.nodes, parser.program.count * sizeof *nodes);
    *program = parser.program;
    if (nodes != NULL) program->nodes = nodes;
    program->root = whole.node;
    *end = parser.position;
    return 1;
}
