/* Plain sends: from the bytes of a frame to a record, and from there to the answer.  No Python in here, no state.

   A plain send is a request SEND_MESSAGE_V2 (310) for one message that its broker stores as it came: no batch, no
   delay, no transaction.  What is not plain, or not written as clients write it, is not judged: these functions
   return 0, and the reference (remoting/frame.py, remoting/command.py, broker/send/admission.py) says what it is.

   | length 4 | serialize type 1, header length 3 | header h | body |

   No length that is read is believed before it is held against what is there. */
#pragma once
#include "commitlog/kernel/core/records.h"

#define HS_SEND_CODE 310
#define HS_SEND_PREFIX_BYTES 8
#define HS_SEND_HEADER_BYTES_MAX (256 << 10)
#define HS_SEND_JSON 0
#define HS_SEND_BINARY 1
/* What a buffer for properties has: the longest there may be, and a separator. */
#define HS_SEND_PROPERTIES_ROOM (HS_PROPERTIES_BYTES_MAX + 1)

typedef struct {
    const uint8_t *topic, *body;
    uint32_t topic_bytes, body_bytes, properties_bytes;
    int32_t opaque, queue_id, sys_flag, flag, reconsume_times;
    int64_t born_timestamp;
    uint8_t binary, oneway, wait;
} hs_send;

/* What may still be read of a header. */
typedef struct {
    const uint8_t *p, *end;
} hs_rest;

/* -- values ------------------------------------------------------------------------------------------------- */

/* 1 if these bytes are a whole decimal number as everybody writes it, up to 64 bits. */
static inline int hs_is_number(const uint8_t *p, size_t n, int64_t *value) {
    const int negative = n > 0 && *p == '-';
    uint64_t sum = 0;
    if (negative) p++, n--;
    if (n == 0 || n > 19 || (*p == '0' && (n > 1 || negative))) return 0;
    for (size_t i = 0; i < n; i++) {
        if (p[i] < '0' || p[i] > '9') return 0;
        sum = sum * 10 + (uint64_t)(p[i] - '0');
    }
    if (sum > INT64_MAX) return 0;
    *value = negative ? -(int64_t)sum : (int64_t)sum;
    return 1;
}

static inline int hs_is_int(const uint8_t *p, size_t n, int32_t *value) {
    int64_t wide;
    if (!hs_is_number(p, n, &wide) || wide < INT32_MIN || wide > INT32_MAX) return 0;
    *value = (int32_t)wide;
    return 1;
}

static inline int hs_is_ascii(const uint8_t *p, size_t n) {
    uint8_t all = 0;
    for (size_t i = 0; i < n; i++) all |= p[i];
    return all < 0x80;
}

static inline int hs_is(const uint8_t *p, size_t n, const char *word) {
    return strlen(word) == n && !memcmp(p, word, n);
}

/* Bytes of the UTF-8 character that begins here, 0 if none does: no surrogates, none in more bytes than it needs. */
static inline size_t hs_utf8(const uint8_t *p, size_t n) {
    if (n == 0) return 0;
    if (*p < 0x80) return 1;
    if (n < 2 || *p < 0xC2 || (p[1] & 0xC0) != 0x80) return 0;
    if (*p < 0xE0) return 2;
    if (n < 3 || (p[2] & 0xC0) != 0x80) return 0;
    if (*p < 0xF0) return (*p == 0xE0 && p[1] < 0xA0) || (*p == 0xED && p[1] >= 0xA0) ? 0 : 3;
    if (n < 4 || *p > 0xF4 || (p[3] & 0xC0) != 0x80) return 0;
    return (*p == 0xF0 && p[1] < 0x90) || (*p == 0xF4 && p[1] >= 0x90) ? 0 : 4;
}

/* -- a header as JSON --------------------------------------------------------------------------------------- */

static inline int hs_take(hs_rest *rest, char mark) {
    if (rest->p == rest->end || *rest->p != (uint8_t)mark) return 0;
    rest->p++;
    return 1;
}

/* A text of ASCII without escapes, which is what all but properties are. */
static inline int hs_json_text(hs_rest *rest, const uint8_t **text, size_t *n) {
    if (!hs_take(rest, '"')) return 0;
    const uint8_t *p = *text = rest->p;
    while (p < rest->end && *p >= 0x20 && *p < 0x80 && *p != '"' && *p != '\\') p++;
    *n = (size_t)(p - *text);
    rest->p = p;
    return hs_take(rest, '"');
}

