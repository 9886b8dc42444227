from __future__ import annotations

import pytest

from parsers.registry import DEFAULT_FORMAT, FORMATS, get_format


@pytest.mark.parametrize("name", FORMATS)
def test_a_format_knows_its_name_and_has_a_vocabulary(name: str) -> None:
    model_format = get_format(name)
    assert model_format.name == name
    vocabulary = model_format.load_vocabulary()
    assert all(0 <= token < vocabulary.size for token in model_format.stop_token_ids)


def test_there_is_a_default() -> None:
    assert get_format(DEFAULT_FORMAT).name == DEFAULT_FORMAT


def test_an_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        get_format("unheard_of")
