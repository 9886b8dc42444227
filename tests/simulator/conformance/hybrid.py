"""The recorded scenarios of two hybrid models as requests.

One has a state group beside attention, the other three sliding-window groups. Both answered the same prompts.
"""

from __future__ import annotations

from typing import NamedTuple

from tests.simulator.conformance.kv import UNKNOWN, Recorded, Take, pad
from tests.simulator.conformance.rig import Ask, Rig


class Model(NamedTuple):
    """A recorded model: its groups, and the cached tokens that it reported for the telling prompts."""

    kv_groups: str
    cached: dict[str, int]


MODELS = {
    "hybrid_mamba": Model(
        "attention+mamba",
        {"h01_fresh_200": 0, "h02_repeat": 192, "h03_shared128": 0, "h04_exact_192": 128},
    ),
    "hybrid_swa": Model(
        "attention+sliding_window:64*3",
        {"h01_fresh_200": 0, "h02_repeat": 192, "h03_shared128": 0, "h04_exact_192": 160},
    ),
}


async def scenarios(rig: Rig, recorded: Recorded, take: Take) -> dict[str, int]:
    """Run them all; the cached tokens of each request."""
    cached: dict[str, int] = {}

    async def one(label: str, ask: Ask) -> None:
        cached[label] = await rig.ask(ask)
        await take(label, await rig.messages())

    fresh = recorded.tokens("h01_fresh_200")
    short, long = [UNKNOWN] * 4, [*fresh[200:], UNKNOWN]
    await one("h01_fresh_200", Ask(fresh[:200], long))
    await one("h02_repeat", Ask(fresh[:200], short))
    shared = recorded.tokens("h03_shared128")
    await one("h03_shared128", Ask(shared[:192], short))
    await one("h04_exact_192", Ask(fresh[:192], short))
    await one("h05_salt_lora_none", Ask(recorded.tokens("h05_salt_lora_none"), short, salt="s"))
    many = recorded.tokens("h06_long_1500")
    await one("h06_long_1500", Ask(many[:1500], [*many[1500:], UNKNOWN]))
    assert (await rig.http("POST", "/reset_prefix_cache")).json == {"success": True}
    await one("h07_reset", Ask(pad(recorded.tokens("h07_reset"), 40), short))
    return cached
