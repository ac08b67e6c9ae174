"""The container file, against the README and the Makefile."""

import pathlib
import re

ROOT = pathlib.Path(__file__).parents[2]


def test_the_container_is_made_by_the_commands_of_the_readme():
    lines = (ROOT / "launch" / "Containerfile").read_text().splitlines()
    steps = [line.removeprefix("RUN ") for line in lines if line.startswith("RUN ")]
    system, environment, devices = steps
    assert system.startswith("apt-get update")
    assert environment == "make env"
    extra = 'uv pip install --python .venv/bin/python --constraint constraints.txt --editable ".['
    assert extra in devices
    assert "env:  ##" in (ROOT / "Makefile").read_text()
    assert "make env" in (ROOT / "README.md").read_text()


def test_what_the_documents_start_from_is_there():
    documents = [ROOT / "README.md", *(ROOT / "docs" / "launch").glob("*.md")]
    for document in documents:
        text = document.read_text()
        for file in re.findall(r"--on=(\S+?\.py)", text):
            assert file == "FILE.py" or (ROOT / file).is_file(), (document, file)
        for link in re.findall(r"\]\(([^)#:]+?\.md)", text):
            assert (document.parent / link).is_file(), (document, link)
