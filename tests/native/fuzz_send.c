/* Plain sends under ASan and UBSan: frames that clients write, changed at random, in buffers that are not one byte
   larger than they say.

   fuzz_send CASES SEED      prints how many were taken; CHECK and the sanitizers end it */
#include <stdio.h>
#include <stdlib.h>
#include "haservice/broker/send/native/core/send.h"

#define CHECK(what)                                                        \
    do                                                                     \
        if (!(what)) fprintf(stderr, "CHECK(%s) line %d\n", #what, __LINE__), exit(1); \
    while (0)

static uint64_t state;
static uint32_t below(uint32_t n) {
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return n ? (uint32_t)(state >> 32) % n : 0;
}

static uint8_t buffer[1 << 17];

static size_t json(void) {
    static const char *properties[] = {
        "", "UNIQ_KEY\\u00017F00\\u0002WAIT\\u0001true\\u0002", "WAIT\\u0001FALSE", "A\\u00011\\u0002WAIT\\u0001false",
        "K\\u0001\\ud83d\\ude00\\u20ac\\u00fc\xf0\x9f\x98\x80\xe2\x82\xac\xc3\xbc\\n\\\"\\\\",
        "DELAY\\u00012", "XCLUSTER\\u0001y"};
    static const char *orders[] = {
        "{\"code\":310,\"extFields\":{\"a\":\"g\",\"b\":\"T\",\"c\":\"TBW102\",\"d\":\"4\",\"e\":\"%u\",\"f\":\"0\","
        "\"g\":\"1700000000000\","
        "\"h\":\"0\",\"i\":\"%s\",\"j\":\"0\",\"k\":\"false\",\"m\":\"false\"},\"flag\":0,\"language\":\"JAVA\","
        "\"opaque\":7,"
        "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":409}",
        "{\"code\":310,\"language\":\"GO\",\"version\":317,\"opaque\":-7,\"flag\":2,\"remark\":\"\","
        "\"extFields\":{\"e\":\"%u\",\"i\":\"%s\","
        "\"n\":\"b\",\"a\":\"g\",\"b\":\"a-topic\",\"c\":\"T\",\"d\":\"4\",\"f\":\"1\",\"g\":\"-1\","
        "\"h\":\"-2147483648\",\"l\":\"16\"}}"};
    return (size_t)sprintf((char *)buffer + 8, orders[below(2)], below(5), properties[below(7)]);
}

static size_t entry(uint8_t *p, char name, const char *value) {
    const size_t n = strlen(value);
    hs_put16(p, 1), p[2] = (uint8_t)name, hs_put32(p + 3, (uint32_t)n);
    memcpy(p + 7, value, n);
    return n + 7;
}

static size_t binary(void) {
    static const char *values[] = {"g", "topic", "TBW102", "4", "3", "0", "1700000000000", "7",
                                   "A\1b\2WAIT\1false\2\xe2\x82\xac", "0", "false", "16", "false", "b"};
    uint8_t *p = buffer + 8, *ext = p + 21;
    memset(p, 0, 21);
    hs_put16(p, 310), hs_put32(p + 5, below(UINT32_MAX));
    for (int i = 0; i < 14; i++)
        if (i < 8 || below(4)) ext += entry(ext, (char)('a' + i), values[i]);
    hs_put32(p + 17, (uint32_t)(ext - p - 21));
    return (size_t)(ext - p);
}

