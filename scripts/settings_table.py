"""Write the tables of settings in docs/operations.md from the code: `uv run scripts/settings_table.py`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path

from gateway.settings import Field, pool_fields, settings_fields, worker_fields

PAGE = Path(__file__).resolve().parent.parent / "docs" / "operations.md"


def main() -> None:
    PAGE.write_text(with_tables(PAGE.read_text()))


def with_tables(page: str) -> str:
    """The page with all tables as the code has them."""
    page = _between(page, "settings", settings_table())
    page = _between(page, "pools", table_of(pool_fields()))
    return _between(page, "workers", table_of(worker_fields()))


def settings_table() -> str:
    return _table(
        ("key", "flag", "variable", "default", "meaning"),
        (
            (f"`{field.key}`", *_other_names(field), _default(field), _meaning(field))
            for field in settings_fields().values()
        ),
    )


def table_of(fields: Mapping[str, Field]) -> str:
    """A table of the keys of a `[[...]]` table."""
    return _table(
        ("key", "default", "meaning"),
        ((f"`{field.key}`", _default(field), _meaning(field)) for field in fields.values()),
    )


def _other_names(field: Field) -> tuple[str, str]:
    return ("-", "-") if field.in_file_only else (f"`{field.flag}`", f"`{field.env}`")


def _default(field: Field) -> str:
    if not isinstance(field.default, str | int | float) or field.default == "":
        return "-"
    return f"`{field.default}`"


def _meaning(field: Field) -> str:
    choices = f" ({', '.join(f'`{choice}`' for choice in field.choices)})" if field.choices else ""
    return field.help + choices


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, ("---",) * len(head), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _between(page: str, name: str, table: str) -> str:
    """The page with `table` between the two comments that carry the name."""
    start, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
    pattern = re.escape(start) + ".*?" + re.escape(end)
    changed, count = re.subn(pattern, lambda _: f"{start}{table}{end}", page, flags=re.DOTALL)
    if count != 1:
        raise SystemExit(f"{PAGE.name}: expected one part {name}, found {count}")
    return changed


if __name__ == "__main__":
    main()
