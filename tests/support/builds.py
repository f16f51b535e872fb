"""A fixture for tests that are to run with both builds of the kernel; a conftest imports it."""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from types import ModuleType

import pytest

from commitlog.kernel import native


def native_core() -> ModuleType:
    """The compiled kernel, whatever the environment wants; the test is skipped where it is not built."""
    return pytest.importorskip("commitlog.kernel._native", reason="the native kernel is not built")


@pytest.fixture(scope="module", params=["native", "python"])
def build(request: pytest.FixtureRequest) -> Iterator[str]:
    """Which build the kernel's functions use.  Of a module, for hypothesis wants its fixtures lasting."""
    with pytest.MonkeyPatch.context() as patch:
        if request.param == "python":
            patch.setattr(native, "core", None)
            patch.setattr(native, "crc32", zlib.crc32)
        elif native.core is None:
            pytest.skip(native.build)
        yield request.param
