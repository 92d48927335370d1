"""The clients of OpenAI, Cohere, LiteLLM and LangChain against a running server."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from attend import Data, encoder
from attend.core.settings import Tuning
from attend.encoder import DEFAULT, SentenceEncoder
from attend.projection import identity
from tests.service.test_server import running, wait_until_ready

os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
openai = pytest.importorskip("openai")
cohere = pytest.importorskip("cohere")
litellm = pytest.importorskip("litellm")
langchain_openai = pytest.importorskip("langchain_openai")

# The clients leave sockets open, and warn of their own types.
pytestmark = pytest.mark.filterwarnings("default")

NOVELS = {
    "sealer.txt": ("A castaway is forced to work on a sealing ship.", {"year": 1904, "sea": True}),
    "treasure.md": ("A boy finds a map and sails with pirates.", {"year": 1883, "sea": True}),
    "garden.md": ("An orphan wakes a locked garden.", {"year": 1911, "sea": False}),
}
TEXTS = [text for text, _ in NOVELS.values()]
KEY = "none is asked for"


@pytest.fixture(scope="module")
def encoding() -> SentenceEncoder:
    return encoder.load()


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A server with one trained collection, `trained`, whose no-answer score lies at a cosine .5"""
    folder = tmp_path_factory.mktemp("judges") / "library"
    data = Data(folder)
    collection = data.create("trained")
    collection.upsert([{"id": name, "text": text} for name, (text, _) in NOVELS.items()])
    tuning = Tuning(scale=(20.0,), null=(10.0,), scorer="dot", attend=100)
    projection = identity(384)
    number = collection.store.add_projection(
        projection.kind, projection.to_bytes(), projection.fingerprint, {}, tuning=tuning.stored()
    )
    collection.activate(number, force=True)
    data.close()
    with running(folder) as server:
        wait_until_ready(server)
        yield f"http://{server.host}:{server.port}"


@pytest.fixture
def client(address: str) -> Iterator[Any]:
    with openai.OpenAI(base_url=f"{address}/v1", api_key=KEY, max_retries=0) as client:
        yield client


# -- openai ---------------------------------------------------------------------------------


def test_openai_lists_models(client: Any) -> None:
    owners = {model.id: model.owned_by for model in client.models.list()}
    assert owners[DEFAULT] == "encoder"
    assert owners["trained"] == "collection"


def test_openai_embeds_in_its_default_and_as_numbers(
    client: Any, encoding: SentenceEncoder
) -> None:
    expected = encoding.encode_documents(TEXTS)
    packed = client.embeddings.create(model=DEFAULT, input=TEXTS)
    plain = client.embeddings.create(model=DEFAULT, input=TEXTS, encoding_format="float")
    for answer in (packed, plain):
        rows = np.array([item.embedding for item in answer.data])
        assert rows.shape == (3, 384)
        # The server may compute in another precision, for a batch of another size.
        assert (rows * expected).sum(axis=1) == pytest.approx(1, abs=0.01)
        assert answer.usage.total_tokens > 0
    assert packed.data[0].embedding == pytest.approx(plain.data[0].embedding, abs=1e-7)
    alone = client.embeddings.create(model=DEFAULT, input=TEXTS[0], user="ann", dimensions=384)
    assert len(alone.data) == 1


def test_openai_embeds_2048_inputs(client: Any) -> None:
    answer = client.embeddings.create(model=DEFAULT, input=[f"text {n}" for n in range(2048)])
    assert [item.index for item in answer.data] == list(range(2048))
    assert len({tuple(item.embedding) for item in answer.data}) == 2048
    with pytest.raises(openai.UnprocessableEntityError, match="at most 2048"):
        client.embeddings.create(model=DEFAULT, input=["a"] * 2049)


@pytest.mark.parametrize("tokens", [[1, 2, 3], [[1, 2], [3]]])
def test_openai_prints_the_setting_for_tokens(client: Any, tokens: Any) -> None:
    with pytest.raises(openai.UnprocessableEntityError) as error:
        client.embeddings.create(model=DEFAULT, input=tokens)
    assert "check_embedding_ctx_length=False" in str(error.value)
    assert error.value.param == "input"


