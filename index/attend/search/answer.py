"""Answers: the attended documents that are listed, and what their values give together."""

from __future__ import annotations

import time
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from attend.api.answers import Answer, Calibrated, Facets, Hit, Matrix, MemoryShare, Weighing
from attend.api.search import SearchOptions, SearchRequest
from attend.collection.versions import Vanished
from attend.core.deadline import check_deadline, forgetting
from attend.core.errors import InvalidRequest, LimitExceeded
from attend.core.types import Float64, Int64, Json
from attend.search.attend import Attention
from attend.search.explain import ScoreParts, explanations
from attend.search.foreign import ERROR_RATE, LEAST, NOTHING_DUE, ForeignTests, best_score
from attend.search.hits import (
    WHOLE,
    Listing,
    Match,
    attended_share,
    best_keys,
    contents_of,
    highlights,
    listed,
    matches,
    read_documents,
    read_embeddings,
)
from attend.search.pairs import pair_shares
from attend.search.queries import Queries, QueryEncoder, Search
from attend.search.scoring import Scoring
from attend.search.tokens import query_text
from attend.search.values import (
    HINT_SAMPLE,
    KEY,
    HeadBlend,
    ValueTypes,
    check_path,
    decode_value,
    facets_by_name,
    field_hints,
    filter_hints,
    values_of,
)
from attend.store import CollectionStore, StoredDocument, compile_filter
from attend.values.blends import blend_for, with_all_keys
from attend.values.kinds import ValueType, infer

AHEAD = 10_000
"""Documents read at once for all queries of a batch; beyond, each reads its own, and forgets."""

NO_ANSWER = "nothing here answers that"
NO_DOCUMENTS = "nothing attended"
"""Reasons why a search has no answer."""

UNFILTERED = (
    "The rate of coverage was measured among all documents; among those that filter and mask let "
    "pass it may be another."
)
"""What a list that covers says where some documents are left out."""

TOKENS = "explain=tokens"
"""The option that shows the shares of pairs of tokens."""

MAX_CELLS = 1_000_000
"""Cells of an attention matrix in one response: about 20 MB of JSON."""


class Answered(NamedTuple):
    """An answer, the attention behind it, and the rows of its hits."""

    answer: Answer
    attention: Attention
    rows: Int64


Read = Callable[[Int64], list[StoredDocument]]
"""Reads documents by their rows, in that order; raises Vanished if one is gone."""


def answers_of(
    searches: Sequence[Search],
    attentions: Sequence[Attention],
    passing: Int64 | None,
    store: CollectionStore,
    types: ValueTypes,
    encoders: QueryEncoder,
    foreign: ForeignTests,
) -> list[Answered]:
    """Return the answers to searches that share their options; their documents are read together.

    Args:
        passing: documents that filter and mask let pass; None for all.
        store: where the contents of these documents are read.

    Raises:
        Vanished: a document was deleted meanwhile.
        UnknownField: no document has such a value, whether or not any answers.
        InvalidRequest: a least confidence where none was fitted.
    """
    options, view = searches[0].request, attentions[0].scoring.view
    null, queries = attentions[0].scoring.plan.mechanism.null_logit, attentions[0].scoring.queries
    facets = None if options.facets is None else _facets(store, options, types.value_name)
    pairs = list(zip(searches, attentions, strict=True))
    listings = [listed(store, attention, search.request) for search, attention in pairs]
    read, read_page = _readers(store, options, attentions, listings)
    calibrated, least, scores, unknown = _calibration(attentions[0], foreign, options)
    if facets or options.group_by is not None or options.recency:
        untimed = queries.recency is not None and not len(queries.recency.scores.rows)
        unknown = [*unknown, *_unknown_fields(store, options, facets, listings, untimed)]
    if options.coverage is not None and (options.filter or options.mask):
        unknown = [*unknown, UNFILTERED]
    type = _type_of(attentions, options, types, read)
    answers: list[Answered] = []
    for (search, attention), listing in zip(pairs, listings, strict=True):
        if answers:
            check_deadline()
        top = attention.attended
        confidence = top.confidence
        if scores and len(top.documents):
            confidence = conformal_share(scores, best_score(attention) or 0.0)
        answered = top.total_documents > 0 and confidence >= least
        answer = Answer(
            hits=_hits(attention, search, listing, read_page, store, encoders),
            answer=_value(attention, options, type, answered, read, store),
            attended=top.total_documents,
            answered=answered,
            confidence=None if null is None and calibrated is None else confidence,
            calibrated=calibrated,
            exact=attention.exact,
            recall=attention.recall,
            generation=view.change,
            projection=view.version.number,
            next=listing.next,
            facets=facets,
            hints=unknown or None if len(top.documents) else filter_hints(store, options.filter),
            coverage=listing.coverage,
            weighing=_weighing(attention, passing) if options.explain else None,
            memory=_memory(attention.scoring.queries, store) if options.explain else None,
            took_ms=round((time.perf_counter() - search.started) * 1000, 3),
        )
        answers.append(Answered(answer, attention, top.documents[listing.ranks]))
    return answers


