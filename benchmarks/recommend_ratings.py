"""Ratings: what users would give books, beside the Surprise library on the same folds.

    python benchmarks/recommend.py --only ratings [--quick] [--json]

No ratings by user are among the data sets, so these are simulated. They are stored as interactions,
learned from and asked for through the package's public API; a part of the users is never stored,
and their history is sent with each question.

The numbers of our recipe were chosen on ratings drawn with the seed `CHOOSING`; ratings drawn with
`JUDGING` judge. The peers are tuned on a part of the judging ratings' first training fold. They see
no texts, which carry 35 % of taste here, and ours does: the rows say so.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from common import (
    DATA,
    Row,
    data_set,
    difference,
    difference_row,
    json_lines,
    progress,
    row_of,
    timed,
)

from attend import Collection, Data
from attend.core.types import Float32, Float64
from attend.learning import train
from attend.learning.data import Ratings
from attend.learning.rating_net import Baseline
from attend.measure.interactions import RatingErrors
from attend.measure.statistics import by_group
from attend.store import Interaction
from attend.write.feedback import add_interactions

USERS = 943
ITEMS = 1682
RATINGS = 100_000
FEWEST = 20
"""Ratings of a user, as there."""

LOWEST, HIGHEST = 1, 5


class World(NamedTuple):
    """What the draws go by.

    Attributes:
        text_directions: of the texts' embeddings, those that taste may go by.
        text_share: of what makes two items alike, the part that is in their texts.
        clusters: groups of users of similar taste; `cluster_share` of a taste is the group's.
        quality, bias, taste, noise: standard deviations, in stars.
        pull: how much more readily is rated what is liked, per star.
    """

    text_directions: int = 16
    factors: int = 5
    text_share: float = 0.35
    clusters: int = 12
    cluster_share: float = 0.65
    quality: float = 0.5
    bias: float = 0.42
    taste: float = 0.65
    noise: float = 0.81
    pull: float = 0.9
    popularity: float = 1.35
    activity: float = 0.95


def simulated(
    embeddings: Float32,
    *,
    users: int = USERS,
    ratings: int = RATINGS,
    seed: int = 0,
    world: World = World(),  # noqa: B008 # immutable
) -> Ratings:
    """Draw ratings of items with these texts.

    Args:
        embeddings: (n, d) of the items' texts.
        ratings: about how many, all users together.

    Returns: users from 0 to `users`, items from 0 to n, sorted by user.
    """
    random = np.random.default_rng(seed)
    liking = _liking(embeddings, users, world, random)  # (u, n) stars
    quality = random.normal(0, world.quality, len(embeddings))
    known = _known(liking, quality, ratings, world, random)
    bias = random.normal(0, world.bias, users)
    reach = np.exp(random.normal(0, 0.25, users))  # how far a user goes from the middle
    by_user, by_item = np.nonzero(known)
    felt = quality[by_item] + liking[by_user, by_item]
    noise = random.normal(0, world.noise, len(by_user))
    stars = 3.3 + bias[by_user] + reach[by_user] * (felt + noise)
    values = np.clip(np.rint(stars), LOWEST, HIGHEST)
    return Ratings(by_user, by_item, values, users, len(embeddings))


def _liking(embeddings: Float32, users: int, world: World, random: np.random.Generator) -> Float64:
    """(u, n): what taste adds to a rating, in stars."""
    centred = embeddings.astype(np.float64) - embeddings.mean(axis=0)
    left, _, _ = np.linalg.svd(centred, full_matrices=False)
    # Mixtures of the directions in which the texts vary most, of unit variance.
    directions = left[:, : world.text_directions] * np.sqrt(len(embeddings))
    mixed = directions @ random.normal(size=(directions.shape[1], world.factors))
    of_texts = (mixed - mixed.mean(axis=0)) / mixed.std(axis=0)
    items = np.hstack([of_texts, random.normal(size=(len(embeddings), world.factors))])
    shares = np.repeat([world.text_share, 1 - world.text_share], world.factors)
    groups = random.normal(size=(world.clusters, items.shape[1]))
    own = random.normal(size=(users, items.shape[1]))
    group = groups[random.integers(0, world.clusters, users)]
    share = world.cluster_share
    tastes = np.sqrt(share) * group + np.sqrt(1 - share) * own
    liking = (tastes * np.sqrt(shares / world.factors)) @ items.T
    return np.asarray(world.taste * liking)


def _known(
    liking: Float64, quality: Float64, ratings: int, world: World, random: np.random.Generator
) -> Float64:
    """(u, n) of booleans: who rated what, long-tailed on both sides.

    Each user rated at least FEWEST, and at most half of all items.
    """
    users, items = liking.shape
    fame = random.normal(0, world.popularity, items) + 0.8 * quality
    drawn = fame + world.pull * liking + random.gumbel(size=liking.shape)
    weights = np.exp(random.normal(0, world.activity, users))
    spare = max(0, ratings - FEWEST * users)
    counts = FEWEST + np.rint(weights / weights.sum() * spare).astype(np.int64)
    ranks = np.argsort(np.argsort(-drawn, axis=1), axis=1)
    return np.asarray(ranks < np.minimum(counts, items // 2)[:, None])


CHOOSING, JUDGING = 0, 1
"""Seeds of the generator: of the ratings that recipes were chosen on, and of those that judge."""

FOLDS = 5
NEW_USERS = 0.05
"""Of all users, those who are never stored."""

QUICK_USERS, QUICK_RATINGS = 250, 25_000

Peer = Mapping[str, Any]
"""The name of one of Surprise's algorithms, and its options."""

