"""The self-check of the CUDA engine: what works here, what does not, and what cannot be tested on this machine."""

from hsdag.commands.cuda_check.checking import check_cuda
from hsdag.commands.cuda_check.report import CudaReport, Ending, Item

__all__ = ["CudaReport", "Ending", "Item", "check_cuda"]
