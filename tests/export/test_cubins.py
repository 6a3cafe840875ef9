"""Compiled kernels: those of a package, and the cache on disk."""

import hashlib
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from gpu_records import H200, archive_of, confirmed, everywhere, ops, simple

from archive.binding import bind
from evolve.devices.cuda.translation import source
from evolve.export import compilers
from evolve.export.package import ExportReport, Packing, export
from evolve.export.template import cached, cubins, driver, manifest, nvrtc
from evolve.export.template.calls import MissingError
from evolve.export.template.cubins import Cubins
from evolve.export.template.driver import DriverError
from evolve.export.template.manifest import BrokenPackageError, ShippedCubin
from evolve.op_on_device import point
from reference_ops import catalog

SOFTMAX, KERNEL = catalog.load("softmax"), simple("softmax")
TEXT = source(bind(KERNEL, point(SOFTMAX, SOFTMAX.gpu[0], H200)))


class Counting:
    """A compiler whose cubins are numbers."""

    def __init__(self) -> None:
        self.compiled_texts: list[str] = []

    def compiled(self, text: str, _arch: str) -> bytes:
        self.compiled_texts.append(text)
        return f"cubin of {text}".encode()


@pytest.fixture
def compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Counting:
    """A made-up compiler and an empty cache."""
    found = Counting()
    monkeypatch.setattr(cubins, "nvrtc", lambda: found)
    monkeypatch.setenv(cached.VARIABLE, str(tmp_path / "cache"))
    return found


def shipped(folder: Path, image: bytes = b"shipped") -> Cubins:
    (folder / "one.cubin").write_bytes(image)
    digest = hashlib.sha256(b"shipped").hexdigest()
    key = cubins.key("text", "sm_90a")
    return Cubins(folder, {key: ShippedCubin("sm_90a", key, "one.cubin", digest)})


def test_a_cubin_of_the_package_is_not_compiled(tmp_path: Path, compiler: Counting) -> None:
    assert next(shipped(tmp_path).images("text", "sm_90a")) == b"shipped"
    assert not compiler.compiled_texts


@pytest.mark.parametrize(("text", "arch"), [("text", "sm_80"), ("other", "sm_90a")])
def test_another_source_or_architecture_is_compiled(tmp_path: Path, compiler: Counting, text: str, arch: str) -> None:
    assert next(shipped(tmp_path).images(text, arch)) == f"cubin of {text}".encode()


@pytest.mark.usefixtures("compiler")
def test_a_changed_cubin_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BrokenPackageError, match=r"one.cubin was changed after it was compiled; install"):
        next(shipped(tmp_path, b"changed").images("text", "sm_90a"))


@pytest.mark.usefixtures("compiler")
def test_a_missing_cubin_is_an_error(tmp_path: Path) -> None:
    found = shipped(tmp_path)
    (tmp_path / "one.cubin").unlink()
    with pytest.raises(BrokenPackageError, match=r"one.cubin is missing; install"):
        next(found.images("text", "sm_90a"))


