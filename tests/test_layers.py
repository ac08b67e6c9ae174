"""Imports run downward through the rooms of docs/architecture.md."""

import ast
import pathlib

import contrastive

ROOT = pathlib.Path(contrastive.__file__).parent
ROOMS = (  # from the top; rooms of one line do not import each other
    ("cli",),
    ("arguments",),
    ("commands",),
    ("sweeps",),
    ("reporting", "planning", "launching"),
    ("mined",),
    ("assembly", "loading", "warm_start", "mining"),
    ("folders",),
    ("recipe",),
    ("training",),
    ("pretrained",),
    ("evaluation", "inference"),
    ("building",),
    ("objectives",),
    ("microbatches",),
    ("towers", "data"),
    ("geometry",),
    ("losses", "temperature", "reference"),
    ("logits",),
    ("rendezvous",),
    ("mesh", "processes", "config", "whole", "pairs", "compression"),
    ("errors",),
)
LEVEL = {room: len(ROOMS) - i for i, line in enumerate(ROOMS) for room in line}


def room(module: str) -> str | None:
    parts = module.split(".")
    return parts[1] if len(parts) > 1 and parts[0] == "contrastive" else None


def imported(tree: ast.AST):
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            if node.module == "contrastive":
                yield from (f"contrastive.{alias.name}" for alias in node.names)
            yield node.module
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def test_imports_run_downward():
    upward = set()
    for path in sorted(ROOT.rglob("*.py")):
        here = path.relative_to(ROOT).parts[0].removesuffix(".py")
        if here == "__init__":
            continue
        for module in imported(ast.parse(path.read_text())):
            there = room(module)
            if there is not None and there != here and LEVEL[there] >= LEVEL[here]:
                upward.add(f"{path.relative_to(ROOT)} imports {module}")
    assert not upward
