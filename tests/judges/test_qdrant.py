"""Qdrant's own client against a running server, and its local mode as an oracle of filters."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import UnexpectedResponse

from attend import Collection, Data
from attend.projection import given as projection_given
from attend_service.keys import KeyFile
from attend_service.routes.qdrant import point_id
from tests.service.test_server import running, wait_until_ready

WIDTH, SIZE = 8, 80
WORDS = ["red", "green", "blue", "", "été", "30.01.2000x"]
DAYS = [
    "2024-05-17", "2024-05-17T10:00:00Z", "2024-05-17T10:00:00+02:00", "2024-05-18T00:30:00+01:00",
    "2023-12-31", "no day", None,
]  # fmt: skip
IDS = ["7", "0", "007", "whale", "https://x.example/a b", str(UUID(int=99)), "A" * 32, "é"]


def documents() -> list[dict[str, Any]]:
    rng = np.random.default_rng(31)

    def pick(items: list[Any]) -> Any:
        return items[rng.integers(len(items))]

    drawn = []
    for at in range(SIZE):
        payload = {
            "color": pick([*WORDS, ["red", "blue"], ["green"], [], None]),
            "n": pick([-3, 0, 1, 2, 5, [1, 7], [], None]),
            "x": pick([0.5, -1.25, 2.75, None]),
            "ok": pick([True, False]),
            "day": pick(DAYS),
            "title": pick(["The red whale", "A green ship", "blue SHIP, red sail", "shops"]),
            "deep": {"a": pick([1, 2, 3]), "b": pick(["x", "y"])},
            "always": pick([None, 1]),
        }
        present = {
            name: it for name, it in payload.items() if name == "always" or rng.random() < 0.8
        }
        id = IDS[at] if at < len(IDS) else f"doc-{at}"
        value = pick([1.5, 4.5, None])
        vector = rng.standard_normal(WIDTH).tolist()
        drawn.append({"id": id, "vector": vector, "value": value, "payload": present})
    return drawn


DOCUMENTS = documents()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("qdrant")
    with closing(Data(folder)) as data:
        books = data.create("books", dimension=WIDTH)
        books.upsert(DOCUMENTS)
        learned = data.create("learned", dimension=WIDTH)
        learned.upsert(DOCUMENTS)
        rng = np.random.default_rng(8)
        turned = projection_given(*(rng.standard_normal((1, WIDTH, WIDTH)) for _ in range(2)))
        learned.activate(learned.add_projection(turned))
        data.set_alias("shelf", "books")
    return folder


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[QdrantClient]:
    with running(folder) as server:
        wait_until_ready(server)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # such as that of a version that it does not know
            opened = QdrantClient(url=f"http://{server.host}:{server.port}", timeout=60)
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def own(folder: Path) -> Iterator[Data]:
    with closing(Data(folder, read_only=True)) as data:
        yield data


@pytest.fixture(scope="module")
def oracle() -> Iterator[QdrantClient]:
    """The same points in memory, by Qdrant's own code."""
    local = QdrantClient(":memory:")
    vectors = models.VectorParams(size=WIDTH, distance=models.Distance.DOT)
    local.create_collection("books", vectors_config=vectors)
    points = []
    for one in DOCUMENTS:
        value = {} if one["value"] is None else {"value": one["value"]}
        payload = {**value, **one["payload"], "_id": one["id"]}
        points.append(
            models.PointStruct(id=point_id(one["id"]), vector=one["vector"], payload=payload)
        )
    local.upsert("books", points)
    yield local
    local.close()


def everything(client: QdrantClient, filter: models.Filter | None = None, **more: Any) -> list[Any]:
    points, end = client.scroll("books", scroll_filter=filter, limit=SIZE + 1, **more)
    assert end is None
    return points


def found(collection: Collection, vector: list[float], **options: Any) -> list[str]:
    return [hit.id for hit in collection.search(vector, **options).hits]


# -- searches ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["books", "learned", "shelf"])
def test_a_search_finds_what_ours_finds(client: QdrantClient, own: Data, name: str) -> None:
    collection = own.collection(name)
    for seed in range(5):
        vector = np.random.default_rng(seed).standard_normal(WIDTH).tolist()
        points = client.query_points(name, query=vector, limit=10).points
        answer = collection.search(vector, k=10)
        assert [point.payload["_id"] for point in points] == [hit.id for hit in answer.hits]
        assert [point.id for point in points] == [point_id(hit.id) for hit in answer.hits]
        # Nothing was calibrated for these: the scores are the weights.
        assert [point.score for point in points] == pytest.approx(
            [hit.weight for hit in answer.hits]
        )
        nearest = models.NearestQuery(nearest=vector)
        offset = client.query_points(name, query=nearest, limit=5, offset=5).points
        assert [point.id for point in offset] == [point.id for point in points[5:]]
        least = points[3].score
        above = client.query_points(name, query=vector, limit=10, score_threshold=least).points
        assert [point.id for point in above] == [point.id for point in points[:4]]


