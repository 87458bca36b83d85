"""Field names that look personal."""

from __future__ import annotations

import pytest

from todoku.core.redaction import looks_personal, personal_fields

PERSONAL = (
    "email", "userEmail", "e_mails", "phone", "mobile_number", "name", "first_name", "lastName", "customerName",
    "address", "billing-addresses", "birth_date", "dob", "iban", "card_number", "password", "access_token", "SSN",
    "shimei", "jusho", "denwa_bango", "seinengappi", "氏名", "ご住所", "電話番号", "生年月日", "メールアドレス",
)  # fmt: skip
HARMLESS = ("id", "amount", "file_name", "hostname", "queueName", "discard", "created_at", "status", "商品", "金額")


@pytest.mark.parametrize("name", PERSONAL)
def test_it_looks_personal(name: str) -> None:
    assert looks_personal(name)


@pytest.mark.parametrize("name", HARMLESS)
def test_it_does_not(name: str) -> None:
    assert not looks_personal(name)


def test_names_are_found_at_every_depth_and_no_value_is_told() -> None:
    value = {"order": {"lines": [{"sku": "email", "recipient_name": "Ada"}], "phone": "+81"}, "email": None}
    assert personal_fields(value) == ["email", "phone", "recipient_name"]
    assert personal_fields([["name"], "password"]) == []


def test_a_value_within_many_others_ends_the_search() -> None:
    deep: object = {"email": "x"}
    for _ in range(100):
        deep = [deep]
    assert personal_fields(deep) == []