def _facets(store: CollectionStore, options: SearchOptions, value_name: str | None) -> Facets:
    """Count values over what filter and mask let pass: a mask is a filter on ids."""
    parts: list[dict[str, Any]] = [options.filter or {}]
    if options.mask is not None:
        parts.append({"@id": {"nin": options.mask.exclude}})
        if options.mask.only is not None:
            parts.append({"@id": {"in": options.mask.only}})
    predicate = compile_filter({"$and": parts}) if any(parts) else None
    return facets_by_name(store, options.facets or (), predicate, value_name)


def _readers(
    store: CollectionStore,
    options: SearchOptions,
    attentions: Sequence[Attention],
    listings: Sequence[Listing],
) -> tuple[Read, Read]:
    """Return what reads documents for their values, and what reads those of a page.

    What pages and answers of all queries need is read in one statement.
    """
    every = options.mode == "soft" and attentions[0].all_weights is None
    shown = options.title, options.highlight, options.explain, options.include, options.fields
    shows_texts = any(shown)
    # A value may be a text; and where the page is all that is read, one query reads its texts.
    texts = options.value not in (None, KEY) or (shows_texts and not every)
    needed = [
        rows if every else rows[np.append(listing.ranks, 0)]
        for attention, listing in zip(attentions, listings, strict=True)
        if len(rows := attention.attended.documents)
    ]
    ahead: Mapping[int, StoredDocument] = {}
    if 0 < sum(map(len, needed)) <= AHEAD:
        ahead = store.documents(np.unique(np.concatenate(needed)), texts=texts)

    def read(rows: Int64) -> list[StoredDocument]:
        numbers = rows.tolist()
        if ahead.keys() >= set(numbers):
            return [ahead[row] for row in numbers]
        with forgetting():  # one block is read after another
            return read_documents(store, rows, texts=texts)

    return read, partial(read_documents, store) if shows_texts and not texts else read


