"""Compiles the kernels for cards that are not here and prints what their code shows; test_triton_backend.py runs it."""

from __future__ import annotations

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from gradmedic.stats import triton_backend, triton_treatment
from gradmedic.stats import triton_combining_kernels as combining
from gradmedic.stats import triton_kernels as kernels
from gradmedic.stats import triton_treatment_kernels as treatments

CHUNKS = {
    "addresses": "*i64", "numels": "*i64", "owners": "*i32", "starts": "*i64", "first_chunk": "i32",
    "chunk_length": "i32",
}  # fmt: skip
MEASURED = {**CHUNKS, "partials": "*fp64", "bins": "*i32", "n_chunks": "i32"}
SCALED = {**CHUNKS, "factors": "*fp64", "positions": "*i64"}
UNITS = {**CHUNKS, "factors": "*fp64", "first_factors": "*i64", "units": "*i64", "inners": "*i64"}
LIMITED = {**CHUNKS, "limits": "*fp64", "loss_scale": "*fp64", "moments": "*i64"}
COMBINED = {
    "partials": "*fp64", "bins": "*i32", "first_chunks": "*i64", "numels": "*i64", "positions": "*i64",
    "moments": "*fp64", "counts": "*i64", "histogram": "*i64", "n_tensors": "i32", "n_chunks": "i32",
}  # fmt: skip


def code(kernel: Any, arguments: dict[str, str], target: GPUTarget, warps: int = 4, **constants: Any) -> Any:
    names = kernel.arg_names
    signature = {name: arguments.get(name, "constexpr") for name in names}
    values = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(fn=kernel, signature=signature, constexprs=values)
    return triton.compile(source, target=target, options={"num_warps": warps})


def measured(target: GPUTarget, element: Any, aligned: bool, histogram: bool) -> Any:
    constants = {"BLOCK": triton_backend._BLOCK, "GROUP": triton_backend._GROUP, "HISTOGRAM": histogram}
    return code(
        kernels.measure_chunks, MEASURED, target, triton_backend._WARPS, ELEMENT=element, WIDE=element is tl.float64,
        ALIGNED=aligned, **constants,
    )  # fmt: skip


def changed(target: GPUTarget, element: Any) -> list[Any]:
    constants = {"ELEMENT": element, "WIDE": element is tl.float64, "ALIGNED": True, "BLOCK": triton_treatment._BLOCK}
    return [
        code(treatments.scale_chunks, SCALED, target, **constants),
        code(treatments.scale_units, UNITS, target, **constants),
        code(treatments.limit_chunks, LIMITED, target, MOMENT=None, **constants),
        code(treatments.limit_chunks, LIMITED, target, MOMENT=tl.float32, **constants),
    ]


def combined(target: GPUTarget, sizes: dict[str, int]) -> Any:
    constants = {name: value for name, value in sizes.items() if name != "num_warps"}
    return code(combining.combine_chunks, COMBINED, target, sizes["num_warps"], HISTOGRAM=True, **constants)


def machine_code(compiled: Any) -> tuple[int, list[tuple[int, int, int]]]:
    """Return the registers of a thread, and of each loop its instructions, 16-byte loads, and barriers."""
    tool = next((Path(triton.__file__).parent / "backends" / "nvidia" / "bin").glob("cuobjdump*"))
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        used, listing = (
            subprocess.run([tool, how, file.name], capture_output=True, text=True, check=True).stdout
            for how in ("--dump-resource-usage", "-sass")
        )
    placed = re.findall(r"/\*([0-9a-f]{4,5})\*/\s+([^;]+);", listing)
    body = [(int(place, 16), text) for place, text in placed]
    loops = []
    for end, text in body:
        jump = re.search(r"BRA.* (0x[0-9a-f]+)", text)
        if jump and (begin := int(jump[1], 16)) < end:
            inside = [each for place, each in body if begin <= place <= end]
            loops.append((len(inside), *(sum(word in each for each in inside) for word in ("LDG.E.128", "BAR.SYNC"))))
    spilled = sum(int(size) for size in re.findall(r"(?:STACK|LOCAL):(\d+)", used))
    print("cuda spilled bytes:", spilled)
    return int(re.search(r"REG:(\d+)", used)[1]), loops


cuda, hip = GPUTarget("cuda", 90, 32), GPUTarget("hip", "gfx942", 64)
wide = {aligned: measured(cuda, tl.bfloat16, aligned, True) for aligned in (True, False)}
plain = measured(cuda, tl.bfloat16, True, False)
treated = changed(cuda, tl.bfloat16)
joined = [combined(cuda, sizes) for sizes in (triton_backend._FEW, triton_backend._MANY)]
for aligned, name in ((True, "aligned"), (False, "unaligned")):
    print(f"cuda {name} wide loads:", len(re.findall(r"ld\.global[^;]*\.v4", wide[aligned].asm["ptx"])))
for compiled, name in zip(treated, ("scale", "units", "limit", "moment"), strict=True):
    print(f"cuda {name} wide loads:", len(re.findall(r"ld\.global[^;]*\.v4", compiled.asm["ptx"])))
everything = [*wide.values(), plain, *treated, *joined]
print("atomics:", sum(len(re.findall(r"(?:atom|red)\.global", each.asm["ptx"])) for each in everything))
for compiled, name in ((plain, "plain"), (wide[True], "histogram")):
    registers, loops = machine_code(compiled)
    fast = next(loop for loop in loops if loop[1])
    each = fast[0] / (triton_backend._BLOCK * triton_backend._GROUP / (32 * triton_backend._WARPS))
    print(f"cuda {name} registers:", registers)
    print(f"cuda {name} instructions an element: {each:.1f}")
    print(f"cuda {name} barriers:", fast[2])
measured(GPUTarget("cuda", 80, 32), tl.float8e4nv, True, False)  # which has no instruction to convert them
measured(hip, tl.bfloat16, True, True)
changed(hip, tl.float32)
print("hip: compiled")
