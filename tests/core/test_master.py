"""Master keys: read with clear errors, never shown."""

from __future__ import annotations

import base64

import pytest

from todoku.core.errors import InvalidSetting
from todoku.core.sealed import MasterKey, MasterKeys, format_master_key, master_keys
from todoku.core.settings import read_settings

ONE, TWO = bytes(range(32)), bytes(range(32, 64))
TEXT = f"{format_master_key('2026-11', ONE)},{format_master_key('2026-05', TWO)}"


def test_the_first_is_the_current_one_and_the_last_the_oldest() -> None:
    keys = master_keys(TEXT)
    assert [key.id for key in keys] == ["2026-11", "2026-05"]
    assert (keys.current.key, keys.oldest.key) == (ONE, TWO)
    assert keys.get("2026-05") == MasterKey("2026-05", TWO)
    assert keys.get("2025") is None


def test_a_file_may_have_one_on_a_line_and_a_toml_list_works_too() -> None:
    assert master_keys(TEXT.replace(",", "\n") + "\n") == master_keys(TEXT) == master_keys(TEXT.split(","))


def test_base64_of_urls_is_base64_too() -> None:
    key = b"\xfb\xff" * 16
    assert master_keys("k:" + base64.urlsafe_b64encode(key).decode()).current.key == key


def test_without_any_there_is_no_current_one() -> None:
    assert not master_keys("")
    with pytest.raises(InvalidSetting, match="todoku encryption-keys generate"):
        _ = MasterKeys().current


SECRET = base64.b64encode(b"too short, and still nobody's").decode()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (SECRET, "entry 1 of master_keys does not begin with an id"),
        (f"{TEXT},{SECRET}", "entry 3 of master_keys"),
        (f"a b:{SECRET}", "entry 1"),
        (f"k:{SECRET}", "'k' has 29 bytes, 32 are needed"),
        (f"k:{SECRET}!", "'k' is not base64"),
        (f"{format_master_key('k', ONE)},{format_master_key('k', TWO)}", "two keys called 'k'"),
    ],
)
def test_what_cannot_be_read_is_refused_without_quoting_it(text: str, said: str) -> None:
    with pytest.raises(InvalidSetting) as refused:
        read_settings({"TODOKU_MASTER_KEYS": text})
    assert said in str(refused.value)
    assert SECRET not in str(refused.value)


def test_no_repr_shows_a_key() -> None:
    settings = read_settings({"TODOKU_MASTER_KEYS": TEXT})
    for text in (repr(settings), str(settings), repr(settings.master_keys), repr(settings.master_keys.current)):
        assert "2026-11" in text
        assert base64.b64encode(ONE).decode() not in text
        assert repr(ONE) not in text


def test_a_keyed_digest_is_neither_the_digest_nor_that_of_another_key() -> None:
    keys = master_keys(TEXT)
    one, other = (key.digest("1:abc") for key in keys)
    assert one.startswith("k1:2026-11:")
    assert one.rpartition(":")[2] != other.rpartition(":")[2]
    assert keys.current.digest("1:abc") == one != keys.current.digest("1:abd")


def test_encrypt_is_one_of_two_words() -> None:
    assert read_settings({"TODOKU_ENCRYPT": "all", "TODOKU_MASTER_KEYS": TEXT}).encrypt == "all"
    with pytest.raises(InvalidSetting, match="encrypt"):
        read_settings({"TODOKU_ENCRYPT": "some"})