_KNN = {"name": "KNNBaseline", "sim_options": {"name": "pearson_baseline"}, "verbose": False}

PEERS: Mapping[str, Sequence[Peer]] = {
    "svd": [
        {"name": "SVD", "random_state": 0, **options}
        for options in (
            {},
            {"n_factors": 50, "reg_all": 0.05, "n_epochs": 40},
            {"n_factors": 50, "reg_all": 0.1, "n_epochs": 60},
            {"n_factors": 100, "reg_all": 0.1, "n_epochs": 60},
        )
    ],
    "knnbaseline": [{**_KNN, "k": count} for count in (20, 40, 80)],
    "svdpp": [
        {"name": "SVDpp", "random_state": 0, **options}
        for options in ({}, {"reg_all": 0.05, "n_epochs": 30})
    ],
}
"""Settings of each peer, the library's defaults among them; a quick run takes the first."""

TUNING = 0.2
"""The share of the first fold's training ratings by which settings are compared."""


class Fold(NamedTuple):
    """Ratings that are known, and those that are asked for, of which books."""

    known: Ratings
    asked: Ratings
    ids: Sequence[str]

    @classmethod
    def of(cls, ratings: Ratings, held: np.ndarray, ids: Sequence[str]) -> Fold:
        """Those that are `held` (r,) out are asked for."""
        return cls(ratings.some(~held), ratings.some(held), ids)


def rows(quick: bool, folder: Path = DATA) -> Iterator[Row]:
    """Rows of the table of recommending that are about ratings."""
    with tempfile.TemporaryDirectory() as temporary:
        data = Data(temporary)
        collection, ids, embeddings = _books(data, folder)
        users, count = (QUICK_USERS, QUICK_RATINGS) if quick else (USERS, RATINGS)
        ratings = simulated(embeddings, users=users, ratings=count, seed=JUDGING)
        yield from _rows(collection, ids, ratings, 1 if quick else FOLDS)
        data.close()


def _rows(
    collection: Collection, ids: Sequence[str], ratings: Ratings, folds: int
) -> Iterator[Row]:
    place = np.random.default_rng(0).integers(0, FOLDS, len(ratings))
    peers = _tuned(Fold.of(ratings, place == 0, ids), tune=folds > 1)
    errors: dict[str, list[Float64]] = {}
    spread, seconds, new = [], [], []
    for at in range(folds):
        fold = Fold.of(ratings, place == at, ids)
        unknown = _new_users(ratings, at)
        mean, std, took = _attend(collection, fold, unknown)
        for name, predicted in {
            "attend": mean,
            "baseline": _baseline(fold),
            **{name: _surprise(fold, peer) for name, peer in peers.items()},
        }.items():
            errors.setdefault(name, []).append(predicted - fold.asked.values)
            progress(f"fold {at + 1}: {name} RMSE {_rmse(errors[name][-1]):.4f}")
        spread.append(std)
        seconds.append(took)
        new.append(np.isin(fold.asked.users, unknown))
    users = np.concatenate([ratings.users[place == at] for at in range(folds)])
    by_name = {name: np.concatenate(each) for name, each in errors.items()}
    yield from _accuracy(by_name, users, np.concatenate(new))
    for level, width in (("0.8", 1.2816), ("0.95", 1.96)):
        inside = np.abs(by_name["attend"]) <= width * np.concatenate(spread)
        what = f"ratings within their {level} interval"
        yield Row(f"ratings.coverage.{level}", what, inside.mean())
    what = "ratings: seconds of training, one fold"
    yield Row("ratings.seconds", what, float(np.mean(seconds)))


