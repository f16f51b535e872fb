# What pages take for granted: servers that run, a store, messages.  Sourced by the shell that runs their blocks.

_booted() {  # LOG: waits until that server says that it is up
    for _try in $(seq 300); do
        if grep -q -e "boot success" -e "console open" "$1"; then return 0; fi
        sleep 0.1
    done
    cat "$1"
    return 1
}

daemon() {  # COMMAND…: in a terminal of its own
    local _log
    _log=$(mktemp /paste/daemon.XXXXXX)
    "$@" > "$_log" 2>&1 5<&- 3<&- 4>&- &
    echo $! >> /paste/servers
    disown  # the shell says nothing of its death
    _booted "$_log"
}

until_done() {  # COMMAND…: again and again, until it succeeds
    for _try in $(seq 150); do
        if "$@" > /paste/until 2>&1; then return 0; fi
        sleep 0.1
    done
    cat /paste/until
    return 1
}

until_fails() {
    for _try in $(seq 150); do
        if ! "$@" > /paste/until 2>&1; then return 0; fi
        sleep 0.1
    done
    cat /paste/until
    return 1
}

in_sync() {  # [COUNT]: so many slaves are, one if nothing is said
    until_done mqadmin check --slaves "${1:-1}"
}

kill_server() {  # PORT: as kill -9 of what listens there
    kill -9 "$(_pid "$1")"
    until_fails _pid "$1"
}

stop_server() {  # PORT
    local _which
    _which=$(_pid "$1")
    kill "$_which"
    until_fails kill -0 "$_which"
}

_pid() {
    ss -Hltnp "sport = :$1" | grep -o 'pid=[0-9]*' | head -1 | cut -d= -f2 | grep .
}

broker() {  # NAME PORT ID ROLE STORE [KEY=VALUE…]: a broker with a small log
    mkdir -p /etc/haservice
    local _file="/etc/haservice/$5.properties"
    {
        printf '%s\n' brokerClusterName=DefaultCluster "brokerName=$1" "listenPort=$2" "brokerId=$3" "brokerRole=$4" \
            "storePathRootDir=/data/$5" namesrvAddr=127.0.0.1:9876 bindAddress=127.0.0.1 brokerIP1=127.0.0.1 \
            brokerIP2=127.0.0.1 mappedFileSizeCommitLog=4194304 maxMessageSize=65536
        shift 5
        printf '%s\n' "$@"
    } > "$_file"
    daemon mqbroker -c "$_file"
}

again() {  # STORE: the broker of that store starts again
    daemon mqbroker -c "/etc/haservice/$1.properties"
}

nothing() {  # no server runs, and there is no store
    local _which
    for _which in $(cat /paste/servers 2> /dev/null); do
        kill -9 "$_which" 2> /dev/null || true
        until_fails kill -0 "$_which"
    done
    rm -rf /data /etc/haservice /paste/servers
    mkdir -p /etc/haservice /data
}

nameserver() {
    printf '%s\n' bindAddress=127.0.0.1 kvConfigPath=/data/kvConfig.json > /etc/haservice/namesrv.properties
    daemon mqnamesrv -c /etc/haservice/namesrv.properties
    export NAMESRV_ADDR=127.0.0.1:9876
}

messages() {  # TOPIC COUNT
    mqadmin updateTopic -c DefaultCluster -t "$1" -r 4 -w 4 > /dev/null
    seq "$2" | mqadmin sendMessage -t "$1" - > /dev/null
}

pair() {  # broker-a at 10911, its slave at 11911, in sync, with 200 messages
    nothing
    nameserver
    broker broker-a 10911 0 SYNC_MASTER broker-a "$@"
    broker broker-a 11911 1 SLAVE broker-a-s "$@"
    in_sync
    messages orders 200
    in_sync
}

coordinated_pair() {  # a pair, and etcd on loopback says who is the master
    nothing
    daemon_etcd
    nameserver
    local _keys="haCoordinator=etcd://127.0.0.1:2379 haLeaseTtl=3"
    broker broker-a 10911 0 SYNC_MASTER broker-a $_keys
    until_done mqadmin haList -b broker-a
    broker broker-a 10921 1 SLAVE broker-a-s $_keys
    in_sync
    messages orders 200
    until_done both_vote
}

both_vote() {  # the slave may become the master
    mqadmin haList -b broker-a | grep "10921 .* yes *-* *yes"
}

daemon_etcd() {
    etcd --data-dir /data/etcd --log-level error > /paste/etcd.log 2>&1 5<&- 3<&- 4>&- &
    echo $! >> /paste/servers
    disown
    until_done curl -s http://127.0.0.1:2379/health
}

three_names() {  # masters of broker-a, broker-b and broker-c
    nothing
    nameserver
    broker broker-a 10911 0 ASYNC_MASTER broker-a
    broker broker-b 10921 0 ASYNC_MASTER broker-b transactionCheckInterval=500
    broker broker-c 10931 0 ASYNC_MASTER broker-c
}