def test_what_was_learned_applies_to_the_vector_that_comes(client: QdrantClient) -> None:
    vector = np.random.default_rng(0).standard_normal(WIDTH).tolist()
    plain, learned = (
        [point.id for point in client.query_points(name, query=vector, limit=10).points]
        for name in ("books", "learned")
    )
    assert plain != learned


def test_untrained_the_order_is_that_of_qdrant(client: QdrantClient, oracle: QdrantClient) -> None:
    for seed in range(5):
        vector = np.random.default_rng(seed).standard_normal(WIDTH).tolist()
        theirs, ours = (
            [point.id for point in one.query_points("books", query=vector, limit=20).points]
            for one in (oracle, client)
        )
        assert [str(id) for id in theirs] == [str(id) for id in ours]


@pytest.mark.parametrize("id", ["whale", "7", str(UUID(int=99))])
def test_a_point_is_a_query(client: QdrantClient, own: Data, id: str) -> None:
    points = client.query_points("books", query=point_id(id), limit=5).points
    assert [point.payload["_id"] for point in points] == found(
        own.collection("books"), {"id": id}, k=5
    )
    assert id not in [point.payload["_id"] for point in points]


def test_a_batch_is_its_searches(client: QdrantClient) -> None:
    vectors = [np.eye(WIDTH)[at].tolist() for at in range(3)]
    requests = [models.QueryRequest(query=vector, limit=4) for vector in vectors]
    batch = client.query_batch_points("books", requests=requests)
    single = [client.query_points("books", query=vector, limit=4) for vector in vectors]
    assert [[p.id for p in one.points] for one in batch] == [
        [p.id for p in one.points] for one in single
    ]
    assert batch[0].points[0].payload is None  # as with Qdrant, unless a request names it


# -- filters -----------------------------------------------------------------------------------

KEYS = ["color", "n", "x", "ok", "day", "deep.a", "deep.b", "_id", "value", "tags[]", "nothing"]
TEXTS = st.sampled_from(["red", "green", "blue", "été", "x", "whale", "30.01.2000x"])
INTEGERS = st.integers(-4, 8)
NUMBERS = st.sampled_from([-3, -1.25, 0, 0.5, 1, 2.5, 4.5])
ONE_KIND = st.lists(TEXTS, max_size=3) | st.lists(INTEGERS, max_size=3)
MOMENTS = st.sampled_from(
    [datetime(2024, 5, 17, hour, tzinfo=UTC) for hour in (0, 8, 10)] + [datetime(2024, 1, 1)]
)
FIELDS = st.one_of(
    st.builds(models.MatchValue, value=st.booleans() | INTEGERS | TEXTS).map(
        lambda match: {"match": match}
    ),
    ONE_KIND.map(lambda values: {"match": models.MatchAny(any=values)}),
    ONE_KIND.map(lambda values: {"match": models.MatchExcept(**{"except": values})}),
    st.sampled_from(["re", "", "é"]).map(lambda text: {"match": models.MatchPrefix(prefix=text)}),
    st.dictionaries(
        st.sampled_from(["gt", "gte", "lt", "lte"]), NUMBERS, min_size=1, max_size=2
    ).map(lambda bounds: {"range": models.Range(**bounds)}),
    st.dictionaries(
        st.sampled_from(["gt", "gte", "lt", "lte"]), MOMENTS, min_size=1, max_size=2
    ).map(lambda bounds: {"range": models.DatetimeRange(**bounds)}),
    st.booleans().map(lambda is_so: {"is_empty": is_so}),
)
CONDITIONS = st.one_of(
    st.builds(
        lambda key, rest: models.FieldCondition(key=key, **rest), st.sampled_from(KEYS), FIELDS
    ),
    st.sampled_from(["red", "SHIP,", "red sail", "whale the", "  "]).map(
        lambda text: models.FieldCondition(key="title", match=models.MatchText(text=text))
    ),
    st.sampled_from(KEYS).map(
        lambda key: models.IsEmptyCondition(is_empty=models.PayloadField(key=key))
    ),
    # Ours do not tell null from missing: where it is always there, they need not.
    st.just(models.IsNullCondition(is_null=models.PayloadField(key="always"))),
    st.booleans().map(lambda is_so: models.FieldCondition(key="always", is_null=is_so)),
    st.lists(st.sampled_from(DOCUMENTS), max_size=9).map(
        lambda some: models.HasIdCondition(has_id=[point_id(one["id"]) for one in some])
    ),
)
FILTERS = st.recursive(
    CONDITIONS,
    lambda inner: st.builds(
        lambda clauses: models.Filter(**clauses),
        st.dictionaries(
            st.sampled_from(["must", "should", "must_not"]),
            st.lists(inner, max_size=3) | inner,
            max_size=3,
        ),
    ),
    max_leaves=6,
).map(lambda drawn: drawn if isinstance(drawn, models.Filter) else models.Filter(must=[drawn]))


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck))
@given(FILTERS)
def test_filters_pass_what_qdrant_itself_passes(
    client: QdrantClient, oracle: QdrantClient, filter: models.Filter
) -> None:
    expected = {str(point.id) for point in everything(oracle, filter)}
    assert {str(point.id) for point in everything(client, filter)} == expected
    assert client.count("books", count_filter=filter).count == len(expected)
    points = client.query_points("books", [1.0] * WIDTH, query_filter=filter, limit=SIZE).points
    assert {str(point.id) for point in points} == expected


