"""Builds the native statistics kernel; where there is no compiler, gradmedic installs and works without it."""

import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, setup

# Free-threaded Pythons have no limited API: there the extension is built for that one version.
limited = not sysconfig.get_config_var("Py_GIL_DISABLED")

# Vectorised by directives (`omp simd`), not by OpenMP: no run-time library, and no -ffast-math, which would drop NaN.
# gnu11 lets the compiler fuse multiply and add.
kernel = Extension(
    "gradmedic.stats._native",
    sources=["src/gradmedic/stats/_native.c"],
    depends=sorted(str(header) for header in Path("src/gradmedic/stats").glob("_native_*.h")),
    define_macros=[("Py_LIMITED_API", "0x030A0000")] if limited else [],
    py_limited_api=limited,
    extra_compile_args=["-O3", "-std=gnu11", "-fopenmp-simd", "-fno-math-errno", "-fno-trapping-math"],
    libraries=["m", "pthread"],
    optional=True,
)

setup(
    # The kernel is written for GCC and Clang with POSIX threads; on Windows the torch backend does the work.
    ext_modules=[] if sys.platform == "win32" else [kernel],
    options={"bdist_wheel": {"py_limited_api": "cp310"}} if limited else {},
)