static inline int hs_json_int(hs_rest *rest, int32_t *value) {
    const uint8_t *start = rest->p;
    while (rest->p < rest->end && (*rest->p == '-' || (*rest->p >= '0' && *rest->p <= '9'))) rest->p++;
    return hs_is_int(start, (size_t)(rest->p - start), value);
}

static inline int hs_hex(uint8_t c) {
    return c >= '0' && c <= '9' ? c - '0' : (c | 32) >= 'a' && (c | 32) <= 'f' ? (c | 32) - 'a' + 10 : -1;
}

static inline int hs_json_hex4(const uint8_t *p, size_t n, uint32_t *unit) {
    *unit = 0;
    for (int i = 0; i < 4; i++) {
        const int digit = n < 4 ? -1 : hs_hex(p[i]);
        if (digit < 0) return 0;
        *unit = *unit << 4 | (uint32_t)digit;
    }
    return 1;
}

/* The character of an escape; `p` is behind its backslash.  Bytes read, or 0 for NUL, half a pair and what is none. */
static inline size_t hs_json_escape(const uint8_t *p, size_t n, uint32_t *character) {
    static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
    uint32_t low;
    if (n == 0 || *p == 0) return 0;
    if (*p != 'u') {
        const char *found = strchr(from, *p);
        return found ? (*character = (uint8_t)to[found - from], 1) : 0;
    }
    if (!hs_json_hex4(p + 1, n - 1, character) || *character == 0) return 0;
    if (*character < 0xD800 || *character >= 0xE000) return 5;
    if (*character >= 0xDC00 || n < 11 || p[5] != '\\' || p[6] != 'u' || !hs_json_hex4(p + 7, n - 7, &low)) return 0;
    if (low < 0xDC00 || low >= 0xE000) return 0;
    *character = 0x10000 + ((*character - 0xD800) << 10 | (low - 0xDC00));
    return 11;
}

static inline size_t hs_put_utf8(uint8_t *out, uint32_t c) { /* up to 4 bytes */
    if (c < 0x80) return out[0] = (uint8_t)c, 1;
    if (c < 0x800) return out[0] = (uint8_t)(0xC0 | c >> 6), out[1] = (uint8_t)(0x80 | (c & 63)), 2;
    const size_t more = c < 0x10000 ? 0 : 1;
    if (more) out[0] = (uint8_t)(0xF0 | c >> 18);
    out[more] = (uint8_t)(more ? 0x80 | (c >> 12 & 63) : 0xE0 | c >> 12);
    out[more + 1] = (uint8_t)(0x80 | (c >> 6 & 63)), out[more + 2] = (uint8_t)(0x80 | (c & 63));
    return 3 + more;
}

/* A text with escapes and UTF-8, written to `out`, which has HS_PROPERTIES_BYTES_MAX and some. */
static inline int hs_json_properties(hs_rest *rest, uint8_t *out, size_t *n) {
    if (!hs_take(rest, '"')) return 0;
    size_t size = 0;
    const uint8_t *p = rest->p, *end = rest->end;
    while (p < end && *p != '"') {
        if (size + 4 > HS_PROPERTIES_BYTES_MAX) return 0;
        if (*p >= 0x20 && *p < 0x80 && *p != '\\') {
            out[size++] = *p++;
        } else if (*p == '\\') {
            uint32_t character;
            const size_t read = hs_json_escape(p + 1, (size_t)(end - p) - 1, &character);
            if (!read) return 0;
            size += hs_put_utf8(out + size, character);
            p += 1 + read;
        } else {
            const size_t bytes = *p < 0x20 ? 0 : hs_utf8(p, (size_t)(end - p));
            if (!bytes) return 0;
            memcpy(out + size, p, bytes);
            size += bytes, p += bytes;
        }
    }
    *n = size;
    rest->p = p;
    return hs_take(rest, '"');
}

/* -- the fields of a send ------------------------------------------------------------------------------------ */

