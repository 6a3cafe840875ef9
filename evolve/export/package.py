"""Export: writes confirmed champions that beat PyTorch as an installable Python package."""

import hashlib
import inspect
import itertools
import keyword
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from archive.binding import bind
from archive.kernel import Kernel
from archive.records import Evaluation
from archive.store import Store
from evolve.devices.cuda.translation import source
from evolve.errors import UserError
from evolve.export import families, formats, generated, runtime_copy, texts, winners
from evolve.export.compilers import Image, Watch, compilers
from evolve.export.portable import portable
from evolve.export.runtime_copy import NotPortableError
from evolve.export.template import cubins, manifest
from evolve.export.template.calls import MissingError
from evolve.export.template.manifest import ExportedEntry, Shipped, ShippedCubin
from evolve.export.template.nvrtc import CompileError
from evolve.export.winners import NoWinnerError
from evolve.op_on_device import point
from reference_ops import catalog
from reference_ops.op import Number, Op

OTHERWISE = "--pytorch-too exports a function that runs PyTorch; times of the emulated device are never exported"
Sources = Mapping[str, tuple[tuple[str, str], ...]]  # key: kernel id; value: texts to compile, with their architectures
TAKEN_PACKAGES = (*runtime_copy.ROOTS, "torch", "cupy", "numpy", "test", "tests")


@dataclass(frozen=True)
class Packing:
    """Options of an export: the format, and whether kernels are compiled for the GPUs on which they won."""

    form: str = formats.FOLDER  # one of formats.FORMATS
    cubins: bool = False
    watch: Watch = field(default=lambda _more, _of: None)


FOLDER = Packing()


@dataclass(frozen=True)
class Win:
    """A workload on which this kernel is the fastest and beats PyTorch."""

    workload: str
    device: str
    speedup: float
    over: str  # "PyTorch", or "eager PyTorch" where torch.compile is as fast
    elsewhere: bool = False  # whether it was measured on another machine with such a GPU


@dataclass(frozen=True)
class ExportedKernel:
    id: str
    note: str
    wins: tuple[Win, ...]


@dataclass(frozen=True)
class ExportedOp:
    name: str
    kernels: tuple[ExportedKernel, ...]
    call: str  # such as `rms_norm(x, weight, eps=1e-06)`


@dataclass(frozen=True)
class SkippedOp:
    name: str
    reason: str
    hint: str = ""


@dataclass(frozen=True)
class ExportReport:
    folder: Path
    package: str
    ops: tuple[ExportedOp, ...]
    skipped: tuple[SkippedOp, ...]
    cubins: int  # compiled kernels in the package
    without_cubins: str  # reason why some cubins are missing; empty if all are there


@dataclass(frozen=True)
class Compiled:
    """Kernels with their cubins, the files of the cubins, and the reason why some are missing."""

    shipped: tuple[Shipped, ...]
    files: Mapping[str, bytes]
    missing: str = ""


def compiled(op: Op, shipped: Sequence[Shipped], sources: Sources, image: Image) -> Compiled:
    """Compile the kernels of an op for every GPU and workload of their measurements."""
    found: list[Shipped] = []
    files: dict[str, bytes] = {}
    missing = ""
    for one in shipped:
        cubins_of_it: dict[str, ShippedCubin] = {}
        for text, arch in sources.get(one.id, ()):
            key = cubins.key(text, arch)
            try:
                content = image(text, arch)
            except (MissingError, CompileError) as error:
                missing = str(error)
                continue
            file = f"cubins/{op.name}/{arch}-{key[:16]}.cubin"
            files[file] = content
            cubins_of_it[key] = ShippedCubin(arch, key, file, hashlib.sha256(content).hexdigest())
        found.append(replace(one, cubins=tuple(cubins_of_it.values())))
    return Compiled(tuple(found), files, missing)


def _sources(
    op: Op, shipped: Shipped, kernel: Kernel, evaluations: Sequence[Evaluation]
) -> tuple[tuple[str, str], ...]:
    """Return the texts to compile with their architectures, each pair once."""
    measured = {(one.device, one.times.workload) for one in shipped.measured}
    devices = {one.device.name: one.device for one in evaluations if one.kernel_id == shipped.id}
    return tuple(
        dict.fromkeys(
            (source(bind(kernel, point(op, workload, device))), device.arch)
            for device in devices.values()
            for workload in op.gpu
            if (device.name, workload.key) in measured
        )
    )


