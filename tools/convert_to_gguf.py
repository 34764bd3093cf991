#!/usr/bin/env python3
"""Convert a DeepSeek-V4 checkpoint to GGUF from a checkout: the same options as `lucebox convert`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from pylucebox.cli.main import main

if __name__ == "__main__":
    main(["convert", *sys.argv[1:]])