/* One of a to n but i, whose value is ASCII.  Which ones came is noted in `seen`; none may come twice. */
static inline int hs_send_field(hs_send *send, uint32_t *seen, uint8_t name, const uint8_t *p, size_t n) {
    int32_t number;
    if (name < 'a' || name > 'n' || *seen & 1u << (name - 'a')) return 0;
    *seen |= 1u << (name - 'a');
    switch (name) {
        case 'b': return send->topic = p, send->topic_bytes = (uint32_t)n, n > 0 && n <= HS_TOPIC_BYTES_MAX;
        case 'd': return hs_is_int(p, n, &number);
        case 'e': return hs_is_int(p, n, &send->queue_id) && send->queue_id >= 0;
        case 'f': return hs_is_int(p, n, &send->sys_flag) && !(send->sys_flag & HS_SYS_TRANSACTION_MASK);
        case 'g': return hs_is_number(p, n, &send->born_timestamp);
        case 'h': return hs_is_int(p, n, &send->flag);
        case 'j': return hs_is_int(p, n, &send->reconsume_times);
        case 'l': return hs_is_int(p, n, &number);
        case 'm': return !hs_is(p, n, "true") && !hs_is(p, n, "True") && !hs_is(p, n, "TRUE");
        default: return name != 'i'; /* producer group, default topic, unit mode, broker name: nothing to keep */
    }
}

/* a to h have to be there */
static inline int hs_send_is_complete(uint32_t seen) { return (seen & 0xFF) == 0xFF; }

static inline int hs_json_fields(hs_rest *rest, hs_send *send, uint8_t *properties, size_t *properties_bytes) {
    uint32_t seen = 0;
    const uint8_t *name, *value;
    size_t n;
    if (!hs_take(rest, '{')) return 0;
    do {
        if (!hs_json_text(rest, &name, &n) || n != 1 || !hs_take(rest, ':')) return 0;
        if (*name == 'i') {
            if (seen & 1u << 8 || !hs_json_properties(rest, properties, properties_bytes)) return 0;
            seen |= 1u << 8;
        } else if (!hs_json_text(rest, &value, &n) || !hs_send_field(send, &seen, *name, value, n)) {
            return 0;
        }
    } while (hs_take(rest, ','));
    return hs_take(rest, '}') && hs_send_is_complete(seen);
}

/* {"code":310,"extFields":{…},"flag":0,"language":"JAVA","opaque":7,…} in any order, nothing unknown, no blanks. */
static inline int hs_json_header(hs_rest rest, hs_send *send, uint8_t *properties, size_t *properties_bytes) {
    enum { CODE = 1, FIELDS = 2, FLAG = 4, LANGUAGE = 8, OPAQUE = 16, REMARK = 32, SERIALIZE = 64, VERSION = 128 };
    unsigned seen = 0;
    const uint8_t *key, *text;
    size_t n, text_bytes;
    int32_t number;
    if (!hs_take(&rest, '{')) return 0;
    do {
        unsigned which;
        int good;
        if (!hs_json_text(&rest, &key, &n) || !hs_take(&rest, ':')) return 0;
        if (hs_is(key, n, "code")) {
            which = CODE, good = hs_json_int(&rest, &number) && number == HS_SEND_CODE;
        } else if (hs_is(key, n, "extFields")) {
            which = FIELDS, good = hs_json_fields(&rest, send, properties, properties_bytes);
        } else if (hs_is(key, n, "flag")) { /* a request; bit 1 says one-way */
            which = FLAG, good = hs_json_int(&rest, &number) && !(number & ~2);
            send->oneway = good && number != 0;
        } else if (hs_is(key, n, "language")) {
            which = LANGUAGE, good = hs_json_text(&rest, &text, &text_bytes);
        } else if (hs_is(key, n, "opaque")) {
            which = OPAQUE, good = hs_json_int(&rest, &send->opaque);
        } else if (hs_is(key, n, "remark")) {
            which = REMARK, good = hs_json_text(&rest, &text, &text_bytes);
        } else if (hs_is(key, n, "serializeTypeCurrentRPC")) {
            which = SERIALIZE, good = hs_json_text(&rest, &text, &text_bytes);
        } else if (hs_is(key, n, "version")) {
            which = VERSION, good = hs_json_int(&rest, &number);
        } else {
            return 0;
        }
        if (!good || seen & which) return 0;
        seen |= which;
    } while (hs_take(&rest, ','));
    return hs_take(&rest, '}') && rest.p == rest.end && (seen & (CODE | FIELDS)) == (CODE | FIELDS);
}

