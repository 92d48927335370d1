"""Export and import: what another library reads scores as a float64 loop says it must."""

from __future__ import annotations

import hashlib
import json
import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import HealthCheck, settings
from hypothesis import given as examples_of
from hypothesis import strategies as st
from safetensors.numpy import load_file, save_file

from attend import Data
from attend.cli import main
from attend.collection import Collection
from attend.encoder import load
from attend.encoder.loading import DEFAULT_SHA256
from attend.errors import AttendError, Conflict, Damaged, EncoderMismatch, InvalidRequest
from attend.exchange import export_model, export_weights, import_projection
from attend.exchange.layers import LinearLayer, chained, pair_of, projection_of
from attend.projection import Projection, given, identity
from attend.settings import Tuning
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
    imported = import_projection(collection, tmp_path / "pair")
    assert imported.encoder_checked is True
    again = expected_scores(read(collection, imported.version), queries, keys)
    np.testing.assert_allclose(again, expected, atol=1e-6)


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
    imported = import_projection(made, tmp_path / "pair")
    np.testing.assert_allclose(read(made, imported.version).w_q, read(made, version).w_q, atol=1e-7)


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
    imported = import_projection(made, tmp_path / "pair.safetensors", activate=True)
    assert made.store.state().projection == imported.version
    assert [each.kind for each in made.projections()][-1] == "given"
    np.testing.assert_array_equal(
        read(made, imported.version).w_q, read(made, version).w_q, strict=True
    )


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
        "scale": "17.5",
        "no-answer score": "-3.25",
    }
    card = (tmp_path / "pair" / "README.md").read_text()
    assert named.keys() == figures.keys()
    for what, figure in figures.items():
        assert figure in named[what]
        assert f"| {what} | yes | {named[what]}" in card


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
    monkeypatch.setattr("attend.exchange.export.score_difference", lambda *_: 0.5)
    with pytest.raises(Conflict, match="scores otherwise"):
        export_model(collection, target, force=True)
    assert snapshot(target) == before
    assert {path.name for path in tmp_path.iterdir()} == {"data", "pair"}


# -- in ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_exported_comes_back(collection: Collection, tmp_path: Path, kind: str) -> None:
    projection = pair(kind, WIDTH)
    version = collection.add_projection(projection)
    export_model(collection, tmp_path / "pair", version=version)
    export_weights(collection, tmp_path / "pair.safetensors", version=version)
    queries, keys = (unit(matrix(seed, 5, WIDTH)) for seed in (11, 12))
    expected = expected_scores(projection, queries, keys)
    for source in ("pair", "pair/2_Router", "pair.safetensors"):
        imported = import_projection(collection, tmp_path / source)
        assert imported.dimensions == projection.d_k
        assert collection.store.state().projection == 1  # nothing is activated unasked
        again = read(collection, imported.version)
        assert again.kind == "given"
        np.testing.assert_allclose(expected_scores(again, queries, keys), expected, atol=1e-6)


def test_a_model_that_the_library_saved_again_comes_back(
    collection: Collection, tmp_path: Path
) -> None:
    version = collection.add_projection(pair("biased and centred", WIDTH))
    export_model(collection, tmp_path / "pair", version=version)
    in_library(tmp_path / "pair").save_pretrained(str(tmp_path / "again"))
    first, second = (import_projection(collection, tmp_path / name) for name in ("pair", "again"))
    assert second.encoder_checked is True
    one, other = (read(collection, each.version) for each in (first, second))
    assert one.fingerprint == other.fingerprint


