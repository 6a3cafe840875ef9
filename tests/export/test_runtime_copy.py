import pytest

from evolve.export import runtime_copy
from evolve.export.runtime_copy import NotPortableError, check_foreign_imports, ported


@pytest.mark.parametrize(
    ("line", "place", "expected"),
    [
        ("from archive.plan import Plan", "_runtime.archive.kernel", "from .plan import Plan"),
        ("from archive import plan", "_runtime.archive.kernel", "from . import plan"),
        ("from archive.plan import Plan", "_runtime.devices.cuda.program", "from ...archive.plan import Plan"),
        ("from evolve.op_on_device import point", "_runtime.dispatch", "from .op_on_device import point"),
        ("from reference_ops.op import Op", "ops.softmax", "from .._runtime.reference_ops.op import Op"),
        ("from pathlib import Path", "_runtime.dispatch", "from pathlib import Path"),
    ],
)
def test_imports_of_this_projects_packages_become_relative(line: str, place: str, expected: str) -> None:
    assert ported(line, place)[0] == expected


def test_an_import_within_a_function_is_ported_too() -> None:
    source = "def f():\n    from archive.plan import (\n        Plan,\n    )\n"
    text, imported = ported(source, "_runtime.dispatch")
    assert "    from .archive.plan import (\n" in text
    assert imported == {"archive.plan"}


def test_the_runtime_holds_no_code_of_the_search() -> None:
    copied = runtime_copy.files(set())
    assert "_runtime/devices/cuda/translation.py" in copied
    assert not [
        path for path in copied if any(part in path for part in ("store", "emulated", "loop", "compiler", "program"))
    ]


def test_no_copied_module_imports_a_package_of_this_project() -> None:
    for path, text in runtime_copy.files(set()).items():
        _, imported = ported(text, path.removesuffix(".py").replace("/", "."))
        assert not imported, path


def test_a_name_that_is_not_a_module_cannot_be_imported() -> None:
    with pytest.raises(NotPortableError, match=r"`archive.nothing`, which is not a module"):
        ported("from archive import nothing", "ops.softmax")


def test_a_relative_import_of_an_op_is_refused() -> None:
    with pytest.raises(NotPortableError, match="a file beside it"):
        check_foreign_imports("from .other import x")
