"""A DLedger node of ours in a process of its own: the commands of java/Ledger.java, a line each; and `damaged`.

Arguments: DIRECTORY ID PEERS DATA_FILE_BYTES INDEX_FILE_BYTES HEARTBEAT_MS
"""

from __future__ import annotations

import base64
import logging
import os
import sys
import time
from pathlib import Path

from commitlog.dledger.store import EntryStoreOptions
from haservice.configuration.dledger_settings import parse_peers
from haservice.dledger.codes import DLedgerResponseCode
from haservice.dledger.events import MemberRole
from haservice.dledger.node.node import DLedgerNode
from haservice.dledger.settings import MemberSettings

ANSWER_S = 10.0


def main(directory: str, name: str, peers: str, data_bytes: str, index_bytes: str, heartbeat_ms: str) -> None:
    logging.basicConfig(level=logging.INFO)
    node = DLedgerNode(
        MemberSettings("group", name, parse_peers(peers), heartbeat_interval_s=int(heartbeat_ms) / 1000),
        EntryStoreOptions(Path(directory) / f"dledger-{name}", (), int(data_bytes), int(index_bytes)),
        on_failure=lambda thread, error: os.abort(),
    )
    node.start()
    print("ok up", flush=True)
    for line in sys.stdin:
        try:
            said = "ok" + answer(node, line.split())
        except Exception as error:
            said = f"error {error!r}"
        print(said, flush=True)


def answer(node: DLedgerNode, words: list[str]) -> str:
    store = node.store
    match words:
        case ["append", *body]:
            placed = node.append([base64.b64decode("".join(body))]).result(ANSWER_S)
            assert placed.code is DLedgerResponseCode.SUCCESS, placed
            index = placed.last_index
            return f" {index} {store.term_at(index)} {placed.positions[0]}"
        case ["get", index]:
            one = store.read(int(index))
            numbers = (
                one.magic, one.size, one.index, one.term, one.position, one.channel, one.chain_crc, one.body_crc,
            )  # fmt: skip
            return " " + " ".join(map(str, numbers)) + " " + base64.b64encode(one.body).decode()
        case ["ends"]:
            status = node.status
            ends = (store.begin_index, store.end_index, store.end_term, status.committed_index, status.term)
            return " " + " ".join(map(str, ends))
        case ["hold", milliseconds]:
            until_s = time.monotonic() + int(milliseconds) / 1000
            while node.status.role is not MemberRole.LEADER:
                assert time.monotonic() < until_s, "does not lead"
                time.sleep(0.01)
            return ""
        case ["damaged", *indexes]:
            node.damaged([int(index) for index in indexes])
            return ""
        case ["stop"]:
            assert node.stop(), "a thread still runs"
            return ""
        case _:
            raise ValueError(words)


if __name__ == "__main__":
    main(*sys.argv[1:])
