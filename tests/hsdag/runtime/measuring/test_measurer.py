"""What sessions ask of workers is what both of them answer, and costs a session no worker's code."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys

import pytest

from hsdag.runtime.measuring.measurer import Measurer, OpenVinoMeasurer, TorchMeasurer
from hsdag.runtime.measuring.messages import Candidate, ask
from hsdag.runtime.measuring.worker import Worker
from hsdag.runtime.torch.worker import TorchWorker


def methods(protocol: type) -> list[str]:
    return [name for name, _ in inspect.getmembers(protocol, inspect.isfunction) if not name.startswith("_")]


@pytest.mark.parametrize(("worker", "protocol"), [(Worker, OpenVinoMeasurer), (TorchWorker, TorchMeasurer)])
def test_a_worker_has_every_method_of_its_protocol_with_the_same_parameters(worker: type, protocol: type) -> None:
    assert len(methods(protocol)) > len(methods(Measurer)) == 12
    for name in methods(protocol):
        promised, own = (inspect.signature(getattr(kind, name)).parameters for kind in (protocol, worker))
        assert list(promised.values()) == list(own.values()), name


def test_a_request_arrives_as_it_was_sent() -> None:
    sent = ask(Measurer.open, "a", Candidate("CPU"), inference_limit_s=2.0)
    assert (sent.name, sent.args, sent.options) == ("open", ("a", Candidate("CPU")), {"inference_limit_s": 2.0})
    assert pickle.loads(pickle.dumps(sent)) == sent


def test_a_session_loads_no_code_of_workers() -> None:
    program = (
        "import sys, hsdag.commands.place.place, hsdag.commands.bisect, hsdag.commands.doctor.examination;"
        "loaded = {'hsdag.runtime.measuring.worker', 'hsdag.runtime.torch.worker', 'torch'} & sys.modules.keys();"
        "sys.exit(str(loaded) if loaded else 0)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