def _calibration(
    attention: Attention, foreign: ForeignTests, options: SearchOptions
) -> tuple[Calibrated, float, Sequence[float], Sequence[str]]:
    """Return what tells whether a search has an answer.

    Returns: what fitted the confidence; the least one; the scores of the foreign test, if that is
        what tells; and why nothing does, as a hint.
    """
    scoring, test, unknown = attention.scoring, foreign.test, None
    view, mechanism, number = scoring.view, scoring.mechanism, scoring.view.version.number
    threshold, least = view.version.tuning.threshold, options.min_confidence
    calibrated: Calibrated = "examples" if scoring.plan.calibrated else None
    scores: Sequence[float] = ()
    if scoring.plan.mechanism.null_logit is None:  # all searches come by before a training
        low, high = foreign.settled.get(number, NOTHING_DUE)
        if not low <= view.keys.documents <= high:
            foreign.follow(number)
            test = foreign.test
        fits = scoring.queries.parts is None and len(mechanism.gates) == 1
        made_for = number, mechanism.scorer, mechanism.pool
        if test and fits and (test.version, test.scorer, "max") == made_for:
            calibrated, threshold, scores = "collection", ERROR_RATE, test.scores
        if test is None or test.version != number:
            unknown = foreign.missing(view)
    if least is None:
        least = threshold or 0.0 if calibrated else 0.0
    elif least and calibrated is None:
        raise InvalidRequest(
            f"min_confidence is {least:g}, but no confidence was fitted for this search: a "
            f"training fits it, for the defaults of attend, pool, scorer, temperature and "
            f"lexical, and a collection of {LEAST} texts or more has one of its own once it was "
            f"built or published, for the default scorer and pool. Train first (attend train), "
            f"publish the collection, leave these options and recency out, or leave "
            f"out min_confidence.",
            field="min_confidence",
        )
    return calibrated, least, scores, unknown or ()


def conformal_share(scores: Sequence[float], score: float) -> float:
    """Return the share of ascending scores that are as low or lower, the new one included.

    If the new one is exchangeable with the others, the share is p or less with a chance of p at
    most (a conformal p-value).

    >>> conformal_share([0.2, 0.4, 0.6, 0.8], 0.5), conformal_share([0.2, 0.4, 0.6, 0.8], 0.1)
    (0.6, 0.2)
    """
    return (1 + bisect_right(scores, score)) / (len(scores) + 1)


def _unknown_fields(
    store: CollectionStore,
    options: SearchOptions,
    facets: Facets | None,
    listings: Sequence[Listing],
    untimed: bool,
) -> list[str]:
    """Say which fields of facets, group_by and recency no document has, where they give nothing.

    Args:
        untimed: no document has the time that recency asks for.
    """
    empty = [name for name, facet in (facets or {}).items() if not facet.distinct]
    group = options.group_by
    hits = [hit for listing in listings for hit in listing.extras if group is not None]
    is_ungrouped = bool(hits) and all(hit["group"] is None for hit in hits)
    if not empty and not is_ungrouped and not untimed:
        return []
    sample = store.sample(HINT_SAMPLE)
    grouped = field_hints(sample, [str(group)] if is_ungrouped else [], "group_by")
    timed = [options.recency.field] if untimed and options.recency else []
    hints = [*field_hints(sample, empty, "facets"), *grouped]
    return [*hints, *field_hints(sample, timed, "recency")]


def _hits(
    attention: Attention,
    search: Search,
    listing: Listing,
    read: Read,
    store: CollectionStore,
    encoders: QueryEncoder,
) -> list[Hit]:
    """Return the hits of a page with what the request wants to see of them."""
    options, attended, scoring = search.request, attention.attended, attention.scoring
    rows = attended.documents[listing.ranks]
    documents = read(rows)
    columns: dict[str, Sequence[Any]] = {
        "score": attended.scores[listing.ranks].tolist(),
        "weight": attended.weights[listing.ranks].tolist(),
        "value": values_of(documents, options.value)
        if options.value != KEY
        else _best_keys(scoring, documents, store),
    }
    matched = []
    if options.highlight or options.explain or options.include:
        matched = matches(store, scoring, documents)
    if options.highlight:
        texts = search.query.texts  # type: ignore[union-attr]  # encoded
        every = [text for pairs in texts for text, _ in pairs]
        columns["highlight"] = highlights(store, matched, every)
    if options.explain:
        columns["explanation"] = _explained(
            attention, search, listing.ranks, matched, store, encoders
        )
    contents = contents_of(documents, matched, options, columns)
    return [
        Hit(**content, **extra) for content, extra in zip(contents, listing.extras, strict=True)
    ]


