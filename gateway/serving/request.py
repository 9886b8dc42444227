"""A request body after its fields have been checked and sorted."""

from __future__ import annotations

from typing import Any

import msgspec

from gateway.serving.errors import RequestError


class Fields(msgspec.Struct):
    """What a body holds, by who acts on it. JSON values for workers are kept as the client spelled them."""

    values: dict[str, Any]
    """Checked values of the fields that the gateway acts on."""
    sampling: dict[str, bytes]
    """Sampling parameters, for the worker."""
    top_level: dict[str, bytes]
    """Other fields for the worker; unknown ones are among them."""
    refusal: RequestError | None = None
    """Why the gateway cannot serve it itself; a worker that takes requests whole may be able to."""
