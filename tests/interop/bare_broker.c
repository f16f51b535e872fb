/* The least that a broker of any kind has to do for a send, as a floor for benchmarks: no checks, no queues, no index.

       bare_broker PORT FILE [SYNC]

   Each turn takes what a producer's socket has, writes it to FILE with one pwrite, and answers every request in it with
   code 0 and what a SendResult needs; with SYNC once a second process, FILE.slave's, has got the bytes over TCP,
   written them and acknowledged how far it is.  Without SYNC it gets them, too, but nobody waits for it.  Requests are
   in JSON. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 20, FRAME_BYTES_MAX = 8 << 20, ANSWERS_BYTES = 4 << 20, FILE_BYTES = 256 << 20 };
enum { CONNECTIONS_MAX = 1024, TURNS_MAX = 4096 };

static const char ANSWER[] =
    "{\"code\":0,\"extFields\":{\"msgId\":\"7F00000100002A9F0000000000000000\",\"queueId\":\"0\","
    "\"queueOffset\":\"0\"},\"flag\":1,\"language\":\"OTHER\",\"opaque\":%d,"
    "\"serializeTypeCurrentRPC\":\"JSON\",\"version\":399}";

typedef struct {
    int fd;
    size_t begin, end;       /* of what was read and is not answered */
    uint8_t *bytes;
    size_t answers_end;      /* of what is not answered yet */
    char *answers;
    size_t turns;            /* that wait for the slave: how far it has to be, and where their answers end */
    struct {
        uint64_t position;
        size_t answers_end;
    } turn[TURNS_MAX];
} connection;

static connection *connections[CONNECTIONS_MAX];
static int loop, log_fd, slave_fd = -1, sync_master;
static uint64_t written, acked;

static void check(int good, const char *what) {
    if (good) return;
    perror(what);
    exit(1);
}

static void send_all(int fd, const void *bytes, size_t n) {
    for (const char *p = bytes; n;) {
        const ssize_t sent = send(fd, p, n, MSG_NOSIGNAL);
        if (sent <= 0) return; /* it is closed; its end is read later */
        p += sent, n -= (size_t)sent;
    }
}

static void keep(int fd, uint64_t position, const uint8_t *p, size_t n) {
    check(pwrite(fd, p, n, (off_t)(position % FILE_BYTES)) == (ssize_t)n, "pwrite");
}

static int tcp(void) {
    const int fd = socket(AF_INET, SOCK_STREAM, 0), on = 1;
    check(fd >= 0, "socket");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    return fd;
}

static int listening(uint16_t port) {
    const struct sockaddr_in addr = {.sin_family = AF_INET, .sin_port = htons(port), .sin_addr = {htonl(0x7F000001)}};
    const int fd = tcp();
    check(!bind(fd, (const struct sockaddr *)&addr, sizeof addr) && !listen(fd, 64), "listen");
    return fd;
}

static void watch(int fd) {
    struct epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
    check(!epoll_ctl(loop, EPOLL_CTL_ADD, fd, &event), "epoll_ctl");
}

/* The other process: what comes is written, and how much that was is said. */
static void slave(int listener, const char *path) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    uint8_t *bytes = malloc(READ_BYTES);
    const int fd = accept(listener, NULL, NULL), file = open(path, O_CREAT | O_RDWR, 0600), on = 1;
    check(fd >= 0 && file >= 0 && bytes, "slave");
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    uint64_t total = 0;
    for (ssize_t n; (n = recv(fd, bytes, READ_BYTES, 0)) > 0;) {
        keep(file, total, bytes, (size_t)n);
        total += (uint64_t)n;
        send_all(fd, &total, sizeof total);
    }
    exit(0);
}

static void start_slave(const char *path) {
    struct sockaddr_in addr;
    socklen_t n = sizeof addr;
    char own[4096];
    const int listener = listening(0);
    check(!getsockname(listener, (struct sockaddr *)&addr, &n), "getsockname");
    snprintf(own, sizeof own, "%s.slave", path);
    const pid_t child = fork();
    check(child >= 0, "fork");
    if (child == 0) slave(listener, own);
    slave_fd = tcp();
    check(!connect(slave_fd, (struct sockaddr *)&addr, n), "connect");
    close(listener);
    watch(slave_fd);
    printf("slave %d\n", (int)child);
}

/* What ends at `n` or before. */
static void answer(connection *c, size_t n) {
    if (n) send_all(c->fd, c->answers, n);
    c->answers_end -= n;
    memmove(c->answers, c->answers + n, c->answers_end);
}

