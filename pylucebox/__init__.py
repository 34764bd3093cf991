"""Build, convert, serve and measure DeepSeek-V4 on one box."""

from importlib.metadata import version

__version__ = version("pylucebox")
