"""Compiles the kernels for cards that are not here and prints what their code shows; test_triton_backend.py runs it."""

from __future__ import annotations

import re
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gradmedic.stats import triton_kernels as kernels
from gradmedic.stats.triton_tables import BLOCK, BLOCKS

MEASURE = {"addresses": "*i64", "numels": "*i64", "owners": "*i32", "starts": "*i64", "first_chunk": "i32"}
MEASURED = {**MEASURE, "partials": "*fp64", "bins": "*i32", "n_chunks": "i32"}
SCALED = {**MEASURE, "factors": "*fp64"}
COMBINED = {
    "partials": "*fp64", "bins": "*i32", "first_chunks": "*i64", "numels": "*i64", "moments": "*fp64",
    "counts": "*i64", "histogram": "*i64", "n_tensors": "i32", "n_chunks": "i32",
}  # fmt: skip


def code(kernel: Any, arguments: dict[str, str], target: GPUTarget, **constants: Any) -> str:
    names = kernel.arg_names
    signature = {name: arguments.get(name, "constexpr") for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values)
    compiled = triton.compile(source, target=target, options={"num_warps": 8})
    return str(compiled.asm["ptx" if target.backend == "cuda" else "amdgcn"])


def chunked(element: Any, aligned: bool) -> dict[str, Any]:
    return {"ELEMENT": element, "WIDE": element is tl.float64, "ALIGNED": aligned, "BLOCK": BLOCK, "BLOCKS": BLOCKS}


cuda, hip = GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)
wide = {
    aligned: code(kernels.measure_chunks, MEASURED, cuda, HISTOGRAM=True, **chunked(tl.float32, aligned))
    for aligned in (True, False)
}
others = [
    code(kernels.scale_chunks, SCALED, cuda, **chunked(tl.bfloat16, True)),
    code(kernels.combine_chunks, COMBINED, cuda, HISTOGRAM=True, BLOCK=256, ROWS=32),
]
for aligned, name in ((True, "aligned"), (False, "unaligned")):
    print(f"cuda {name} wide loads:", len(re.findall(r"ld\.global[^;]*\.v4", wide[aligned])))
print("atomics:", sum(len(re.findall(r"(?:atom|red)\.global", each)) for each in [*wide.values(), *others]))
code(kernels.measure_chunks, MEASURED, hip, HISTOGRAM=True, **chunked(tl.bfloat16, True))
print("hip: compiled")
