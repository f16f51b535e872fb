"""One line for a person: what went wrong, where, and what to do.

Exceptions carry the numbers.  What to do depends on who asks, so the advice is here, with the commands, and
not in the layers below.
"""

from __future__ import annotations

import errno
from itertools import pairwise
from pathlib import Path

from commitlog.errors import (
    CommitLogError,
    DirectoryLocked,
    SegmentSizeMismatch,
    StoreLocked,
    StoreUnreadable,
)
from haservice.configuration.settings import NodeConfig
from haservice.errors import (
    AnswerError,
    ConfigError,
    HAServiceError,
    ProtocolError,
    RemotingClosed,
    RemotingTimeout,
    RemotingUnreachable,
)
from haservice.remoting.codes import RequestCode

Explainable = HAServiceError | CommitLogError | OSError

# What to do about an answer, by its code: RocketMQ's ResponseCode and RemotingSysResponseCode.
ADVICE_BY_CODE = {
    2: "the broker is busy: send less at once, or try again in a moment",
    3: "that program is too old, or is not a broker: is the address right?",
    10: "stored, but not yet flushed to disk within syncFlushTimeout",
    11: "stored on the master only: no slave is connected and near enough; mqadmin haStatus says why",
    12: "stored on the master, but no slave confirmed within slaveTimeout; mqadmin haStatus says why",
    14: "a slave refuses writes, and so does a broker that stops or has no disk space left",
    16: "brokerPermission or the topic's perm forbids it; mqadmin updateTopic -p 6 allows both ways",
    17: "mqadmin topicList shows what there is, mqadmin updateTopic makes a topic",
    22: "nothing of that name or id is stored there",
    26: "mqadmin updateSubGroup makes a group; getConsumerConfig shows what there is",
    206: "nobody of that group is connected now; consumerProgress -g shows how far it came",
    207: "the client was asked, and did not answer its broker in time",
}
_SENDS = frozenset(
    {
        RequestCode.SEND_MESSAGE,
        RequestCode.SEND_MESSAGE_V2,
        RequestCode.SEND_BATCH_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE,
        RequestCode.SEND_REPLY_MESSAGE_V2,
        RequestCode.CONSUMER_SEND_MSG_BACK,
    }
)
# Advice only for these requests; other codes mean the same for every request.
REQUESTS_BY_CODE = {
    10: _SENDS,
    11: _SENDS,
    12: _SENDS,
    14: _SENDS,
    16: _SENDS | {RequestCode.PULL_MESSAGE},
}
_CONFIG_UPDATES = frozenset({RequestCode.UPDATE_BROKER_CONFIG, RequestCode.UPDATE_NAMESRV_CONFIG})
OF_BLACK_LIST = (
    "configBlackList names it, or it guards the node: edit the file there, and start the node again"
)
# The word in every refusal by a broker's access control.
ACL_REFUSAL = "AclException"


def explain(error: Explainable) -> str:
    """The message of a CLI error.  Never empty, never more than a few short lines."""
    advice = advise(error)
    text = said_by_system(error) if isinstance(error, OSError) else str(error)
    text = text or type(error).__name__
    return f"{text}\n  {advice}" if advice else text


def of_store_path(config: NodeConfig, error: StoreUnreadable | OSError) -> ConfigError | None:
    """The system's error below a store path, as an error of the key that set that path.

    None if it was no path of the store, or if the path is right and its content is wrong.
    """
    said = error.__cause__ if isinstance(error, StoreUnreadable) else error
    path = error.path if isinstance(error, StoreUnreadable) else error.filename
    if not isinstance(said, OSError) or not isinstance(path, str | Path):
        return None
    key, store = _store_key(config, Path(path))
    if not key:
        return None
    reason = said.strerror or str(said)
    found = ConfigError(
        config.source, 0, key, reason if Path(path) == store else f"{path}: {reason}", str(store)
    )
    found.__cause__ = said
    return found


def _store_key(config: NodeConfig, path: Path) -> tuple[str, Path]:
    """The key whose directory holds `path`, or else lies below `path`; ("", path) if there is none."""
    keys = [("storePathRootDir", config.log.root)]
    if config.log.commit_log_path is not None:
        keys.append(("storePathCommitLog", config.log.commit_log_path))
    around = [one for one in keys if path.is_relative_to(one[1])]
    if around:
        return max(around, key=lambda one: len(one[1].parts))
    return next((one for one in keys if one[1].is_relative_to(path)), ("", path))


