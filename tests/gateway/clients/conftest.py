"""A demo fleet as processes, and the clients that people use."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator

import anthropic
import openai
import pytest


@pytest.fixture(scope="session", name="base_url")
def base_url_fixture() -> Iterator[str]:
    command = [sys.executable, "-m", "gateway.cli", "demo", "--port", "0", "--topology", "agg"]
    demo = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert demo.stdout is not None
    seen = ""
    for line in demo.stdout:
        seen += line
        if "Ctrl-C stops everything" in line:
            break
    found = re.search(r"curl -s (http://\S+)/v1/", seen)
    assert found is not None, seen
    try:
        yield f"{found[1]}/v1"
    finally:
        demo.terminate()
        demo.wait(30)
        demo.stdout.close()


@pytest.fixture(name="client")
def client_fixture(base_url: str) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=base_url, api_key="unused", max_retries=0) as client:
        yield client


@pytest.fixture(name="claude")
def claude_fixture(base_url: str) -> Iterator[anthropic.Anthropic]:
    url = base_url.removesuffix("/v1")
    with anthropic.Anthropic(base_url=url, api_key="unused", max_retries=0) as client:
        yield client
