"""Where each key of a TOML document stands.

`tomllib` says what a document means but not where. This scanner walks a document that `tomllib` has already
accepted, so that it only has to skip values, not to check them.
"""

from __future__ import annotations

import re
import tomllib

Path = tuple[str | int, ...]
"""A key path; an int is the index in an array: `("workers", 0, "url")`."""

_PIECE = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\n]|\\.)*"|'[^'\n]*')"""
_KEY = re.compile(rf"{_PIECE}(?:[ \t]*\.[ \t]*{_PIECE})*")
_KEY_PIECE = re.compile(_PIECE)
_GAP = re.compile(r"(?:[\s,]|#[^\n]*)*")
_SPACE = re.compile(r"[ \t]*")
_STRING = re.compile(
    r'"""(?:\\.|[^\\])*?"""(?:"{0,2})' + r"|'''.*?'''(?:'{0,2})" + r'|"(?:[^"\\\n]|\\.)*"' + r"|'[^'\n]*'",
    re.DOTALL,
)
_SCALAR = re.compile(r"[^,\]}#\n]*")


def key_lines(text: str) -> dict[Path, int]:
    """The line, from 1, of each key, table header and array element of a valid TOML document."""
    return _Scanner(text.replace("\r\n", "\n")).document()


class _Scanner:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        self._lines: dict[Path, int] = {}
        self._tables: dict[Path, int] = {}
        """How many `[[tables]]` of that path came so far."""

    def document(self) -> dict[Path, int]:
        table: Path = ()
        while self._skip(_GAP):
            if self._peek("["):
                table = self._header()
            else:
                self._pair(table)
        return self._lines

    def _header(self) -> Path:
        is_array = self._peek("[[")
        line = self._line()
        self._at += 2 if is_array else 1
        self._skip(_SPACE)
        keys = self._key()
        self._at = self._text.index("]", self._at) + (2 if is_array else 1)
        path = self._in_last_tables(keys[:-1]) + keys[-1:]
        if is_array:
            index = self._tables.get(path, 0)
            self._tables[path] = index + 1
            path = (*path, index)
        else:
            path = self._in_last_tables(keys)
        self._mark(path, line)
        return path

    def _in_last_tables(self, keys: Path) -> Path:
        path: Path = ()
        for key in keys:
            path = (*path, key)
            if path in self._tables:
                path = (*path, self._tables[path] - 1)
        return path

    def _pair(self, table: Path) -> None:
        line = self._line()
        keys = self._key()
        path = table + keys
        self._mark(path, line)
        self._at = self._text.index("=", self._at) + 1
        self._skip(_SPACE)
        self._value(path)

    def _key(self) -> tuple[str, ...]:
        match = _KEY.match(self._text, self._at)
        assert match is not None, f"no key at line {self._line()}"
        self._at = match.end()
        return tuple(_plain(piece) for piece in _KEY_PIECE.findall(match.group()))

    def _value(self, path: Path) -> None:
        if self._peek("["):
            self._array(path)
        elif self._peek("{"):
            self._inline_table(path)
        elif not self._skip_string():
            self._skip(_SCALAR)

    def _array(self, path: Path) -> None:
        self._at += 1
        index = 0
        while self._skip(_GAP) and not self._peek("]"):
            self._mark((*path, index), self._line())
            self._value((*path, index))
            index += 1
        self._at += 1

    def _inline_table(self, path: Path) -> None:
        self._at += 1
        while self._skip(_GAP) and not self._peek("}"):
            self._pair(path)
        self._at += 1

    def _skip(self, pattern: re.Pattern[str]) -> bool:
        """Skip what matches; says whether text is left."""
        match = pattern.match(self._text, self._at)
        assert match is not None
        self._at = match.end()
        return self._at < len(self._text)

    def _skip_string(self) -> bool:
        match = _STRING.match(self._text, self._at)
        if match is not None:
            self._at = match.end()
        return match is not None

    def _peek(self, text: str) -> bool:
        return self._text.startswith(text, self._at)

    def _line(self) -> int:
        return self._text.count("\n", 0, self._at) + 1

    def _mark(self, path: Path, line: int) -> None:
        """Note the line of a path and of the tables that it implies."""
        for length in range(1, len(path) + 1):
            self._lines.setdefault(path[:length], line)


def _plain(piece: str) -> str:
    """A key without its quotes and escapes."""
    if piece[0] not in "\"'":
        return piece
    value = tomllib.loads(f"key = {piece}")["key"]
    assert isinstance(value, str)
    return value
