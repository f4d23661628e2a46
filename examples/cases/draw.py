"""Runs the worked cases and puts their pictures where docs/cases.md shows them.

    python examples/cases/draw.py [CASE ...] [--quick] [--out DIR] [--pictures DIR]

A case saves every picture that it can; those that the page names, and only those, are copied. Without a case, all are
run, one after the other: some eight minutes of one core.
"""

import argparse
import importlib.util
import re
import shutil
import sys
import tempfile
from pathlib import Path
from types import ModuleType

CASES = Path(__file__).resolve().parent
PAGE = CASES.parents[1] / "docs" / "cases.md"

#: Case -> how its pictures begin on the page; what follows is the name under which the case saves them.
PREFIXES = {
    "resnet_checkup": "resnet",
    "vit_heads": "vit",
    "transformer_policies": "policies",
    "attention_scale": "attention",
    "rnn_through_time": "rnn",
    "dlrm_sparse": "dlrm",
}


def pictures_of(case: str) -> dict[str, str]:
    """Return the page's pictures of a case: name on the page -> name under which the case saves it."""
    prefix = PREFIXES[case]
    named = re.findall(r"\]\(images/cases/([^)]+\.png)\)", PAGE.read_text("utf-8"))
    return {name: name.removeprefix(f"{prefix}-") for name in named if name.startswith(f"{prefix}-")}


def draw(case: str, out: Path, pictures: Path, quick: bool = False) -> ModuleType:
    """Run a case as its own command line does, and copy its pictures.

    Args:
        case: a key of `PREFIXES`.
        out: in its folder CASE are the runs and all of the pictures.
        pictures: folder that those of the page are copied to.
        quick: the short form, whose pictures are of a few steps.

    Returns:
        The module of the case.
    """
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    spec = importlib.util.spec_from_file_location(f"case_{case}", CASES / f"{case}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    arguments = sys.argv
    sys.argv = [f"{case}.py", *(["--quick"] if quick else []), "--out", str(out)]
    try:
        module.main()
    finally:
        sys.argv = arguments
        pyplot.close("all")
    pictures.mkdir(parents=True, exist_ok=True)
    for name, saved in pictures_of(case).items():
        shutil.copyfile(out / case / saved, pictures / name)
    return module


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"{', '.join(PREFIXES)}; all of them by default")
    parser.add_argument("--quick", action="store_true", help="the short form of each: pictures of a few steps")
    parser.add_argument("--out", type=Path, help="keep runs and all pictures in this folder")
    there = PAGE.parent / "images" / "cases"
    parser.add_argument("--pictures", type=Path, default=there, help="folder that the page shows; docs/images/cases")
    args = parser.parse_args()
    unknown = set(args.cases) - set(PREFIXES)
    if unknown:
        parser.error(f"there is no case {', '.join(sorted(unknown))}; there are: {', '.join(PREFIXES)}")
    with tempfile.TemporaryDirectory() as temporary:
        for case in args.cases or PREFIXES:
            draw(case, args.out or Path(temporary), args.pictures, args.quick)
            print(f"{case}: {len(pictures_of(case))} pictures in {args.pictures}")


if __name__ == "__main__":
    main()
