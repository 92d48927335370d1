"""Settings of a collection and of its versions, stored beside them and read everywhere.

A collection has settings from its creation on. A version is a projection, a tuning and key offsets.
Under it the logit of document d in head h is

    z_h(d) = reduce over d's keys of scale_h · s_h(q, k)  +  scale_h · λ · c(q) · lex(d)
             - ln 2 · temperature · age(d) / half-life

where lex is BM25 over the query's maximum and c = (maximum / ideal) ** γ.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from attend.core.errors import Damaged
from attend.core.types import Json, ScorerName

MAPPING = "mapping"
"""The stored setting that holds the fields of sources; `attend.write.build` writes it."""

LATER = {
    *("recall", "exact_below", "about", "value_name"),
    *("log", "log_days", "log_bytes", "log_swaps", "interleave"),
}
"""Settings that collections of earlier versions do not have."""


@dataclass(frozen=True)
class Settings:
    """The settings of a collection.

    Attributes:
        encoder: name or folder of the model; None where documents bring their vectors.
        dimension: width of every embedding.
        normalize: vectors that callers bring are scaled to length one; None until the first write
            of vectors decides it (`attend.write.ingest`). False with an encoder, whose vectors have
            length one anyway.
        scorer, scale: the default comparison and the factor on it (None: by the scorer).
        passages, overlap: whether long texts are split, and tokens that neighbours share.
        values: declared value types, or None to infer them.
        recall, exact_below: what published indexes must do (`attend.keys.IndexTarget`).
        log, log_days, log_bytes: whether searches are logged (`attend.store.searches`), for how
            long and in how many bytes.
        log_swaps: the share of them in which two neighbouring hits may change places.
        interleave: two versions whose lists are drafted into one page; None for none.
        about: title, description, licence and source, for people; None where none was given.
        value_name: the column that the values of all sources are from; None where there are
            several, or none. Read from the fields of the sources.
    """

    encoder: str | None
    dimension: int
    normalize: bool | None = False
    scorer: ScorerName = "dot"
    scale: float | None = None
    passages: bool = True
    overlap: int | None = None
    values: Json = None
    recall: float = 0.95
    exact_below: int | None = None
    log: bool = False
    log_days: float = 90.0
    log_bytes: int = 2**30
    log_swaps: float = 0.0
    interleave: Sequence[int] | None = None
    about: Json = None
    value_name: str | None = None

    @property
    def unit_embeddings(self) -> bool:
        """True where stored embeddings have length one."""
        return self.encoder is not None or bool(self.normalize)

    def stored(self) -> dict[str, Json]:
        """Return what the store keeps: `value_name` is read from the fields of the sources."""
        settings = asdict(self)
        del settings["value_name"]
        return settings

    @classmethod
    def of(cls, stored: Mapping[str, Any]) -> Settings:
        """Read the settings from the store, which holds other values beside them."""
        missing = cls.__dataclass_fields__.keys() - stored.keys() - LATER
        if missing:
            raise Damaged(
                f"The database has no settings {', '.join(sorted(missing))}: it is not a "
                f"collection that this program wrote. Restore it from a copy, or remove its folder."
            )
        fields = {name: stored[name] for name in cls.__dataclass_fields__ if name in stored}
        return cls(**fields | {"value_name": _value_name(stored.get(MAPPING))})


def _value_name(sources: Any) -> str | None:
    columns = {
        tuple(source["columns"].get("value", ())) or ("",)
        for source in (sources if isinstance(sources, list) else ())
        if isinstance(source, dict) and isinstance(source.get("columns"), dict)
    } - {("",)}
    names = next(iter(columns)) if len(columns) == 1 else ()
    return names[0] if len(names) == 1 else None


DEFAULT_LEXICAL = 0.5
"""λ where a request asks for the lexical term without a number, and of the untrained version of a
collection with an encoder."""

DEFAULT_COVERAGE = 1.0
"""γ that goes with it, and with any λ under a version that has no lexical term of its own."""

MAX_LEXICAL = 10.0
"""Of λ: a cosine is at most one, so beyond this the keys would no longer matter."""

MAX_RERANK = 100
"""Documents of a query that are scored once more by tokens."""

UNTRAINED_MEMORY = 0.5
"""α of the untrained version. (nDCG@10 among documents that no example names, over three random
divisions of training queries: CoNaLa's + .006 with 20 examples, + .019 with 100 and + .032 with
500, SciFact's + .003 with 20 and + .005 with 100.)"""

LEAST_COVERAGE, MOST_COVERAGE = 0.5, 0.99
"""Of searches; `Tuning.inclusion` has one number for each 0.01 between them."""

DEFAULT_LAYER = 0.4
"""β of the untrained version with words. (nDCG@10 of training questions, with words and with the
second layer: SciFact .735 and .743, CoNaLa .671 and .670, NFCorpus .370 and .376; of NFCorpus's
development questions .336 and .347.)"""

Number = Annotated[float, Field(strict=True, allow_inf_nan=False)]
Share = Annotated[Number, Field(ge=0, le=1)]


class Tuning(BaseModel):
    """What was fitted for a version; the defaults are those of an untrained one.

    Attributes:
        scale: the factor on the scorer's result, one for each head.
        null: the null key's logit at temperature 1, one for each head or one for all.
        levels: how much the mean logits of the documents ranked 2 to 10, and 11 to 100, add to it;
            None for nothing.
        lexical: λ, on the scorer's scale; 0 is off.
        coverage: γ, how much less the lexical term counts where the query's words are not there.
        examples: the factor on example keys; at 0 they take no part.
        pool: how a document's keys make its logit, where a request does not say.
        temperature: at which weights are probabilities; not 1 where the pool depends on the scale.
        attend, scorer: with the pool, what scale, temperature, null and threshold were fitted for.
        threshold: below this confidence the answer is that nothing here answers.
        error_rate: how often that is said wrongly, as measured.
        inclusion: where a list ends (`attend.attention.inclusion`) that has a right document for
            0.5, 0.51 and so on of held-out questions, as far as a list of the attended has; None
            where that was not measured.
        memory: α, how far stored feedback moves a query (`attend.search.feedback`); None where none
            was chosen.
        votes: μ, how much the answers of the stored questions nearest to a query count beside it.
        layer: β, how far a second layer of attention moves a query (`attend.search.attend`); 0 is
            off.
        recency: the field with the time of a document, and the days after which its weight is half;
            None where time does not count.
        values: the path of the values that W_V was learned for, "" for the whole value; None where
            it is for any.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    scale: Annotated[tuple[Annotated[Number, Field(gt=0)], ...], Field(min_length=1)] | None = None
    null: Annotated[tuple[Number, ...], Field(min_length=1)] | None = None
    levels: tuple[Number, Number] | None = None
    lexical: Annotated[Number, Field(ge=0, le=MAX_LEXICAL)] = 0.0
    coverage: Annotated[Number, Field(ge=0)] = 0.0
    examples: Annotated[Number, Field(ge=0, le=1e6)] = 0.0
    attend: Annotated[int, Field(strict=True, ge=1)] | Literal["all"] | None = None
    scorer: str | None = None
    pool: Literal["max", "sum"] = "max"
    temperature: Annotated[Number, Field(gt=0)] = 1.0
    threshold: Share | None = None
    error_rate: Share | None = None
    inclusion: tuple[Number, ...] | None = None
    memory: Share | None = None
    votes: Share = 0.0
    layer: Share = 0.0
    recency: tuple[str, Annotated[Number, Field(gt=0)]] | None = None
    values: str | None = None

    def takes(self, path: str | None) -> bool:
        """Tell whether W_V is for the values that a path names; None names the whole value."""
        return self.values is None or self.values == (path or "")

    def stored(self) -> dict[str, Json]:
        """Plain data without what is as untrained: `{}` for a version that was never tuned."""
        return self.model_dump(mode="json", exclude_defaults=True)

    @classmethod
    def of(cls, stored: Mapping[str, Json]) -> Tuning:
        """The inverse of `stored`; raises Damaged for what no tuning has."""
        unknown = stored.keys() - cls.model_fields.keys()
        if unknown:
            raise Damaged(
                f"A stored version is tuned by {', '.join(sorted(unknown))}, which this program "
                f"does not know; open the collection with the program that trained it."
            )
        try:
            return cls.model_validate(dict(stored))
        except ValidationError as error:
            first = error.errors()[0]
            raise Damaged(
                f"A stored version is tuned wrongly: {first['loc'][0]} is {first['input']!r} "
                f"({first['msg']}). Train again."
            ) from error


UNFITTED = Tuning(memory=UNTRAINED_MEMORY)
UNFITTED_WORDS = Tuning(
    lexical=DEFAULT_LEXICAL, coverage=DEFAULT_COVERAGE, memory=UNTRAINED_MEMORY, layer=DEFAULT_LAYER
)
"""How a version answers that was not fitted, without and with words."""
