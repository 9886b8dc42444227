"""Python loads this in each process of a SGLang worker: what lets it start without a GPU, then good manners.

Both are a `sitecustomize` of their own, of which Python would load the first alone.
"""

from __future__ import annotations

import importlib.util
import os

for number, path in enumerate(os.environ["STARTUP_FILES"].split(":")):
    spec = importlib.util.spec_from_file_location(f"startup_{number}", path)
    assert spec is not None
    assert spec.loader is not None
    spec.loader.exec_module(importlib.util.module_from_spec(spec))