def test_a_cubin_that_the_driver_refuses_is_compiled_here(
    tmp_path: Path, compiler: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def load(_bound: Any, image: bytes, _sms: int) -> bytes:
        if image == b"shipped":
            raise DriverError(222, "a cubin cannot be loaded")
        return image

    monkeypatch.setattr(driver, "_described", str)
    monkeypatch.setattr(driver, "Program", load)
    found: Any = driver.program(bind(KERNEL, point(SOFTMAX, SOFTMAX.gpu[0], H200)), images(tmp_path), 132)
    assert found == b"cubin of text"
    assert compiler.compiled_texts == ["text"]


def images(folder: Path) -> Any:
    return shipped(folder).images("text", "sm_90a")


def test_a_kernel_that_was_compiled_once_is_taken_from_the_cache(compiler: Counting) -> None:
    assert cubins.compiled("text", "sm_90a") == cubins.compiled("text", "sm_90a") == b"cubin of text"
    assert compiler.compiled_texts == ["text"]


@pytest.mark.parametrize("damaged", [b"", b"short", b"x" * 200])
def test_a_damaged_entry_is_compiled_again(compiler: Counting, damaged: bytes) -> None:
    cubins.compiled("text", "sm_90a")
    (entry,) = cached.cache_folder().iterdir()
    entry.write_bytes(damaged)
    assert cubins.compiled("text", "sm_90a") == cubins.compiled("text", "sm_90a") == b"cubin of text"
    assert len(compiler.compiled_texts) == 2


def test_without_permission_every_process_compiles(
    tmp_path: Path, compiler: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv(cached.VARIABLE, str(tmp_path / "file" / "cache"))
    assert cubins.compiled("text", "sm_90a") == cubins.compiled("text", "sm_90a")
    assert len(compiler.compiled_texts) == 2


@pytest.mark.usefixtures("compiler")
def test_threads_that_read_and_write_one_entry_read_it_complete() -> None:
    def work(number: int) -> bytes:
        if number % 3 == 0:
            for entry in cached.cache_folder().glob("*.cubin"):
                entry.write_bytes(b"damaged")
        return cubins.compiled("text", "sm_90a")

    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(work, range(60))) == {b"cubin of text"}
    assert not list(cached.cache_folder().glob("*.part"))


WITH_CUBINS = Packing(cubins=True)


def exported(folder: Path, packing: Packing = WITH_CUBINS) -> ExportReport:
    store = archive_of(folder, KERNEL, confirmed(KERNEL, everywhere(SOFTMAX, 50.0)))
    return export(store, ops("softmax"), folder / "out", packing=packing)


def test_an_export_holds_a_cubin_for_every_measured_size(tmp_path: Path, compiler: Counting) -> None:
    report = exported(tmp_path)
    folder = tmp_path / "out/primitives"
    (kernel,) = manifest.read(folder)["softmax"].kernels
    assert report.cubins == len(kernel.cubins) == len(set(compiler.compiled_texts)) > 1
    held = Cubins(folder, {one.key: one for one in kernel.cubins})
    assert next(held.images(TEXT, H200.arch)) == f"cubin of {TEXT}".encode()
    assert {one.arch for one in kernel.cubins} == {H200.arch}


def test_an_export_without_a_compiler_says_why_it_holds_no_cubins(
    tmp_path: Path, compiler: Counting, monkeypatch: pytest.MonkeyPatch
) -> None:
    def missing() -> Counting:
        raise MissingError("NVRTC is not installed")

    monkeypatch.setattr(cubins, "nvrtc", missing)
    report = exported(tmp_path)
    assert (report.cubins, report.without_cubins) == (0, "NVRTC is not installed")


@pytest.fixture
def _with_nvrtc() -> None:
    try:
        nvrtc.nvrtc()
    except MissingError as error:
        pytest.skip(str(error))


@pytest.mark.exhaustive
@pytest.mark.usefixtures("_with_nvrtc")
def test_many_kernels_are_compiled_in_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiled_here: list[str] = []
    shown: list[tuple[int, int]] = []
    monkeypatch.setattr(compilers, "MOST_COMPILED_HERE", 0)
    monkeypatch.setattr(nvrtc.Nvrtc, "compiled", lambda _self, text, _arch: compiled_here.append(text))
    monkeypatch.setenv(cached.VARIABLE, str(tmp_path / "cache"))
    packing = Packing(cubins=True, watch=lambda *progress: shown.append(progress))
    first, again = exported(tmp_path, packing), exported(tmp_path)
    assert first == again
    assert not compiled_here
    assert sum(more for more, _ in shown) == first.cubins > 1
    assert {of for _, of in shown} == {first.cubins}


@pytest.mark.usefixtures("_with_nvrtc")
def test_the_cubins_of_an_export_are_those_of_the_compiler(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(cached.VARIABLE, str(tmp_path / "cache"))
    exported(tmp_path)
    (kernel,) = manifest.read(tmp_path / "out/primitives")["softmax"].kernels
    files = [tmp_path / "out/primitives" / one.file for one in kernel.cubins]
    assert all(file.read_bytes().startswith(b"\x7fELF") for file in files)


def test_another_format_of_the_manifest_is_refused(tmp_path: Path) -> None:
    (tmp_path / manifest.FILE).write_text(json.dumps({"format": 1, "ops": {}}))
    with pytest.raises(BrokenPackageError, match="has format 1"):
        manifest.read(tmp_path)
