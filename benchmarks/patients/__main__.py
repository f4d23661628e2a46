"""Run the patients benchmark, or make its table: `python -m benchmarks.patients --help`."""

from __future__ import annotations

import os
import sys

# Before torch is imported: runs are forked, which threads do not survive, and several of them share the cores.
os.environ |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}

from benchmarks.patients.options import main

if __name__ == "__main__":
    sys.exit(main())