@dataclass(frozen=True)
class _OpFiles:
    """The files and the manifest entry of one op."""

    op: Op
    entry: ExportedEntry
    report: ExportedOp
    files: Mapping[str, str | bytes]
    imports: frozenset[str]
    missing: str  # reason why cubins are missing


def export(
    store: Store,
    ops: Sequence[tuple[Op, Path]],
    folder: Path,
    name: str = "primitives",
    *,
    trust_merged: bool = False,
    pytorch_too: bool = False,
    packing: Packing = FOLDER,
) -> ExportReport:
    """Write the package `name` into `folder`. Each op is given with the file that defines it.

    With `trust_merged`, evaluations from merged archives count too. An op without a confirmed kernel that beats PyTorch
    on a GPU is skipped with the reason, or has a function that runs PyTorch if `pytorch_too`. Raise a UserError if
    no op is left.
    """
    form = packing.form
    _check_target(folder, name, form)
    parts: dict[str, _OpFiles] = {}
    chosen: dict[str, tuple[Op, Path, _Chosen]] = {}
    skipped = []
    for op, path in ops:
        if op.name in chosen:
            skipped.append(SkippedOp(op.name, f"an op of this name is exported already; this one is in {path}"))
            continue
        try:
            chosen[op.name] = op, path, _chosen(op, store, trust_merged=trust_merged, pytorch_too=pytorch_too)
        except NoWinnerError as error:
            run = (
                f"run `evolve run {shlex.quote(catalog.loaded_as(op))}` on a machine with an NVIDIA GPU to find kernels"
            )
            skipped.append(SkippedOp(op.name, str(error), f"{error.hint or run}; {OTHERWISE}"))
    every = [texts for _, _, one in chosen.values() for texts in one.sources.values()] if packing.cubins else []
    with compilers(itertools.chain(*every), packing.watch) as image:
        for op, path, kernels in chosen.values():
            try:
                parts[op.name] = _op_files(op, path, kernels, image if packing.cubins else None)
            except NotPortableError as error:
                skipped.append(SkippedOp(op.name, str(error)))
    if not parts:
        raise _nothing(skipped)
    if part := formats.replaced(form, name):
        shutil.rmtree(folder / part, ignore_errors=True)
    _write(folder, formats.written(form, name, _files(name, list(parts.values()))))
    return ExportReport(
        folder,
        name,
        tuple(part.report for part in parts.values()),
        tuple(skipped),
        cubins=sum(isinstance(file, bytes) for part in parts.values() for file in part.files.values()),
        without_cubins=next((part.missing for part in parts.values() if part.missing), ""),
    )


def defaults(op: Op) -> Mapping[str, Number | None]:
    """Return the parameters of the op's function with their defaults; those without a default come first.

    The default is the default of the reference, or else the value that all workloads of the op share.
    """
    written = inspect.signature(op.reference).parameters
    found: dict[str, Number | None] = {}
    for name in op.parameters:
        own = written[name].default if name in written else inspect.Parameter.empty
        shared = {dict(workload.parameters)[name] for workload in op.gpu}
        found[name] = own if isinstance(own, int | float) else shared.pop() if len(shared) == 1 else None
    return dict(sorted(found.items(), key=lambda item: item[1] is not None))


@dataclass(frozen=True)
class _Chosen:
    """The kernels of one op that a package contains, and the champions among them."""

    shipped: tuple[Shipped, ...]
    best: winners.Champions
    kernels: Mapping[str, Kernel]
    sources: Sources = field(default_factory=dict)


def _chosen(op: Op, store: Store, *, trust_merged: bool, pytorch_too: bool) -> _Chosen:
    kernels = winners.fitting(op, store)
    try:
        confirmed = winners.confirmed_on_gpus(op, store, kernels, trust_merged=trust_merged)
        rows = winners.rows(op, confirmed, kernels)
        best = winners.champions(rows)
        shipped = winners.shipped(rows, best, kernels, confirmed)
        sources = {one.id: _sources(op, one, kernels[one.id], confirmed) for one in shipped}
        return _Chosen(shipped, best, kernels, sources)
    except NoWinnerError:
        if not pytorch_too:
            raise
        return _Chosen((), {}, kernels)


