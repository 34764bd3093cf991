"""The fast part of `make fidelity`: logits, texts and drafts of the built server equal the references."""

from pathlib import Path

import pytest

from pylucebox.core.paths import PACKAGE_DIR
from pylucebox.core.receipts import BuildReceipt
from pylucebox.formats.convert import convert
from pylucebox.formats.ledger import Role
from pylucebox.measure import fidelity
from pylucebox.measure.fidelity import Answer
from pylucebox.runtime.server import Server, ServerCommand, free_port, start

CHECKPOINT = PACKAGE_DIR / "data/tiny-ds4"
REFERENCES = Path(__file__).parent.parent / "vectors/tiny-ds4/prompts"
MAX_LOGIT_DIFFERENCE = 1e-3  # float32 sums in another order; measured: 2.4e-5
PER_SET = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("fidelity")


@pytest.fixture(scope="module")
def exact_model(folder: Path) -> Path:
    convert(CHECKPOINT, "f32", folder / "f32.gguf")
    return folder / "f32.gguf"


def command(build: BuildReceipt, model: Path, drafter: Path | None, *extra: str) -> ServerCommand:
    return ServerCommand(
        build.server_path,
        model,
        port=free_port("127.0.0.1"),
        drafter=drafter,
        draft_tokens=5 if drafter else None,
        thinking=False,
        extra=(*fidelity.ONE_THREAD, *extra),
    )


def ask(server: Server, drafting: bool = False) -> list[Answer]:
    prompts = [p for kind in fidelity.SETS for p in fidelity.load_prompts(REFERENCES, [kind])[:PER_SET]]
    return fidelity.ask_all(server.client, prompts, drafting=drafting)


@pytest.fixture(scope="module")
def drafted(build: BuildReceipt, folder: Path, exact_model: Path) -> list[Answer]:
    """Answers of the F32 conversion with its drafter, on the exact path."""
    drafter = folder / "f32-dspark.gguf"
    convert(CHECKPOINT, "f32", drafter, Role.DRAFTER)
    exact = command(build, exact_model, drafter, *fidelity.EXACT_ARGUMENTS)
    with start(exact, build, folder / "runs") as server:
        return ask(server, drafting=True)


def test_logits_equal_the_reference(build: BuildReceipt, folder: Path, exact_model: Path) -> None:
    check = fidelity.check_logits(build.bin_dir / "lucebox-logits", exact_model, REFERENCES, folder, "f32")
    assert check.prompts == 20 and check.long_tokens == 701
    assert check.largest_difference <= MAX_LOGIT_DIFFERENCE
    assert check.long_last_difference <= MAX_LOGIT_DIFFERENCE
    assert check.long_argmax_equal == 701


def test_texts_with_the_drafter_equal_the_reference(drafted: list[Answer]) -> None:
    assert [a.prompt.id for a in drafted if not a.is_identical or not a.is_right] == []


def test_drafts_equal_the_reference_position_by_position(drafted: list[Answer]) -> None:
    reference = fidelity.load_drafting(REFERENCES)
    pairs = [(a.drafting, reference[a.prompt.id]) for a in drafted if a.prompt.id in reference]
    assert len(pairs) == 2 * PER_SET
    assert [mine for mine, _ in pairs] == [wanted for _, wanted in pairs]
    assert all(
        (a.drafting.drafted, a.drafting.accepted) == (a.timings.drafted, a.timings.accepted) for a in drafted
    )


@pytest.mark.parametrize("name", ["bf16", "q8_0"])
def test_smaller_types_answer_right_as_served_by_default(
    build: BuildReceipt, folder: Path, name: str
) -> None:
    model = folder / f"{name}.gguf"
    convert(CHECKPOINT, name, model)
    with start(command(build, model, None), build, folder / "runs") as server:
        assert [a.prompt.id for a in ask(server) if not a.is_right] == []
