"""Why a device is not there, from what is below /dev."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

from hsdag.commands.doctor.absent import absent_devices

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what is asked of is Linux's /dev")


@pytest.mark.parametrize(
    ("node", "may_open", "said"),
    [
        (None, True, "started without --device /dev/dri"),
        ("dri/renderD128", False, r"--group-add \$\(stat -c %g .*/dri/renderD128\)"),
        ("dri/renderD128", True, "install intel-opencl-icd"),
    ],
)
def test_what_a_gpu_lacks_is_named_with_what_to_do(node: str | None, may_open: bool, said: str, tmp_path: Path) -> None:
    if node is not None:
        (tmp_path / node).parent.mkdir()
        (tmp_path / node).touch()
    found = absent_devices(["CPU", "NPU.0"], tmp_path, lambda _: may_open)
    assert list(found) == ["GPU"]
    assert re.search(said, found["GPU"])


def test_devices_that_are_listed_lack_nothing(tmp_path: Path) -> None:
    assert absent_devices(["CPU", "GPU.1", "NPU"], tmp_path) == {}