def dense_folder(folder: Path, out: int, taken: int = WIDTH, **config: Any) -> Path:
    """A Dense layer as the library itself saves it."""
    import torch
    from sentence_transformers.sentence_transformer.modules import Dense

    torch.manual_seed(out)
    layer = Dense(taken, out, activation_function=torch.nn.Identity(), **config)
    folder.mkdir(parents=True)
    layer.save(str(folder))
    return folder


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("out", "residual"), [(WIDTH, True), (8, True), (8, False)])
def test_a_dense_layer_serves_both_sides(
    collection: Collection, tmp_path: Path, out: int, residual: bool, bias: bool
) -> None:
    import torch
    from sentence_transformers.sentence_transformer.modules import Dense

    folder = dense_folder(tmp_path / "dense", out, bias=bias, use_residual=residual)
    imported = import_projection(collection, folder)
    x = unit(matrix(1, 5, WIDTH)).astype(np.float32)
    with torch.no_grad():
        layer = Dense.load(str(folder))
        expected = unit(
            layer({"sentence_embedding": torch.tensor(x)})["sentence_embedding"].numpy()
        )
    projection = read(collection, imported.version)
    np.testing.assert_allclose(projection.queries(x)[:, 0], expected, atol=1e-6)
    np.testing.assert_allclose(projection.keys(x)[:, 0], expected, atol=1e-6)


def test_one_side_alone_leaves_the_other_as_it_is(collection: Collection, tmp_path: Path) -> None:
    folder = dense_folder(tmp_path / "dense", WIDTH)
    queries = read(collection, import_projection(collection, folder, sides="query").version)
    keys = read(collection, import_projection(collection, folder, sides="document").version)
    weight = load_file(folder / "model.safetensors")["linear.weight"]
    np.testing.assert_array_equal(queries.w_q[0], weight)
    np.testing.assert_array_equal(keys.w_k[0], weight)
    assert queries.key_fingerprint == "raw"
    assert keys.w_q is None


@pytest.mark.parametrize("normalised", [True, False])
def test_a_model_with_dense_layers_after_its_encoder(
    collection: Collection, tmp_path: Path, tiny_encoder_folder: Path, normalised: bool
) -> None:
    """Two of them, and the library's default similarity, which is the cosine.

    Without biases and under a cosine it does not matter that only we normalise before them.
    """
    import torch
    from sentence_transformers.sentence_transformer.modules import Dense, Normalize

    model = in_library(tiny_encoder_folder)
    torch.manual_seed(1)
    if normalised:
        model.append(Normalize())
    for widths in ((WIDTH, 24), (24, 8)):
        model.append(Dense(*widths, bias=normalised, activation_function=None))
    model.save_pretrained(str(tmp_path / "model"), create_model_card=False)
    imported = import_projection(collection, tmp_path / "model", activate=True)
    assert imported.encoder_checked is True
    expected = np.asarray(model.similarity(model.encode(TEXTS[:1]), model.encode(TEXTS)))[0]
    hits = collection.search(TEXTS[0], k=4, scale=1.0).hits
    found = [hit.score for hit in sorted(hits, key=lambda hit: hit.id)]
    np.testing.assert_allclose(found, expected, atol=1e-5)


@pytest.mark.parametrize(("bias", "similarity"), [(True, "cosine"), (False, "dot")])
def test_a_model_that_depends_on_the_length_of_embeddings_is_refused(
    collection: Collection,
    tmp_path: Path,
    tiny_encoder_folder: Path,
    bias: bool,
    similarity: str,
) -> None:
    from sentence_transformers.sentence_transformer.modules import Dense

    model = in_library(tiny_encoder_folder)
    model.similarity_fn_name = similarity
    model.append(Dense(WIDTH, 8, bias=bias, activation_function=None))
    model.save_pretrained(str(tmp_path / "model"), create_model_card=False)
    with pytest.raises(InvalidRequest, match="another length"):
        import_projection(collection, tmp_path / "model")


def test_a_model_with_another_similarity_is_refused(collection: Collection, tmp_path: Path) -> None:
    export_model(collection, tmp_path / "pair")
    config = "config_sentence_transformers.json"
    edited(tmp_path / "pair", config, similarity_fn_name="euclidean")
    with pytest.raises(InvalidRequest, match="'euclidean' and this collection by 'dot'"):
        import_projection(collection, tmp_path / "pair")


