"""TLS towards clients and towards workers, with a certificate made here."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import ssl
import subprocess
from pathlib import Path

import aiohttp
import pytest

from gateway.api.server import public_runner
from gateway.app import _listen, _tls, build
from gateway.config import Settings, StartupError, WorkerSettings
from gateway.fleet.probe import healthy
from gateway.fleet.worker import Profile
from tests.gateway.raw_worker import RawWorker, stream, tokens

pytestmark = pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """Of 127.0.0.1: the certificate's file and the key's."""
    folder = tmp_path_factory.mktemp("tls")
    made, key = str(folder / "certificate.pem"), str(folder / "key.pem")
    command = "openssl req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2 -subj /CN=x"
    extension = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", made]
    subprocess.run([*command.split(), *extension], check=True, capture_output=True)
    return made, key


async def test_clients_and_workers_are_spoken_to_over_tls(
    certificate: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made, key = certificate
    monkeypatch.setenv("SSL_CERT_FILE", made)
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(made, key)
    worker = RawWorker(stream(tokens(5, finish="stop")))
    server = await asyncio.start_server(worker.accept, "127.0.0.1", 0, ssl=own)
    url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    settings = Settings(workers=[WorkerSettings(url=url, name="w")], tls_certificate=made, tls_key=key)
    async with contextlib.AsyncExitStack() as stack:
        stack.callback(server.close)
        services = build(settings)
        services_worker = services.fleet.workers["w"]
        await services.fleet._put_in(
            services_worker, Profile(models=("m",), context_length=None, endpoint="generate")
        )
        listening = await _listen(stack, await public_runner(services), "127.0.0.1", 0, _tls(settings))
        assert listening.startswith("https://")
        trusting = aiohttp.TCPConnector(ssl=ssl.create_default_context(cafile=made))
        session = await stack.enter_async_context(aiohttp.ClientSession(connector=trusting))
        answer = await session.post(f"{listening}/v1/completions", json={"model": "m", "prompt": [1]})
        assert answer.status == 200, await answer.text()
        assert worker.requests[0][0] == "/inference/v1/generate"


async def test_a_worker_whose_certificate_nobody_vouches_for_is_not_spoken_to(
    certificate: tuple[str, str],
) -> None:
    own = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    own.load_cert_chain(*certificate)
    server = await asyncio.start_server(RawWorker().accept, "127.0.0.1", 0, ssl=own)
    async with server, aiohttp.ClientSession() as session:
        url = f"https://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        reason = await healthy(session, WorkerSettings(url=url))
        assert reason is not None
        assert "CERTIFICATE_VERIFY_FAILED" in reason


def test_a_certificate_that_cannot_be_used_is_one_line(tmp_path: Path) -> None:
    for name, text in (("none.pem", None), ("bad.pem", "x")):
        if text is not None:
            (tmp_path / name).write_text(text)
        with pytest.raises(StartupError) as caught:
            _tls(Settings(tls_certificate=str(tmp_path / name)))
        assert "\n" not in str(caught.value)
        assert name in str(caught.value)
