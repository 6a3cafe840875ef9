"""Exemptions of ops: prompts and exported docstrings state which results are undefined."""

import ast

from gpu_records import H200

from evolve.export import generated
from evolve.export.template.manifest import ExportedEntry
from evolve.prompting.op_sections import EXTREME, op_section
from reference_ops import catalog
from reference_ops.op import Op

EXEMPT = [op for op in map(catalog.load, catalog.names()) if op.exempt]


def docstring(op: Op) -> str:
    """Return the docstring of the op's exported function, on one line."""
    entry = ExportedEntry(f"ops/{op.name}.py", (), (), dict(op.parameters), (), ())
    module = ast.parse(generated.content("primitives", [(op, entry)], ""))
    function = next(node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == op.name)
    return " ".join((ast.get_docstring(function) or "").split())


def test_each_exemption_of_an_op_has_a_reason() -> None:
    assert len(EXEMPT) > 10
    assert [op.name for op in EXEMPT for why in op.exempt.values() if len(why.split()) < 4] == []


def test_every_reason_is_in_the_prompt() -> None:
    missing = [(op.name, why) for op in EXEMPT for why in op.exempt.values() if why not in op_section(op, H200, "")]
    assert missing == []


def test_every_exempt_extreme_and_its_reason_are_in_the_exported_docstring() -> None:
    said = {op.name: docstring(op) for op in EXEMPT}
    pairs = [(op.name, word) for op in EXEMPT for name, why in op.exempt.items() for word in (EXTREME[name], why)]
    assert [(op, word) for op, word in pairs if word not in said[op]] == []