three_replicas() {  # a pair, and a second slave at 12911 that is stopped
    pair
    broker broker-a 12911 2 SLAVE broker-a-s2
    in_sync 2
    stop_server 12911
}

kill_master() {  # of a pair; its slave finds that the nameserver has none
    kill_server 10911
    until_fails eval "mqadmin haStatus -b 127.0.0.1:11911 | grep 127.0.0.1:10911"
}

sync_master_dies() {  # of a pair whose master is at 11911: 10911 is a SYNC_MASTER by now, and dies
    in_sync
    mqadmin switchover -b broker-a --yes
    in_sync
    mqadmin switchover -b broker-a --role SYNC_MASTER --yes
    until_done eval "mqadmin check | grep slaves_in_sync=1"  # it warns of the file, which says ASYNC_MASTER
    kill_server 10911
}

some_epochs() {  # of a pair: two switchovers, and a failover after a death
    mqadmin switchover -b broker-a --yes
    in_sync
    messages orders 20
    mqadmin switchover -b broker-a --yes
    in_sync
    messages orders 20
    kill_server 10911
    mqadmin failover -b broker-a --to 127.0.0.1:11911 --yes
    mqadmin sendMessage -t orders -p "after the failover" > /dev/null || true
    again broker-a
    in_sync
}

in_use() {  # TOPIC GROUP: each broker has plain messages and a transaction, and the group has read them
    .venv/bin/python - "$@" <<'EOF'
import sys

from haservice.client import ConsumeFrom, ConsumerOptions, Message, Producer, PullConsumer, TransactionState


class Committed:
    def execute(self, message, argument):
        return TransactionState.COMMIT

    def check(self, message):
        return TransactionState.COMMIT


topic, group = sys.argv[1:]
with Producer("p", listener=Committed()) as producer:
    for number in range(20):
        producer.send(Message(topic, b"%d" % number))
        producer.send_in_transaction(Message(topic, b"%d" % number), None)
with PullConsumer(group, consuming=ConsumerOptions(consume_from=ConsumeFrom.FIRST)) as consumer:
    consumer.subscribe(topic)
    for number, _ in enumerate(consumer, 1):
        if number == 40:
            break
EOF
    until_done mqadmin consumerProgress -g CID_RMQ_SYS_TRANS
}

cut_off() {  # STORE OFFSET: three messages that a broker cut off there, and kept
    mkdir -p "$1/cut"
    .venv/bin/python - "$@" <<'EOF'
import sys
from pathlib import Path

from tests.admin.test_cut import records

store, offset = Path(sys.argv[1]), int(sys.argv[2])
(store / "cut" / f"{offset:020d}-1").write_bytes(records(offset, 3))
EOF
}

wheel_without_index() {  # a wheel of this tree lies here; pip has no index, and asks for none
    export PIP_NO_INDEX=1 PIP_NO_DEPS=1
    CC=false .venv/bin/python -m pip wheel -q --no-build-isolation -w . .
}

borrow_libraries() {  # VENV: it finds what haservice needs where this tree's own environment has it
    .venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
        > "$(echo "$1"/lib/python*/site-packages)/borrowed.pth"
}

stores() {  # of a pair that is stopped, broker-a and broker-a-s lie here, with what producer and consumer wrote down
    pair
    mqadmin updateTopic -c DefaultCluster -t Orders -r 4 -w 4 > /dev/null
    .venv/bin/python - <<'EOF'
import json
import time

from haservice.client import ConsumeFrom, ConsumerOptions, Message, Producer, PullConsumer


def now() -> int:
    return int(time.time() * 1000)


def line(queue, offset, msg_id, **more):
    place = {"topic": "Orders", "queueId": queue.queue_id, "queueOffset": offset, "msgId": msg_id}
    return json.dumps({**place, **more}) + "\n"


with Producer("shop") as producer, open("sent.jsonl", "w") as ledger:
    for number in range(40):
        begun = now()
        sent = producer.send(Message("Orders", b"order %d" % number, tags="paid", keys=f"order-{number}"))
        told = {"status": sent.status.name, "sentMs": begun, "ackedMs": now()}
        ledger.write(line(sent.queue, sent.queue_offset, sent.msg_id, **told))
reads = ConsumerOptions(consume_from=ConsumeFrom.FIRST)
with PullConsumer("shop", consuming=reads) as consumer, open("got.jsonl", "w") as ledger:
    consumer.subscribe("Orders")
    for number, got in enumerate(consumer, 1):
        ledger.write(line(got.queue, got.queue_offset, got.msg_id, group="shop", consumedMs=now()))
        if number == 40:
            break
EOF
    in_sync
    stop_server 11911
    stop_server 10911
    cp -r --sparse=always /data/broker-a /data/broker-a-s .
}
