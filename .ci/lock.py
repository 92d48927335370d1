"""Write requirements.lock: what requirements.txt pins, with the hash of each file that pip chooses.

    pip install --dry-run --no-deps --ignore-installed --report report.json -r requirements.txt
    python .ci/lock.py report.json

The hashes are those of the machine that runs it: its Python version, processor and package index.
"""

from __future__ import annotations

import json
import platform
import sys
from pathlib import Path

HEADER = """\
# What requirements.txt pins, with the hash of each file; made by .ci/lock.py, not by hand.
# For Python {version} on {machine} {system}: pip install --require-hashes -r requirements.lock
"""


def main(report: Path) -> None:
    packages = json.loads(report.read_bytes())["install"]
    lines = sorted(
        f"{package['metadata']['name'].lower()}=={package['metadata']['version']} "
        f"--hash=sha256:{package['download_info']['archive_info']['hashes']['sha256']}"
        for package in packages
    )
    version = ".".join(platform.python_version_tuple()[:2])
    header = HEADER.format(version=version, machine=platform.machine(), system=platform.system())
    Path("requirements.lock").write_text(header + "\n".join(lines) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
