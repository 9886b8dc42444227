"""The file of keys."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from gateway.access.keys import KeysError, digest_of, read_keys

HASH = hashlib.sha256(b"sk-1").hexdigest()
OTHER = hashlib.sha256(b"sk-2").hexdigest()


def written(folder: Path, text: str) -> str:
    path = folder / "keys.toml"
    path.write_text(text)
    return str(path)


def test_a_key_is_found_by_the_digest_of_its_secret(tmp_path: Path) -> None:
    text = f'[[keys]]\nname = "a"\nsha256 = "{HASH}"\nmodels = ["m"]\nconcurrency = 2\npriority = -1\n'
    key = read_keys(written(tmp_path, text))[digest_of("sk-1")]
    assert (key.name, key.models, key.concurrency, key.priority, key.admin) == ("a", ("m",), 2, -1, False)


@pytest.mark.parametrize(
    "text",
    [
        "keys",
        '[[keys]]\nname = "a"',
        f'[[keys]]\nname = ""\nsha256 = "{HASH}"',
        '[[keys]]\nname = "a"\nsha256 = "sk-secret"',
        f'[[keys]]\nname = "a"\nsha256 = "{HASH}"\nconcurency = 1',
        f'[[keys]]\nname = "a"\nsha256 = "{HASH}"\nconcurrency = 0',
        f'[[keys]]\nname = "a"\nsha256 = "{HASH}"\n[[keys]]\nname = "a"\nsha256 = "{OTHER}"',
        f'[[keys]]\nname = "a"\nsha256 = "{HASH}"\n[[keys]]\nname = "b"\nsha256 = "{HASH}"',
        "admin = true",
    ],
)
def test_a_wrong_file_is_one_line_without_what_is_in_it(tmp_path: Path, text: str) -> None:
    with pytest.raises(KeysError) as caught:
        read_keys(written(tmp_path, text))
    assert "\n" not in str(caught.value)
    assert "sk-secret" not in str(caught.value)


def test_a_file_that_is_not_there_is_one_line(tmp_path: Path) -> None:
    with pytest.raises(KeysError, match="No such file"):
        read_keys(str(tmp_path / "none"))