def test_openai_prints_what_is_wrong(client: Any) -> None:
    with pytest.raises(openai.UnprocessableEntityError, match=f"the models are {DEFAULT}"):
        client.embeddings.create(model="text-embedding-3-small", input="a")
    with pytest.raises(openai.UnprocessableEntityError, match="Leave dimensions out"):
        client.embeddings.create(model=DEFAULT, input="a", dimensions=64)
    with pytest.raises(openai.NotFoundError, match="There is no collection 'nobody'"):
        client.vector_stores.retrieve("nobody")


def test_openai_fills_searches_and_deletes_a_store(client: Any) -> None:
    store = client.vector_stores.create(name="Sea novels", metadata={"team": "a"})
    assert (store.id, store.name, store.metadata) == ("Sea-novels", "Sea novels", {"team": "a"})
    ids = {}
    for name, (text, attributes) in NOVELS.items():
        file = client.files.create(file=(name, text.encode()), purpose="assistants")
        attached = client.vector_stores.files.create_and_poll(
            vector_store_id=store.id, file_id=file.id, attributes=attributes
        )
        assert attached.status == "completed"
        ids[name] = file.id
    assert client.vector_stores.retrieve(store.id).file_counts.completed == 3
    assert [file.id for file in client.vector_stores.files.list(store.id, limit=1)] == [
        *ids.values()
    ]

    page = client.vector_stores.search(store.id, query="life on a ship")
    assert page.data[0].filename == "sealer.txt"
    assert page.data[0].content[0].text == NOVELS["sealer.txt"][0]
    assert page.data[0].attributes == NOVELS["sealer.txt"][1]
    assert len(list(page)) == 3
    filters = {
        "type": "and",
        "filters": [
            {"type": "eq", "key": "sea", "value": True},
            {"type": "lt", "key": "year", "value": 1900},
        ],
    }
    page = client.vector_stores.search(store.id, query=["a ship", "a map"], filters=filters)
    assert [hit.filename for hit in page.data] == ["treasure.md"]
    page = client.vector_stores.search(
        store.id, query="a ship", max_num_results=1, ranking_options={"score_threshold": 0.999}
    )
    assert page.data == []

    gone = client.vector_stores.files.delete(ids["garden.md"], vector_store_id=store.id)
    assert gone.deleted
    names = {hit.filename for hit in client.vector_stores.search(store.id, query="garden").data}
    assert names == {"sealer.txt", "treasure.md"}
    assert {file.id for file in client.files.list(limit=2)} >= set(ids.values())
    for id in ids.values():
        assert client.files.delete(id).deleted
    with pytest.raises(openai.NotFoundError, match="no uploaded file"):
        client.files.retrieve(ids["garden.md"])
    assert client.vector_stores.delete(store.id).deleted
    assert store.id not in {one.id for one in client.vector_stores.list(limit=1)}


def test_openai_uploads_a_batch_and_polls(client: Any) -> None:
    store = client.vector_stores.create(name="batch")
    files = [(name, text.encode()) for name, (text, _) in NOVELS.items()]
    batch = client.vector_stores.file_batches.upload_and_poll(store.id, files=files)
    assert (batch.status, batch.file_counts.completed) == ("completed", 3)
    file = client.vector_stores.files.upload_and_poll(
        vector_store_id=store.id, file=("more.txt", b"A lighthouse at night.")
    )
    assert file.status == "completed"
    [best] = client.vector_stores.search(store.id, query="light", max_num_results=1).data
    assert best.filename == "more.txt"
    client.vector_stores.delete(store.id)


def test_openai_searches_a_trained_collection_by_its_confidence(client: Any) -> None:
    """Weights after a training sum to the confidence, and so a foreign question scores nothing."""
    [best] = client.vector_stores.search(
        "trained", query="forced to work on a sealing ship", max_num_results=1
    ).data
    assert best.score > 0.9
    options = {"score_threshold": 0.5}
    foreign = client.vector_stores.search(
        "trained", query="quantum chromodynamics", ranking_options=options
    )
    assert foreign.data == []


async def _async_search(address: str) -> tuple[int, int]:
    async with openai.AsyncOpenAI(base_url=f"{address}/v1", api_key=KEY) as client:
        embedded = await client.embeddings.create(model=DEFAULT, input=TEXTS)
        page = await client.vector_stores.search("trained", query="a ship")
        return len(embedded.data), len(page.data)


