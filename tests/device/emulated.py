"""A device of torch that behaves like a GPU, on the CPU.

Its operations are those of the CPU, so that results can be compared to the digit, but tensors and
generators of the CPU are refused beside its own, and backward passes run in a thread of their own.
It is compiled, and it changes the process that loads it: use one of its own.
"""

from __future__ import annotations

import subprocess
import types
from pathlib import Path

import torch
from torch.utils import cpp_extension

NAME = "emulated"
SOURCE = Path(__file__).with_name("emulated.cpp")


def build(folder: Path) -> Path:
    """Compile the device; the library that `load` takes."""
    target = folder / "emulated.so"
    includes = [f"-I{path}" for path in cpp_extension.include_paths()]
    paths = cpp_extension.library_paths()
    libraries = [f"-L{path}" for path in paths] + ["-ltorch", "-ltorch_cpu", "-lc10"]
    abi = f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}"
    flags = ["-O0", "-std=c++20", "-fPIC", "-shared", abi]
    command = ["g++", *flags, *includes, str(SOURCE), "-o", str(target), *libraries]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return target


def load(library: Path) -> torch.device:
    """Make the device known to torch in this process."""
    torch.ops.load_library(library)
    torch.utils.rename_privateuse1_backend(NAME)
    module = types.ModuleType(f"torch.{NAME}")
    for name, value in MODULE.items():
        setattr(module, name, lambda *_, found=value: found)
    torch._register_device_module(NAME, module)
    torch.utils.generate_methods_for_privateuse1_backend()
    return torch.device(NAME, 0)


MODULE = {
    "is_initialized": True,
    "is_available": True,
    "current_device": 0,
    "device_count": 1,
    "_is_in_bad_fork": False,
    "manual_seed_all": None,
    "get_rng_state": torch.zeros(1, dtype=torch.uint8),
    "set_rng_state": None,
    "get_amp_supported_dtype": [torch.bfloat16, torch.float16],
}
"""What torch asks of the module of a device, and the answers."""
