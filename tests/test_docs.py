"""What the documents tell a reader to type can be typed: commands parse, recipes, files and links
are there. Nothing is run."""

import functools
import importlib.util
import pathlib
import re
import shlex

import pytest

from contrastive.cli import _overrides, make_parser
from contrastive.launching.gke import GkeMachine
from contrastive.launching.settings import machine_settings
from contrastive.launching.sky import SkyMachine
from contrastive.launching.slurm import SlurmMachine
from contrastive.launching.tpu import TpuMachine
from contrastive.recipe import load_recipe

ROOT = pathlib.Path(__file__).parents[1]
DOCUMENTS = (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
DOCUMENTS += tuple(sorted((ROOT / "experiments").rglob("README.md")))
MACHINES = {"slurm": SlurmMachine, "gke": GkeMachine, "tpu": TpuMachine, "sky": SkyMachine}
BEGIN = re.compile(r"(?:\.venv/bin/)?contrastive [a-z]|make [a-z]|(?:\.venv/bin/)?python -m ")


def _id(path: pathlib.Path) -> str:
    return str(path.relative_to(ROOT))


def _commands(text: str) -> list[str]:
    """Whole commands: of fenced and indented blocks, and those with options between backticks."""
    text = re.sub(r"\\\n\s*", "", text)
    spans = [re.sub(r"\s+", " ", span) for span in re.findall(r"(?<!`)`([^`]+)`(?!`)", text)]
    lines = [line for line in text.splitlines() if line.startswith("    ") or BEGIN.match(line)]
    spans = [span for span in spans if span.startswith("make") or " --" in span]
    found = [re.sub(r"^([A-Z_]+=\S+ )+", "", line.strip()) for line in (*lines, *spans)]
    return [line for line in found if BEGIN.match(line) and " …" not in line]


def _parse(command: str):
    """The namespaces of a command and of what it launches, both with their overrides."""
    arguments = shlex.split(re.sub(r"=INDEX\b", "=0", command), comments=True)[1:]
    parts = [arguments]
    if arguments[0] == "launch" and "--" in arguments:
        cut = arguments.index("--")
        parts = [arguments[:cut], arguments[cut + 1 :]]
    for part in parts:
        options, rest = make_parser().parse_known_args(part)
        options.overrides = _overrides(options, rest)
        yield options


def _check(command: str) -> None:
    for options in _parse(command):
        config = getattr(options, "config", None)
        # The recipe for fine-tuning reads a model that is not here.
        if config and (ROOT / config.partition(":")[0]).is_file() and "finetune" not in config:
            load_recipe(str(ROOT / config), options.overrides)
        if options.command == "launch" and getattr(options, "on", None):
            machine_settings(MACHINES[options.place], str(ROOT / options.on), options.overrides)


def _check_make(command: str) -> None:
    target, *arguments = shlex.split(command, comments=True)[1:]
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert target in targets, "no such target"
    if "test" not in target or not arguments:
        return
    words = shlex.split(arguments[0].removeprefix("ARGS="))
    for path in (word for word in words if word.startswith("tests/")):
        assert (ROOT / path).exists(), f"no {path}"
    if "-k" in words:
        for name in re.findall(r"\w+", words[words.index("-k") + 1]):
            assert name == "and" or name.lower() in _names_of_tests(), f"no test {name}"


@functools.cache
def _names_of_tests() -> str:
    files = sorted((ROOT / "tests").rglob("test_*.py"))
    found = [re.findall(r"def (test_\w+)", file.read_text()) for file in files]
    return "\n".join(
        [*(file.stem for file in files), *(n for names in found for n in names)]
    ).lower()


@pytest.mark.parametrize("document", DOCUMENTS, ids=_id)
def test_commands_in_documents_can_be_typed(document):
    wrong = []
    for command in _commands(document.read_text()):
        words = command.split()
        try:
            if words[0] == "make":
                _check_make(command)
            elif words[0].endswith("python"):
                assert importlib.util.find_spec(words[2]) is not None, "no such module"
            else:
                _check(command)
        except (Exception, SystemExit) as error:
            wrong.append(f"{command}: {error}")
    assert not wrong, "\n".join(wrong)


def _anchors(text: str) -> set[str]:
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("document", DOCUMENTS, ids=_id)
def test_links_in_documents_lead_somewhere(document):
    wrong = []
    for link in re.findall(r"\]\(([^)\s]+)\)", document.read_text()):
        path, _, anchor = link.partition("#")
        if "://" in link or "docs/results" in link:  # results come with the experiments' runs
            continue
        target = (document.parent / path) if path else document
        if not target.exists() or (anchor and anchor not in _anchors(target.read_text())):
            wrong.append(link)
    assert not wrong, wrong
