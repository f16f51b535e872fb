"""Headers of transactions: 37 ends one, 39 asks its producer how it ended, 323 restarts the asking."""

from __future__ import annotations

from dataclasses import dataclass

from haservice.bounds import GroupName
from haservice.remoting.headers.clients import I32, I64, ExtHeader


@dataclass(frozen=True, slots=True)
class EndTransactionHeader(ExtHeader):
    """37.  The two offsets are those of the half message; `commit_or_rollback` is 8, 12, or 0 for unknown."""

    producer_group: GroupName
    tran_state_table_offset: I64
    commit_log_offset: I64
    commit_or_rollback: I32
    from_transaction_check: bool = False
    msg_id: str | None = None
    transaction_id: str | None = None


@dataclass(frozen=True, slots=True)
class CheckTransactionStateHeader(ExtHeader):
    """39, broker to producer, oneway.  The producer's 37 has to bring these offsets back."""

    tran_state_table_offset: I64
    commit_log_offset: I64
    msg_id: str | None = None
    transaction_id: str | None = None
    offset_msg_id: str | None = None


@dataclass(frozen=True, slots=True)
class ResumeCheckHalfMessageHeader(ExtHeader):
    """323.  `msg_id` is the offset message id of a message that was checked too often."""

    msg_id: str
