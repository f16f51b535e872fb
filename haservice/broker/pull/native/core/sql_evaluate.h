/* SQL92 programs over the properties of a message.  No Python in here, no state.

   The properties are the bytes of a record (name 1 value 2 name 1 value 2 …), in sound UTF-8.  They are gathered once
   into a table, by name; a program looks names up there.  What a text is as a number is kept beside it: thousands of
   programs ask for the same. */
#pragma once
#include "sql.h"

typedef struct {
    const uint8_t *name, *value;
    uint32_t name_bytes, value_bytes, hash;
    int8_t read_integer, read_double; /* whether the numbers below are there: see HS_SQL_NUMBER, or UNREAD */
    int64_t integer;
    double number;
} hs_sql_property;

enum { HS_SQL_UNREAD = 2 };

typedef struct {
    hs_sql_property *properties;
    uint32_t *slots; /* number + 1 of a property */
    uint32_t count, mask, seed;
    hs_sql_reader reader;
} hs_sql_message;

typedef struct {
    uint8_t kind, escaped;
    uint32_t bytes;
    union {
        hs_sql_number number;
        const uint8_t *text;
    };
    hs_sql_property *property; /* that the text is of; NULL of a literal */
} hs_sql_value;

/* -- the message -------------------------------------------------------------------------------------------- */

static inline uint32_t *hs_sql_slot(
    const hs_sql_message *message, const uint8_t *name, uint32_t bytes, uint32_t hash
) {
    for (uint32_t at = hash & message->mask;; at = (at + 1) & message->mask) {
        uint32_t *slot = &message->slots[at];
        if (*slot == 0) return slot;
        const hs_sql_property *known = &message->properties[*slot - 1];
        if (known->hash == hash && known->name_bytes == bytes && !memcmp(known->name, name, bytes)) return slot;
    }
}

/* 0 if there is no memory.  Pieces without a name, a value or the sign between are left out; of equal names the last
   one stands. */
static inline int hs_sql_gather(
    hs_sql_message *message, const uint8_t *p, size_t n, uint32_t seed, hs_sql_reader reader
) {
    uint32_t pieces = 1, slots = 8;
    memset(message, 0, sizeof *message);
    message->seed = seed, message->reader = reader;
    for (const uint8_t *at = p; n && (at = (const uint8_t *)memchr(at, 2, (size_t)(p + n - at))); at++) pieces++;
    while (slots < pieces * 2) slots *= 2;
    const size_t size = pieces * sizeof(hs_sql_property);
    uint8_t *room = (uint8_t *)malloc(size + slots * sizeof(uint32_t));
    if (room == NULL) return 0;
    message->properties = (hs_sql_property *)room;
    message->slots = (uint32_t *)(room + size);
    message->mask = slots - 1;
    memset(message->slots, 0, slots * sizeof(uint32_t));
    while (n > 0) {
        const uint8_t *stop = (const uint8_t *)memchr(p, 2, n);
        const size_t piece = stop ? (size_t)(stop - p) : n;
        const uint8_t *sign = (const uint8_t *)memchr(p, 1, piece);
        if (sign != NULL && sign > p && sign + 1 < p + piece) {
            const uint32_t bytes = (uint32_t)(sign - p), hash = hs_sql_hash(p, bytes, seed);
            uint32_t *slot = hs_sql_slot(message, p, bytes, hash);
            if (*slot == 0) *slot = ++message->count;
            message->properties[*slot - 1] = (hs_sql_property){
                p, sign + 1, bytes, (uint32_t)(p + piece - sign - 1), hash, HS_SQL_UNREAD, HS_SQL_UNREAD, 0, 0};
        }
        p += piece, n -= piece;
        if (n > 0) p++, n--;
    }
    return 1;
}

static inline void hs_sql_forget(hs_sql_message *message) { free(message->properties); }

/* -- texts as numbers --------------------------------------------------------------------------------------- */

/* A literal with quotes inside is none: no number has any. */
static inline int hs_sql_as_integer(const hs_sql_message *message, const hs_sql_value *text, int64_t *integer) {
    hs_sql_property *property = text->property;
    if (property != NULL && property->read_integer != HS_SQL_UNREAD) {
        *integer = property->integer;
        return property->read_integer;
    }
    hs_sql_number number = {0};
    int read = text->escaped ? HS_SQL_NO_NUMBER : hs_sql_read_integer(text->text, text->bytes, &number.integer);
    if (read == HS_SQL_ODD) read = message->reader(text->text, text->bytes, 0, &number);
    *integer = number.integer;
    if (property != NULL) property->integer = number.integer, property->read_integer = (int8_t)read;
    return read;
}

