import hashlib
import json
from dataclasses import replace
from pathlib import Path

import pytest
from gpu_records import (
    A100,
    EMULATOR,
    H200,
    archive_of,
    confirmed,
    everywhere,
    exported,
    ops,
    passed,
    simple,
)

from archive import library
from archive.kernel import Kernel
from archive.records import Evaluation, Outcome
from archive.sqlite import SqliteStore, merge, open_archive
from evolve.errors import UserError
from evolve.export.package import export
from evolve.export.template import manifest
from reference_ops import catalog

SOFTMAX = catalog.load("softmax")
FIRST = SOFTMAX.gpu[0].key


def softmax_package(folder: Path, *records: Kernel | Evaluation) -> dict[str, list[dict[str, object]]]:
    """Export an archive of these records and return the manifest's entry for softmax."""
    export(archive_of(folder, *records), ops("softmax"), folder / "out")
    written = json.loads((folder / "out/primitives/manifest.json").read_text())
    return dict(written["ops"]["softmax"])


def test_every_kernel_file_has_the_hash_that_the_manifest_gives(tmp_path: Path) -> None:
    exported(tmp_path, "softmax", "rms_norm")
    package = tmp_path / "out/primitives"
    written = json.loads((package / "manifest.json").read_text())
    kernels = [kernel for entry in written["ops"].values() for kernel in entry["kernels"]]
    assert len(kernels) == 2
    for kernel in kernels:
        assert hashlib.sha256((package / kernel["file"]).read_bytes()).hexdigest() == kernel["sha256"]


def test_the_kernel_file_is_the_canonical_text(tmp_path: Path) -> None:
    exported(tmp_path, "softmax")
    kernel = simple("softmax")
    assert (tmp_path / f"out/primitives/kernels/softmax/{kernel.id}.cu").read_text() == kernel.text


def test_the_manifest_is_read_as_it_was_written(tmp_path: Path) -> None:
    exported(tmp_path, "softmax", "rms_norm")
    package = tmp_path / "out/primitives"
    assert manifest.text(manifest.read(package)) == (package / "manifest.json").read_text()


def test_only_kernels_that_win_somewhere_are_exported(tmp_path: Path) -> None:
    fast, slow = library.shipped("softmax")[-1], library.shipped("softmax")[-2]
    best, better = confirmed(fast, {FIRST: 20.0}), confirmed(slow, {FIRST: 30.0})
    entry = softmax_package(tmp_path, fast, slow, best, better)
    assert [kernel["id"] for kernel in entry["kernels"]] == [fast.id]


def test_a_workload_on_which_pytorch_is_the_fastest_is_listed_as_such(tmp_path: Path) -> None:
    kernel, second = simple("softmax"), SOFTMAX.gpu[1].key
    entry = softmax_package(tmp_path, kernel, confirmed(kernel, {FIRST: 20.0, second: 130.0}))
    assert [row["times"]["workload"] for row in entry["pytorch_wins"]] == [second]  # type: ignore[index]


def test_a_speedup_within_the_noise_is_not_a_win(tmp_path: Path) -> None:
    kernel = simple("softmax")
    with pytest.raises(UserError, match="no kernel was faster than eager PyTorch"):
        softmax_package(tmp_path, kernel, confirmed(kernel, {FIRST: 99.0}))


def test_an_unconfirmed_kernel_is_left_out_and_the_error_names_the_command_that_confirms_it(tmp_path: Path) -> None:
    kernel = simple("softmax")
    with pytest.raises(UserError, match="not confirmed yet") as error:
        softmax_package(tmp_path, kernel, passed(kernel, {FIRST: 20.0}))
    assert "evolve confirm softmax" in error.value.hint


def test_a_faster_unconfirmed_kernel_does_not_displace_a_confirmed_one(tmp_path: Path) -> None:
    fast, slow = library.shipped("softmax")[-1], library.shipped("softmax")[-2]
    entry = softmax_package(tmp_path, fast, slow, passed(fast, {FIRST: 20.0}), confirmed(slow, {FIRST: 30.0}))
    assert [kernel["id"] for kernel in entry["kernels"]] == [slow.id]


def test_a_kernel_that_failed_its_confirmation_is_not_exported(tmp_path: Path) -> None:
    kernel = simple("softmax")
    unsafe = Evaluation(kernel.id, "softmax", H200, Outcome.UNSAFE, "a race", created=2.0)
    with pytest.raises(UserError, match="no kernel passed on a GPU"):
        softmax_package(tmp_path, kernel, passed(kernel, {FIRST: 20.0}), unsafe)