/* | code 2 | language 1 | version 2 | opaque 4 | flag 4 | remark length 4, none | ext length 4, ext |
   ext: | key length 2, key | value length 4, value | … */
static inline int hs_binary_header(hs_rest rest, hs_send *send, uint8_t *properties, size_t *properties_bytes) {
    const uint8_t *p = rest.p;
    uint32_t seen = 0;
    if (rest.end - p < 21 || hs_get16(p) != HS_SEND_CODE) return 0;
    const uint32_t flag = hs_get32(p + 9);
    send->opaque = (int32_t)hs_get32(p + 5);
    send->oneway = flag != 0;
    if (flag & ~2u || hs_get32(p + 13) != 0 || hs_get32(p + 17) != (size_t)(rest.end - p) - 21) return 0;
    for (p += 21; p < rest.end;) {
        if (rest.end - p < 7 || hs_get16(p) != 1) return 0;
        const uint8_t name = p[2];
        const size_t n = hs_get32(p + 3);
        p += 7;
        if (n > (size_t)(rest.end - p)) return 0;
        if (name == 'i') {
            if (seen & 1u << 8 || n > HS_PROPERTIES_BYTES_MAX || memchr(p, 0, n)) return 0;
            seen |= 1u << 8;
            for (size_t at = 0, bytes; at < n; at += bytes)
                if (!(bytes = hs_utf8(p + at, n - at))) return 0;
            memcpy(properties, p, n);
            *properties_bytes = n;
        } else if (!hs_is_ascii(p, n) || !hs_send_field(send, &seen, name, p, n)) {
            return 0;
        }
        p += n;
    }
    return hs_send_is_complete(seen);
}

/* -- properties ---------------------------------------------------------------------------------------------- */

static inline int hs_follows(const uint8_t *p, size_t at, const char *name, size_t n) {
    return at >= n && !memcmp(p + at - n, name, n);
}

/* Admission._properties: WAIT is taken out and heeded, a separator and CLUSTER are added.  0 where DELAY, TRAN_MSG or
   CLUSTER want a closer look, or where it would be too long.  `p` has HS_SEND_PROPERTIES_ROOM. */
static inline int hs_settle_properties(uint8_t *p, size_t n, const uint8_t *cluster, size_t cluster_bytes,
                                       size_t *settled, uint8_t *wait) {
    size_t wait_at = SIZE_MAX; /* of the first one, wherever it stands */
    *wait = 1;
    for (size_t at = 0; at < n; at++) {
        if (p[at] != 1) continue;
        if (hs_follows(p, at, "DELAY", 5) || hs_follows(p, at, "CLUSTER", 7)) return 0;
        if (hs_follows(p, at, "TRAN_MSG", 8)) return 0;
        if (wait_at == SIZE_MAX && hs_follows(p, at, "WAIT", 4)) wait_at = at - 4;
    }
    if (wait_at != SIZE_MAX && (wait_at == 0 || p[wait_at - 1] == 2)) {
        const uint8_t *value = p + wait_at + 5, *end = memchr(value, 2, n - wait_at - 5);
        const size_t value_bytes = end ? (size_t)(end - value) : n - wait_at - 5;
        if (value_bytes == 5) {
            int same = 1;
            for (int i = 0; i < 5; i++) same &= (value[i] | 32) == (uint8_t)"false"[i];
            *wait = !same;
        }
        if (end) {
            const size_t behind = (size_t)(end - p) + 1;
            memmove(p + wait_at, p + behind, n - behind);
            n -= behind - wait_at;
        } else {
            n = wait_at ? wait_at - 1 : 0;
        }
    }
    if (n && p[n - 1] != 2) p[n++] = 2;
    if (n + cluster_bytes > HS_PROPERTIES_BYTES_MAX) return 0;
    memcpy(p + n, cluster, cluster_bytes);
    *settled = n + cluster_bytes;
    return 1;
}

/* -- frames and records --------------------------------------------------------------------------------------- */

/* Size of the plain send that begins at `p`, if all of it is there; else 0.  `properties` gets those that are stored,
   and has HS_SEND_PROPERTIES_ROOM. */
