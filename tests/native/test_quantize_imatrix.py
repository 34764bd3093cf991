"""llama-quantize with an importance matrix: a slice for each expert and for each group of rows."""

from pathlib import Path

import numpy as np
import pytest
from fixture_maker import make_fixture
from imatrix_maker import write_imatrix
from test_quantize import run, tensor_bytes

from pylucebox.core.receipts import BuildReceipt
from pylucebox.formats.gguf_reader import read_header
from pylucebox.formats.imatrix import read_imatrix
from pylucebox.formats.rocmfpx import RocmFp3

GROUPED, EXPERTS, PLAIN = "blk.3.attn_output_a.weight", "blk.3.ffn_up_exps.weight", "blk.3.attn_q_a.weight"
UNSEEN = 5  # an expert that no input reached


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "a.gguf"
    make_fixture.write_fixture(path, make_fixture.variant("A"), make_fixture.Types(), 1, "a")
    return path


@pytest.fixture(scope="module")
def imatrix(model: Path) -> Path:
    shapes = {t.name: t.shape for t in read_header(model).tensors}
    rng = np.random.default_rng(3)
    slices = {GROUPED: 8, EXPERTS: 16, PLAIN: 1}
    entries = {}
    for name, count in slices.items():
        sums = rng.gamma(0.5, 100, (count, shapes[name][-1]))
        counts = rng.integers(20, 90, (count, 1))
        if name == EXPERTS:
            counts[UNSEEN] = sums[UNSEEN] = 0
        entries[name] = (sums.reshape(1, -1), counts[:1]) if name == GROUPED else (sums, counts)
    return write_imatrix(model.with_name("i.gguf"), entries)


@pytest.mark.parametrize("threads", ["1", "2"])
def test_every_row_has_the_importance_of_its_slice(
    build: BuildReceipt, model: Path, imatrix: Path, tmp_path: Path, threads: str
) -> None:
    out = tmp_path / "out.gguf"
    run(build, "--imatrix", imatrix, "--pure", model, out, "Q3_0_ROCMFPX", threads)
    shapes = {t.name: t.shape for t in read_header(model).tensors}
    for name in (GROUPED, EXPERTS, PLAIN):
        values = tensor_bytes(model, name).view(np.float32).reshape(-1, shapes[name][-1])
        importance = read_imatrix(imatrix).find(name, shapes[name])
        assert importance is not None
        wanted = np.concatenate(
            [RocmFp3.encode(values[rows], slice_) for rows, slice_ in importance.pieces(0, len(values))]
        )
        found = tensor_bytes(out, name).reshape(len(values), -1)
        assert np.array_equal(found, wanted), name
        assert not np.array_equal(found, RocmFp3.encode(values)), f"{name}: importance changed nothing"
        if name == EXPERTS:
            assert (importance.values[UNSEEN] == 1).all()


def test_a_size_that_fits_no_groups_is_still_refused(
    build: BuildReceipt, model: Path, tmp_path: Path
) -> None:
    columns = {t.name: t.shape[-1] for t in read_header(model).tensors}
    for name, slices in ((GROUPED, 7), (PLAIN, 2)):
        sums = np.ones((1, slices * columns[name]))
        path = write_imatrix(tmp_path / "i.gguf", {name: (sums, np.ones((1, 1)))})
        told = run(build, "--imatrix", path, "--pure", model, tmp_path / "o.gguf", "Q3_0_ROCMFPX", status=1)
        assert f"is different from tensor size {columns[name]} for {name}" in told