/* A frame in `buffer`, its lengths true or not; its size. */
static size_t frame(void) {
    static const uint8_t marks[] = "\"\\{}:,0-9u\0\1\2\x7f\x80\xc3\xed\xf4\xff WDeTi";
    const int kind = below(3) == 0;
    size_t header = kind ? binary() : json(), body = below(3) ? below(300) : 0;
    const uint32_t changes = below(4);
    for (uint32_t i = 0; i < changes; i++) {
        uint8_t *at = buffer + 8 + below((uint32_t)header);
        const size_t rest = (size_t)(buffer + 8 + header - at);
        const size_t some = below(2) ? 1 : below((uint32_t)rest + 1);
        switch (below(5)) {
            case 0: *at = marks[below(sizeof marks - 1)]; break;
            case 1: *at ^= (uint8_t)(1u << below(8)); break;
            case 2: memmove(at, at + some, rest - some), header -= some; break;
            case 3: /* twice */
                if (header + some < 60000) memmove(at + some, at, rest), header += some;
                break;
            default: /* long */
                if (header < 1000 && below(50) == 0) {
                    const size_t n = 32700 + below(100);
                    memmove(at + n, at, rest), memset(at, below(2) ? 'x' : 1, n), header += n;
                }
        }
        if (header == 0) return 8;
    }
    for (size_t i = 0; i < body; i++) buffer[8 + header + i] = (uint8_t)below(256);
    hs_put32(buffer, (uint32_t)(4 + header + body));
    hs_put32(buffer + 4, (uint32_t)kind << 24 | (uint32_t)header);
    if (below(20) == 0) hs_put32(buffer + 4 * below(2), below(2) ? below(UINT32_MAX) : (uint32_t)(header + below(9)));
    return 8 + header + body - (below(20) ? 0 : below((uint32_t)(8 + header + body)));
}

static void answer(const hs_send *send) {
    static const uint8_t text[] = "pieces of an answer";
    hs_answer_piece piece[HS_PIECES];
    size_t room = HS_ANSWER_NUMBERS_BYTES_MAX;
    for (int i = 0; i < HS_PIECES; i++) piece[i] = (hs_answer_piece){text, below(sizeof text)}, room += piece[i].n;
    const hs_stored stored = {INT64_MIN + below(3), INT64_MIN, INT32_MIN, INT32_MIN, send->binary, 0, 0};
    uint8_t *out = malloc(room);
    CHECK(hs_put_answer(out, &stored, 65535, piece) <= out + room);
    CHECK(hs_get32(out) + 4 <= room);
    free(out);
}

static int play(const uint8_t *p, size_t n) {
    hs_send send;
    hs_record record;
    uint8_t *properties = malloc(HS_SEND_PROPERTIES_ROOM), hosts[40] = {10, 1, 2, 3};
    const size_t cluster = below(2) ? 9 : below(40000), born = below(2) ? 8 : 20, store = below(2) ? 8 : 20;
    uint8_t *name = malloc(cluster + 1);
    memset(name, 'c', cluster + 1);
    const size_t taken = hs_read_send(p, n, name, cluster, &send, properties);
    CHECK(taken <= n);
    if (taken) {
        CHECK(send.body + send.body_bytes == p + taken);
        CHECK(send.topic > p && send.topic + send.topic_bytes < send.body);
        CHECK(send.properties_bytes >= cluster && send.properties_bytes <= HS_PROPERTIES_BYTES_MAX);
        CHECK(!memchr(properties, 0, send.properties_bytes));
        CHECK(send.queue_id >= 0 && !(send.sys_flag & HS_SYS_TRANSACTION_MASK));
        const size_t size = (size_t)hs_record_bytes(&send, born, store);
        uint8_t *out = malloc(size);
        memset(out, 0xEE, size);
        hs_write_body(out, hs_write_record(out, &send, properties, hosts, born, hosts, store), &send);
        hs_stamp(out, 5, 6, 7);
        const int letters = hs_is_topic(send.topic, send.topic_bytes);
        CHECK(hs_parse(out, size, &record) == letters);
        if (letters) {
            CHECK(record.size == size && hs_body_is_sound(out, &record) && record.queue_offset == 5);
            CHECK(record.physical_offset == 6 && record.store_timestamp == 7 && record.queue_id == send.queue_id);
        }
        free(out);
        answer(&send);
    }
    free(name), free(properties);
    return taken > 0;
}

int main(int count, char **words) {
    CHECK(count == 3);
    const long cases = atol(words[1]);
    long taken = 0;
    hs_crc_init();
    state = 0x9E3779B97F4A7C15u ^ (uint64_t)atol(words[2]) << 7;
    for (long i = 0; i < cases; i++) {
        const size_t n = frame();
        uint8_t *exact = malloc(n ? n : 1);
        memcpy(exact, buffer, n);
        taken += play(exact, n);
        free(exact);
    }
    printf("taken %ld\n", taken);
    return 0;
}