static inline size_t hs_read_send(const uint8_t *p, size_t n, const uint8_t *cluster, size_t cluster_bytes,
                                  hs_send *send, uint8_t *properties) {
    if (n < HS_SEND_PREFIX_BYTES) return 0;
    const uint32_t length = hs_get32(p), mark = hs_get32(p + 4), header_bytes = mark & 0xFFFFFF;
    if (length < 4 || length > n - 4 || header_bytes > length - 4 || header_bytes > HS_SEND_HEADER_BYTES_MAX) return 0;
    const hs_rest header = {p + HS_SEND_PREFIX_BYTES, p + HS_SEND_PREFIX_BYTES + header_bytes};
    size_t properties_bytes = 0;
    memset(send, 0, sizeof *send);
    send->binary = mark >> 24 == HS_SEND_BINARY;
    send->body = header.end;
    send->body_bytes = length - 4 - header_bytes;
    if (send->binary ? !hs_binary_header(header, send, properties, &properties_bytes)
                     : mark >> 24 != HS_SEND_JSON || !hs_json_header(header, send, properties, &properties_bytes))
        return 0;
    if (!hs_settle_properties(properties, properties_bytes, cluster, cluster_bytes, &properties_bytes, &send->wait))
        return 0;
    send->properties_bytes = (uint32_t)properties_bytes;
    return (size_t)length + 4;
}

static inline uint64_t hs_record_bytes(const hs_send *send, size_t born_bytes, size_t store_bytes) {
    return HS_RECORD_BYTES_MIN - 16 + born_bytes + store_bytes + (uint64_t)send->body_bytes + send->topic_bytes +
           send->properties_bytes;
}

/* The record but for both offsets, the time, and the body with its CRC: hs_record_bytes() of it.  Hosts are of 8 or 20
   bytes.  Returns where the body goes. */
static inline uint8_t *hs_write_record(uint8_t *out, const hs_send *send, const uint8_t *properties,
                                       const uint8_t *born, size_t born_bytes, const uint8_t *store,
                                       size_t store_bytes) {
    const uint32_t born_v6 = born_bytes > 8 ? HS_V6_BYTES : 0, both = born_v6 + (store_bytes > 8 ? HS_V6_BYTES : 0);
    const uint32_t kind = (born_bytes > 8 ? HS_SYS_BORN_HOST_V6 : 0) | (store_bytes > 8 ? HS_SYS_STORE_HOST_V6 : 0);
    const uint32_t hosts = HS_SYS_BORN_HOST_V6 | HS_SYS_STORE_HOST_V6;
    hs_put32(out, (uint32_t)hs_record_bytes(send, born_bytes, store_bytes));
    hs_put32(out + HS_AT_MAGIC, HS_MAGIC);
    hs_put32(out + HS_AT_QUEUE_ID, (uint32_t)send->queue_id);
    hs_put32(out + HS_AT_FLAG, (uint32_t)send->flag);
    hs_put32(out + HS_AT_SYS_FLAG, ((uint32_t)send->sys_flag & ~hosts) | kind);
    hs_put64(out + HS_AT_BORN_TIMESTAMP, (uint64_t)send->born_timestamp);
    memcpy(out + HS_AT_BORN_HOST, born, born_bytes);
    memcpy(out + HS_AT_STORE_HOST + born_v6, store, store_bytes);
    hs_put32(out + HS_AT_RECONSUME_TIMES + both, (uint32_t)send->reconsume_times);
    hs_put64(out + HS_AT_PREPARED_OFFSET + both, 0);
    hs_put32(out + HS_AT_BODY_SIZE + both, send->body_bytes);
    uint8_t *p = out + HS_AT_BODY + both + send->body_bytes;
    *p++ = (uint8_t)send->topic_bytes;
    memcpy(p, send->topic, send->topic_bytes);
    p += send->topic_bytes;
    hs_put16(p, (uint16_t)send->properties_bytes);
    memcpy(p + 2, properties, send->properties_bytes);
    return out + HS_AT_BODY + both;
}

static inline void hs_write_body(uint8_t *record, uint8_t *body_at, const hs_send *send) {
    memcpy(body_at, send->body, send->body_bytes);
    hs_put32(record + HS_AT_BODY_CRC, hs_crc32(0, body_at, send->body_bytes) & HS_CRC_MASK);
}

