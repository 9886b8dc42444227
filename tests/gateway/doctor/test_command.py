"""`kvgateway doctor` as it is typed: configured, on a running gateway, as a table and as JSON."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import msgspec
import pytest
from aiohttp import web

from tests.gateway.doctor.conftest import Start


async def doctor(*arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "gateway.cli", "doctor", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    return process.returncode, out.decode(), err.decode()


async def test_a_configured_fleet_that_is_well(start: Start) -> None:
    worker = await start()
    code, out, err = await doctor("--worker", worker.url)
    assert (code, err) == (0, "")
    assert "Nothing to change." in out


async def test_errors_are_told_by_the_exit_code_and_in_json(start: Start, tmp_path: Path) -> None:
    worker = await start()
    config = tmp_path / "gw.toml"
    config.write_text(
        f'[[workers]]\nname = "here"\nurl = "{worker.url}"\n\n[[workers]]\nname = "gone"\nurl = "http://127.0.0.1:1"\n'
    )
    code, out, _ = await doctor("--config", str(config), "--json", "--no-requests")
    told = msgspec.json.decode(out)
    assert code == 1
    assert [(each["worker"], each["code"]) for each in told["findings"]] == [("gone", "unreachable")]


async def test_the_fleet_of_a_running_gateway_with_what_it_knows(start: Start) -> None:
    worker = await start()
    described = {
        "name": "w",
        "url": worker.url,
        "role": "aggregated",
        "pool": "default",
        "labels": {},
        "configured": {
            "engine": "auto",
            "kv_events": None,
            "kv_replay": None,
            "max_num_seqs": None,
            "side_channel": None,
        },
        "feeds": [{"dp_rank": 0, "state": "degraded", "reason": "lost"}],
    }
    slow = {"prefill": "p", "decode": "d", "link": "nvlink", "slow": True}

    async def workers(_: web.Request) -> web.Response:
        return web.json_response({"workers": [described], "pairs": [slow]})

    app = web.Application()
    app.router.add_get("/workers", workers)
    runner = web.AppRunner(app)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        code, out, err = await doctor("--gateway", f"http://127.0.0.1:{runner.addresses[0][1]}")
    finally:
        await runner.cleanup()
    assert (code, err) == (1, "")
    assert "rank 0 is degraded: lost [feed]" in out
    assert "p, d: the gateway sees transfers far under what nvlink gives [slow_path]" in out


@pytest.mark.parametrize("arguments", [(), ("--gateway", "http://127.0.0.1:1")])
async def test_nobody_to_look_at_is_one_line(arguments: tuple[str, ...]) -> None:
    code, out, err = await doctor(*arguments)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1
