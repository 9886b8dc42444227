"""Logging for the service. Prompts, token ids and keys are never logged."""

from __future__ import annotations

import logging
import sys


def configure_logging(level: str) -> None:
    """One line a record on standard error."""
    logging.basicConfig(
        level=level.upper(),
        format="%(asctime)s %(levelname)s %(name)s: %(message)s",
        stream=sys.stderr,
        force=True,
    )