static void answer_acked(connection *c) {
    size_t done = 0;
    while (done < c->turns && c->turn[done].position <= acked) done++;
    if (!done) return;
    const size_t n = c->turn[done - 1].answers_end;
    c->turns -= done;
    memmove(c->turn, c->turn + done, c->turns * sizeof c->turn[0]);
    for (size_t i = 0; i < c->turns; i++) c->turn[i].answers_end -= n;
    answer(c, n);
}

/* The answer of one request; `header` is of n bytes. */
static void add_answer(connection *c, const char *header, size_t n) {
    const char *opaque = memmem(header, n, "\"opaque\":", 9), *flag = memmem(header, n, "\"flag\":2", 8);
    if (!opaque || flag) return;
    check(c->answers_end < ANSWERS_BYTES - 1024, "too many requests wait");
    char *out = c->answers + c->answers_end;
    const uint32_t text = (uint32_t)snprintf(out + 8, 512, ANSWER, atoi(opaque + 9));
    const uint32_t length = htonl(text + 4), header_bytes = htonl(text);
    memcpy(out, &length, 4);
    memcpy(out + 4, &header_bytes, 4);
    c->answers_end += 8 + text;
}

static void end(connection *c) {
    connections[c->fd] = NULL;
    close(c->fd);
    free(c->bytes);
    free(c->answers);
    free(c);
}

static void take(connection *c) {
    if (c->begin) memmove(c->bytes, c->bytes + c->begin, c->end - c->begin);
    c->end -= c->begin, c->begin = 0;
    const ssize_t n = recv(c->fd, c->bytes + c->end, FRAME_BYTES_MAX - c->end, 0);
    if (n <= 0) {
        end(c);
        return;
    }
    keep(log_fd, written, c->bytes + c->end, (size_t)n);
    send_all(slave_fd, c->bytes + c->end, (size_t)n);
    written += (uint64_t)n;
    c->end += (size_t)n;
    while (c->end - c->begin >= 8) {
        uint32_t length, header;
        memcpy(&length, c->bytes + c->begin, 4);
        memcpy(&header, c->bytes + c->begin + 4, 4);
        length = ntohl(length), header = ntohl(header) & 0xFFFFFF;
        if (length > c->end - c->begin - 4 || header > length) break;
        add_answer(c, (const char *)c->bytes + c->begin + 8, header);
        c->begin += (size_t)length + 4;
    }
    if (!sync_master) {
        answer(c, c->answers_end);
    } else {
        check(c->turns < TURNS_MAX, "too many turns wait");
        c->turn[c->turns].position = written;
        c->turn[c->turns++].answers_end = c->answers_end;
    }
}

static void take_ack(void) {
    uint64_t totals[512];
    const ssize_t n = recv(slave_fd, totals, sizeof totals, 0);
    check(n > 0 && n % 8 == 0, "the slave's ack");
    acked = totals[n / 8 - 1];
    for (int i = 0; sync_master && i < CONNECTIONS_MAX; i++)
        if (connections[i]) answer_acked(connections[i]);
}

int main(int argc, char **argv) {
    check(argc >= 3, "bare_broker PORT FILE [SYNC]");
    sync_master = argc > 3 && !strcmp(argv[3], "SYNC");
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    loop = epoll_create1(0);
    log_fd = open(argv[2], O_CREAT | O_RDWR, 0600);
    check(loop >= 0 && log_fd >= 0, "open");
    const int listener = listening((uint16_t)atoi(argv[1]));
    watch(listener);
    start_slave(argv[2]);
    fflush(stdout);
    for (;;) {
        struct epoll_event events[64];
        const int count = epoll_wait(loop, events, 64, -1);
        for (int i = 0; i < count; i++) {
            const int fd = events[i].data.fd;
            if (fd == slave_fd) {
                take_ack();
            } else if (fd != listener) {
                if (connections[fd]) take(connections[fd]);
            } else {
                const int taken = accept(listener, NULL, NULL), on = 1;
                check(taken >= 0 && taken < CONNECTIONS_MAX, "accept");
                setsockopt(taken, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
                connection *c = calloc(1, sizeof *c);
                check(c && (c->bytes = malloc(FRAME_BYTES_MAX)) && (c->answers = malloc(ANSWERS_BYTES)), "malloc");
                c->fd = taken;
                connections[taken] = c;
                watch(taken);
            }
        }
    }
}
