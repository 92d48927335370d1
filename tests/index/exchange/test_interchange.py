"""Export and import: what another library reads scores as a float64 loop says it must."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from safetensors.numpy import load_file, save_file

from attend import Data
from attend.cli import main
from attend.collection.collection import Collection
from attend.core.errors import Conflict, Damaged, InvalidRequest
from attend.core.settings import Tuning
from attend.encoder import load
from attend.encoder.loading import DEFAULT_SHA256
from attend.exchange.models import export_model, export_weights, import_projection
from attend.projection import Projection, given, identity
from attend.store import NewExample, Question
from tests.index.helpers import vector_data

TEXTS = ["a whale hunt at sea", "bread and flour", "compress a file", "a lantern in the harbour"]
WIDTH = 32


def matrix(seed: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape) / np.sqrt(shape[-1])


def unit(rows: np.ndarray) -> np.ndarray:
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


def pair(kind: str, d: int) -> Projection:
    """A projection of one head, of each make that there is."""
    asymmetric = {"w_q": matrix(1, d, d), "w_k": matrix(2, d, d)}
    narrow = {"w_q": matrix(3, d // 6, d), "w_k": matrix(4, d // 6, d)}
    biases = {"b_q": matrix(5, d), "b_k": matrix(6, d)}
    unit_length = {"normalize_queries": True, "normalize_keys": True}
    makes: dict[str, dict[str, Any]] = {
        "asymmetric": asymmetric | unit_length,
        "raw keys": asymmetric,
        "biased and centred": asymmetric | biases | {"center": matrix(7, d)} | unit_length,
        "narrow": narrow | unit_length,
        "query side only": {"w_q": matrix(8, d, d), "w_k": None, "center": matrix(9, d)},
    }
    return given(**makes[kind], kind="learned")


KINDS = ["asymmetric", "raw keys", "biased and centred", "narrow", "query side only"]


def expected_scores(projection: Projection, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Every query against every document, by a plain loop in float64."""
    at = projection.tensors
    center = np.float64(at.get("center", np.zeros(projection.d_in)))

    def side(x: np.ndarray, which: str, normalize: bool) -> np.ndarray:
        y = np.float64(x) - center
        if f"w_{which}" in at:
            y = np.float64(at[f"w_{which}"][0]) @ y
        if f"b_{which}" in at:
            y = y + at[f"b_{which}"][0]
        return y / np.linalg.norm(y) if normalize else y

    return np.array(
        [
            [
                side(q, "q", projection.normalize_queries) @ side(k, "k", projection.normalize_keys)
                for k in keys
            ]
            for q in queries
        ]
    )


@pytest.fixture
def collection(tmp_path: Path, tiny_encoder_folder: Path) -> Collection:
    made = Data(tmp_path / "data").create("default", encoder=str(tiny_encoder_folder))
    made.upsert([{"id": str(at), "text": text} for at, text in enumerate(TEXTS)])
    return made


def read(collection: Collection, version: int) -> Projection:
    return Projection.from_bytes(collection.store.version(version).weights)


def in_library(folder: Path) -> Any:
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def library_scores(folder: Path, queries: list[str], documents: list[str]) -> np.ndarray:
    model = in_library(folder)
    similarity = model.similarity(model.encode_query(queries), model.encode_document(documents))
    return np.asarray(similarity)


def snapshot(folder: Path) -> dict[str, str]:
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


# -- out ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_the_library_gives_the_scores_of_the_version(
    collection: Collection, tmp_path: Path, kind: str, tiny_encoder_folder: Path
) -> None:
    projection = pair(kind, WIDTH)
    version = collection.add_projection(projection)
    done = export_model(collection, tmp_path / "pair", version=version)
    encoder = load(str(tiny_encoder_folder), precision="float32")
    embeddings = encoder.encode_documents(TEXTS)
    expected = expected_scores(projection, embeddings, embeddings)
    np.testing.assert_allclose(library_scores(tmp_path / "pair", TEXTS, TEXTS), expected, atol=1e-5)
    assert done.difference < 1e-5
    assert done.dimensions == projection.d_k


