"""Everything here runs with both builds of the kernel, where it asks for `build`."""

from tests.support.builds import build

__all__ = ["build"]