def _explained(
    attention: Attention,
    search: Search,
    places: Int64,
    matched: Sequence[Match],
    store: CollectionStore,
    encoders: QueryEncoder,
) -> list[dict[str, Any]]:
    """Return the explanations of hits, with the shares of pairs where they are wanted."""
    options, scoring = search.request, attention.scoring
    names = [
        {"part": number, **part.model_dump(include={"id", "text"}, exclude_none=True)}
        for number, part in enumerate(options.query.mixture or ())
    ]
    encoded = search.query.embeddings  # type: ignore[union-attr]  # encoded
    parts = ScoreParts.of(attention, places, encoded, store)
    explained = explanations(attention, places, matched, parts, names)
    if options.explain != "tokens":
        return explained
    text, passages = query_text(search, TOKENS), encoders.token_encoder(TOKENS)
    deep = scoring.view.version.projection.deep
    both = passages if deep is None else passages.tuned(deep), passages
    shares = pair_shares(store, scoring, matched, both, text, parts.shares)
    for explanation, pairs in zip(explained, shares, strict=True):
        tokens, words, score = pairs["tokens"], pairs["words"], explanation["parts"]
        if tokens is not None:
            # What the pairs leave of the score by keys: special tokens, biases, learned
            # offsets, and what feedback added by moving the query.
            rest = explanation["dense"] - float(np.sum(tokens["shares"]))
            explanation["tokens"] = {**tokens, "rest": rest}
            compared = score["meaning"] + score["learned"] - words["mean"]
            rest = compared - float(np.sum(words["shares"]))
            explanation["words"] = {**words, "remainder": rest}
        else:
            explanation |= pairs
    return explained


def _best_keys(
    scoring: Scoring, documents: Sequence[StoredDocument], store: CollectionStore
) -> list[Json]:
    """Return of documents the key that matches the query best."""
    rows = [document.row for document in documents]
    best = best_keys(scoring, np.array(rows, dtype=np.int64))
    if len(best) < len(rows):
        raise Vanished
    return [key.tolist() for key in read_embeddings(store, [best[row] for row in rows])]


def _weighing(attention: Attention, passing: Int64 | None) -> Weighing:
    """Return the numbers that turned logits into weights."""
    scoring, share = attention.scoring, WHOLE
    if attention.all_weights is None:
        share = attended_share(attention, passing)
    null, temperature = attention.attended.null, scoring.mechanism.temperature
    return Weighing(
        temperature,
        scoring.mechanism.gates.tolist(),
        None if null is None else (null * temperature).tolist(),
        scoring.view.version.tuning.threshold,
        share,
    )


def _memory(queries: Queries, store: CollectionStore) -> list[MemoryShare]:
    """Return the stored questions that moved a query; of a mixture, that moved its parts."""
    if queries.memory is None or queries.before is None:
        return []
    moves = 0.0 if queries.deep is None else queries.deep
    return queries.memory.explained(store, queries.before - moves, queries.embeddings - moves)


def _type_of(
    attentions: Sequence[Attention], options: SearchOptions, types: ValueTypes, read: Read
) -> ValueType:
    """Return the type of the values that `value` names, of all queries together."""
    path, best = options.value, 1 if options.mode == "hard" else None
    values = [
        value
        for attention in attentions
        for value in values_of(read(attention.attended.documents[:best]), path)
    ]
    type = types.of(path, attentions[0].scoring.view, values)
    if type is not None:
        return type
    # A hard answer without a path is the best document's value, whatever the others' are.
    if path is None and best is not None:
        return infer(values)
    documents = read(np.unique(np.concatenate([one.attended.documents for one in attentions])))
    check_path(path, documents)
    return infer(values_of(documents, path))


