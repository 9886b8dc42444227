"""The worker's command line."""

from __future__ import annotations

import argparse
import signal
import socket
import subprocess
import sys
import urllib.request
from pathlib import Path

import pytest

from simulator.cli import add_arguments, main, ready_url
from simulator.settings import SimulatorSettings

PATIENCE = 60


def test_every_setting_has_a_flag_with_its_default() -> None:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    values = vars(parser.parse_args([]))
    assert SimulatorSettings(**values) == SimulatorSettings()
    assert set(values) == set(SimulatorSettings.__struct_fields__)


def test_what_cannot_work_is_said_before_anything_listens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--num-blocks", "1"]) == 1
    assert "at least 2 blocks" in capsys.readouterr().err
    assert main(["--tokenizer", str(tmp_path)]) == 1
    assert "tiktoken.model" in capsys.readouterr().err
    assert main(["--model-format", "nothing"]) == 1
    assert "nothing" in capsys.readouterr().err


def test_a_taken_port_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        assert main(["--port", str(taken.getsockname()[1])]) == 1
    assert "address already in use" in capsys.readouterr().err


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "simulator", "--name", "one"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        url = ready_url(process.stdout.readline())
        assert url is not None
        with urllib.request.urlopen(f"{url}/health", timeout=PATIENCE) as response:
            assert response.status == 200
        process.send_signal(number)
        assert process.wait(PATIENCE) == 0
