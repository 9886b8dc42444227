"""Write the table of request fields in docs/api.md from the code: `uv run scripts/fields_table.py`."""

from __future__ import annotations

import re
from pathlib import Path

from gateway.api.reach import ENDPOINTS, rows

PAGE = Path(__file__).resolve().parent.parent / "docs" / "api.md"
START, END = "<!-- fields -->\n", "<!-- end of fields -->"


def main() -> None:
    PAGE.write_text(with_tables(PAGE.read_text()))


def with_tables(page: str) -> str:
    """The page with the table as the code has it."""
    lines = [["field", "request", *ENDPOINTS.values()], ["---"] * (2 + len(ENDPOINTS)), *rows()]
    table = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    changed, count = re.subn(
        re.escape(START) + ".*?" + re.escape(END), lambda _: START + table + END, page, flags=re.DOTALL
    )
    if count != 1:
        raise SystemExit(f"{PAGE.name}: expected one table of fields, found {count}")
    return changed


if __name__ == "__main__":
    main()