def test_the_manifest_lists_the_tests_that_a_kernel_passed(tmp_path: Path) -> None:
    kernel = simple("softmax")
    entry = softmax_package(tmp_path, kernel, confirmed(kernel, {FIRST: 50.0}))
    (shipped,) = entry["kernels"]
    assert shipped["measured"][0]["duel"]["speedup"] == 2.0  # type: ignore[index]
    tested = shipped["tested"][0]  # type: ignore[index]
    assert (tested["device"], tested["outputs_judged"]) == ("NVIDIA H200", 1)
    assert (tested["error"], tested["share_of_allowed"]) == (pytest.approx(1.5), 0.25)
    assert tested["held_out"] == ["rows=7 cols=1023 bfloat16"]
    assert [said["tool"] for said in tested["sanitized"]] == ["memcheck", "racecheck"]


def test_the_readme_lists_the_tests_that_a_kernel_passed(tmp_path: Path) -> None:
    exported(tmp_path, "softmax")
    text = (tmp_path / "out/README.md").read_text()
    assert "| 1.50 | 1 | memcheck: no errors; racecheck: did not finish |" in text
    assert "2.00 (1.96 to 2.04)" in text


def merged_from(folder: Path, *records: Kernel | Evaluation) -> SqliteStore:
    """Return an archive that holds these records only through a merge."""
    ours, folder = open_archive(folder / "ours.db"), folder / "theirs"
    folder.mkdir()
    merge(ours, archive_of(folder, *records))
    return ours


def test_a_merged_evaluation_is_not_exported_until_the_kernel_is_tested_here(tmp_path: Path) -> None:
    kernel = simple("softmax")
    ours = merged_from(tmp_path, kernel, confirmed(kernel, {FIRST: 20.0}))
    with pytest.raises(UserError, match="come from merged archives") as error:
        export(ours, ops("softmax"), tmp_path / "out")
    assert "`evolve confirm softmax`" in error.value.hint
    ours.append(replace(confirmed(kernel, {FIRST: 50.0}), created=2.0))
    report = export(ours, ops("softmax"), tmp_path / "out")
    assert [win.speedup for win in report.ops[0].kernels[0].wins] == [2.0]


def test_a_later_merged_evaluation_does_not_displace_one_made_here(tmp_path: Path) -> None:
    kernel = simple("softmax")
    ours = merged_from(tmp_path, kernel, replace(confirmed(kernel, {FIRST: 0.001}), created=9.0))
    ours.append(confirmed(kernel, {FIRST: 50.0}))
    report = export(ours, ops("softmax"), tmp_path / "out")
    assert [win.speedup for win in report.ops[0].kernels[0].wins] == [2.0]


def test_a_merged_evaluation_is_exported_with_trust_merged(tmp_path: Path) -> None:
    kernel = simple("softmax")
    ours = merged_from(tmp_path, kernel, confirmed(kernel, {FIRST: 50.0}))
    report = export(ours, ops("softmax"), tmp_path / "out", trust_merged=True)
    assert [win.speedup for win in report.ops[0].kernels[0].wins] == [2.0]


def test_a_kernel_of_an_old_archive_that_would_be_refused_today_is_not_exported(tmp_path: Path) -> None:
    kernel = Kernel(simple("softmax").text + "// \x1b[2J cleared\n")
    with pytest.raises(UserError, match="no kernel passed on a GPU"):
        softmax_package(tmp_path, kernel, confirmed(kernel, {FIRST: 20.0}))


def test_each_gpu_has_its_own_champions(tmp_path: Path) -> None:
    kernel = simple("softmax")
    records = [confirmed(kernel, {FIRST: 20.0}, H200), confirmed(kernel, {FIRST: 30.0}, A100)]
    (entry,) = softmax_package(tmp_path, kernel, *records)["kernels"]
    assert [row["device"] for row in entry["measured"]] == ["NVIDIA H200", "NVIDIA A100"]  # type: ignore[attr-defined]


def test_the_latest_evaluation_of_a_kernel_counts(tmp_path: Path) -> None:
    kernel = simple("softmax")
    wrong = Evaluation(kernel.id, "softmax", H200, Outcome.WRONG, "differs", created=2.0)
    with pytest.raises(UserError, match="no kernel passed on a GPU"):
        softmax_package(tmp_path, kernel, confirmed(kernel, {FIRST: 20.0}), wrong)


def test_times_of_the_emulated_device_are_never_exported(tmp_path: Path) -> None:
    kernel = simple("softmax")
    with pytest.raises(UserError, match="none of its kernels was evaluated on a GPU"):
        softmax_package(tmp_path, kernel, confirmed(kernel, everywhere(SOFTMAX, 1.0), EMULATOR))