static inline int hs_sql_as_double(const hs_sql_message *message, const hs_sql_value *text, double *value) {
    hs_sql_property *property = text->property;
    if (property != NULL && property->read_double != HS_SQL_UNREAD) {
        *value = property->number;
        return property->read_double;
    }
    hs_sql_number number = {0};
    double plain = 0;
    int read = text->escaped ? HS_SQL_NO_NUMBER : hs_sql_read_double(text->text, text->bytes, &plain);
    number.number = plain;
    if (read == HS_SQL_ODD) read = message->reader(text->text, text->bytes, 1, &number);
    *value = number.number;
    if (property != NULL) property->number = number.number, property->read_double = (int8_t)read;
    return read;
}

/* `text` as a number of the kind that `number` is; 0 if it is none. */
static inline int hs_sql_like(const hs_sql_message *message, const hs_sql_value *number, hs_sql_value *text) {
    int64_t integer;
    double value;
    if (number->kind == HS_SQL_DOUBLE) {
        if (hs_sql_as_double(message, text, &value) != HS_SQL_NUMBER) return 0;
        text->number.number = value;
    } else {
        if (hs_sql_as_integer(message, text, &integer) != HS_SQL_NUMBER) return 0;
        if (number->kind == HS_SQL_INT && (integer > INT32_MAX || integer < INT32_MIN)) return 0;
        text->number.integer = integer;
    }
    text->kind = number->kind;
    return 1;
}

/* -- two values --------------------------------------------------------------------------------------------- */

/* 0 if these two, neither of them unknown or a truth value, have no order. */
static inline int hs_sql_order(
    const hs_sql_message *message, hs_sql_value left, hs_sql_value right, int *order
) {
    double first, last;
    if (left.kind == HS_SQL_TEXT && right.kind == HS_SQL_TEXT) {
        if (hs_sql_as_double(message, &left, &first) != HS_SQL_NUMBER) return 0;
        if (hs_sql_as_double(message, &right, &last) != HS_SQL_NUMBER) return 0;
        *order = hs_sql_order_doubles(first, last);
        return 1;
    }
    if (left.kind == HS_SQL_TEXT && !hs_sql_like(message, &right, &left)) return 0;
    if (right.kind == HS_SQL_TEXT && !hs_sql_like(message, &left, &right)) return 0;
    if (left.kind != HS_SQL_DOUBLE && right.kind != HS_SQL_DOUBLE) {
        *order = hs_sql_order_integers(left.number.integer, right.number.integer);
        return 1;
    }
    first = left.kind == HS_SQL_DOUBLE ? left.number.number : (double)left.number.integer;
    last = right.kind == HS_SQL_DOUBLE ? right.number.number : (double)right.number.integer;
    *order = hs_sql_order_doubles(first, last);
    return 1;
}

/* Whether a text literal is these bytes; in it two quotes are one. */
static inline int hs_sql_is_text(const uint8_t *text, size_t n, int escaped, const uint8_t *p, size_t bytes) {
    if (!escaped) return n == bytes && !memcmp(text, p, n);
    size_t at = 0;
    for (size_t i = 0; i < n; i++, at++) {
        if (at == bytes || text[i] != p[at]) return 0;
        if (text[i] == '\'') i++;
    }
    return at == bytes;
}

static inline int hs_sql_same_text(const hs_sql_value *left, const hs_sql_value *right) {
    if (!left->escaped) return hs_sql_is_text(right->text, right->bytes, right->escaped, left->text, left->bytes);
    if (!right->escaped) return hs_sql_is_text(left->text, left->bytes, left->escaped, right->text, right->bytes);
    return left->bytes == right->bytes && !memcmp(left->text, right->text, left->bytes);
}

static inline uint8_t hs_sql_truth(int yes) { return yes ? HS_SQL_TRUE : HS_SQL_FALSE; }

static inline int hs_sql_is_truth(uint8_t kind) { return kind == HS_SQL_TRUE || kind == HS_SQL_FALSE; }