@pytest.mark.parametrize("kind", ["biased and centred", "narrow"])
def test_the_real_encoder_goes_along_byte_for_byte(tmp_path: Path, kind: str) -> None:
    collection = Data(tmp_path / "data").create("default")
    collection.upsert([{"id": str(at), "text": text} for at, text in enumerate(TEXTS)])
    projection = pair(kind, 384)
    version = collection.add_projection(projection)
    export_model(collection, tmp_path / "pair", version=version)
    weights = (tmp_path / "pair" / "model.safetensors").read_bytes()
    assert hashlib.sha256(weights).hexdigest() == DEFAULT_SHA256
    encoder = load(precision="float32")
    queries, keys = encoder.encode_queries(TEXTS[:2]), encoder.encode_documents(TEXTS)
    expected = expected_scores(projection, queries, keys)
    found = library_scores(tmp_path / "pair", TEXTS[:2], TEXTS)
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(
    ("scorer", "similarity"), [("dot", "dot"), ("cosine", "cosine"), ("laplace", "manhattan")]
)
def test_the_model_compares_as_the_collection_does(
    tmp_path: Path, tiny_encoder_folder: Path, scorer: str, similarity: str
) -> None:
    made = Data(tmp_path / "data").create(
        "default", encoder=str(tiny_encoder_folder), scorer=scorer, scale=1.0
    )
    made.upsert([{"id": str(at), "text": text} for at, text in enumerate(TEXTS)])
    made.activate(made.add_projection(pair("raw keys", WIDTH)))
    assert export_model(made, tmp_path / "pair").similarity == similarity
    ours = made.search(TEXTS[0], k=4)
    theirs = library_scores(tmp_path / "pair", TEXTS[:1], [TEXTS[int(h.id)] for h in ours.hits])
    np.testing.assert_allclose([hit.score for hit in ours.hits], theirs[0], rtol=1e-4)


def test_an_untrained_version_is_the_encoder_itself(
    collection: Collection, tmp_path: Path, tiny_encoder_folder: Path
) -> None:
    export_model(collection, tmp_path / "pair")
    embeddings = load(str(tiny_encoder_folder), precision="float32").encode_documents(TEXTS)
    found = library_scores(tmp_path / "pair", TEXTS, TEXTS)
    np.testing.assert_allclose(found, np.float64(embeddings) @ embeddings.T, atol=1e-6)


def test_nothing_is_pickled_and_the_encoder_stays_as_it_was(
    collection: Collection, tmp_path: Path, tiny_encoder_folder: Path
) -> None:
    before = snapshot(tiny_encoder_folder)
    export_model(collection, tmp_path / "pair")
    assert snapshot(tiny_encoder_folder) == before
    suffixes = {path.suffix for path in (tmp_path / "pair").rglob("*") if path.is_file()}
    assert suffixes <= {".json", ".safetensors", ".txt", ".md"}


def test_an_encoder_with_pickled_weights_is_saved_as_safetensors(
    tmp_path: Path, tiny_encoder_folder: Path
) -> None:
    """Its Dense layer is a pickle, as models of some years ago have it."""
    import torch
    from sentence_transformers.sentence_transformer.modules import Dense

    encoder = in_library(tiny_encoder_folder)
    encoder.append(Dense(WIDTH, 8, activation_function=torch.nn.Tanh()))
    encoder.save_pretrained(str(tmp_path / "encoder"), create_model_card=False)
    (weights,) = (tmp_path / "encoder").glob("*_Dense/model.safetensors")
    torch.save(
        in_library(tmp_path / "encoder")[-1].state_dict(), weights.parent / "pytorch_model.bin"
    )
    weights.unlink()
    made = Data(tmp_path / "data").create("default", encoder=str(tmp_path / "encoder"))
    made.upsert([{"id": str(at), "text": text} for at, text in enumerate(TEXTS)])
    version = made.add_projection(pair("raw keys", 8))
    assert export_model(made, tmp_path / "pair", version=version).difference < 1e-5
    assert not list((tmp_path / "pair").rglob("*.bin"))


def test_several_heads_are_refused_and_one_that_alone_counts_is_not(
    collection: Collection, tmp_path: Path
) -> None:
    heads = {"w_q": matrix(1, 2, 16, WIDTH), "w_k": matrix(2, 2, 16, WIDTH)}
    mixed = collection.add_projection(given(**heads, gates=[0.5, 0.5]))
    with pytest.raises(InvalidRequest, match="softmaxes of 2 heads"):
        export_model(collection, tmp_path / "pair", version=mixed)
    assert not (tmp_path / "pair").exists()
    second = collection.add_projection(given(**heads, gates=[0, 1]))
    export_model(collection, tmp_path / "pair", version=second)
    dense = load_file(tmp_path / "pair/2_Router/query_0_Dense/model.safetensors")
    np.testing.assert_array_equal(dense["linear.weight"], np.float32(heads["w_q"][1]))