/* What only the append knows. */
static inline void hs_stamp(uint8_t *record, int64_t queue_offset, int64_t physical_offset, int64_t store_timestamp) {
    const uint32_t born_v6 = hs_get32(record + HS_AT_SYS_FLAG) & HS_SYS_BORN_HOST_V6 ? HS_V6_BYTES : 0;
    hs_put64(record + HS_AT_QUEUE_OFFSET, (uint64_t)queue_offset);
    hs_put64(record + HS_AT_PHYSICAL_OFFSET, (uint64_t)physical_offset);
    hs_put64(record + HS_AT_STORE_TIMESTAMP + born_v6, (uint64_t)store_timestamp);
}

/* -- answers --------------------------------------------------------------------------------------------------- */

/* The constant pieces of an answer, between which its numbers stand:
   JSON     0 code 1 id 2 queue 3 queue offset 4 opaque 5
   binary   0 code 1 opaque 2 ext length 3 id 4 | queue 5 | queue offset      | a length of 4 bytes */
typedef struct {
    const uint8_t *p;
    size_t n;
} hs_answer_piece;
#define HS_PIECES 6
/* No number is longer; an answer has five of them, and its prefix. */
#define HS_NUMBER_BYTES_MAX 20
#define HS_ANSWER_NUMBERS_BYTES_MAX (HS_SEND_PREFIX_BYTES + 5 * HS_NUMBER_BYTES_MAX)

static inline uint8_t *hs_put_answer_piece(uint8_t *out, hs_answer_piece piece) {
    return memcpy(out, piece.p, piece.n), out + piece.n;
}

static inline uint8_t *hs_put_number(uint8_t *out, int64_t value) {
    uint8_t digits[HS_NUMBER_BYTES_MAX];
    int n = 0;
    uint64_t left = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    if (value < 0) *out++ = '-';
    do digits[n++] = (uint8_t)('0' + left % 10), left /= 10;
    while (left);
    while (n) *out++ = digits[--n];
    return out;
}

/* As hs_put_number, with its length of 4 bytes before it. */
static inline uint8_t *hs_put_number_text(uint8_t *out, int64_t value) {
    uint8_t *end = hs_put_number(out + 4, value);
    hs_put32(out, (uint32_t)(end - out - 4));
    return end;
}

static inline uint8_t *hs_put_hex(uint8_t *out, uint64_t value) { /* 16 digits */
    for (int shift = 60; shift >= 0; shift -= 4) *out++ = (uint8_t)"0123456789ABCDEF"[value >> shift & 15];
    return out;
}

typedef struct {
    int64_t physical_offset, queue_offset;
    int32_t opaque, queue_id;
    uint8_t binary, oneway, wait;
} hs_stored;

/* The answer's frame; returns its end.  `out` has room for all pieces and HS_ANSWER_NUMBERS_BYTES_MAX. */
static inline uint8_t *hs_put_answer(uint8_t *out, const hs_stored *stored, int code, const hs_answer_piece *piece) {
    uint8_t *p = hs_put_answer_piece(out + HS_SEND_PREFIX_BYTES, piece[0]);
    if (stored->binary) {
        hs_put16(p, (uint16_t)code);
        p = hs_put_answer_piece(p + 2, piece[1]);
        hs_put32(p, (uint32_t)stored->opaque);
        p = hs_put_answer_piece(p + 4, piece[2]);
        uint8_t *ext = p;
        p = hs_put_hex(hs_put_answer_piece(p + 4, piece[3]), (uint64_t)stored->physical_offset);
        p = hs_put_number_text(hs_put_answer_piece(p, piece[4]), stored->queue_id);
        p = hs_put_number_text(hs_put_answer_piece(p, piece[5]), stored->queue_offset);
        hs_put32(ext, (uint32_t)(p - ext - 4));
    } else {
        p = hs_put_answer_piece(hs_put_number(p, code), piece[1]);
        p = hs_put_answer_piece(hs_put_hex(p, (uint64_t)stored->physical_offset), piece[2]);
        p = hs_put_answer_piece(hs_put_number(p, stored->queue_id), piece[3]);
        p = hs_put_answer_piece(hs_put_number(p, stored->queue_offset), piece[4]);
        p = hs_put_answer_piece(hs_put_number(p, stored->opaque), piece[5]);
    }
    hs_put32(out, (uint32_t)(p - out - 4));
    hs_put32(out + 4, (uint32_t)stored->binary << 24 | (uint32_t)(p - out - 8));
    return p;
}
