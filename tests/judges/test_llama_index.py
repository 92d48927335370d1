"""The vector store and the retriever of LlamaIndex, beside `SimpleVectorStore` and plain sets."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

pytest.importorskip("llama_index.core")

from llama_index.core import VectorStoreIndex
from llama_index.core.embeddings import MockEmbedding
from llama_index.core.schema import (
    ImageNode,
    IndexNode,
    NodeRelationship,
    RelatedNodeInfo,
    TextNode,
)
from llama_index.core.vector_stores import SimpleVectorStore
from llama_index.core.vector_stores.types import (
    FilterCondition,
    FilterOperator,
    MetadataFilter,
    MetadataFilters,
    VectorStoreQuery,
    VectorStoreQueryMode,
)

import attend
from attend.api.search import SearchOptions
from attend.connect.llama_index import AttendIndexRetriever, AttendIndexStore
from attend.core.errors import InvalidRequest, Unsupported
from attend.search.foreign import LEAST
from tests.index.search.test_foreign import FOREIGN, OWN, sentences
from tests.places import PACKAGES, ROOT

pytestmark = pytest.mark.filterwarnings("default")  # of packages that are not ours

WIDTH = 4
TEXTS = ["", "a", "Sea", "sea", "é", "the Sea-Wolf", "100 %"]
NUMBERS = st.integers(-2, 2) | st.sampled_from([0.5, 1.5, 2**53 + 1])
FIELDS: dict[str, Any] = {
    "text": st.none() | st.sampled_from(TEXTS),
    "number": st.none() | NUMBERS,
    "flag": st.booleans(),
    "words": st.none() | st.lists(st.sampled_from(TEXTS[1:]), max_size=3),
    "numbers": st.none() | st.lists(st.integers(-2, 2), max_size=3),
    "dotted.name": st.sampled_from(TEXTS),
}
METADATA = st.fixed_dictionaries({}, optional=FIELDS)
Op = FilterOperator
EQUAL, LISTED = [Op.EQ, Op.NE], [Op.IN, Op.NIN]
ORDER = [Op.GT, Op.GTE, Op.LT, Op.LTE]
OPERATORS: dict[str, list[FilterOperator]] = {
    "text": [*EQUAL, *LISTED, *ORDER, Op.TEXT_MATCH, Op.TEXT_MATCH_INSENSITIVE, Op.IS_EMPTY],
    "number": [*EQUAL, *LISTED, *ORDER, Op.IS_EMPTY],
    "words": [Op.CONTAINS, Op.ANY, Op.ALL, Op.IS_EMPTY],
    "numbers": [Op.CONTAINS, Op.ANY, Op.ALL, Op.IS_EMPTY],
    "dotted.name": [*EQUAL, Op.TEXT_MATCH],
    "flag": [Op.IS_EMPTY],
    "missing": [*EQUAL, *LISTED, *ORDER, Op.CONTAINS, Op.ANY, Op.ALL, Op.IS_EMPTY],
    "ref_doc_id": [*EQUAL, *LISTED],
}
"""Each operator on the kinds of fields for which LlamaIndex documents it."""
OPERANDS: dict[str, Any] = {
    **{name: st.sampled_from(TEXTS) for name in ("text", "words", "dotted.name", "missing")},
    **{"number": NUMBERS, "numbers": st.integers(-2, 2), "flag": st.none()},
    "ref_doc_id": st.sampled_from(["book 0", "book 1", "None"]),
}


@st.composite
def conditions(draw: st.DrawFn) -> MetadataFilter:
    key = draw(st.sampled_from([*OPERATORS]))
    operator = draw(st.sampled_from(OPERATORS[key]))
    value = draw(OPERANDS[key])
    if operator in (*LISTED, Op.ANY, Op.ALL):
        value = draw(st.lists(OPERANDS[key], max_size=3))
        if {type(item) for item in value} == {int, float}:  # MetadataFilter takes one type
            value = [float(item) for item in value]
    elif operator in EQUAL and draw(st.integers(0, 9)) == 0:
        value = None
    return MetadataFilter(key=key, operator=operator, value=value)


def groups(parts: st.SearchStrategy[Any]) -> st.SearchStrategy[MetadataFilters]:
    return st.builds(
        MetadataFilters,
        filters=st.lists(parts, max_size=4),
        condition=st.sampled_from([*FilterCondition]),
    )


def ids_by_sets(store: SimpleVectorStore, filters: MetadataFilters) -> set[str]:
    """Return what nested filters let pass: single ones by LlamaIndex, the rest by sets."""
    every = set(store.data.embedding_dict)
    if not filters.filters:
        return every
    parts = []
    for part in filters.filters:
        if isinstance(part, MetadataFilters):
            parts.append(ids_by_sets(store, part))
        else:
            query = VectorStoreQuery(
                [1.0] * WIDTH, len(every), filters=MetadataFilters(filters=[part])
            )
            parts.append(set(store.query(query).ids))
    if filters.condition == FilterCondition.AND:
        return set.intersection(*parts)
    union = set.union(*parts)
    return every - union if filters.condition == FilterCondition.NOT else union


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    library = attend.open(tmp_path_factory.mktemp("library"))
    yield library
    library.close()


@pytest.fixture(scope="module")
def store(library):
    return AttendIndexStore(library.create("nodes", dimension=WIDTH, normalize=True))


def nodes_of(metadatas: list[dict[str, Any]], seed: int = 0) -> list[TextNode]:
    rng = np.random.default_rng(seed)
    return [
        TextNode(
            id_=f"n{number}",
            text=f"text {number}",
            metadata=metadata,
            embedding=rng.standard_normal(WIDTH).tolist(),
            relationships={NodeRelationship.SOURCE: RelatedNodeInfo(node_id=f"book {number % 3}")}
            if number % 4
            else {},
        )
        for number, metadata in enumerate(metadatas)
    ]


def both(store: AttendIndexStore, nodes: list[TextNode]) -> SimpleVectorStore:
    """Fill the store anew, and return one of LlamaIndex with the same nodes."""
    oracle = SimpleVectorStore()
    store.clear()
    store.add(nodes)
    oracle.add(nodes)
    return oracle


EXAMPLES = settings(
    max_examples=1000,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)


@EXAMPLES
@given(
    st.lists(METADATA, min_size=1, max_size=8),
    st.integers(0, 2**32 - 1),
    groups(conditions()),
    st.integers(1, 9),
    st.none() | st.lists(st.sampled_from(["n0", "n1", "n2", "other"]), min_size=1, max_size=3),
)
def test_queries_are_answered_as_by_the_simple_store(store, metadatas, seed, filters, k, ids):
    oracle = both(store, nodes_of(metadatas, seed))
    vector = np.random.default_rng(seed + 1).standard_normal(WIDTH).tolist()
    query = VectorStoreQuery(vector, k, filters=filters, node_ids=ids)
    expected, result = oracle.query(query), store.query(query)
    assert result.ids == expected.ids
    assert result.similarities == pytest.approx(expected.similarities, abs=1e-5)
    assert [node.node_id for node in result.nodes] == result.ids


@EXAMPLES
@given(
    st.lists(METADATA, min_size=1, max_size=8),
    st.recursive(groups(conditions()), lambda inner: groups(conditions() | inner), max_leaves=5),
)
def test_nested_filters_are_sets_of_single_ones(store, metadatas, filters):
    oracle = both(store, nodes_of(metadatas))
    expected = ids_by_sets(oracle, filters)
    assert {node.node_id for node in store.get_nodes(filters=filters)} == expected
    if filters.filters:
        store.delete_nodes(filters=filters)
        assert {node.node_id for node in store.get_nodes()} == set(
            oracle.data.embedding_dict
        ) - expected


def test_every_operator_with_every_value_is_as_in_the_simple_store(store):
    """The drawn filters seldom have a pair that matters, such as "sea" and "Sea": here is each."""
    numbers = [-2, 0, 1, 2, 0.5, 2**53 + 1]
    values: dict[str, list[Any]] = {
        **{"text": TEXTS, "dotted.name": TEXTS, "number": numbers, "flag": [True, False]},
        "words": [[], ["a"], ["Sea", "a"], ["sea", "é", "100 %"]],
        "numbers": [[], [1], [2, 1], [-2, 0]],
        "missing": [],
        "ref_doc_id": [],  # each node has one
    }
    oracle = both(
        store, nodes_of([{key: value} for key in values for value in [*values[key], None]])
    )
    operands = {**values, "words": TEXTS, "numbers": numbers[:4], "missing": TEXTS, "flag": [None]}
    operands["ref_doc_id"] = ["book 0", "book 1", "None"]
    tried = set()
    for key, operators in OPERATORS.items():
        for operator in operators:
            some_lists = [[], operands[key][:2], operands[key][1:4]]
            lists = [value for value in some_lists if len({type(item) for item in value}) < 2]
            for value in lists if operator in (*LISTED, Op.ANY, Op.ALL) else operands[key]:
                single = MetadataFilter(key=key, operator=operator, value=value)
                filters = MetadataFilters(filters=[single])
                query = VectorStoreQuery([1.0] * WIDTH, 100, filters=filters)
                assert store.query(query).ids == oracle.query(query).ids, single
                tried.add(operator)
    assert tried == set(FilterOperator)
    assert len(tried) == 14


# -- filters that are not as in `SimpleVectorStore`, and what they do here ------------------------


@pytest.mark.parametrize(
    ("metadata", "key", "operator", "value", "simple", "here"),
    [
        # A list meets what one of its elements meets; Python compares whole lists.
        ({"words": ["a", "b"]}, "words", Op.EQ, "a", False, True),
        ({"words": ["a", "b"]}, "words", Op.IN, ["a"], False, True),
        # CONTAINS, ANY and ALL are for lists, as LlamaIndex documents them; Python's `in` looks
        # for parts of texts, too, for which there is TEXT_MATCH.
        ({"text": "abc"}, "text", Op.CONTAINS, "b", True, False),
        # True and 1 are two values.
        ({"flag": True}, "flag", Op.EQ, 1, True, False),
        # A list of nothing but empty texts is empty.
        ({"words": [""]}, "words", Op.IS_EMPTY, None, False, True),
        # Letters are folded as by str.casefold, not str.lower.
        ({"text": "Straße"}, "text", Op.TEXT_MATCH_INSENSITIVE, "STRASSE", False, True),
        # A dot selects a member of an object, too.
        ({"deep": {"a": 1}}, "deep.a", Op.EQ, 1, False, True),
    ],
)
def test_filters_that_differ(store, metadata, key, operator, value, simple, here):
    oracle = both(store, nodes_of([metadata]))
    filters = MetadataFilters(filters=[MetadataFilter(key=key, operator=operator, value=value)])
    query = VectorStoreQuery([1.0] * WIDTH, 1, filters=filters)
    assert (bool(oracle.query(query).ids), bool(store.query(query).ids)) == (simple, here)


@pytest.mark.parametrize(
    ("operator", "value", "sentence"),
    [
        (Op.IN, "a", "'in' takes a list, but 'a' was given"),
        (Op.TEXT_MATCH, 1, "'text_match' takes a text, but 1 was given"),
        (Op.GT, ["a"], "'>' takes a number or a text"),
        (Op.GT, None, "'>' takes a number or a text, but None was given"),
        (Op.GT, "31.12.1999", "takes dates as 2024-05-17"),
    ],
)
def test_a_filter_that_cannot_be_used_says_what_is_taken(store, operator, value, sentence):
    filter = MetadataFilter(key="year", operator=operator, value=value)
    with pytest.raises(InvalidRequest, match=sentence):
        store.get_nodes(filters=MetadataFilters(filters=[filter]))


# -- nodes ----------------------------------------------------------------------------------------


def test_nodes_come_back_whole(store):
    source = {NodeRelationship.SOURCE: RelatedNodeInfo(node_id="book", metadata={"a": 1})}
    nodes = [
        TextNode(
            id_="text",
            text="  two\n\nlines ",
            metadata={"deep": {"x": [1, None]}, "doc_id": "my own", "empty": None},
            excluded_llm_metadata_keys=["deep"],
            start_char_idx=3,
            end_char_idx=9,
            relationships=source,
        ),
        IndexNode(id_="index", text="see", index_id="other", metadata={"a": "b"}),
        ImageNode(id_="image", text="a view", image_url="http://host/view.png"),
        TextNode(id_="blank", text=" "),
    ]
    store.clear()
    for node in nodes:
        node.embedding = [1.0, 0.0, 0.0, 0.0]
    assert store.add(nodes) == ["text", "index", "image", "blank"]
    for node, expected in zip(store.get_nodes(), nodes, strict=True):
        expected.embedding = None
        assert type(node) is type(expected)
        assert node.to_dict() == expected.to_dict()


def test_documents_that_no_node_was_have_payload_and_value_as_metadata(store):
    store.clear()
    store.client.upsert(
        [
            {"id": "a", "vector": [1, 0, 0, 0], "value": {"stars": 4}, "payload": {"year": 1851}},
            {"id": "b", "vector": [0, 1, 0, 0], "text": "one", "value": "x"},
        ]
    )
    first, second = store.get_nodes()
    assert first.metadata == {"year": 1851, "stars": 4}
    assert (second.text, second.metadata) == ("one", {"@value": "x"})
    store.client.revise("a", {"payload": {"year": 1852}})
    assert store.get_nodes(["a"])[0].metadata["year"] == 1852


def test_what_is_revised_in_attend_is_the_metadata_of_the_node(store):
    both(store, nodes_of([{"number": 1}]))
    store.client.revise("n0", {"payload": {"number": 2}})
    assert store.get_nodes()[0].metadata == {"number": 2}


def test_deletions_are_those_of_the_simple_store(store):
    oracle = both(store, nodes_of([{"number": n} for n in range(9)]))
    for one in (oracle, store):
        one.delete("book 1")
        one.delete_nodes(["n0", "n2", "other"])
        one.delete_nodes(
            ["n3", "n6"], MetadataFilters(filters=[MetadataFilter(key="number", value=3)])
        )
    assert {node.node_id for node in store.get_nodes()} == set(oracle.data.embedding_dict)
    with pytest.raises(InvalidRequest, match="call clear"):
        store.delete_nodes()
    store.delete_nodes([])
    assert store.get_nodes([]) == []
    assert len(store.get_nodes()) == len(oracle.data.embedding_dict)
    store.clear()
    assert store.get_nodes() == []
    assert store.query(VectorStoreQuery([1.0] * WIDTH, 3)).nodes == []


def test_async_methods_do_the_same(store):
    nodes = nodes_of([{"number": n} for n in range(5)])
    query = VectorStoreQuery([1.0] * WIDTH, 3)

    async def run() -> list[str]:
        await store.aclear()
        await store.async_add(nodes)
        await store.adelete("book 1")
        await store.adelete_nodes(["n0"])
        assert [node.node_id for node in await store.aget_nodes()] == ["n2", "n3", "n4"]
        return (await store.aquery(query)).ids

    assert asyncio.run(run()) == store.query(query).ids


def test_an_index_of_llama_index_stands_on_the_store(library):
    store = AttendIndexStore(library.create("index", dimension=8, normalize=True))
    index = VectorStoreIndex.from_vector_store(store, embed_model=MockEmbedding(8))
    source = [RelatedNodeInfo(node_id=f"book {n}") for n in range(3)]
    index.insert_nodes(
        [
            TextNode(
                id_=str(n), text=f"text {n}", relationships={NodeRelationship.SOURCE: source[n]}
            )
            for n in range(3)
        ]
    )
    retriever = index.as_retriever(similarity_top_k=2, vector_store_kwargs={"temperature": 2.0})
    assert len(retriever.retrieve("text")) == 2
    assert len(asyncio.run(retriever.aretrieve("text"))) == 2
    index.delete_ref_doc("book 1")
    assert [node.node_id for node in store.get_nodes()] == ["0", "2"]
    with pytest.raises(InvalidRequest, match="top_k"):
        index.as_retriever(vector_store_kwargs={"top_k": 2}).retrieve("text")


# -- modes and texts ------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stories(library, tiny_encoder_folder):
    """A collection of texts that knows which queries are foreign to it."""
    collection = library.create("stories", encoder=str(tiny_encoder_folder))
    nodes = [
        TextNode(id_=str(n), text=text, metadata={"even": n % 2})
        for n, text in enumerate(sentences(1, LEAST + 20))
    ]
    AttendIndexStore(collection).add(nodes)
    collection.publish()
    return collection


@pytest.mark.parametrize(
    ("query", "request_"),
    [
        ({}, {"query": OWN}),
        ({"mode": "text_search"}, {"query": OWN, "lexical": True}),
        ({"mode": "sparse"}, {"query": OWN, "lexical": True}),
        ({"mode": "hybrid"}, {"query": OWN, "lexical": True}),
        ({"mode": "hybrid", "alpha": 0.5}, {"query": OWN, "lexical": 1.0}),
        ({"mode": "hybrid", "alpha": 1.0}, {"query": OWN, "lexical": 0.0}),
        ({"mode": "hybrid", "alpha": 0.0}, {"query": OWN, "lexical": 10.0}),
        ({"mode": "hybrid", "vector": True}, {"vector": True, "lexical": True}),
        ({"vector": True}, {"vector": True, "query": None}),
    ],
)
def test_a_mode_is_a_search_with_these_options(stories, query, request_):
    vector = np.random.default_rng(3).standard_normal(32).tolist()
    if query.pop("vector", False):
        query["query_embedding"] = vector
    mode = VectorStoreQueryMode(query.pop("mode", "default"))
    result = AttendIndexStore(stories).query(
        VectorStoreQuery(query_str=OWN, similarity_top_k=7, mode=mode, **query)
    )
    if request_.pop("vector", False):
        text = request_.pop("query", OWN)
        request_["query"] = {"vector": vector, **({"text": text} if text else {})}
    hits = stories.search(**request_, k=7).hits
    assert result.ids == [hit.id for hit in hits]
    scale = stories.info().scale
    assert result.similarities == pytest.approx([hit.score / scale for hit in hits])


def test_words_alone_decide_where_alpha_is_zero(stories):
    query = VectorStoreQuery(query_str="whale", similarity_top_k=5, mode="hybrid", alpha=0.0)
    assert all("whale" in node.text for node in AttendIndexStore(stories).query(query).nodes)


def test_other_modes_are_refused_by_name(stories):
    for mode in ("svm", "semantic_hybrid"):
        query = VectorStoreQuery(query_str=OWN, mode=VectorStoreQueryMode(mode))
        with pytest.raises(Unsupported, match=f"The mode '{mode}' is not known here; send DEFAULT"):
            AttendIndexStore(stories).query(query)
    with pytest.raises(InvalidRequest, match="set one of the two"):
        AttendIndexStore(stories).query(VectorStoreQuery())


def test_diversity_is_the_other_side_of_the_threshold(stories):
    query = VectorStoreQuery(query_str=OWN, similarity_top_k=7, mode=VectorStoreQueryMode.MMR)
    store = AttendIndexStore(stories)
    if "diversity" not in SearchOptions.model_fields:
        with pytest.raises(Unsupported, match="'mmr'"):
            store.query(query)
        return
    for threshold, diversity in ((None, 0.5), (0.2, 0.8), (1.0, 0.0)):
        hits = stories.search(OWN, k=7, diversity=diversity).hits
        assert store.query(query, mmr_threshold=threshold).ids == [hit.id for hit in hits]


def test_the_retriever_returns_no_nodes_where_nothing_answers(stories):
    retriever = AttendIndexRetriever(stories, similarity_top_k=4)
    results = retriever.retrieve(OWN)
    answer = stories.search(OWN, k=4)
    assert [result.node_id for result in results] == [hit.id for hit in answer.hits]
    assert [result.text for result in results] == [
        stories.document(hit.id).fields["text"] for hit in answer.hits
    ]
    assert asyncio.run(retriever.aretrieve(OWN)) == results
    assert retriever.retrieve(FOREIGN) == []
    assert len(AttendIndexRetriever(stories, 4, min_confidence=0).retrieve(FOREIGN)) == 4
    even = MetadataFilters(filters=[MetadataFilter(key="even", value=0)])
    filtered = AttendIndexRetriever(stories, 120, even, min_confidence=0).retrieve(OWN)
    assert len(filtered) == 60
    assert all(result.metadata == {"even": 0} for result in filtered)


def test_the_example_answers_and_says_when_nothing_answers():
    questions = ["they took the money twice", "what is the boiling point of tungsten?"]
    output = subprocess.run(
        [sys.executable, "examples/engine_llama_index.py", *questions],
        **{"cwd": ROOT, "text": True, "capture_output": True, "check": True},
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, PACKAGES))},
    ).stdout
    first, second = output.split(questions[1])
    assert "As in: You took more money than the price on the page (intent: billing)" in first
    assert second.strip() == "Nothing here answers that."