def test_a_word_may_be_a_part_of_one(client: QdrantClient, oracle: QdrantClient) -> None:
    """A difference that is meant: Qdrant splits texts into words."""
    part = models.FieldCondition(key="title", match=models.MatchText(text="hip"))
    assert everything(oracle, models.Filter(must=[part])) == []
    titles = [p.payload["title"] for p in everything(client, models.Filter(must=[part]))]
    assert set(titles) == {"A green ship", "blue SHIP, red sail"}


def test_a_missing_field_is_null(client: QdrantClient, oracle: QdrantClient) -> None:
    """A difference that is meant: Qdrant tells a field that is null from one that is missing."""
    null = models.Filter(must=[models.IsNullCondition(is_null=models.PayloadField(key="day"))])
    ours = {str(point.id) for point in everything(client, null)}
    theirs = {str(point.id) for point in everything(oracle, null)}
    missing = {str(point_id(one["id"])) for one in DOCUMENTS if "day" not in one["payload"]}
    assert theirs
    assert missing
    assert ours == theirs | missing


# -- points ------------------------------------------------------------------------------------


def test_scrolling_lists_every_point_once(client: QdrantClient) -> None:
    filter = models.Filter(
        must_not=[models.FieldCondition(key="ok", match=models.MatchValue(value=True))]
    )
    listed, offset, pages = [], None, 0
    while pages == 0 or offset is not None:
        points, offset = client.scroll("books", scroll_filter=filter, limit=7, offset=offset)
        listed += [point.payload["_id"] for point in points]
        pages += 1
    assert pages > 3
    assert listed == [one["id"] for one in DOCUMENTS if one["payload"].get("ok") is not True]
    with pytest.raises(UnexpectedResponse, match="cursor"):
        client.scroll("books", limit=7, offset=str(UUID(int=1)))


@pytest.mark.parametrize(
    "parts",
    [
        True,
        False,
        ["color", "deep.a", "nothing"],
        models.PayloadSelectorInclude(include=["deep", "value"]),
        models.PayloadSelectorExclude(exclude=["deep.a", "color", "_id", "nothing.x"]),
    ],
)
def test_payloads_are_those_of_qdrant(
    client: QdrantClient, oracle: QdrantClient, parts: Any
) -> None:
    def payloads(of: QdrantClient) -> dict[str, Any]:
        return {str(p.id): p.payload or {} for p in everything(of, with_payload=parts)}

    assert payloads(client) == payloads(oracle)
    searched = client.query_points("books", [1.0] * WIDTH, limit=SIZE, with_payload=parts).points
    assert {str(point.id): point.payload or {} for point in searched} == payloads(oracle)


def test_ids_lead_back_to_documents(client: QdrantClient) -> None:
    assert [point_id(id) for id in ("7", "0", str(UUID(int=99)))] == [7, 0, str(UUID(int=99))]
    assert all(UUID(str(point_id(id))).version == 5 for id in ("007", "whale", "é", "A" * 32))
    asked = [point_id(id) for id in IDS]
    assert [point.payload["_id"] for point in client.retrieve("books", asked)] == IDS
    assert [point.payload["_id"] for point in client.retrieve("books", IDS)] == IDS
    assert client.retrieve("books", [12345, str(UUID(int=1)), "nobody"]) == []