def _value(
    attention: Attention,
    options: SearchOptions,
    type: ValueType,
    answered: bool,
    read: Read,
    store: CollectionStore,
) -> dict[str, Json]:
    """Return the blend of all attended (soft), or of a one-hot weight on the best (hard)."""
    attended, scoring = attention.attended, attention.scoring
    if not answered:
        reason = NO_ANSWER if attended.total_documents else NO_DOCUMENTS
        return with_all_keys({**blend_for(type).answer(), "type": "nothing", "reason": reason})
    projection, gates = scoring.view.version.projection, scoring.plan.mechanism.gates
    through = (
        type.kind == "vector"
        and scoring.view.version.tuning.takes(options.value)
        and (projection.w_v is not None or projection.w_o is not None)
    )
    blend = HeadBlend(projection, gates) if through else blend_for(type)
    blocks: Iterable[tuple[Int64, Float64]]
    hard = options.mode == "hard"
    if hard:
        blocks = [(attended.documents[:1], np.ones((len(attended.head_weights), 1)))]
    elif attention.all_weights is None:
        blocks = [(attended.documents, attended.head_weights)]
    else:
        blocks = ((block.documents, block.heads[0]) for block in attention.all_weights())
    for rows, by_head in blocks:
        documents, parts = read(rows), scoring.queries.parts
        if parts is not None:  # mixed over the parts: (p,) @ (p, H, n) -> (H, n)
            by_part = by_head.reshape(len(parts), projection.heads, -1)
            by_head = np.asarray(np.tensordot(parts, by_part, axes=1))
        values = (
            values_of(documents, options.value)
            if options.value != KEY
            else _best_keys(scoring, documents, store)
        )
        ids = [document.id for document in documents]
        blend.add(ids, values, by_head if through else gates @ by_head)
    answer = blend.answer()
    if options.decode and answer.get("vector") is not None:
        vector = np.array(answer["vector"])
        answer["decoded"] = decode_value(store, options.value, vector)
    return with_all_keys(answer, float(attended.weights[0]) if hard else None)


# -- matrices -------------------------------------------------------------------------------


def matrix_options(requests: Sequence[SearchRequest]) -> SearchRequest:
    """Return the options of a matrix: over all documents, and of all requests.

    Raises:
        InvalidRequest: the requests differ in more than their queries, or one is a mixture.
    """
    if len({request.model_dump_json(exclude={"query"}) for request in requests}) != 1:
        raise InvalidRequest(
            "A matrix has one set of options for all of its queries; send the same with each.",
            field="searches",
        )
    if any(request.query.mixture for request in requests):
        raise InvalidRequest(
            "A matrix has a row for each query, and a mixture is several; send its parts as "
            "queries, or search.",
            field="searches",
        )
    return requests[0].model_copy(update={"attend": "all"})


def check_cells(queries: int, documents: int) -> None:
    """Raise LimitExceeded for a matrix with more cells than are sent at once."""
    if queries * documents > MAX_CELLS:
        raise LimitExceeded(
            f"{queries} queries over {documents} documents are more than the {MAX_CELLS} cells "
            f"that are sent at once; filter, or send fewer queries."
        )


def matrix_of(attentions: Sequence[Attention], store: CollectionStore) -> Matrix:
    """Return logits and weights of every query over every document that is attended to.

    Raises:
        Vanished: a document was deleted meanwhile.
    """
    view = attentions[0].scoring.view
    columns = np.unique(np.concatenate([one.attended.documents for one in attentions]))
    ids = [document.id for document in read_documents(store, columns, texts=False)]
    matrix: tuple[list[Any], list[Any], list[Any]] = [], [], []
    for attention in attentions:
        top = attention.attended
        places = np.searchsorted(columns, top.documents)
        logits = np.full((len(top.logits), len(columns)), -np.inf)  # (H, n)
        heads, weights = np.zeros_like(logits), np.zeros(len(columns))
        logits[:, places], heads[:, places] = top.logits, top.head_weights
        weights[places] = top.weights
        for rows, array in zip(matrix, (logits, heads, weights), strict=True):
            rows.append(array.tolist())
    return Matrix(ids, *matrix, view.change, view.version.number)
