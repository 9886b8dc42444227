"""Who may do what over HTTP, and how much of it at a time."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import os
import re
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from gateway.access import access
from gateway.api.server import admin_runner
from gateway.config import StartupError
from tests.gateway.api.conftest import MODEL, Gateway, gateway
from tests.gateway.raw_worker import endless_stream, stream, tokens

USAGE = {"choices": [], "usage": {"prompt_tokens": 3, "prompt_tokens_details": {"cached_tokens": 1}}}
SAY = stream(tokens(5, 6, finish="stop"), USAGE)
BODY = {"model": MODEL, "prompt": [1, 2, 3]}


class KeyFile:
    """A file of keys; the secret of a key is `sk-` and its name."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "keys.toml"
        self.write(a="")

    def write(self, **keys: str) -> None:
        text = ""
        for name, rest in keys.items():
            digest = hashlib.sha256(f"sk-{name}".encode()).hexdigest()
            text += f'[[keys]]\nname = "{name}"\nsha256 = "{digest}"\n{rest}\n'
        new = self.path.with_suffix(".new")
        new.write_text(text)
        os.replace(new, self.path)


@pytest.fixture
def keys(tmp_path: Path) -> KeyFile:
    return KeyFile(tmp_path)


def guarded(keys: KeyFile, *answers: Any, **settings: Any) -> Any:
    return gateway(list(answers), keys_file=str(keys.path), **settings)


async def ask(gw: Gateway, key: str | None = "a", **fields: Any) -> aiohttp.ClientResponse:
    headers = {} if key is None else {"Authorization": f"Bearer sk-{key}"}
    return await gw.post("/v1/completions", BODY | fields, headers=headers)


async def code_of(response: aiohttp.ClientResponse) -> tuple[int, str]:
    return response.status, (await response.json())["error"]["code"]


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Authorization": "Bearer sk-b"},
        {"Authorization": "Bearer "},
        {"Authorization": "Basic sk-a"},
        {"Authorization": "sk-a"},
        {"x-api-key": "sk-b"},
        {"Authorization": "Bearer sk-\udcff"},
    ],
)
async def test_without_a_known_key_it_is_a_401_that_repeats_nothing(
    keys: KeyFile, headers: dict[str, str]
) -> None:
    async with guarded(keys) as gw:
        raw = {name: value.encode("utf-8", "surrogateescape") for name, value in headers.items()}
        head = b"".join(b"%b: %b\r\n" % (name.encode(), value) for name, value in raw.items())
        host, _, port = gw.url.removeprefix("http://").partition(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + head + b"\r\n")
        received = await asyncio.wait_for(reader.read(), 5)
        writer.close()
    assert received.startswith(b"HTTP/1.1 401")
    assert b"\r\nWWW-Authenticate: Bearer\r\n" in received
    assert b'"code":"invalid_api_key"' in received
    assert b'"type":"authentication_error"' in received
    assert b"sk-" not in received


@pytest.mark.parametrize("headers", [{"Authorization": "bearer sk-a"}, {"x-api-key": "sk-a"}])
async def test_a_known_key_opens(keys: KeyFile, headers: dict[str, str]) -> None:
    async with guarded(keys, SAY) as gw:
        assert (await gw.post("/v1/completions", BODY, headers=headers)).status == 200


async def test_what_probes_and_scrapers_ask_needs_no_key(keys: KeyFile) -> None:
    async with guarded(keys) as gw:
        for path in ("/health", "/live", "/ready", "/version", "/metrics"):
            assert (await gw.get(path)).status == 200
        for path in ("/v1/models", "/nothing", "/v1/completions"):
            assert (await gw.get(path)).status == 401


async def test_a_key_sees_and_uses_its_models_alone(keys: KeyFile) -> None:
    keys.write(a='models = ["other"]', b=f'models = ["{MODEL}"]')
    async with guarded(keys, SAY) as gw:
        assert await code_of(await ask(gw)) == (404, "model_not_found")
        assert (await ask(gw, "b")).status == 200
        for name, seen in (("a", []), ("b", [MODEL])):
            headers = {"Authorization": f"Bearer sk-{name}"}
            listed = await (await gw.session.get(f"{gw.url}/v1/models", headers=headers)).json()
            assert [each["id"] for each in listed["data"]] == seen
        body = {"model": MODEL, "prompt": "x"}
        refused = await gw.post("/tokenize", body, headers={"Authorization": "Bearer sk-a"})
        assert refused.status == 404


