from __future__ import annotations

import importlib.util
from types import ModuleType

import pytest

from parsers.kimi_k3.vocabulary import parse_ranks, small_ranks
from tests.parsers.kimi_k3.material import ROOT


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("maker", ROOT / "scripts/make_small_vocabulary.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_packaged_file_is_what_the_script_makes(script: ModuleType) -> None:
    # Merges are learned in order, so the first ones speak for all; all would take some seconds.
    packaged = list(parse_ranks(small_ranks()))
    assert len(packaged) == 256 + script.MERGES
    assert script.train(script.training_pieces(), 150) == packaged[256 : 256 + 150]