def test_another_encoder_is_refused_but_not_its_layers_alone(
    collection: Collection, tmp_path: Path
) -> None:
    export_model(collection, tmp_path / "pair")
    weights = tmp_path / "pair" / "model.safetensors"
    save_file({name: each + 1 for name, each in load_file(weights).items()}, weights)
    with pytest.raises(EncoderMismatch, match="another encoder"):
        import_projection(collection, tmp_path / "pair")
    assert import_projection(collection, tmp_path / "pair" / "2_Router").encoder_checked is None
    weights.unlink()
    assert import_projection(collection, tmp_path / "pair").encoder_checked is False


def edited(folder: Path, name: str = "config.json", **changes: Any) -> Path:
    content = json.loads((folder / name).read_text()) | changes
    (folder / name).write_text(json.dumps(content))
    return folder


def broken(tmp_path: Path, how: str) -> Path:
    """A Dense layer's folder in which one thing is wrong."""
    folder = dense_folder(tmp_path / how, WIDTH)
    weights = folder / "model.safetensors"
    if how == "pickled":
        weights.rename(folder / "pytorch_model.bin")
    elif how == "pickled file":
        return weights.rename(folder / "layer.pt")
    elif how == "tanh":
        edited(folder, activation_function="torch.nn.modules.activation.Tanh")
    elif how == "token embeddings":
        edited(folder, module_input_name="token_embeddings")
    elif how == "wrong config":
        edited(folder, out_features=8)
    elif how == "no weights":
        weights.unlink()
    elif how == "bare weights":
        return weights
    elif how == "garbage":
        weights.write_bytes(b"\x80\x04 not safetensors")
    elif how == "not finite":
        tensors = load_file(weights)
        tensors["linear.weight"][0, 0] = np.nan
        save_file(tensors, weights)
    elif how == "no json":
        (folder / "config.json").write_text("{")
    elif how == "nothing":
        shutil.rmtree(folder)
        folder.mkdir()
    return folder


@pytest.mark.parametrize(
    ("how", "error", "sentence"),
    [
        ("pickled", InvalidRequest, "is a pickle"),
        ("pickled file", InvalidRequest, "is a pickle"),
        ("tanh", InvalidRequest, "applies Tanh"),
        ("token embeddings", InvalidRequest, "token_embeddings"),
        ("wrong config", Damaged, r"\(8, 32\)"),
        ("no weights", InvalidRequest, "has no model.safetensors"),
        ("bare weights", Damaged, "config.json"),
        ("garbage", Damaged, "not safetensors"),
        ("not finite", InvalidRequest, "NaN"),
        ("no json", Damaged, "not JSON"),
        ("nothing", InvalidRequest, "neither a Dense layer"),
    ],
)
def test_what_cannot_be_taken_is_refused_and_nothing_stored(
    collection: Collection, tmp_path: Path, how: str, error: type[AttendError], sentence: str
) -> None:
    with pytest.raises(error, match=sentence):
        import_projection(collection, broken(tmp_path, how), activate=True)
    assert len(collection.projections()) == 1


def test_widths_that_disagree_are_named_on_both_sides(
    collection: Collection, tmp_path: Path
) -> None:
    with pytest.raises(InvalidRequest, match=r"takes 48 numbers, .* have 32"):
        import_projection(collection, dense_folder(tmp_path / "wide", 48, 48))
    with pytest.raises(InvalidRequest, match="gives 8 numbers and the document side 32"):
        import_projection(collection, dense_folder(tmp_path / "narrow", 8), sides="query")
    other = tmp_path / "other.safetensors"
    other.write_bytes(identity(48).to_bytes())
    with pytest.raises(InvalidRequest, match=r"48 dimensions, .* 32"):
        import_projection(collection, other)


def test_a_model_cannot_name_files_outside_of_it(collection: Collection, tmp_path: Path) -> None:
    dense_folder(tmp_path / "dense", WIDTH)
    export_model(collection, tmp_path / "pair")
    edited(
        tmp_path / "pair/2_Router",
        "router_config.json",
        types={"../../dense": "sentence_transformers.models.Dense"},
        structure={"query": ["../../dense"], "document": ["../../dense"]},
    )
    with pytest.raises(Damaged, match="outside"):
        import_projection(collection, tmp_path / "pair")