def test_collections(client: QdrantClient, own: Data) -> None:
    assert {one.name for one in client.get_collections().collections} == {"books", "learned"}
    assert client.collection_exists("books")
    assert client.collection_exists("shelf")
    assert not client.collection_exists("nothing")
    info = client.get_collection("books")
    assert (info.points_count, info.config.params.vectors.size) == (SIZE, WIDTH)
    assert info.config.params.vectors.distance == models.Distance.DOT
    assert client.count("books").count == SIZE
    with pytest.raises(UnexpectedResponse, match="nothing") as refused:
        client.get_collection("nothing")
    assert refused.value.status_code == 404


# -- refusals ----------------------------------------------------------------------------------


def refusal(error: UnexpectedResponse) -> str:
    content = error.structured()
    assert content.keys() == {"status", "time"}
    return str(content["status"]["error"])


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (
            lambda c: c.upsert("books", [models.PointStruct(id=1, vector=[1.0] * WIDTH)]),
            "read-only",
        ),
        (lambda c: c.delete("books", models.PointIdsList(points=[7])), "read-only"),
        (lambda c: c.set_payload("books", {"a": 1}, points=[7]), "read-only"),
        (lambda c: c.delete_collection("books"), "read-only"),
        (lambda c: c.query_points("books", [1.0] * WIDTH, with_vectors=True), "with_vector"),
        (lambda c: c.query_points("books", [1.0] * WIDTH, using="image"), "using"),
        (lambda c: c.query_points("books", [1.0]), "dimension"),
        (lambda c: c.query_points("books", models.SampleQuery(sample="random")), "nearest"),
        (
            lambda c: c.query_points(
                "books",
                prefetch=[models.Prefetch(query=[1.0] * WIDTH)],
                query=models.FusionQuery(fusion=models.Fusion.RRF),
            ),
            "prefetch",
        ),
        (lambda c: c.scroll("books", order_by="n"), "order_by"),
        (lambda c: c.query_points_groups("books", "color", [1.0] * WIDTH), "read-only"),
    ],
)
def test_what_is_not_done_here_is_refused(client: QdrantClient, call: Any, sentence: str) -> None:
    with pytest.raises(UnexpectedResponse) as refused:
        call(client)
    assert 400 <= refused.value.status_code < 500
    assert sentence in refusal(refused.value)
    assert client.count("books").count == SIZE


@pytest.mark.parametrize(
    ("filter", "sentence"),
    [
        (models.Filter(must=[models.NestedCondition(nested=models.Nested(
            key="deep", filter=models.Filter(must=[])))]), "nested"),
        (models.Filter(must=[models.FieldCondition(
            key="n", values_count=models.ValuesCount(gt=1))]),
         "values_count"),
        (models.Filter(min_should=models.MinShould(conditions=[], min_count=2)), "min_should"),
        (models.Filter(must=[models.FieldCondition(
            key="a[].b", match=models.MatchValue(value=1))]), "a[].b"),
        (models.Filter(must=[models.FieldCondition(key="title", match=models.MatchPhrase(
            phrase="red sail"))]), "phrase"),
    ],
)  # fmt: skip
def test_other_conditions_are_named(client: QdrantClient, filter: Any, sentence: str) -> None:
    with pytest.raises(UnexpectedResponse) as refused:
        client.scroll("books", scroll_filter=filter)
    assert sentence in refusal(refused.value)


def test_a_key_is_sent_as_qdrant_has_it(tmp_path: Path) -> None:
    with closing(Data(tmp_path)) as data:
        for name in ("books", "films"):
            data.create(name, dimension=2).upsert([{"id": name, "vector": [1.0, 0.0]}])
    key = KeyFile(tmp_path).add(scope="read", collections=["books"])[1]
    with running(tmp_path, "--require-keys") as server:
        wait_until_ready(server)
        url = f"http://{server.host}:{server.port}"
        with pytest.warns(UserWarning, match="insecure connection"):
            client = QdrantClient(url=url, api_key=key)
        assert [one.name for one in client.get_collections().collections] == ["books"]
        assert client.query_points("books", query=[1.0, 0.0]).points[0].payload["_id"] == "books"
        with pytest.raises(UnexpectedResponse) as refused:
            client.query_points("films", query=[1.0, 0.0])
        assert refused.value.status_code == 403
        assert "films" in refusal(refused.value)
        with pytest.raises(UnexpectedResponse) as unknown:
            QdrantClient(url=url, check_compatibility=False).get_collections()
        assert unknown.value.status_code == 401
        assert "API key" in refusal(unknown.value)
