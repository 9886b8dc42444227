"""On which line of a TOML document each key stands."""

from __future__ import annotations

import tomllib
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gateway.settings.toml_lines import key_lines

DOCUMENT = '''\
top = 1
"quoted key" = 2
a."b.c".'d' = """
[not.a.table]
x = 1
\\""" still text """""
list = [ # a comment, with ] in it
  "one, ]",
  [2, 3], { in = 4, "x y" = '}' },
]
after = 'c:\\'
"esc\\u0061ped" = 2026-11-30T10:00:00Z
[table . sub] # header
k = 1
[[workers]]
url = "u0"
[workers.labels]
zone = "z"
[[workers]]
labels = { zone = "z", other = "o" }
[[workers.inner]]
deep = 1
[[workers.inner]]
deep = 2
'''

LINES = {
    ("top",): 1,
    ("quoted key",): 2,
    ("a", "b.c", "d"): 3,
    ("list",): 7,
    ("list", 0): 8,
    ("list", 1, 1): 9,
    ("list", 2, "in"): 9,
    ("list", 2, "x y"): 9,
    ("after",): 11,
    ("escaped",): 12,
    ("table", "sub"): 13,
    ("table", "sub", "k"): 14,
    ("workers",): 15,
    ("workers", 0): 15,
    ("workers", 0, "url"): 16,
    ("workers", 0, "labels"): 17,
    ("workers", 0, "labels", "zone"): 18,
    ("workers", 1): 19,
    ("workers", 1, "labels", "other"): 20,
    ("workers", 1, "inner", 0, "deep"): 22,
    ("workers", 1, "inner", 1, "deep"): 24,
}


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_key_lines(newline: str) -> None:
    text = DOCUMENT.replace("\n", newline)
    lines = key_lines(text)
    assert {path: lines.get(path) for path in LINES} == LINES
    assert ("not",) not in lines
    for path in leaves(tomllib.loads(text)):
        assert path in lines


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all that a parsed document holds."""
    children = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    found = [path] if path else []
    for key, child in children:
        found += leaves(child, (*path, key))
    return found


KEYS = st.text(st.characters(codec="utf-8", exclude_characters="\x7f"), max_size=4)
VALUES = st.recursive(
    st.integers() | st.booleans() | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_key_lines_finds_every_key_that_tomllib_finds(document: dict[str, Any]) -> None:
    from gateway.settings.report import _toml

    def inline(value: Any) -> str:
        if isinstance(value, list):
            return "[\n" + ",\n".join(map(inline, value)) + "]"
        if isinstance(value, dict):
            return "{" + ", ".join(f"{_toml(key)} = {inline(item)}" for key, item in value.items()) + "}"
        return _toml(value)

    text = "\n# [comment]\n".join(f"{_toml(key)} = {inline(value)}" for key, value in document.items())
    assert tomllib.loads(text) == document
    assert set(key_lines(text)) == set(leaves(document))
