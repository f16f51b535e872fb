"""The accounts in force as tools may see them: everything but the secret keys.  Pure."""

from __future__ import annotations

from collections.abc import Mapping

from haservice.access.accounts import PERMISSIONS
from haservice.access.rules import GROUP_PREFIX, AccessRules, Account
from haservice.remoting.headers.acl import ACCOUNTS_MAX, AccountBody, AccountsBody

_WORDS = {perm: word for word, perm in reversed(list(PERMISSIONS.items()))}


def accounts_page(rules: AccessRules, owners: Mapping[str, str], after: str, trouble: str) -> AccountsBody:
    """The accounts behind `after`; `owners` says in which file each counts."""
    keys = sorted(key for key in rules.accounts if key > after)
    accounts = [_shown(rules.accounts[key], owners.get(key, "")) for key in keys[:ACCOUNTS_MAX]]
    return AccountsBody(accounts, len(keys) > ACCOUNTS_MAX, [str(one) for one in rules.white], trouble)


def _shown(account: Account, file: str) -> AccountBody:
    groups = {name: perm for name, perm in account.perms.items() if name.startswith(GROUP_PREFIX)}
    return AccountBody(
        account.access_key,
        account.admin,
        _WORDS[account.default_topic],
        _WORDS[account.default_group],
        [f"{name}={_WORDS[perm]}" for name, perm in account.perms.items() if name not in groups],
        [f"{name.removeprefix(GROUP_PREFIX)}={_WORDS[perm]}" for name, perm in groups.items()],
        str(account.white),
        file,
    )