def test_an_op_without_a_winner_is_skipped_with_the_reason(tmp_path: Path) -> None:
    kernel = simple("softmax")
    store = archive_of(tmp_path, kernel, confirmed(kernel, {FIRST: 20.0}))
    report = export(store, ops("softmax", "gelu"), tmp_path / "out")
    assert [(op.name, op.reason) for op in report.skipped] == [("gelu", "none of its kernels was evaluated on a GPU")]


def test_the_report_says_where_each_kernel_wins(tmp_path: Path) -> None:
    kernel = simple("softmax")
    report = export(archive_of(tmp_path, kernel, confirmed(kernel, {FIRST: 20.0})), ops("softmax"), tmp_path / "out")
    (win,) = report.ops[0].kernels[0].wins
    assert (win.workload, win.device, win.speedup) == (FIRST, "NVIDIA H200", 5.0)


def test_nothing_to_export_creates_no_folder(tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        export(archive_of(tmp_path), ops("softmax"), tmp_path / "out")
    assert "evolve run softmax" in error.value.hint
    assert not (tmp_path / "out").exists()


def test_an_export_replaces_an_earlier_one(tmp_path: Path) -> None:
    exported(tmp_path, "softmax", "gelu")
    exported(tmp_path, "softmax")
    assert not (tmp_path / "out/primitives/ops/gelu.py").exists()


def test_a_folder_with_other_files_is_not_changed(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out/pyproject.toml").write_text("mine")
    with pytest.raises(UserError, match="is not empty"):
        exported(tmp_path, "softmax")
    assert (tmp_path / "out/pyproject.toml").read_text() == "mine"


@pytest.mark.parametrize("name", ["My-Kernels", "torch", "class", "2fast", "../up", ""])
def test_a_name_that_cannot_be_a_package_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match="cannot be the name of a package"):
        exported(tmp_path, "softmax", package=name)


def test_the_report_gives_the_calls_of_the_functions(tmp_path: Path) -> None:
    report = exported(tmp_path, "rms_norm", "add_rms_norm")
    assert [op.call for op in report.ops] == [
        "rms_norm(input, normalized_shape, weight=None, eps=None)",
        "add_rms_norm(x, residual, weight, eps=1e-06)",
    ]


USER_OP = """\
import torch
{line}
from reference_ops.op import Op, tensors, workloads

def double(x: torch.Tensor) -> torch.Tensor:
    return x * 2

op = Op(
    name="double", reference=double, inputs=tensors(x="n"), outputs=tensors(out="{out}"),
    gpu=workloads("float32", {points}), emulated=workloads("float32", {points}),
    flops=lambda dims: dims["n"],
)
"""
DOUBLE = """\
/*---
op = "double"
[[launch]]
entry = "twice"
grid = ["ceil_div(n, 128)"]
block = [128]
args = ["x", "out", "n"]
---*/
extern "C" __global__ void twice(const x_t* x, out_t* out, int n) {
    const int i = blockIdx.x * 128 + threadIdx.x;
    if (i < n) out[i] = x[i] * 2;
}
"""


def export_double(folder: Path, line: str = "", out: str = "n", points: str = '{"n": 64}') -> None:
    """Export an op from a user's file."""
    from archive.kernel import parse

    path = folder / "double.py"
    path.write_text(USER_OP.format(line=line, out=out, points=points))
    op, kernel = catalog.load(str(path)), parse(DOUBLE)
    export(archive_of(folder, kernel, confirmed(kernel, everywhere(op, 50.0))), [(op, path)], folder / "out")


def test_an_op_from_a_users_file_is_exported_with_its_file(tmp_path: Path) -> None:
    export_double(tmp_path)
    assert "from .._runtime.reference_ops.op import Op" in (tmp_path / "out/primitives/ops/double.py").read_text()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("import pytest", "line 2: it imports `pytest`"),
        ("import reference_ops.op", "write `from ... import`"),
    ],
)
def test_an_op_whose_file_needs_more_than_torch_is_refused(tmp_path: Path, line: str, reason: str) -> None:
    with pytest.raises(UserError, match=reason):
        export_double(tmp_path, line=line)


def test_an_op_with_a_dim_that_no_tensor_has_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no tensor has the dim `m`"):
        export_double(tmp_path, points='{"n": 64, "m": 64}')


def test_an_op_whose_reference_gives_another_shape_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"the reference's `out` is of torch.float32, \(64,\)"):
        export_double(tmp_path, out="n n")