def _accuracy(
    errors: Mapping[str, np.ndarray], users: np.ndarray, new: np.ndarray
) -> Iterator[Row]:
    """Errors of everybody, differences from each peer, and those of users nobody trained on."""
    for name, error in errors.items():
        found = RatingErrors(error, users).intervals()
        seen = "texts and ratings" if name == "attend" else "ratings alone"
        row = row_of(f"ratings.{name}.rmse", f"ratings, RMSE: {name}", found["rmse"])
        yield row._replace(note=f"MAE {found['mae'].mean:.4f}; sees {seen}")
    squares = {name: by_group(error**2, users) for name, error in errors.items()}
    for name in errors:
        if name != "attend":
            gain = difference(squares[name], squares["attend"])
            what = f"ratings, squared error less than {name}'s by"
            yield difference_row(f"ratings.gain.{name}", what, gain).wanted(">", 0)
    for name in ("attend", "baseline"):
        of_new = _rmse(errors[name][new])
        yield Row(f"ratings.new_users.{name}", f"users never stored, RMSE: {name}", of_new)


# -- one fold -------------------------------------------------------------------------------------


def _tuned(fold: Fold, tune: bool) -> dict[str, Peer]:
    """The settings of each peer that are best on a part of what a fold trains on."""
    held = np.random.default_rng(2).random(len(fold.known)) < TUNING
    inner, chosen = Fold.of(fold.known, held, fold.ids), dict[str, Peer]()
    for name, grid in PEERS.items():
        errors = [
            _rmse(_surprise(inner, peer) - inner.asked.values) if tune else 0.0
            for peer in (grid if tune else grid[:1])
        ]
        chosen[name] = grid[int(np.argmin(errors))]
        progress(f"-- {name}: {chosen[name]} of {len(errors)} settings")
    return chosen


def _attend(collection: Collection, fold: Fold, new: np.ndarray) -> tuple[Float64, Float64, float]:
    """Means and deviations (h,) of what is asked for, and the seconds of training.

    Learned from those who are stored; asked for each user, by name or with their history.
    """
    if collection.store.active("predict") is not None:
        collection.rollback("predict")
    known, asked, ids = fold
    stored = _triples(known.some(~np.isin(known.users, new)))
    events = [Interaction(str(user), ids[item], value) for user, item, value in stored]
    add_interactions(collection, events, delete_stored=True)
    report, seconds = timed(lambda: train(collection, objective="ratings"))
    if not report["promoted"]:
        progress(f"Not promoted: {report['reason']}")
    mean, std = np.empty(len(asked)), np.empty(len(asked))
    for user in np.unique(asked.users).tolist():
        places = asked.of_user(user)
        who: dict[str, Any] = {"user": str(user)}
        if np.isin(user, new):
            own = _triples(known.some(known.of_user(user)))
            who = {"history": [{"id": ids[item], "value": value} for _, item, value in own]}
        targets = [ids[item] for item in asked.items[places]]
        found = collection.recommend(target=targets, **who).predictions
        mean[places] = [each["mean"] for each in found]
        std[places] = [each["std"] for each in found]
    return mean, std, seconds


def _baseline(fold: Fold) -> Float64:
    """μ + b_i + b_u."""
    predicted = Baseline(fold.known)(fold.asked.users, fold.asked.items)
    return np.clip(predicted, LOWEST, HIGHEST)


def _surprise(fold: Fold, peer: Peer) -> Float64:
    """A method of Surprise as it comes, fitted to all users."""
    import surprise  # the peer, which only this needs

    data = surprise.Dataset(surprise.Reader(rating_scale=(LOWEST, HIGHEST)))
    trainset = data.construct_trainset([(*each, None) for each in _triples(fold.known)])
    options = {name: each for name, each in peer.items() if name != "name"}
    method = getattr(surprise, peer["name"])(**options)
    method.fit(trainset)
    return np.array([method.predict(user, item).est for user, item, _ in _triples(fold.asked)])


def _triples(ratings: Ratings) -> Iterator[tuple[int, int, float]]:
    """Users, items and values."""
    columns = (ratings.users, ratings.items, ratings.values)
    return zip(*(each.tolist() for each in columns), strict=True)


def _new_users(ratings: Ratings, fold: int) -> np.ndarray:
    """Users who are never stored, others in each fold."""
    users = np.unique(ratings.users)
    count = max(1, round(NEW_USERS * len(users)))
    return np.random.default_rng(1).permutation(users)[fold * count : (fold + 1) * count]


def _books(data: Data, folder: Path) -> tuple[Collection, list[str], np.ndarray]:
    """Books as documents, their ids, and their embeddings in the same order."""
    books = json_lines(data_set(folder, "goodbooks") / "books.jsonl")[:ITEMS]
    collection = data.create("books")
    texts = [f"{row['title']}. {row['authors']}. {' '.join(row['tags'][:6])}" for row in books]
    ids = [str(row["id"]) for row in books]
    collection.upsert({"id": id, "text": text} for id, text in zip(ids, texts, strict=True))
    rows_of = collection.store.rows_of(ids)
    rows = np.array([rows_of[id] for id in ids])
    keys = collection.store.own_keys(np.unique(rows))
    return collection, ids, keys.means()[np.searchsorted(keys.rows, rows)]


def _rmse(errors: np.ndarray) -> float:
    return float(np.sqrt((errors**2).mean()))
