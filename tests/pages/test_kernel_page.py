"""The page of a kernel: its children, and records that the archive lacks."""

from itertools import pairwise

import pytest
from records import CPU, GPU, kernel, passed, proposal
from standings import archive_of

from archive.records import Evaluation
from evolve.pages import addresses
from evolve.pages.kernel_page import ANCESTORS_SHOWN, Child, kernel_page
from evolve.pages.render import Renderer

PARENT, CHILD, ROWS = kernel(1), kernel(2), "rows=8 cols=16 float32"
ON_CPU, ON_GPU = passed(CHILD.id, CPU, 5.0, **{ROWS: 20.0}), passed(CHILD.id, GPU, 3.0, **{ROWS: 20.0})


def child(*verdicts: Evaluation) -> Child:
    store = archive_of(proposal(PARENT), proposal(CHILD, PARENT.id), *verdicts)
    view = kernel_page(store, PARENT.id)
    assert view
    (found,) = view.children
    return found


def test_a_child_that_was_judged_without_a_gpu_has_no_speedup() -> None:
    assert (child(ON_CPU).outcome, child(ON_CPU).speedup) == ("passed", None)


def test_the_verdict_on_a_gpu_counts_even_if_a_verdict_without_a_gpu_is_newer() -> None:
    assert child(ON_CPU, ON_GPU).speedup == pytest.approx(5.0)


def test_a_child_without_a_verdict_is_pending() -> None:
    assert (child().outcome, child().speedup) == ("pending", None)


def test_a_parent_and_a_run_that_the_archive_lacks_have_no_link() -> None:
    store = archive_of(proposal(CHILD, PARENT.id, run="elsewhere"))
    view = kernel_page(store, CHILD.id)
    assert view
    text = Renderer(addresses.served).kernel(view).body
    assert PARENT.id[:8] in text
    assert f'href="/kernel/{PARENT.id}"' not in text
    assert 'href="/run/' not in text


def test_a_parent_in_the_archive_has_a_link() -> None:
    view = kernel_page(archive_of(proposal(PARENT), proposal(CHILD, PARENT.id)), CHILD.id)
    assert view
    assert f'href="/kernel/{PARENT.id}"' in Renderer(addresses.served).kernel(view).body


def test_the_nearest_of_many_ancestors_are_named() -> None:
    line = [kernel(number) for number in range(ANCESTORS_SHOWN + 5)]
    store = archive_of(proposal(line[0]), *(proposal(below, above.id) for above, below in pairwise(line)))
    last, near = kernel_page(store, line[-1].id), kernel_page(store, line[ANCESTORS_SHOWN].id)
    assert last is not None
    assert near is not None
    assert last.ancestors == tuple(one.id for one in reversed(line[4:-1]))
    assert last.earlier_ancestors
    assert (len(near.ancestors), near.earlier_ancestors) == (ANCESTORS_SHOWN, False)
