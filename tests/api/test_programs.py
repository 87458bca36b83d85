"""The programs of the documentation, whole: an API with its worker, an outbox, a webhook's consumer; on each database.

They run in processes of their own, as they are printed, beside a small `shop` package that is the reader's part.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.world import World
from tests.transactions.test_typing import checked

JOB = """
from fastapi import Depends, FastAPI
from pydantic import BaseModel
from sqlalchemy.ext.asyncio import AsyncSession
import todoku
from shop.db import User, get_session                      # yours
from shop.mail import Rejected, send                       # yours
box = todoku.App()
api = FastAPI(lifespan=box.lifespan)                       # runs a worker beside the API; or: todoku run --app job:box
class NewUser(BaseModel):
    name: str
    hobby: str | None = None
@box.job(queue="mail", max_attempts=4, backoff=todoku.linear(minutes=5), timeout=30)
async def welcome(ctx: todoku.Context, user_id: int, hobby: str | None = None) -> str:
    try:
        return await send(user_id, hobby, message_id=ctx.idempotency_key)   # the same on every attempt
    except Rejected as error:
        raise todoku.Abort("MAILBOX_UNKNOWN") from error    # dead letter now; any other exception is retried
@api.post("/users", status_code=201)
async def create_user(body: NewUser, db: AsyncSession = Depends(get_session)) -> dict[str, str]:
    async with db.begin():                                 # the user and the job: one commit, or neither
        user = User(**body.model_dump())
        db.add(user)
        await db.flush()
        job = await welcome.using(tx=db, priority=1).aenqueue(user.id, hobby=body.hobby)
    return {"user": str(user.id), "job": str(job.id)}
"""

OUTBOX = """
from dataclasses import dataclass
from datetime import UTC, datetime
from uuid import UUID, uuid4
from sqlalchemy.orm import Session
import todoku
from shop.db import Order, Points, SessionLocal            # yours
box = todoku.App()
@box.event("order.created", key="order_id")                # key: what happens to one order arrives in order
@dataclass(frozen=True, slots=True)
class OrderCreated:
    order_id: UUID
    user_id: UUID
    amount: int
    occurred_at: datetime
def create_order(user_id: UUID, amount: int) -> UUID:
    order = Order(id=uuid4(), user_id=user_id, amount=amount, status="CREATED")
    with SessionLocal.begin() as db:                       # the order and its event: one commit, or neither
        db.add(order)
        box.publish(OrderCreated(order.id, user_id, amount, datetime.now(UTC)), tx=db)
        return order.id