def test_vectors_without_an_encoder_have_only_their_bytes(tmp_path: Path) -> None:
    made = vector_data(tmp_path / "data").create("default", dimension=4)
    with pytest.raises(InvalidRequest, match="--safetensors"):
        export_model(made, tmp_path / "pair")
    version = made.add_projection(given(matrix(1, 2, 4), matrix(2, 2, 4)))
    export_weights(made, tmp_path / "pair.safetensors", version=version)
    assert (tmp_path / "pair.safetensors").read_bytes() == made.store.version(version).weights
    imported, _ = import_projection(made, tmp_path / "pair.safetensors", activate=True)
    assert made.store.state().projection == imported
    assert [each.kind for each in made.projections()][-1] == "given"
    np.testing.assert_array_equal(read(made, imported).w_q, read(made, version).w_q, strict=True)


def test_what_cannot_travel_is_named_with_its_figures(
    collection: Collection, tmp_path: Path
) -> None:
    with collection.store.all_keys() as (_, batches):
        keys = np.concatenate([batch.ids for batch in batches])[:3]
    embedding = np.ones(WIDTH, np.float32)
    collection.store.add_examples(
        [Question("whales?", embedding)], [NewExample(0, "0", 1.0), NewExample(0, "1", 1.0)]
    )
    tuning = Tuning(scale=(17.5,), null=(-3.25,), lexical=0.375, examples=0.625)
    tuning = tuning.model_copy(update={"memory": 0.75, "votes": 0.125, "layer": 0.5})
    projection = pair("asymmetric", WIDTH)
    version = collection.store.add_projection(
        "learned",
        projection.to_bytes(),
        projection.fingerprint,
        {},
        tuning=tuning.stored(),
        offsets=(keys, matrix(1, 3, WIDTH).astype(np.float32)),
    )
    done = export_model(collection, tmp_path / "pair", version=version)
    named = {each.what: each.detail for each in done.cannot_travel if each.in_use}
    figures = {
        "key offsets": "3 keys",
        "example keys": "2, at the factor 0.625",
        "lexical bias": "0.375",
        "feedback": "0.75",
        "votes of feedback": "0.125",
        "second layer": "0.5",
        "scale": "17.5",
        "no-answer score": "-3.25",
    }
    card = (tmp_path / "pair" / "README.md").read_text()
    assert named.keys() == figures.keys()
    for what, figure in figures.items():
        assert figure in named[what]
        assert f"| {what} | yes | {named[what]}" in card


def test_an_untrained_version_is_said_to_use_what_searches_use(
    collection: Collection, tmp_path: Path
) -> None:
    def in_use() -> dict[str, str]:
        done = export_weights(collection, tmp_path / "file", version=1, force=True)
        return {part.what: part.detail for part in done.cannot_travel if part.in_use}

    assert in_use().keys() == {"lexical bias", "second layer"}
    collection.teach([{"query": "whales?", "id": "0"}])
    parts = in_use()
    assert parts.keys() == {"lexical bias", "feedback", "second layer"}
    assert parts["feedback"].startswith("queries move by 0.5;")
    assert parts["lexical bias"].startswith("weight 0.5, coverage 1;")


def test_what_is_there_is_replaced_only_by_force(collection: Collection, tmp_path: Path) -> None:
    target = tmp_path / "pair"
    target.mkdir()
    export_model(collection, target)  # an empty folder is as good as none
    with pytest.raises(Conflict, match="--force"):
        export_model(collection, target)
    (target / "mine").write_text("kept")
    export_model(collection, target, force=True)
    assert not (target / "mine").exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    file = tmp_path / "pair.safetensors"
    export_weights(collection, file)
    with pytest.raises(Conflict, match="--force"):
        export_weights(collection, file)
    export_weights(collection, file, force=True)


def test_the_collection_itself_is_never_replaced(
    collection: Collection, tmp_path: Path, tiny_encoder_folder: Path
) -> None:
    for target in (tmp_path / "data", collection.folder / "pair", tiny_encoder_folder):
        with pytest.raises(Conflict, match="apart"):
            export_model(collection, target, force=True)
    assert collection.document("0").fields["text"] == TEXTS[0]