@pytest.mark.parametrize(("sent", "told"), [(None, 5), (-7, 5), (5, 5), (9, 9)])
async def test_the_priority_is_capped_by_the_key(keys: KeyFile, sent: int | None, told: int) -> None:
    keys.write(a="priority = 5")
    async with guarded(keys, SAY) as gw:
        await ask(gw, **({} if sent is None else {"priority": sent}))
        assert gw.workers[0].requests[0][1]["priority"] == told


async def test_with_salts_no_key_finds_the_caches_of_another(keys: KeyFile) -> None:
    keys.write(a="", b="")
    async with guarded(keys, *[SAY] * 5, salt_per_key=True) as gw:
        for key, own in (
            ("a", {}),
            ("a", {}),
            ("b", {}),
            ("a", {"cache_salt": "x"}),
            ("b", {"cache_salt": "x"}),
        ):
            assert (await ask(gw, key, **own)).status == 200
        salts = [body["cache_salt"] for _, body in gw.workers[0].requests]
    assert salts[0] == salts[1]
    assert len(set(salts)) == 4
    assert all(len(salt) == 32 for salt in salts)


async def test_without_them_a_clients_own_salt_is_all_there_is(keys: KeyFile) -> None:
    async with guarded(keys, SAY, SAY) as gw:
        await ask(gw)
        await ask(gw, cache_salt="x")
        first, second = (body for _, body in gw.workers[0].requests)
    assert "cache_salt" not in first
    assert second["cache_salt"] == "x"


async def test_a_keys_labels_choose_its_workers(keys: KeyFile) -> None:
    keys.write(a='labels = {zone = "north"}')
    async with guarded(keys, SAY) as gw:
        refused = await ask(gw)
        assert refused.status == 503
        assert gw.workers[0].requests == []


async def test_a_header_names_the_session() -> None:
    async with gateway(*[[SAY] * 6 for _ in range(3)], policy="session", session_header="X-Chat") as gw:
        for _ in range(5):
            await gw.post("/v1/completions", BODY, headers={"X-Chat": "s"})
        assert sorted(len(worker.requests) for worker in gw.workers) == [0, 0, 5]


async def test_the_priority_is_capped_where_requests_pass_through(keys: KeyFile) -> None:
    keys.write(a="priority = 5")
    async with guarded(keys, SAY, endpoint="openai") as gw:
        await ask(gw, priority=-7, temperature=0.1)
        assert gw.workers[0].requests[0][1]["priority"] == 5


async def test_requests_at_the_same_time_are_exactly_as_many_as_the_key_may(keys: KeyFile) -> None:
    keys.write(a="concurrency = 3", b="")
    async with guarded(keys, *[endless_stream(tokens(5))] * 9) as gw:
        answers = await asyncio.gather(*[ask(gw, stream=True) for _ in range(8)])
        assert sorted(answer.status for answer in answers) == [200] * 3 + [429] * 5
        refused = next(answer for answer in answers if answer.status == 429)
        assert (await code_of(refused), refused.headers["Retry-After"]) == ((429, "rate_limit_exceeded"), "1")
        assert (await ask(gw, "b", stream=True)).status == 200
        next(answer for answer in answers if answer.status == 200).close()
        while (again := await ask(gw, stream=True)).status == 429:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        assert again.status == 200
        assert (await ask(gw, stream=True)).status == 429


async def test_requests_of_a_minute_are_exactly_as_many_as_the_key_may(keys: KeyFile) -> None:
    keys.write(a="requests_per_minute = 4")
    async with guarded(keys, *[SAY] * 4) as gw:
        answers = await asyncio.gather(*[ask(gw) for _ in range(10)])
        assert sorted(answer.status for answer in answers) == [200] * 4 + [429] * 6
        assert 0 < int(next(each for each in answers if each.status == 429).headers["Retry-After"]) <= 60
        headers = {"Authorization": "Bearer sk-a"}
        assert (await gw.session.get(f"{gw.url}/v1/models", headers=headers)).status == 200


async def test_tokens_of_a_minute_are_taken_beforehand_and_settled_at_the_end(keys: KeyFile) -> None:
    keys.write(a="tokens_per_minute = 30")
    async with guarded(keys, *[SAY] * 4) as gw:
        # 3 of the prompt and 20 that the answer may have are taken; 5 it is in the end.
        assert (await ask(gw, max_tokens=20)).status == 200
        assert (await ask(gw, max_tokens=20)).status == 200
        # 10 are used, 20 left.
        assert await code_of(await ask(gw, max_tokens=18)) == (429, "rate_limit_exceeded")
        assert (await ask(gw, max_tokens=17)).status == 200
        too_large = await ask(gw, max_tokens=100)
        assert (too_large.status, too_large.headers["x-should-retry"]) == (429, "false")


