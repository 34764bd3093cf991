"""Importance matrices with made-up figures, in llama-imatrix's form."""

from collections.abc import Mapping
from pathlib import Path

import gguf
import numpy as np


def write_imatrix(path: Path, entries: Mapping[str, tuple[np.ndarray, np.ndarray]], **keys: object) -> Path:
    """Write entries: tensor name -> (sums, counts). keys: replace or, with None, leave out metadata."""
    writer = gguf.GGUFWriter(path, "none")
    values = {"type": "imatrix", "chunk_count": 4, "chunk_size": 512, "datasets": ["some.txt"], **keys}
    if values["type"] is not None:
        writer.add_type(str(values["type"]))
    if values["datasets"] is not None:
        writer.add_array("imatrix.datasets", values["datasets"])
    for key in ("chunk_count", "chunk_size"):
        if values[key] is not None:
            writer.add_uint32(f"imatrix.{key}", values[key])
    for name, (sums, counts) in entries.items():
        writer.add_tensor(f"{name}.in_sum2", sums.astype(np.float32))
        writer.add_tensor(f"{name}.counts", counts.astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