def test_a_failed_export_leaves_what_was_there(
    collection: Collection, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = tmp_path / "pair"
    export_model(collection, target)
    before = snapshot(target)
    monkeypatch.setattr("attend.exchange.models.score_difference", lambda *_: 0.5)
    with pytest.raises(Conflict, match="scores otherwise"):
        export_model(collection, target, force=True)
    assert snapshot(target) == before
    assert {path.name for path in tmp_path.iterdir()} == {"data", "pair"}


# -- in ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_exported_comes_back(collection: Collection, tmp_path: Path, kind: str) -> None:
    projection = pair(kind, WIDTH)
    version = collection.add_projection(projection)
    export_weights(collection, tmp_path / "pair.safetensors", version=version)
    imported, width = import_projection(collection, tmp_path / "pair.safetensors")
    assert width == projection.d_k
    assert collection.store.state().projection == 1  # nothing is activated unasked
    again = read(collection, imported)
    assert again.kind == "given"
    queries, keys = (unit(matrix(seed, 5, WIDTH)) for seed in (11, 12))
    expected = expected_scores(projection, queries, keys)
    np.testing.assert_allclose(expected_scores(again, queries, keys), expected, atol=1e-6)


@pytest.mark.parametrize("content", [b"", b"\x80\x04 a pickle", b"{}"])
def test_what_is_no_projection_is_refused_and_nothing_stored(
    collection: Collection, tmp_path: Path, content: bytes
) -> None:
    file = tmp_path / "layer.pt"
    file.write_bytes(content)
    with pytest.raises(Damaged, match=r"layer\.pt is not a projection's safetensors"):
        import_projection(collection, file, activate=True)
    save_file({"linear.weight": np.eye(WIDTH, dtype=np.float32)}, file)
    with pytest.raises(Damaged, match="not a projection"):
        import_projection(collection, file, activate=True)
    assert len(collection.projections()) == 1


def test_another_width_is_named_on_both_sides(collection: Collection, tmp_path: Path) -> None:
    other = tmp_path / "other.safetensors"
    other.write_bytes(identity(48).to_bytes())
    with pytest.raises(InvalidRequest, match=r"48 dimensions, .* 32"):
        import_projection(collection, other)


# -- the command line --------------------------------------------------------------------------


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(main, [str(each) for each in arguments], prog_name="attend")


def test_export_and_import_at_the_command_line(collection: Collection, tmp_path: Path) -> None:
    data, folder, file = tmp_path / "data", tmp_path / "pair", tmp_path / "pair.safetensors"
    version = collection.add_projection(pair("narrow", WIDTH))
    done = invoke(
        "export",
        "--data",
        data,
        "--projection",
        version,
        "--sentence-transformers",
        folder,
        "--json",
    )
    assert done.exit_code == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["projection"] == version
    assert told["difference"] < 1e-4
    whats = {each["what"] for each in told["cannot_travel"]}
    assert {"key offsets", "example keys", "lexical bias", "scale", "no-answer score"} <= whats
    done = invoke("export", "--data", data, "--projection", version, "--safetensors", file)
    assert done.exit_code == 0, done.stderr
    assert "lexical bias" in done.stdout
    done = invoke("import", "--data", data, file, "--json")
    assert done.exit_code == 0, done.stderr
    assert json.loads(done.stdout)["active"] is False
    done = invoke("import", "--data", data, file, "--activate", "--json")
    assert collection.store.state().projection == json.loads(done.stdout)["projection"] == 4
    assert collection.search(TEXTS[0], k=1).projection == 4


def test_wrong_calls_and_refusals_have_their_exit_codes(
    collection: Collection, tmp_path: Path
) -> None:
    data, full = tmp_path / "data", tmp_path / "full"
    full.mkdir()
    (full / "mine").write_text("kept")
    assert invoke("export", "--data", data).exit_code == 2
    both = ("--sentence-transformers", full, "--safetensors", full / "x")
    assert invoke("export", "--data", data, *both).exit_code == 2
    assert invoke("import", "--data", data, tmp_path / "absent").exit_code == 2
    assert invoke("import", "--data", data, full).exit_code == 2  # a folder
    refused = invoke("export", "--data", data, "--sentence-transformers", full)
    assert refused.exit_code == 1
    assert "--force" in refused.stderr
    unknown = invoke("export", "--data", data, "--projection", 9, "--safetensors", tmp_path / "x")
    assert unknown.exit_code == 1
    assert "no projection 9" in unknown.stderr
    assert (full / "mine").read_text() == "kept"
