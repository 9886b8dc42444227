"""What all tests share."""

from __future__ import annotations

from hypothesis import settings

# A busy machine is not a failure. Where CI is set, as by `.ci/run`, every run takes the same examples.
settings.register_profile("unhurried", parent=settings(), deadline=None)
settings.load_profile("unhurried")
