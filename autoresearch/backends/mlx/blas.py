"""A fast BLAS for MLX on Linux, where its wheel carries the slow reference implementation.

What is loaded first, with its names visible to all, is what MLX finds when it looks for `cblas_sgemm`. So this must run
before `mlx.core` is imported.

It is given one thread. MLX computes all else on one, and two threads of OpenBLAS spin while they wait for each other:
on two cores they are 18 % faster alone, and take five to eight times as long next to other busy processes.
"""

from __future__ import annotations

import ctypes
import platform
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np

SYSTEM = "libopenblas.so.0"
HINT = "for a faster one: apt-get install libopenblas0-pthread, or a C compiler to use NumPy's"
REFERENCE = "the reference BLAS"

# NumPy's wheels carry OpenBLAS with 64-bit integers and names of their own.
_SHIM = """
#include <stdint.h>
typedef int64_t wide;
void scipy_cblas_sgemm64_(int, int, int, wide, wide, wide, float, const float *, wide, const float *, wide, float,
                          float *, wide);
void cblas_sgemm(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a, int lda, const float *b,
                 int ldb, float beta, float *c, int ldc) {
    scipy_cblas_sgemm64_(order, ta, tb, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
}
"""


def load_blas() -> str:
    """Load the best BLAS at hand for an MLX that is imported next; which one it is, for people."""
    if platform.system() == "Darwin":
        return "Accelerate"
    if "mlx.core" in sys.modules:
        return REFERENCE
    if _load(SYSTEM, "openblas_set_num_threads"):
        return f"OpenBLAS ({SYSTEM})"
    if _load_numpys():
        return "OpenBLAS (NumPy's)"
    return REFERENCE


def _load(library: str, set_threads: str) -> bool:
    try:
        loaded = ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
        loaded[set_threads](1)
    except (OSError, AttributeError):
        return False
    return True


def _load_numpys() -> bool:
    """Compile the shim over the library that NumPy has loaded, and load it; takes a tenth of a second."""
    found = sorted((Path(np.__file__).parents[1] / "numpy.libs").glob("libscipy_openblas64_*.so*"))
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if not found or compiler is None:
        return False
    with tempfile.TemporaryDirectory() as folder:
        source, shim = Path(folder, "shim.c"), Path(folder, "shim.so")
        source.write_text(_SHIM)
        command = [compiler, "-shared", "-fPIC", "-O1", str(source), str(found[0]), "-o", str(shim)]
        # Its path in the shim: a loaded library of that name is found by it, but the folder is none of the linker's.
        command += [f"-Wl,-rpath,{found[0].parent}"]
        done = subprocess.run(command, check=False, stdin=subprocess.DEVNULL, capture_output=True)
        return done.returncode == 0 and _load(str(shim), "scipy_openblas_set_num_threads64_")
