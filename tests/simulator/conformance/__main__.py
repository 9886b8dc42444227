"""`python -m tests.simulator.conformance`: run everything and write the outcome into docs/simulator.md.

With `--pack` write the recordings that the repository keeps.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Mapping

from tests.simulator.conformance import sources
from tests.simulator.conformance.parts import Outcomes, Part, parts

PAGE = sources.ROOT / "docs/simulator.md"
BEGIN, END = "<!-- conformance -->", "<!-- end of conformance -->"


def table(found: Mapping[str, Outcomes], reasons: Mapping[str, Mapping[str, str]]) -> str:
    """Markdown: the sums, the scenarios that differ with their reasons, then those that are equal."""
    lines = ["| recordings | scenarios | equal | differ |", "|---|---|---|---|"]
    for name, outcomes in found.items():
        equal = sum(not difference for difference in outcomes.values())
        lines.append(f"| `{name}` | {len(outcomes)} | {equal} | {len(outcomes) - equal} |")
    lines += ["", "| differs | how | why |", "|---|---|---|"]
    for name, outcomes in found.items():
        for label, difference in outcomes.items():
            if difference:
                reason = reasons[name].get(label, "**no reason known**")
                lines.append(f"| `{name}/{label}` | {_cell(difference)} | {reason} |")
    lines.append("")
    for name, outcomes in found.items():
        equal_labels = ", ".join(label for label, difference in outcomes.items() if not difference)
        lines += [f"Equal in `{name}`: {equal_labels}.", ""]
    return "\n".join(lines)


def _cell(text: str) -> str:
    return "`" + text.replace("|", "\\|").replace("`", "'") + "`"


async def _run(which: list[Part]) -> dict[str, Outcomes]:
    return {part.name: await part.run() for part in which}


def main() -> int:
    """0 when all that differs has a reason."""
    if "--pack" in sys.argv:
        sources.pack()
        return 0
    which = [part for part in parts() if sources.has_all() or not part.needs_all]
    found = asyncio.run(_run(which))
    reasons = {part.name: part.reasons for part in which}
    written = table(found, reasons)
    print(written)
    if sources.has_all():
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}\n{written}\n{END}{rest.partition(END)[2]}")
    return int("**no reason known**" in written)


if __name__ == "__main__":
    sys.exit(main())
