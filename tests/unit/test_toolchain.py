"""Finding pinned tools by their packages."""

from __future__ import annotations

import importlib.metadata

import pytest

from tilewheel_build.errors import ToolchainError
from tilewheel_build.toolchain import (
    distribution_file,
    package_directory,
    package_versions,
    tvm_ffi_include,
)

HINT = "hint: run `make setup`, which installs every pinned tool into .venv"


def test_versions_are_sorted_by_name() -> None:
    found = package_versions(["pytest", "jinja2"])
    assert found == (
        ("jinja2", importlib.metadata.version("jinja2")),
        ("pytest", importlib.metadata.version("pytest")),
    )


def test_every_missing_package_is_named() -> None:
    with pytest.raises(ToolchainError) as caught:
        package_versions(["no-such-tool", "pytest", "another-tool"])
    assert str(caught.value) == f"not installed: another-tool, no-such-tool\n{HINT}"


def test_directory_of_a_package_is_found_without_importing_it() -> None:
    assert (tvm_ffi_include() / "tvm" / "ffi" / "c_api.h").is_file()


@pytest.mark.parametrize("name", ["no_such_package", "no_such.package", "this"])
def test_directory_of_a_missing_package_is_an_error(name: str) -> None:
    with pytest.raises(ToolchainError) as caught:
        package_directory(name)
    assert str(caught.value) == f"not installed: {name}\n{HINT}"


def test_file_of_a_distribution_is_found_by_its_suffix() -> None:
    assert distribution_file("jinja2", "jinja2/environment.py").is_file()


def test_file_that_a_distribution_lacks_is_an_error() -> None:
    with pytest.raises(ToolchainError) as caught:
        distribution_file("jinja2", "/bin/nvcc")
    assert str(caught.value) == f"jinja2: has no file /bin/nvcc\n{HINT}"


def test_file_of_a_missing_distribution_is_an_error() -> None:
    with pytest.raises(ToolchainError) as caught:
        distribution_file("no-such-tool", "/bin/nvcc")
    assert str(caught.value) == f"not installed: no-such-tool\n{HINT}"
