"""`secret://provider/path`: which secrets a text names, and where their values go (S0-93)."""

from __future__ import annotations

import pytest

from todoku.core.errors import InvalidSetting
from todoku.core.secret_text import names_secret, secret_ids, with_secrets

PASSWORD = "h/un ter?2@%{}"
VALUES = {"vault:kv/db#password": PASSWORD, "aws:arn:aws:secretsmanager:eu:1:secret:x": "two"}


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("postgresql://ada@host/shop", "postgresql://ada@host/shop"),
        ("secret://vault/kv/db#password", PASSWORD),
        ("secret://aws/arn:aws:secretsmanager:eu:1:secret:x", "two"),
        ("amqp://ada:{secret://vault/kv/db#password}@mq/", "amqp://ada:h%2Fun%20ter%3F2%40%25%7B%7D@mq/"),
        ("Bearer {secret://vault/kv/db#password}", f"Bearer {PASSWORD}"),
        ("{topic}: {secret://vault/kv/db#password}", f"{{topic}}: {PASSWORD}"),
        (
            "new:{secret://aws/arn:aws:secretsmanager:eu:1:secret:x},old:{secret://vault/kv/db#password}",
            f"new:two,old:{PASSWORD}",
        ),
    ],
)
def test_each_value_is_in_the_place_of_its_name_and_percent_encoded_within_a_url(text: str, filled: str) -> None:
    assert set(secret_ids(text)) <= VALUES.keys()
    assert bool(secret_ids(text)) is names_secret(text)
    assert with_secrets(text, VALUES) == filled


@pytest.mark.parametrize(
    "text",
    [
        "secret://",
        "secret://vault",
        "secret://vault/",
        "secret:///x",
        "secret://va ult/x",
        "secret://vault/a\nb",
        "amqp://ada:secret://vault/x@mq/",
        "Bearer secret://vault/x",
        "{secret://vault}",
        "secret://vault/{x}",
    ],
)
def test_a_text_that_was_meant_to_name_a_secret_and_does_not_is_refused(text: str) -> None:
    assert names_secret(text)
    with pytest.raises(InvalidSetting, match="secret://provider/path") as refused:
        secret_ids(text)
    assert text not in str(refused.value) or text == "secret://"