def said_by_system(error: OSError) -> str:
    """The place and the system's words, without Python's `[Errno 98]` before them."""
    place = f"{error.filename}: " if error.filename else ""
    return f"{place}{error.strerror}" if error.strerror else str(error)


def advise(error: Explainable) -> str | None:
    """What the reader can do; None if the error's own text says it."""
    match error:
        case RemotingClosed():
            return (
                f"something listens at {error.addr}, and hangs up: --tls if it takes only TLS; "
                "is it a broker's or a nameserver's port?"
            )
        case RemotingUnreachable():
            return (
                f"does a program listen at {error.addr}?  "
                "-n names a nameserver (port 9876), -b a broker (port 10911); --tls if it takes only TLS"
            )
        case RemotingTimeout():
            return (
                f"{error.addr} is connected but silent: a wrong port, a stopped process, or a very busy one"
            )
        case AnswerError(remark=str() as said) if ACL_REFUSAL in said:
            return (
                "the keys of tools are in $ROCKETMQ_HOME/conf/tools.yml, or the file MQADMIN_TOOLS_YML names"
            )
        case AnswerError(code=16, remark=str() as said) if error.request in _CONFIG_UPDATES:
            return OF_BLACK_LIST if "black list" in said else None
        case AnswerError():
            fits = REQUESTS_BY_CODE.get(error.code)
            return ADVICE_BY_CODE.get(error.code) if fits is None or error.request in fits else None
        case ProtocolError():
            return "what answers there does not speak RocketMQ's protocol: is the port right?"
        case StoreLocked():
            return "give this broker its own storePathRootDir, or stop the other one first"
        case DirectoryLocked():
            return (
                "give this broker its own storePathCommitLog (of a DLedger group: storePathDLedgerCommitLog)"
            )
        case SegmentSizeMismatch():
            return _of_size(error)
        case ConfigError(key="dLegerPeers", __cause__=OSError(errno=errno.EADDRNOTAVAIL)):
            return "this machine has no such address: does dLegerSelfId name this broker, and dLegerPeers its address?"
        case ConfigError(__cause__=OSError() as said) | StoreUnreadable(__cause__=OSError() as said):
            return advise(said)
        case FileExistsError() | NotADirectoryError():
            return "a file stands where a directory is wanted: move it, or choose another path"
        case IsADirectoryError():
            return "a directory stands where a file is wanted: move it, or choose another path"
        case OSError(errno=errno.EADDRINUSE):
            return (
                "another process listens there, or an outgoing connection has the port; ss -tanp shows who:"
                " stop it, or choose another port"
            )
        case OSError(errno=errno.EADDRNOTAVAIL):
            return "this machine has no such address: check bindAddress"
        case OSError(errno=errno.EACCES):
            return "this user may not: run as another user, or choose another path or port"
        case OSError(errno=errno.ENOSPC):
            return (
                "the disk is full: files of log, queues and index are allocated whole;"
                " mappedFileSizeCommitLog, mappedFileSizeConsumeQueue and maxIndexNum say how large"
            )
    return None


def _of_size(error: SegmentSizeMismatch) -> str | None:
    """The actual size is the store's if all files have it, and lie as far apart; else one was cut off."""
    directory = error.path.parent
    key = (
        "mappedFileSizeConsumeQueue"
        if directory.parent.parent.name == "consumequeue"
        else "mappedFileSizeCommitLog"
    )
    try:
        files = {int(path.name): path.stat().st_size for path in directory.iterdir() if _is_segment(path)}
    except OSError:
        return None
    if not files or set(files.values()) != {error.actual}:
        return None
    if len(files) == 1:
        return f"set {key}={error.actual} if this store was made with it; else copy the file again, all of it"
    far = {behind - before for before, behind in pairwise(sorted(files))}
    return f"set {key}={error.actual}, the size this store was made with" if far == {error.actual} else None


def _is_segment(path: Path) -> bool:
    return len(path.name) == 20 and path.name.isdecimal()