async def test_what_was_said_counts_though_the_client_left_before_the_end(keys: KeyFile) -> None:
    keys.write(a="tokens_per_minute = 10")
    async with guarded(keys, endless_stream(tokens(5, 6, 7, 8))) as gw:
        answer = await ask(gw, stream=True)
        await answer.content.readany()
        answer.close()
        await asyncio.wait_for(gw.workers[0].left.wait(), 5)
        # 3 of the prompt and 4 that were said.
        assert await code_of(await ask(gw, max_tokens=1)) == (429, "rate_limit_exceeded")


async def test_a_changed_file_counts_at_once_and_a_broken_one_not_at_all(
    keys: KeyFile, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(keys, *[SAY] * 3) as gw:
        assert (await ask(gw)).status == 200
        keys.write(b="")
        gw.services.access.reload_if_changed()
        assert [(await ask(gw, name)).status for name in ("a", "b")] == [401, 200]
        keys.path.write_text("keys = 3")
        with caplog.at_level(logging.ERROR):
            gw.services.access.reload_if_changed()
            gw.services.access.reload_if_changed()
        assert len(caplog.records) == 1
        assert (await ask(gw, "b")).status == 200


async def test_the_file_is_looked_at_again_and_again(keys: KeyFile, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(access, "RELOAD_SECONDS", 0.01)
    async with guarded(keys, SAY) as gw:
        watching = asyncio.create_task(gw.services.access.watch())
        keys.write(b="")
        while (await ask(gw, "b")).status == 401:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        watching.cancel()
        assert (await ask(gw)).status == 401


async def test_counters_outlive_a_change_of_the_file(keys: KeyFile) -> None:
    keys.write(a="requests_per_minute = 1")
    async with guarded(keys, SAY, SAY) as gw:
        assert (await ask(gw)).status == 200
        keys.write(a="requests_per_minute = 2")
        gw.services.access.reload_if_changed()
        assert [(await ask(gw)).status for _ in range(2)] == [200, 429]


async def test_the_admin_api_needs_an_admins_key(keys: KeyFile) -> None:
    keys.write(a="", root="admin = true")
    async with guarded(keys) as gw:
        runner = await admin_runner(gw.services)
        try:
            await web.TCPSite(runner, "127.0.0.1", 0).start()
            url = f"http://127.0.0.1:{runner.addresses[0][1]}"
            statuses = []
            for name in ("", "a", "root"):
                headers = {"Authorization": f"Bearer sk-{name}"}
                async with gw.session.get(f"{url}/workers", headers=headers) as response:
                    statuses.append(response.status)
            assert statuses == [401, 403, 200]
            async with gw.session.get(f"{url}/health") as response:
                assert response.status == 200
        finally:
            await runner.cleanup()


async def test_the_log_names_request_key_model_and_worker_and_nothing_that_was_said(
    keys: KeyFile, caplog: pytest.LogCaptureFixture
) -> None:
    async with guarded(keys, SAY) as gw:
        with caplog.at_level(logging.INFO):
            response = await ask(gw, prompt="a secret prompt")
    line = next(record.getMessage() for record in caplog.records if "output tokens" in record.getMessage())
    assert line.startswith(f"request {response.headers['X-Request-Id']} key a model {MODEL} on w0: ")
    assert re.search(r"2 output tokens, \d\.\d{3} s to the first, \d\.\d{3} s$", line)
    assert "secret" not in caplog.text
    assert "sk-" not in caplog.text


async def test_without_a_file_everything_is_open() -> None:
    async with gateway([SAY]) as gw:
        assert gw.services.access is None
        assert (await ask(gw, None)).status == 200


async def test_a_file_that_cannot_be_read_keeps_the_gateway_from_starting(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match=r"keys_file: .*none\.toml"):
        async with gateway([], keys_file=str(tmp_path / "none.toml")):
            pass


async def test_browsers_of_other_origins_are_not_let_in() -> None:
    async with gateway([SAY]) as gw:
        headers = {"Origin": "http://evil.example", "Access-Control-Request-Method": "POST"}
        preflight = await gw.session.options(f"{gw.url}/v1/completions", headers=headers)
        assert preflight.status == 405
        answer = await gw.post("/v1/completions", BODY, headers=headers)
        assert not any(name.startswith("Access-Control") for name in (*preflight.headers, *answer.headers))
