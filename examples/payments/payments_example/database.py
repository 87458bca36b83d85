"""The example's own connections and tables, by SQLAlchemy, in the database that todoku uses too."""

from __future__ import annotations

from importlib.resources import files

from sqlalchemy import Engine, create_engine


def open_engine(url: str) -> Engine:
    """The engine of a URL that todoku has accepted already."""
    scheme, _, place = url.partition("://")
    if scheme == "sqlite":
        return create_engine(url, connect_args={"timeout": 30})
    return create_engine(f"postgresql+psycopg://{place}", pool_pre_ping=True)


def make_tables(engine: Engine) -> None:
    """Make what is missing, in one transaction."""
    name = "sqlite" if engine.dialect.name == "sqlite" else "postgres"
    script = files("payments_example").joinpath("schema", f"{name}.sql").read_text("utf-8")
    with engine.begin() as tx:
        for statement in filter(str.strip, script.split(";\n")):
            tx.exec_driver_sql(statement)