static inline uint8_t hs_sql_equals(
    const hs_sql_message *message, const hs_sql_value *left, const hs_sql_value *right
) {
    int order;
    if (left->kind == HS_SQL_NONE) return right->kind == HS_SQL_NONE ? HS_SQL_TRUE : HS_SQL_NONE;
    if (right->kind == HS_SQL_NONE) return HS_SQL_FALSE;
    if (hs_sql_is_truth(left->kind)) {
        if (right->kind == HS_SQL_TEXT) return HS_SQL_FAULT;
        return hs_sql_truth(left->kind == right->kind);
    }
    if (hs_sql_is_truth(right->kind)) {
        static const uint8_t TRUTH[] = "true";
        if (left->kind != HS_SQL_TEXT) return HS_SQL_FALSE;
        int is_true = left->bytes == 4;
        for (int i = 0; is_true && i < 4; i++) is_true = (left->text[i] | 0x20) == TRUTH[i];
        return hs_sql_truth(is_true == (right->kind == HS_SQL_TRUE));
    }
    if (left->kind == HS_SQL_TEXT && right->kind == HS_SQL_TEXT) return hs_sql_truth(hs_sql_same_text(left, right));
    if (!hs_sql_order(message, *left, *right, &order)) return HS_SQL_FAULT;
    return hs_sql_truth(order == 0);
}

/* A comparison's result; the kind HS_SQL_NONE or HS_SQL_FAULT of a side has been looked at. */
static inline uint8_t hs_sql_compares(
    const hs_sql_message *message, int sign, const hs_sql_value *left, const hs_sql_value *right
) {
    int order;
    if (!hs_sql_order(message, *left, *right, &order)) return HS_SQL_FAULT;
    switch (sign) {
    case HS_SQL_T_ABOVE: return hs_sql_truth(order > 0);
    case HS_SQL_T_ABOVE_OR_EQUAL: return hs_sql_truth(order >= 0);
    case HS_SQL_T_BELOW: return hs_sql_truth(order < 0);
    default: return hs_sql_truth(order <= 0);
    }
}

/* -- programs ----------------------------------------------------------------------------------------------- */

typedef struct {
    const hs_sql_node *nodes;
    const uint8_t *text;
    const hs_sql_message *message;
} hs_sql_run;

static hs_sql_value hs_sql_evaluate(const hs_sql_run *run, uint32_t number);

static inline hs_sql_value hs_sql_of(uint8_t kind) {
    hs_sql_value value;
    memset(&value, 0, sizeof value);
    value.kind = kind;
    return value;
}

static inline uint8_t hs_sql_compared(const hs_sql_run *run, int sign, uint32_t left, uint32_t right) {
    const hs_sql_value first = hs_sql_evaluate(run, left);
    if (first.kind == HS_SQL_NONE || first.kind == HS_SQL_FAULT) return first.kind;
    const hs_sql_value second = hs_sql_evaluate(run, right);
    if (second.kind == HS_SQL_NONE || second.kind == HS_SQL_FAULT) return second.kind;
    return hs_sql_compares(run->message, sign, &first, &second);
}

/* One more part of a chain: whether `decides` (TRUE of OR, FALSE of AND) ends it. */
static inline int hs_sql_joins(uint8_t decides, uint8_t part, uint8_t *outcome) {
    if (part == HS_SQL_FAULT || part == decides) {
        *outcome = part;
        return 1;
    }
    if (part == HS_SQL_NONE) *outcome = HS_SQL_NONE;
    return 0;
}

static inline uint8_t hs_sql_range_of(const hs_sql_run *run, const hs_sql_node *node) {
    const int outside = node->op == HS_SQL_OUTSIDE;
    const uint8_t decides = outside ? HS_SQL_TRUE : HS_SQL_FALSE;
    uint8_t outcome = outside ? HS_SQL_FALSE : HS_SQL_TRUE;
    const uint8_t low =
        hs_sql_compared(run, outside ? HS_SQL_T_BELOW : HS_SQL_T_ABOVE_OR_EQUAL, node->a, node->b);
    if (hs_sql_joins(decides, low, &outcome)) return outcome;
    hs_sql_joins(
        decides, hs_sql_compared(run, outside ? HS_SQL_T_ABOVE : HS_SQL_T_BELOW_OR_EQUAL, node->a, node->c), &outcome
    );
    return outcome;
}

