"""What tests of the store share."""

from tests.support.builds import build

__all__ = ["build"]
