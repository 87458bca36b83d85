"""FastAPI, SQLAlchemy, PostgreSQL: a person who signs up gets a mail and, in one commit with the job, a bonus.

DATABASE_URL=postgresql://localhost/shop SMTP_PORT=25 uvicorn signup:api
"""

import os
import smtplib
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from email.message import EmailMessage
from typing import Annotated
from uuid import UUID

from fastapi import Depends, FastAPI, HTTPException
from pydantic import BaseModel
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncSession, async_sessionmaker, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column

import todoku
from todoku.integrations.fastapi import Publisher, lifespans, publisher

URL = os.environ["DATABASE_URL"]
box = todoku.App(URL, schema="todoku")
engine = create_async_engine(URL.replace("postgresql://", "postgresql+psycopg://"))
sessions = async_sessionmaker(engine)


class Base(DeclarativeBase):
    pass


class User(Base):
    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)
    email: Mapped[str] = mapped_column(unique=True)
    points: Mapped[int] = mapped_column(default=0)


class NewUser(BaseModel):
    email: str


class Created(BaseModel):
    id: int
    job: UUID


class Account(BaseModel):
    email: str
    points: int


class JobStatus(BaseModel):
    status: str
    attempts: int
    error: str | None


@box.job(queue="mail", max_attempts=5, backoff=todoku.table(0, 1, 5), timeout=30)
def welcome(ctx: todoku.Context, email: str) -> None:
    mail = EmailMessage()
    mail["From"], mail["To"], mail["Subject"] = "shop@example.com", email, "Welcome"
    mail["Message-Id"] = f"<{ctx.idempotency_key}@example.com>"  # the same on every attempt
    with smtplib.SMTP("127.0.0.1", int(os.environ["SMTP_PORT"])) as server:
        try:
            server.send_message(mail)
        except smtplib.SMTPRecipientsRefused as error:
            raise todoku.Abort("MAILBOX_UNKNOWN") from error


@box.job(transactional=True)
def award(ctx: todoku.Context, user_id: int) -> None:
    ctx.session(Session).get_one(User, user_id).points += 100


async def get_session() -> AsyncIterator[AsyncSession]:
    async with sessions.begin() as session:
        yield session


@asynccontextmanager
async def tables(_app: FastAPI) -> AsyncGenerator[None]:
    async with engine.begin() as connection:
        await connection.run_sync(Base.metadata.create_all)
    yield
    await engine.dispose()


api = FastAPI(lifespan=lifespans(tables, box.lifespan))
DB = Annotated[AsyncSession, Depends(get_session)]
Outbox = Annotated[Publisher, Depends(publisher(box, get_session))]


@api.post("/users", status_code=201)
async def create_user(body: NewUser, db: DB, outbox: Outbox) -> Created:
    user = User(email=body.email)
    db.add(user)
    await outbox.aenqueue(welcome, body.email)  # if the address is taken, this is rolled back, too
    try:
        await db.flush()
    except IntegrityError as error:
        raise HTTPException(409, "this address has signed up already") from error
    job = await outbox.aenqueue(award, user.id)
    return Created(id=user.id, job=job.id)


@api.get("/users/{id}")
async def get_user(id: int, db: DB) -> Account:
    user = await db.get(User, id)
    if user is None:
        raise HTTPException(404)
    return Account(email=user.email, points=user.points)


@api.get("/mails")
async def refused_mails() -> list[JobStatus]:
    page = await box.deliveries.afind(queue="mail", status="aborted")
    return [JobStatus(status=one.status, attempts=one.attempts, error=one.reason) for one in page.items]
