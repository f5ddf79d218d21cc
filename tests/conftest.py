"""Fixtures shared by all tests: small real models on disk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from hypothesis import settings

from hsdag.models import save_model_files

settings.register_profile("same_examples", deadline=None, derandomize=True)  # no deadline: the machine may be busy
settings.register_profile("new_examples", deadline=None)  # make hunt
settings.load_profile("same_examples")
torch.set_num_threads(1)  # the policies under test are small: more threads only get in each other's way

FAST_SLOW = "FAST=CPU[INFERENCE_NUM_THREADS=2],SLOW=CPU[INFERENCE_NUM_THREADS=1]"


@pytest.fixture(scope="session")
def tiny_resnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The IR of tiny_resnet."""
    return save_model_files("tiny_resnet", tmp_path_factory.mktemp("zoo") / "tiny_resnet.xml")


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The IR of tiny_bert."""
    return save_model_files("tiny_bert", tmp_path_factory.mktemp("zoo") / "tiny_bert.xml")


@pytest.fixture(scope="session", autouse=True)
def own_profile_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Profiles of tests stay out of the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HSDAG_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture
def fast_slow() -> str:
    """Two devices over the CPU plugin, of unequal strength."""
    return FAST_SLOW
