"""Who was written to, how often, and why."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

import msgspec

from users_example.chaos.crowd import Kill
from users_example.chaos.post_office import Mail
from users_example.database import Transaction


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """What a run came to. `problems` is what must be empty."""

    users: int
    mails: int
    second_mails: int
    explained: int
    kills: int
    lost: int
    problems: tuple[str, ...]


def judged(posted: Mapping[str, int], mails: Sequence[Mail], kills: Sequence[Kill], tx: Transaction) -> Verdict:
    """Compare what was posted with what arrived, and each second mail with the kills.

    A mail that was followed by another for the same user is explained if the worker that sent it was killed, and todoku
    has written down, once for each such mail, that this job lost its worker.
    """
    by_user: defaultdict[str, list[Mail]] = defaultdict(list)
    for mail in mails:
        by_user[mail.to].append(mail)
    lost = _lost(tx)
    killed = {kill.pid for kill in kills}
    problems = [f"{address} has no welcome mail" for address in posted if address not in by_user]
    problems += [f"{address} got a mail and was never posted" for address in by_user if address not in posted]
    explained = 0
    for address, letters in by_user.items():
        if len({letter.message_id for letter in letters}) > 1:
            problems.append(f"{address} got mails with different Message-IDs")
        again = sorted(letters, key=lambda letter: letter.at)[:-1]
        by_kill = [letter for letter in again if letter.worker in killed][: lost[posted.get(address, 0)]]
        explained += len(by_kill)
        if len(by_kill) < len(again):
            problems.append(f"{address} got {len(letters)} mails, {len(by_kill)} of them explained by a kill: {again}")
    problems += _unfinished(tx, len(posted))
    return Verdict(
        users=len(posted),
        mails=len(mails),
        second_mails=sum(len(letters) - 1 for letters in by_user.values()),
        explained=explained,
        kills=len(kills),
        lost=sum(lost.values()),
        problems=tuple(problems),
    )


def _lost(tx: Transaction) -> Counter[int]:
    """How often the job of each user lost its worker."""
    found = tx.rows(
        "select job_queue.payload, count(*) as number from todoku_attempt as attempt"
        " join job_queue on job_queue.id = attempt.delivery_id where attempt.reason = 'WORKER_LOST'"
        " group by job_queue.id, job_queue.payload"
    )
    return Counter({msgspec.json.decode(row["payload"])["user_id"]: row["number"] for row in found})


def _unfinished(tx: Transaction, users: int) -> list[str]:
    """What the database says: each user once, with a profile, in the metric, and every job completed."""
    expected = {
        "select count(*) as number from users": users,
        "select count(*) as number from profiles": users,
        "select sum(number) as number from signups": users,
        "select count(*) as number from job_queue where status = 'completed'": users,
        "select count(*) as number from job_queue where status <> 'completed'": 0,
    }
    found = {sql: int((tx.row(sql) or {})["number"] or 0) for sql in expected}
    return [f"{sql}: {found[sql]} instead of {number}" for sql, number in expected.items() if found[sql] != number]


def table(rows: Iterable[tuple[str, object]]) -> str:
    """Two columns."""
    rows = list(rows)
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"  {name:<{width}}  {value:>10}" for name, value in rows)
