"""examples/users, what needs no database: the payload, the properties, letters, files, settings (S3-109, S3-110)."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from users_example.files import write_atomically
from users_example.mail import Folder, Smtp, letter
from users_example.payload import JobPayload
from users_example.properties import parsed
from users_example.settings import database_url, read_settings

import todoku

WHOLE = JobPayload(
    user_id=7,
    user_data={"name": "Ada", "email": "ada@users.example"},
    additional_props={"hobby": "chess", "score": 42},
    message="hello",
    recipients=("ada@users.example", "bob@users.example"),
    validation_mode="strict",
)


def test_the_payload_becomes_json_with_the_seed_s_fields_in_snake_case_and_comes_back() -> None:
    """S3-43 … S3-48."""
    text = msgspec.json.encode(WHOLE)
    assert list(msgspec.json.decode(text)) == [
        "user_id", "user_data", "additional_props", "message", "recipients", "validation_mode",
    ]  # fmt: skip
    assert msgspec.json.decode(text, type=JobPayload) == WHOLE


def test_what_is_left_out_is_not_stored_and_has_its_default() -> None:
    assert msgspec.json.encode(JobPayload()) == b"{}"
    empty = msgspec.json.decode(b"{}", type=JobPayload)
    assert (empty.user_id, empty.recipients, empty.validation_mode) == (None, (), "lenient")


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ('{"user_id": "7"}', "user_id"),
        ('{"user_id": 0}', "user_id"),
        ('{"user_data": []}', "user_data"),
        ('{"recipients": ["nobody"]}', "recipients"),
        ('{"recipients": ["a@b\\r\\nBcc: c@d"]}', "recipients"),
        ('{"validation_mode": "maybe"}', "validation_mode"),
        ('{"UserID": 7}', "UserID"),
    ],
)
def test_a_payload_that_makes_no_sense_is_refused_by_the_name_of_its_field(wrong: str, field: str) -> None:
    with pytest.raises(msgspec.ValidationError, match=field):
        msgspec.json.decode(wrong, type=JobPayload)


# ------------------------------------------------------------------------------------------------- properties


def test_hobby_location_and_score_are_read_and_other_properties_left_alone() -> None:
    known = parsed({"hobby": " chess ", "location": "Kyoto", "score": "4.5", "shoe": 43}, "strict")
    assert (known.hobby, known.location, known.score, known.warnings) == ("chess", "Kyoto", 4.5, ())


def test_what_is_absent_is_no_mistake() -> None:
    assert parsed({"hobby": None}, "strict") == parsed({}, "strict")


@pytest.mark.parametrize(
    ("name", "value"),
    [("score", "high"), ("score", True), ("score", float("nan")), ("score", [1]), ("score", 10**400),
     ("hobby", 7), ("hobby", "  "), ("location", "x" * 201)],
)  # fmt: skip
def test_a_bad_property_aborts_when_strict_and_is_a_warning_when_lenient(name: str, value: object) -> None:
    """S3-84: never retried, because another attempt would read the same."""
    with pytest.raises(todoku.Abort) as aborted:
        parsed({name: value}, "strict")
    assert aborted.value.reason == f"BAD_{name.upper()}"
    known = parsed({name: value, "hobby": "go"} if name != "hobby" else {name: value}, "lenient")
    assert getattr(known, name) is None
    assert [warning.split(":")[0] for warning in known.warnings] == [f"additional_props.{name}"]


# ------------------------------------------------------------------------------------------ letters and files


def test_a_letter_has_the_same_message_id_on_every_attempt_and_one_line_in_each_header() -> None:
    letters = [
        letter(sender="w@users.example", to="a@b.example", subject="two\nlines", text="hello", key="0199:user_created")
        for _ in range(2)
    ]
    assert {each["Message-ID"] for each in letters} == {"<0199.user_created@users.example>"}
    assert letters[0]["Subject"] == "two lines"


def test_without_a_server_mail_is_a_file_and_a_repetition_takes_its_place(tmp_path: Path) -> None:
    folder = Folder(tmp_path / "outbox")
    for text in ("first", "again"):
        folder.send(letter(sender="w@users.example", to="a/b@b.example", subject="hello", text=text, key="k:j"))
    (file,) = (tmp_path / "outbox").iterdir()
    assert "again" in file.read_text("utf-8")


@pytest.mark.parametrize("url", ["", "http://host", "smtp://", "smtp://host:x", "host:25"])
def test_a_mail_server_that_cannot_be_is_refused_at_once(url: str) -> None:
    with pytest.raises(todoku.InvalidSetting, match="SMTP_URL"):
        Smtp(url)


def test_a_file_is_there_whole_or_as_it_was(tmp_path: Path) -> None:
    """What fails half-way leaves the old file, and nothing beside it."""
    path = tmp_path / "exports" / "users.json"
    write_atomically(path, b"old")
    with pytest.raises(TypeError):
        write_atomically(path, "not bytes")  # type: ignore[arg-type]
    assert [file.name for file in path.parent.iterdir()] == ["users.json"]
    assert path.read_bytes() == b"old"
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


# --------------------------------------------------------------------------------------------------- settings


def test_the_database_is_the_named_one_else_the_environment_s_else_workers_db() -> None:
    """S3-74, S3-75."""
    server = {"DATABASE_URL": "postgresql://localhost/users"}
    assert database_url(None, {}) == "sqlite:///workers.db"
    assert database_url(None, server) == "postgresql://localhost/users"
    assert database_url("/data/workers.db", server) == "sqlite:////data/workers.db"
    assert database_url("postgresql://h/d", {}) == "postgresql://h/d"


def test_durations_are_those_of_the_seed_unless_set() -> None:
    """S3-35, S3-38, S3-41, S3-76."""
    usual, quick = read_settings({}), read_settings({"USER_CREATED_MS": "0"})
    assert (usual.user_created, usual.data_analysis, usual.email_notification) == (0.5, 2.0, 0.3)
    assert usual.stats_every == 30
    assert quick.user_created == 0


@pytest.mark.parametrize("wrong", [{"ENQUEUE": "maybe"}, {"USER_CREATED_MS": "-1"}, {"STATS_INTERVAL_SEC": "soon"}])
def test_a_setting_that_cannot_be_is_refused_by_its_name(wrong: dict[str, str]) -> None:
    (name,) = wrong
    with pytest.raises(todoku.InvalidSetting, match=name):
        read_settings(wrong)