def test_routes_with_encoders_of_their_own_are_refused(
    collection: Collection, tmp_path: Path, tiny_encoder_folder: Path
) -> None:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Router

    one, other = (in_library(tiny_encoder_folder)[0] for _ in range(2))
    model = SentenceTransformer(modules=[Router.for_query_document([one], [other])])
    model.save_pretrained(str(tmp_path / "model"), create_model_card=False)
    with pytest.raises(InvalidRequest, match="is a StaticEmbedding"):
        import_projection(collection, tmp_path / "model")
    with pytest.raises(InvalidRequest, match="nothing in it to import"):
        import_projection(collection, tiny_encoder_folder)


# -- the algebra -------------------------------------------------------------------------------


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@examples_of(
    d=st.integers(1, 6),
    out=st.integers(1, 6),
    seed=st.integers(0, 99),
    parts=st.sets(st.sampled_from(["b_q", "b_k", "center", "nq", "nk", "no w_k"])),
)
def test_a_pair_is_its_projection(d: int, out: int, seed: int, parts: set[str]) -> None:
    out = d if "no w_k" in parts else out
    projection = given(
        matrix(seed, out, d),
        None if "no w_k" in parts else matrix(seed + 1, out, d),
        b_q=matrix(seed + 2, out) if "b_q" in parts else None,
        b_k=matrix(seed + 3, out) if "b_k" in parts else None,
        center=matrix(seed + 4, d) if "center" in parts else None,
        normalize_queries="nq" in parts,
        normalize_keys="nk" in parts,
    )
    again = projection_of(pair_of(projection), d)
    queries, keys = matrix(seed + 5, 3, d), matrix(seed + 6, 4, d)
    expected = expected_scores(projection, queries, keys)
    found = expected_scores(again, queries, keys)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@settings(max_examples=50, deadline=None)
@examples_of(widths=st.lists(st.integers(1, 6), min_size=2, max_size=5), seed=st.integers(0, 99))
def test_a_chain_is_one_layer(widths: list[int], seed: int) -> None:
    layers = [
        LinearLayer(
            matrix(seed + at, out, taken).astype(np.float32),
            matrix(seed + 10 + at, out).astype(np.float32) if at % 2 else None,
            False,
        )
        for at, (taken, out) in enumerate(pairwise(widths))
    ]
    x = matrix(seed, 3, widths[0])
    expected = x
    for layer in layers:
        expected = expected @ np.float64(layer.weight).T + (0 if layer.bias is None else layer.bias)
    whole = chained(layers, unit=False)
    found = x @ np.float64(whole.weight).T + (0 if whole.bias is None else whole.bias)
    np.testing.assert_allclose(found, expected, atol=1e-4)


def test_length_one_between_two_matrices_is_refused() -> None:
    dense, norm = (
        LinearLayer(np.eye(2, dtype=np.float32), None, False),
        LinearLayer(None, None, True),
    )
    with pytest.raises(InvalidRequest, match="normalise before"):
        chained([dense, norm, dense], unit=True)
    with pytest.raises(InvalidRequest, match="normalise before"):
        chained([norm, dense], unit=False)
    assert chained([norm, dense, norm], unit=True).normalize


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
    for source in (folder, file):
        done = invoke("import", "--data", data, source, "--json")
        assert done.exit_code == 0, done.stderr
        assert json.loads(done.stdout)["active"] is False
    done = invoke("import", "--data", data, folder, "--activate", "--json")
    assert collection.store.state().projection == json.loads(done.stdout)["projection"] == 5
    assert collection.search(TEXTS[0], k=1).projection == 5


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
    assert invoke("import", "--data", data, full, "--query-only", "--document-only").exit_code == 2
    refused = invoke("export", "--data", data, "--sentence-transformers", full)
    assert refused.exit_code == 1
    assert "--force" in refused.stderr
    unknown = invoke("export", "--data", data, "--projection", 9, "--safetensors", tmp_path / "x")
    assert unknown.exit_code == 1
    assert "no projection 9" in unknown.stderr
    assert (full / "mine").read_text() == "kept"