@box.on(OrderCreated, name="points", transactional=True)   # inbox mark, effect and settle: one commit
def add_points(ctx: todoku.Context, event: OrderCreated) -> None:
    db = ctx.session(Session)                              # your Session, on the transaction todoku opened
    db.add(Points(user_id=event.user_id, points=event.amount // 100))
box.route("order.*", to=todoku.log(), ordered=True)        # and everyone else
"""

WEBHOOK = """
import os
from typing import Any
from fastapi import FastAPI
from pydantic import BaseModel
from sqlalchemy import update
from sqlalchemy.orm import Session
import todoku
from shop.db import Payment                                # yours
box = todoku.App()
api = FastAPI(lifespan=box.lifespan)
class StripeEvent(BaseModel):
    id: str
    type: str
    data: dict[str, dict[str, Any]]
stripe = todoku.stripe(secrets=[os.environ["STRIPE_WEBHOOK_SECRET"]])
box.ingest("stripe", stripe, model=StripeEvent, topic="stripe.{type}")
api.mount("/ingest", box.ingest_app)                       # POST /ingest/stripe: verify, one commit, 204; again: 204
@box.on("stripe.payment_intent.*", max_attempts=4, backoff=todoku.exponential(base=1), transactional=True)
def record(ctx: todoku.Context, event: StripeEvent) -> None:
    intent = event.data["object"]
    if not (participant := intent.get("metadata", {}).get("participant_id")):
        raise todoku.Abort("MISSING_PARTICIPANT")           # dead letter, alert, re-run by hand
    ctx.log.bind(event_id=event.id, participant_id=participant).info("payment", status=intent["status"])
    ctx.session(Session).execute(update(Payment).where(Payment.intent == intent["id"]).values(status=intent["status"]))
"""

SHOP_DB = """
import os
from collections.abc import AsyncIterator
from uuid import UUID
from sqlalchemy import create_engine
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column, sessionmaker
from sqlalchemy.pool import NullPool

scheme, rest = os.environ["TODOKU_DATABASE"].split("://", 1)
sqlite = scheme == "sqlite"
engine = create_engine(f"{'sqlite' if sqlite else 'postgresql+psycopg'}://{rest}", poolclass=NullPool)
SessionLocal = sessionmaker(engine)
async_engine = create_async_engine(
    f"{'sqlite+aiosqlite' if sqlite else 'postgresql+psycopg'}://{rest}", poolclass=NullPool
)
sessions = async_sessionmaker(async_engine, expire_on_commit=False)

class Base(DeclarativeBase):
    pass

class User(Base):
    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)
    name: Mapped[str]
    hobby: Mapped[str | None]

class Order(Base):
    __tablename__ = "orders"
    id: Mapped[UUID] = mapped_column(primary_key=True)
    user_id: Mapped[UUID]
    amount: Mapped[int]
    status: Mapped[str]

class Points(Base):
    __tablename__ = "points"
    id: Mapped[int] = mapped_column(primary_key=True)
    user_id: Mapped[UUID]
    points: Mapped[int]

class Payment(Base):
    __tablename__ = "payments"
    intent: Mapped[str] = mapped_column(primary_key=True)
    status: Mapped[str]

async def get_session() -> AsyncIterator[AsyncSession]:
    async with sessions() as session:
        yield session
"""

SHOP_MAIL = """
from pathlib import Path

class Rejected(Exception):
    pass

async def send(user_id: int, hobby: str | None, *, message_id: str) -> str:
    if hobby == "none":
        raise Rejected
    with Path("sent").open("a") as file:
        file.write(f"{user_id} {hobby}\\n")
    return message_id
"""

USE_JOB = """
import time
from uuid import UUID
from fastapi.testclient import TestClient
from job import api, box
from shop.db import Base, engine

Base.metadata.create_all(engine)
with TestClient(api) as client:
    for hobby, status in (("go", "succeeded"), ("none", "aborted")):
        answer = client.post("/users", json={"name": "Ada", "hobby": hobby})
        assert answer.status_code == 201, answer.text
        ends = time.monotonic() + 60
        job, standing = UUID(answer.json()["job"]), box.store.deliveries.standing
        while (found := standing(job, ["welcome"])) is None or found.status != status:
            assert time.monotonic() < ends, found
            time.sleep(0.01)
        print(answer.json()["user"], found.status, found.reason)
box.close()
"""

USE_OUTBOX = """
from uuid import uuid4
from sqlalchemy import select
from outbox import box, create_order
from shop.db import Base, Order, Points, SessionLocal, engine

Base.metadata.create_all(engine)
box.migrate()
user = uuid4()
create_order(user, 4200)
print("settled", box.drain())
with SessionLocal() as db:
    assert db.scalars(select(Order.amount)).all() == [4200]
    print("points", db.scalars(select(Points.points).where(Points.user_id == user)).all())
box.close()
"""

USE_WEBHOOK = """
import json, time
from fastapi.testclient import TestClient
from sqlalchemy import select
from stripe import WebhookSignature
from webhook import api, box
from shop.db import Base, Payment, SessionLocal, engine
from todoku.store.deliveries import Filter

def posted(client, id, metadata):
    intent = {"id": "pi_1", "status": "succeeded", "metadata": metadata}
    body = json.dumps({"id": id, "type": "payment_intent.succeeded", "data": {"object": intent}})
    at = int(time.time())
    signature = WebhookSignature._compute_signature(f"{at}.{body}", "whsec_test")
    return client.post("/ingest/stripe", content=body, headers={"Stripe-Signature": f"t={at},v1={signature}"})

def settled():
    counts = box.store.statistics.counts()
    return counts.of("succeeded"), counts.of("aborted")

Base.metadata.create_all(engine)
with SessionLocal.begin() as db:
    db.add(Payment(intent="pi_1", status="created"))
with TestClient(api) as client:
    answers = [posted(client, id, metadata) for id, metadata in (("1", {"participant_id": "p"}), ("1", {}), ("2", {}))]
    ends = time.monotonic() + 60
    while settled() != (1, 1):
        assert time.monotonic() < ends, settled()
        time.sleep(0.01)
print([answer.status_code for answer in answers], len({answer.headers["upstash-message-id"] for answer in answers}))
with SessionLocal() as db:
    print(db.scalars(select(Payment.status)).all())
print([delivery.reason for delivery in box.store.deliveries.find(Filter(status="aborted")).items])
box.close()
"""


def written(where: Path) -> None:
    (where / "shop").mkdir()
    files = {
        "job.py": JOB,
        "outbox.py": OUTBOX,
        "webhook.py": WEBHOOK,
        "shop/__init__.py": "",
        "shop/db.py": SHOP_DB,
        "shop/mail.py": SHOP_MAIL,
    }
    for name, text in files.items():
        (where / name).write_text(text, encoding="utf-8")


def said(program: str, where: Path, world: World) -> list[str]:
    """What a program prints, having ended well."""
    done = subprocess.run(
        [sys.executable, "-W", "error::ResourceWarning", "-c", program],
        cwd=where,
        env={
            **os.environ,
            "TODOKU_DATABASE": world.url,
            "TODOKU_POLL_INTERVAL_SEC": "0.05",
            "STRIPE_WEBHOOK_SECRET": "whsec_test",
        },
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout.splitlines()


@pytest.fixture
def where(tmp_path: Path) -> Path:
    """A directory with the three programs in it."""
    where = tmp_path / "program"
    where.mkdir()
    written(where)
    return where


def test_the_job_of_an_api_runs_beside_it(world: World, where: Path) -> None:
    """The user and the job are one commit; a rejected mail is a dead letter at once."""
    assert said(USE_JOB, where, world) == ["1 succeeded None", "2 aborted MAILBOX_UNKNOWN"]
    assert (where / "sent").read_text() == "1 go\n"
    assert world.sql("select name, hobby from users order by id") == [("Ada", "go"), ("Ada", "none")]


def test_an_outbox_event_reaches_its_consumer_and_everyone_else(world: World, where: Path) -> None:
    published, *rest = said(USE_OUTBOX, where, world)
    assert published.startswith("PUBLISH order.created ")
    assert rest == ["settled 2", "points [42]"]


def test_a_webhook_s_consumer_records_or_aborts(world: World, where: Path) -> None:
    """Acknowledged once they are stored, each once (S4-13, S4-22)."""
    assert said(USE_WEBHOOK, where, world) == ["[204, 204, 204] 2", "['succeeded']", "['MISSING_PARTICIPANT']"]


@pytest.mark.slow
@pytest.mark.xdist_group("mypy")
def test_the_programs_type_check(where: Path, mypy_cache: Path) -> None:
    """API.md: the programs pass `mypy --strict`."""
    found = checked(where, mypy_cache, job=JOB, outbox=OUTBOX, webhook=WEBHOOK)
    assert found == {"job": set(), "outbox": set(), "webhook": set()}
