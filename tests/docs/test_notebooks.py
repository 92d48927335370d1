"""Every notebook of examples/ runs, and its cells print what is stored in the file."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import nbformat
import pytest
from nbclient import NotebookClient

from tests.docs.blocks import TOLERANCE, difference
from tests.places import PACKAGES, ROOT
from tests.warm import write_programs

NOTEBOOKS = sorted((ROOT / "examples").glob("*.ipynb"))
SECONDS = 1200


@pytest.fixture(scope="module")
def kernel(warm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A kernel that the warm process forks: it has imported the libraries and the encoder."""
    folder = tmp_path_factory.mktemp("jupyter")
    write_programs(folder / "bin", warm)
    command = [str(folder / "bin" / "python"), "-m", "ipykernel_launcher", "-f"]
    specification = {
        "argv": [*command, "{connection_file}"],
        "display_name": "Python",
        "language": "python",
        # The same figures on every processor.
        "env": {
            "PYTHONPATH": os.pathsep.join(map(str, PACKAGES)),
            "ATTEND_PRECISION": "float32",
        },
    }
    place = folder / "kernels" / "warm"
    place.mkdir(parents=True)
    (place / "kernel.json").write_text(json.dumps(specification))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("JUPYTER_PATH", str(folder))
        yield "warm"


@pytest.mark.filterwarnings("default")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_prints_what_it_shows(path: Path, kernel: str, tmp_path: Path) -> None:
    shutil.copytree(path.parent, tmp_path, dirs_exist_ok=True)
    stored = nbformat.read(path, as_version=4)
    run = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(run, timeout=SECONDS, kernel_name=kernel, resources=resources).execute()
    within = stored.metadata.get("within", TOLERANCE)  # as the remark above a block of a page
    for before, after in zip(stored.cells, run.cells, strict=True):
        if before.cell_type == "code":
            found = difference(printed(before), printed(after), within)
            assert found is None, f"{before.source}\n{found}"


def printed(cell: Any) -> str:
    """Return what a cell prints and shows, without warnings and progress bars.

    A kernel may send one line of stdout in two pieces, so pieces are joined as they are.
    """
    text = ""
    for output in cell.outputs:
        if output.output_type == "stream" and output.name == "stdout":
            text += output.text
        elif output.output_type in ("execute_result", "display_data"):
            text = ended(text) + ended(output.data.get("text/plain", ""))
    return ended(text)


def ended(text: str) -> str:
    """Return `text` with a newline at its end, unless it is empty."""
    return text if not text or text.endswith("\n") else f"{text}\n"


def test_a_line_that_is_sent_in_two_pieces_is_one_line() -> None:
    pieces = [nbformat.v4.new_output("stream", text=text) for text in ("json.load", " | Read")]
    assert printed(nbformat.v4.new_code_cell(outputs=pieces)) == "json.load | Read\n"


def test_there_are_five_with_their_outputs() -> None:
    assert len(NOTEBOOKS) == 5
    for path in NOTEBOOKS:
        notebook = nbformat.read(path, as_version=4)
        nbformat.validate(notebook)
        assert any(printed(cell) for cell in notebook.cells if cell.cell_type == "code"), path
