"""What the benchmark scripts share: a summary of repeated measurements, and the stored record."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parent / "results"


def summary(values: Sequence[float], digits: int = 4) -> dict[str, float]:
    """Median and range of repeated measurements."""
    return {
        "median": round(statistics.median(values), digits),
        "low": round(min(values), digits),
        "high": round(max(values), digits),
        "runs": len(values),
    }


def write(
    record: dict[str, Any],
    command: str,
    packages: Sequence[str] = ("torch", "transformers"),
    folder: Path = RESULTS,
) -> None:
    """Stores `folder`/NAME.json: the record, its command, versions and machine."""
    whole = {
        **record,
        "command": f"python benchmarks/{command}".strip(),
        "versions": {
            "python": platform.python_version(),
            **{name: importlib.metadata.version(name) for name in packages},
            **record.pop("versions", {}),
        },
        "machine": {
            "processor": platform.machine(),
            "num_cpus": os.cpu_count(),
            "kernel": platform.release().split("-")[0],
            "load": round(os.getloadavg()[0], 1),
        },
    }
    folder.mkdir(exist_ok=True)
    (folder / f"{record['name']}.json").write_text(json.dumps(whole, indent=2) + "\n")
