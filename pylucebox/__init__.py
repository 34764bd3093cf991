"""Build, convert, serve and measure DeepSeek-V4 on one box."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("pylucebox")
except PackageNotFoundError:  # a checkout that is not installed
    __version__ = "0+checkout"