def test_the_async_client_does_the_same(address: str) -> None:
    import asyncio

    assert asyncio.run(_async_search(address)) == (3, 3)


# -- langchain ------------------------------------------------------------------------------


def test_langchain_with_its_defaults_gets_one_error_that_names_the_setting(
    address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It sends token ids, of a vocabulary that it downloads: here of one that stands for it."""

    class Vocabulary:
        def encode_ordinary(self, text: str) -> list[int]:
            return list(text.encode())

        def encode(self, text: str, **_: Any) -> list[int]:
            return list(text.encode())

    tiktoken = pytest.importorskip("tiktoken")
    monkeypatch.setattr(tiktoken, "encoding_for_model", lambda _: Vocabulary())
    monkeypatch.setattr(tiktoken, "get_encoding", lambda _: Vocabulary())
    embeddings = langchain_openai.OpenAIEmbeddings(
        model=DEFAULT, base_url=f"{address}/v1", api_key=KEY, max_retries=0
    )
    with pytest.raises(openai.UnprocessableEntityError) as error:
        embeddings.embed_documents(TEXTS)
    assert "set check_embedding_ctx_length=False" in str(error.value)


def test_langchain_with_the_setting_embeds(address: str, encoding: SentenceEncoder) -> None:
    embeddings = langchain_openai.OpenAIEmbeddings(
        model=DEFAULT, base_url=f"{address}/v1", api_key=KEY, check_embedding_ctx_length=False
    )
    rows = np.array([*embeddings.embed_documents(TEXTS), embeddings.embed_query(TEXTS[0])])
    expected = encoding.encode_documents([*TEXTS, TEXTS[0]])
    assert (rows * expected).sum(axis=1) == pytest.approx(1, abs=0.01)


# -- re-ranking -----------------------------------------------------------------------------

QUERY = "forced to work on a sealing ship"


@pytest.mark.parametrize("model", [DEFAULT, "trained"])
def test_cohere_ranks_by_both_its_clients(address: str, model: str) -> None:
    for kind in (cohere.ClientV2, cohere.Client):
        client = kind(api_key=KEY, base_url=address)
        answer = client.rerank(model=model, query=QUERY, documents=TEXTS)
        assert sorted(result.index for result in answer.results) == [0, 1, 2]
        scores = [result.relevance_score for result in answer.results]
        assert scores == sorted(scores, reverse=True)
        assert answer.results[0].index == 0
        assert 0.9 < scores[0] <= 1
        one = client.rerank(model=model, query=QUERY, documents=TEXTS, top_n=1)
        assert [result.index for result in one.results] == [0]


def test_scores_of_a_trained_collection_compare_between_queries(address: str) -> None:
    client = cohere.ClientV2(api_key=KEY, base_url=address)
    foreign = client.rerank(model="trained", query="quantum chromodynamics", documents=TEXTS)
    assert max(result.relevance_score for result in foreign.results) < 0.05


def test_cohere_prints_what_is_wrong(address: str) -> None:
    client = cohere.ClientV2(api_key=KEY, base_url=address)
    with pytest.raises(cohere.UnprocessableEntityError, match="There is no model"):
        client.rerank(model="rerank-v3.5", query="a", documents=TEXTS)


@pytest.mark.parametrize(
    ("provider", "path"), [("jina_ai", ""), ("cohere", "/v2/rerank"), ("hosted_vllm", "/v1")]
)
def test_litellm_ranks(address: str, provider: str, path: str) -> None:
    answer = litellm.rerank(
        model=f"{provider}/trained",
        query=QUERY,
        documents=TEXTS,
        top_n=3,
        return_documents=True,
        api_base=f"{address}{path}",
        api_key=KEY,
    )
    assert answer.results[0]["index"] == 0
    assert sorted(result["index"] for result in answer.results) == [0, 1, 2]
    assert answer.results[0]["relevance_score"] > 0.9


def test_litellm_embeds(address: str, encoding: SentenceEncoder) -> None:
    answer = litellm.embedding(
        model=f"openai/{DEFAULT}", input=TEXTS, api_base=f"{address}/v1", api_key=KEY
    )
    rows = np.array([item["embedding"] for item in answer.data])
    assert (rows * encoding.encode_documents(TEXTS)).sum(axis=1) == pytest.approx(1, abs=0.01)
