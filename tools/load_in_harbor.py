"""Load every task folder below a folder in the real `harbor` package (Python 3.12 and newer).

python3.12 -m venv harbor-venv && harbor-venv/bin/pip install harbor
harbor-venv/bin/python tools/load_in_harbor.py FOLDER
"""

import sys
from pathlib import Path

from harbor.models.task.task import Task  # type: ignore[import-not-found,unused-ignore]


def main() -> int:
    folders = sorted(file.parent for file in Path(sys.argv[1]).glob("*/task.toml"))
    refused = [folder.name for folder in folders if not Task.is_valid_dir(folder)]
    for folder in folders:
        if folder.name not in refused:
            print(f"{folder.name}: {Task(folder).name}")
    print(f"{len(folders) - len(refused)} of {len(folders)} load in harbor; refused: {refused}")
    return int(bool(refused) or not folders)


if __name__ == "__main__":
    sys.exit(main())
