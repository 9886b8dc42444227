"""What Moonshot's own service refuses and fills in, for `profile = "kimi-strict"`."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from gateway.serving.errors import bad_request
from gateway.serving.request import Fields

PINNED: Mapping[str, tuple[float, ...]] = {
    "temperature": (0.0, 0.6, 1.0),
    "top_p": (0.95,),
    "presence_penalty": (0.0,),
    "frequency_penalty": (0.0,),
}
"""Sampling parameters with the values that they may have."""


def check_vendor_rules(fields: Fields) -> None:
    """Raises RequestError that names the field."""
    for name, allowed in PINNED.items():
        raw = fields.sampling.get(name)
        if raw is not None and msgspec.json.decode(raw, type=float) not in allowed:
            values = " or ".join(f"{value:g}" for value in allowed)
            raise bad_request(f"`{name}` must be {values} for this model.", name, f"{name}_not_allowed")
    if fields.values.get("n", 1) != 1:
        raise bad_request("`n` must be 1 for this model.", "n", "n_not_allowed")
    if isinstance(fields.values.get("tool_choice"), Mapping):
        message = "`tool_choice` must be auto, none or required for this model."
        raise bad_request(message, "tool_choice", "tool_choice_not_allowed")


def vendor_defaults(sampling: dict[str, bytes], *, thinking: bool) -> None:
    """Fill in what the client left out."""
    sampling.setdefault("temperature", b"1.0" if thinking else b"0.6")
    sampling.setdefault("top_p", b"0.95")
