/* Generated: python -m commitlog.kernel.layout > commitlog/kernel/core/layout.h */
#pragma once
#define HS_AT_SIZE 0
#define HS_AT_MAGIC 4
#define HS_AT_BODY_CRC 8
#define HS_AT_QUEUE_ID 12
#define HS_AT_FLAG 16
#define HS_AT_QUEUE_OFFSET 20
#define HS_AT_PHYSICAL_OFFSET 28
#define HS_AT_SYS_FLAG 36
#define HS_AT_BORN_TIMESTAMP 40
#define HS_AT_BORN_HOST 48
#define HS_AT_STORE_TIMESTAMP 56
#define HS_AT_STORE_HOST 64
#define HS_AT_RECONSUME_TIMES 72
#define HS_AT_PREPARED_OFFSET 76
#define HS_AT_BODY_SIZE 84
#define HS_AT_BODY 88
#define HS_MAGIC 0xDAA320A7u
#define HS_MAGIC_V2 0xDAA320ABu
#define HS_SYS_TRANSACTION_MASK 12
#define HS_SYS_TRANSACTION_COMMIT 8
#define HS_SYS_TRANSACTION_ROLLBACK 12
#define HS_SYS_BORN_HOST_V6 16
#define HS_SYS_STORE_HOST_V6 32
#define HS_V6_BYTES 12
#define HS_BLANK_BYTES 8
#define HS_TOPIC_BYTES_MAX 127
#define HS_PROPERTIES_BYTES_MAX 32767
#define HS_RECORD_BYTES_MIN 91
#define HS_CRC_MASK 0x7FFFFFFFu
#define HS_QUEUE_ENTRY_BYTES 20
#define HS_INDEX_HEADER_BYTES 40
#define HS_INDEX_SLOT_BYTES 4
#define HS_INDEX_ENTRY_BYTES 20
#define HS_INDEX_PUT_BYTES 20
static const unsigned char hs_topic_letters[256] = {
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 0, 0,
    0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 0, 0, 0, 1,
    0, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 0, 1, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0};
