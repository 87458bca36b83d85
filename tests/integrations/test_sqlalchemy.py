"""SQLAlchemy beside todoku: declarative models and messages in one commit, and migrations that leave todoku alone."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine, MetaData, create_engine, inspect, select
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from sqlalchemy.orm import DeclarativeBase, Mapped, Session, mapped_column
from sqlalchemy.pool import NullPool

import todoku
from tests.support.world import World
from todoku.integrations.sqlalchemy import include_name, include_object
from todoku.testing import assert_enqueued, assert_not_enqueued


class Base(DeclarativeBase):
    """The models of this test."""


class User(Base):
    """Somebody who signed up."""

    __tablename__ = "users"
    id: Mapped[int] = mapped_column(primary_key=True)
    points: Mapped[int] = mapped_column(default=0, index=True)


@pytest.fixture
def engine(world: World) -> Engine:
    engine = create_engine(world.url.replace("postgresql://", "postgresql+psycopg://"), poolclass=NullPool)
    Base.metadata.create_all(engine)
    return engine


async def test_I2_an_async_session_commits_its_models_and_its_jobs_together(world: World, engine: Engine) -> None:
    box = todoku.App(world.url)

    @box.job(transactional=True)
    def award(ctx: todoku.Context, user_id: int) -> None:
        user = ctx.session(Session).get_one(User, user_id)
        user.points += 100

    drivers = {"sqlite": "sqlite+aiosqlite", "postgresql": "postgresql+asyncpg"}
    scheme, rest = world.url.split("://")
    connecting = create_async_engine(f"{drivers[scheme]}://{rest}", poolclass=NullPool)
    async with AsyncSession(connecting) as db:
        async with db.begin():
            db.add(User(id=7))
            await award.using(tx=db).aenqueue(7)
        await award.using(tx=db).aenqueue(8)
        await db.rollback()
    assert_enqueued(award, user_id=7)
    assert_not_enqueued(award, user_id=8)
    assert await box.adrain() == 1
    async with AsyncSession(connecting) as db:
        assert (await db.scalars(select(User.points))).all() == [100]
    await connecting.dispose()
    box.close()


def test_what_alembic_would_compare_has_nothing_of_todokus(engine: Engine) -> None:
    """As autogenerate asks: for each name it finds in the database, and then for each object."""
    there = inspect(engine)
    names = [name for name in there.get_table_names() if include_name(name, "table", {"schema_name": None})]
    assert names == ["users"]
    whole = MetaData()
    whole.reflect(engine)
    assert "todoku_delivery" in whole.tables
    kept = [name for name, table in whole.tables.items() if include_object(table, name, "table", True, None)]
    assert kept == ["users"]
    for name, table in whole.tables.items():
        for index in table.indexes:
            mine = name == "users"
            assert include_object(index, index.name, "index", True, None) is mine
            assert include_name(index.name, "index", {"schema_name": None, "table_name": name}) is mine
