"""Reads the settings that `gateway.config` declares."""

from gateway.settings.fields import Field, pool_fields, settings_fields, worker_fields
from gateway.settings.load import Resolved, load_settings
from gateway.settings.report import render
from gateway.settings.sources import CONFIG_ENV

__all__ = [
    "CONFIG_ENV",
    "Field",
    "Resolved",
    "load_settings",
    "pool_fields",
    "render",
    "settings_fields",
    "worker_fields",
]