def _op_files(op: Op, path: Path, chosen: _Chosen, image: Image | None) -> _OpFiles:
    defined, shipped, best = portable(op, path), chosen.shipped, chosen.best
    made = compiled(op, shipped, chosen.sources, image) if image else Compiled(shipped, {})
    module = f"ops/{defined.stem}.py"
    source, imports = runtime_copy.ported(defined.source, f"ops.{defined.stem}")
    entry = ExportedEntry(
        module=module,
        inputs=tuple(_declared(op, spec.name) for spec in op.inputs),
        outputs=tuple(_declared(op, spec.name) for spec in op.outputs),
        parameters=dict(defaults(op)),
        kernels=made.shipped,
        pytorch_wins=winners.pytorch_wins(best),
    )
    report = ExportedOp(
        op.name,
        tuple(ExportedKernel(kernel.id, kernel.note, _wins(kernel.id, best)) for kernel in shipped),
        ", ".join(texts.call(one) for one in texts.functions([(op, entry)])),
    )
    files: dict[str, str | bytes] = {module: source, **made.files}
    files.update((kernel.file, chosen.kernels[kernel.id].text) for kernel in shipped)
    return _OpFiles(op, entry, report, files, frozenset(imports), made.missing)


def _wins(kernel: str, best: winners.Champions) -> tuple[Win, ...]:
    return tuple(
        Win(measured.times.workload, measured.device, measured.speedup, "PyTorch", measured.elsewhere)
        if measured.wins
        else Win(
            measured.times.workload, measured.device, measured.speedup_over_eager, "eager PyTorch", measured.elsewhere
        )
        for winner, measured in best.values()
        if winner == kernel and measured.wins_eager
    )


def _declared(op: Op, tensor: str) -> str:
    spec = next(spec for spec in (*op.inputs, *op.outputs) if spec.name == tensor)
    dims = " ".join(spec.dims)
    return f"{spec.name}: {f'{spec.dtype}[{dims}]' if spec.dtype else dims}"


def _files(name: str, parts: Sequence[_OpFiles]) -> dict[str, str | bytes]:
    """Return the content of every file by its path in the folder."""
    exported = [(part.op, part.entry) for part in parts]
    listed = manifest.text({part.op.name: part.entry for part in parts})
    inside: dict[str, str | bytes] = {
        "__init__.py": generated.init(exported),
        "__init__.pyi": generated.stub(exported),
        f"{generated.CONTENT}.py": generated.content(name, exported, hashlib.sha256(listed.encode()).hexdigest()),
        "layers.py": generated.pure(exported),
        "nn.py": generated.nn(exported),
        "optim.py": generated.OPTIM,
        "selftest.py": generated.SELFTEST,
        "py.typed": "",
        manifest.FILE: listed,
        "ops/__init__.py": '"""References: what the kernels compute, in PyTorch."""\n',
        **runtime_copy.files({*families.of_ops([part.op.name for part in parts]), *_imports(parts)}),
    }
    for part in parts:
        inside.update(part.files)
    return {
        "pyproject.toml": texts.pyproject(name, exported),
        "README.md": texts.readme(name, exported),
        **{f"{name}/{path}": text for path, text in inside.items()},
    }


def _imports(parts: Sequence[_OpFiles]) -> set[str]:
    return {module for part in parts for module in part.imports}


def _check_target(folder: Path, name: str, form: str) -> None:
    """Raise a UserError unless the folder is new, empty or an earlier export of the same package."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*[a-z0-9]", name) or keyword.iskeyword(name) or name in TAKEN_PACKAGES:
        raise UserError(
            f"`{name}` cannot be the name of a package", "choose a lower-case Python name, such as primitives"
        )
    if folder.exists() and not folder.is_dir():
        raise UserError(f"{folder} is a file", "choose another folder to export to")
    if folder.exists() and any(folder.iterdir()) and not (folder / formats.mark(form, name)).is_file():
        raise UserError(
            f"{folder} is not empty and holds no earlier export of `{name}`", "choose a new folder to export to"
        )


def _nothing(skipped: Sequence[SkippedOp]) -> UserError:
    if not skipped:
        return UserError("there is no op to export", "name an op, such as softmax, or export every op with --all")
    reasons = "\n".join(f"  {op.name}: {op.reason}" for op in skipped)
    hint = next((op.hint for op in skipped if op.hint), "")
    return UserError(f"nothing can be exported\n{reasons}", hint or "correct the first fault, and export again")


def _write(folder: Path, files: Mapping[str, str | bytes]) -> None:
    for path, content in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(content if isinstance(content, bytes) else content.encode())