static inline uint8_t hs_sql_chain_of(const hs_sql_run *run, const hs_sql_node *node) {
    const uint8_t decides = node->op == HS_SQL_ANY ? HS_SQL_TRUE : HS_SQL_FALSE;
    uint8_t outcome = node->op == HS_SQL_ANY ? HS_SQL_FALSE : HS_SQL_TRUE;
    uint32_t next = node->a;
    do {
        const hs_sql_node *part = &run->nodes[next];
        if (hs_sql_joins(decides, hs_sql_evaluate(run, part->a).kind, &outcome)) break;
        next = part->b;
    } while (next);
    return outcome;
}

static inline uint8_t hs_sql_in(const hs_sql_run *run, const hs_sql_node *node) {
    const hs_sql_value value = hs_sql_evaluate(run, node->a);
    if (value.kind == HS_SQL_NONE) return HS_SQL_NONE;
    int found = 0;
    for (uint32_t i = 0; i < node->c && !found; i++) {
        const hs_sql_node *one = &run->nodes[node->b + i];
        found = hs_sql_is_text(run->text + one->a, one->b, one->escaped, value.text, value.bytes);
    }
    return hs_sql_truth(found == (node->op == HS_SQL_IN));
}

static inline hs_sql_value hs_sql_leaf(const hs_sql_run *run, const hs_sql_node *node) {
    hs_sql_value value = hs_sql_of(node->kind);
    if (node->op == HS_SQL_PROPERTY) {
        const uint32_t slot = *hs_sql_slot(run->message, run->text + node->a, node->b, node->c);
        if (slot == 0) return value; /* its kind is HS_SQL_NONE */
        value.property = &run->message->properties[slot - 1];
        value.kind = HS_SQL_TEXT;
        value.text = value.property->value, value.bytes = value.property->value_bytes;
    } else if (node->kind == HS_SQL_TEXT) {
        value.text = run->text + node->a, value.bytes = node->b, value.escaped = node->escaped;
    } else {
        value.number = node->number;
    }
    return value;
}

static inline hs_sql_value hs_sql_minus(hs_sql_value value) {
    if (value.kind == HS_SQL_FAULT) return value;
    if (value.kind < HS_SQL_INT) return hs_sql_of(HS_SQL_NONE);
    if (value.kind == HS_SQL_DOUBLE) value.number.number = -value.number.number;
    else value.number.integer = -value.number.integer;
    return value;
}

static hs_sql_value hs_sql_evaluate(const hs_sql_run *run, uint32_t number) {
    const hs_sql_node *node = &run->nodes[number];
    hs_sql_value left, right;
    switch (node->op) {
    case HS_SQL_CONSTANT:
    case HS_SQL_PROPERTY: return hs_sql_leaf(run, node);
    case HS_SQL_ANY:
    case HS_SQL_ALL: return hs_sql_of(hs_sql_chain_of(run, node));
    case HS_SQL_COMPARE: return hs_sql_of(hs_sql_compared(run, node->kind, node->a, node->b));
    case HS_SQL_BETWEEN:
    case HS_SQL_OUTSIDE: return hs_sql_of(hs_sql_range_of(run, node));
    case HS_SQL_IN:
    case HS_SQL_NOT_IN: return hs_sql_of(hs_sql_in(run, node));
    default: break;
    }
    left = hs_sql_evaluate(run, node->a);
    if (left.kind == HS_SQL_FAULT) return left;
    switch (node->op) {
    case HS_SQL_NOT: return left.kind == HS_SQL_NONE ? left : hs_sql_of(hs_sql_truth(left.kind == HS_SQL_FALSE));
    case HS_SQL_IS_NULL: return hs_sql_of(hs_sql_truth(left.kind == HS_SQL_NONE));
    case HS_SQL_IS_TRUTH: return left.kind == HS_SQL_NONE ? left : hs_sql_of(hs_sql_truth(left.kind == HS_SQL_TRUE));
    case HS_SQL_MINUS: return hs_sql_minus(left);
    default: break; /* HS_SQL_EQUAL */
    }
    right = hs_sql_evaluate(run, node->b);
    if (right.kind == HS_SQL_FAULT) return right;
    return hs_sql_of(hs_sql_equals(run->message, &left, &right));
}

/* HS_SQL_NONE, HS_SQL_FALSE, HS_SQL_TRUE or HS_SQL_FAULT. */
static inline uint8_t hs_sql_outcome(
    const hs_sql_program *program, const uint8_t *text, const hs_sql_message *message
) {
    const hs_sql_run run = {program->nodes, text, message};
    return hs_sql_evaluate(&run, program->root).kind;
}
