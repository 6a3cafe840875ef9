"""Trees of kernels, in which each kernel is below its first parent."""

from collections.abc import Sequence

from drawn import drawn
from records import CPU, GPU, failed, failed_reply, kernel, passed, proposal
from standings import archive_of

from archive.kernel import Proposal
from archive.records import Evaluation
from evolve.report.lineage import Lineage, left_out_words, lineage_tree, lineages

ROWS = "rows=8 cols=16 float32"


def of(proposals: Sequence[Proposal], evaluations: Sequence[Evaluation] = ()) -> Lineage:
    return lineages(archive_of(*proposals, *evaluations), "softmax", [GPU])[0]


def test_a_child_is_listed_under_its_parent_with_its_changes() -> None:
    parent, child = kernel(), kernel().with_knobs({"N": 2})
    lines = of([proposal(parent, operator="seed"), proposal(child, parent.id)], [passed(child.id, GPU, **{ROWS: 50.0})])
    root, first = drawn(lineage_tree(lines, parent.id, 80, everything=True))
    assert root == f"{parent.id[:8]}  pending  seed: number 0"
    assert first == f"└── {child.id[:8]}  2.00x  knobs: N 1→2"


def test_every_kernel_without_a_known_parent_is_a_root() -> None:
    lines = of([proposal(kernel(1)), proposal(kernel(2), "unknown")])
    assert lines.roots == [kernel(1).id, kernel(2).id]


def test_a_cycle_of_parents_is_cut() -> None:
    one, two = kernel(1), kernel(2)
    lines = of([proposal(one, two.id), proposal(two, one.id)])
    assert sorted([*lines.roots, *(child for children in lines.children.values() for child in children)]) == sorted(
        [one.id, two.id]
    )
    assert all(drawn(lineage_tree(lines, root, 80, everything=True)) for root in lines.roots)


def test_hidden_failures_are_counted() -> None:
    parent, good, bad = kernel(1), kernel(2), kernel(3)
    proposals = [proposal(parent), proposal(good, parent.id), proposal(bad, parent.id)]
    lines = of(proposals, [passed(good.id, GPU, **{ROWS: 50.0}), failed(bad.id)])
    text = "\n".join(drawn(lineage_tree(lines, parent.id, 80, everything=False)))
    assert bad.id[:8] not in text
    assert "1 more without descendants in the population" in text
    assert bad.id[:8] in "\n".join(drawn(lineage_tree(lines, parent.id, 80, everything=True)))


def test_a_tree_too_deep_for_the_width_ends_with_the_command_for_the_rest() -> None:
    kernels = [kernel(number) for number in range(40)]
    proposals = [proposal(k, kernels[i - 1].id) if i else proposal(k) for i, k in enumerate(kernels)]
    lines = drawn(lineage_tree((of(proposals)), kernels[0].id, 80, everything=True))
    assert all(len(line) <= 80 for line in lines)
    assert "evolve tree softmax" in lines[-1]


def test_a_reply_without_a_kernel_is_below_its_parent() -> None:
    parent = kernel(1)
    reply = Proposal("softmax", "improve", "model", None, (parent.id,), reply="no", failure="no kernel in the reply")
    lines = of([proposal(parent), reply, failed_reply()])
    assert "no kernel in the reply" in "\n".join(drawn(lineage_tree(lines, parent.id, 80, everything=True)))


def test_whole_trees_that_are_left_out_are_counted() -> None:
    lines = of([proposal(kernel(n)) for n in (1, 2, 3)], [passed(kernel(1).id, GPU, **{ROWS: 50.0})])
    assert "left out: 2 whole trees and branches" in left_out_words(lines)
    assert "whole tree" not in left_out_words(lines, kernel(1).id)


def test_a_kernel_that_a_gpu_has_judged_is_not_pending_on_a_cpu() -> None:
    verdicts = [passed(kernel(1).id, GPU, **{ROWS: 50.0}), passed(kernel(3).id, CPU, **{ROWS: 50.0})]
    store = archive_of(*(proposal(kernel(number)) for number in (1, 2, 3)), *verdicts)
    (lines,) = lineages(store, "softmax", [CPU])
    shown = [drawn(lineage_tree(lines, root, 80, everything=True))[0].split("  ")[1] for root in lines.roots]
    assert shown == ["not evaluated", "pending", "1.00x"]
