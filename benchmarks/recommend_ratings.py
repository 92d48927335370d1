"""Ratings: what users would give books, beside the Surprise library on the same folds.

No ratings by user are among the data sets, so these are simulated. They are stored as interactions,
learned from and asked for through the package's public API; a part of the users is never stored,
and their history is sent with each question.

The numbers of our recipe were chosen on ratings drawn with the seed `CHOOSING`; ratings drawn with
`JUDGING` judge. The peers are tuned on a part of the judging ratings' first training fold. They see
no texts, which carry 35 % of taste here, and ours does: the rows say so.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import ledger
import numpy as np
from common import DATA, Row, data_set, parser, progress, tell

from attend import Collection, Data
from attend.core.types import Float32, Float64, Int64
from attend.learning import train
from attend.learning.data import Ratings as Numbered
from attend.learning.rating_net import Baseline
from attend.measure.statistics import (
    LEVEL,
    by_group,
    difference_intervals,
    mean_interval,
    paired_randomisation,
)
from attend.store import Interaction
from attend.write.feedback import add_interactions

USERS = 943
ITEMS = 1682
RATINGS = 100_000
FEWEST = 20
"""Ratings of a user, as there."""

LOWEST, HIGHEST = 1, 5


class Ratings(NamedTuple):
    """(r,) who rated what how: positions of users and of items, and whole stars."""

    users: Int64
    items: Int64
    values: Float64


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
    return Ratings(by_user, by_item, np.clip(np.rint(stars), LOWEST, HIGHEST))


def _liking(embeddings: Float32, users: int, world: World, random: np.random.Generator) -> Float64:
    """(u, n): what taste adds to a rating, in stars."""
    items = np.concatenate(
        [
            _text_factors(embeddings, world, random),
            random.normal(size=(len(embeddings), world.factors)),
        ],
        axis=1,
    )
    shares = np.repeat([world.text_share, 1 - world.text_share], world.factors)
    groups = random.normal(size=(world.clusters, items.shape[1]))
    own = random.normal(size=(users, items.shape[1]))
    group = groups[random.integers(0, world.clusters, users)]
    share = world.cluster_share
    tastes = np.sqrt(share) * group + np.sqrt(1 - share) * own
    liking = (tastes * np.sqrt(shares / world.factors)) @ items.T
    return np.asarray(world.taste * liking)


def _text_factors(embeddings: Float32, world: World, random: np.random.Generator) -> Float64:
    """(n, factors) of unit variance: mixtures of the directions in which the texts vary most."""
    centred = embeddings.astype(np.float64) - embeddings.mean(axis=0)
    left, _, _ = np.linalg.svd(centred, full_matrices=False)
    directions = left[:, : world.text_directions] * np.sqrt(len(embeddings))
    mixing = random.normal(size=(directions.shape[1], world.factors))
    mixed = directions @ mixing
    return np.asarray((mixed - mixed.mean(axis=0)) / mixed.std(axis=0))


def _known(
    liking: Float64, quality: Float64, ratings: int, world: World, random: np.random.Generator
) -> Float64:
    """(u, n) of booleans: who rated what, long-tailed on both sides."""
    users, items = liking.shape
    fame = random.normal(0, world.popularity, items) + 0.8 * quality
    drawn = fame + world.pull * liking + random.gumbel(size=liking.shape)
    counts = _activity(users, items, ratings, world, random)
    order = np.argsort(-drawn, axis=1)
    known = np.zeros(liking.shape, dtype=bool)
    for user, count in enumerate(counts):
        known[user, order[user, :count]] = True
    return known


def _activity(
    users: int, items: int, ratings: int, world: World, random: np.random.Generator
) -> Int64:
    """(u,) ratings of each user: at least FEWEST, at most half of all items."""
    weights = np.exp(random.normal(0, world.activity, users))
    spare = max(0, ratings - FEWEST * users)
    counts = FEWEST + np.rint(weights / weights.sum() * spare).astype(np.int64)
    return np.minimum(counts, items // 2)


CHOOSING, JUDGING = 0, 1
"""Seeds of the generator: of the ratings that recipes were chosen on, and of those that judge."""

FOLDS = 5
NEW_USERS = 0.05
"""Of all users, those who are never stored."""

TARGETS = 256
"""Asked for at once."""

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
    """Ratings (r,) and which of them are held out, of which books."""

    ratings: Ratings
    held: np.ndarray  # (r,) of booleans
    ids: Sequence[str]

    @property
    def known(self) -> Ratings:
        return Ratings(*(each[~self.held] for each in self.ratings))

    @property
    def asked(self) -> Ratings:
        return Ratings(*(each[self.held] for each in self.ratings))


class Said(NamedTuple):
    """What is said of held-out ratings (h,), in their order, and how long it took to learn."""

    mean: np.ndarray
    std: np.ndarray | None
    seconds: float


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
    truth: list[np.ndarray] = []
    new: list[np.ndarray] = []
    users: list[np.ndarray] = []
    said: dict[str, list[Said]] = {}
    place = np.random.default_rng(0).integers(0, FOLDS, len(ratings.values))
    peers = _tuned(Fold(ratings, place == 0, ids), tune=folds > 1)
    for at in range(folds):
        fold = Fold(ratings, place == at, ids)
        unknown = _new_users(ratings, at)
        for name, found in _fold(collection, fold, unknown, peers).items():
            said.setdefault(name, []).append(found)
            error = found.mean - fold.asked.values
            progress(f"fold {at + 1}: {name} RMSE {_rmse(error):.4f}, {found.seconds:.0f} s")
        truth.append(fold.asked.values)
        new.append(np.isin(fold.asked.users, unknown))
        users.append(fold.asked.users)
    everything = {
        name: np.concatenate([each.mean for each in found]) for name, found in said.items()
    }
    values, asked, unseen = (np.concatenate(each) for each in (truth, users, new))
    yield from _accuracy(everything, values, asked, unseen)
    spread = np.concatenate([each.std for each in said["attend"] if each.std is not None])
    for level, width in (("0.8", 1.2816), ("0.95", 1.96)):
        inside = np.abs(everything["attend"] - values) <= width * spread
        yield Row(
            f"ratings.coverage.{level}", f"ratings within their {level} interval", inside.mean()
        )
    seconds = float(np.mean([each.seconds for each in said["attend"]]))
    yield Row("ratings.seconds", "ratings: seconds of training, one fold", seconds)


def _accuracy(
    said: Mapping[str, np.ndarray], truth: np.ndarray, users: np.ndarray, new: np.ndarray
) -> Iterator[Row]:
    """Errors of everybody, differences from each peer, and those of users nobody trained on."""
    for name, mean in said.items():
        error = mean - truth
        interval = mean_interval(by_group(error**2, users))
        low, high = np.sqrt([interval.low, interval.high])
        row = Row(f"ratings.{name}.rmse", f"ratings, RMSE: {name}", _rmse(error), low, high)
        seen = "texts and ratings" if name == "attend" else "ratings alone"
        yield row._replace(note=f"MAE {np.abs(error).mean():.4f}; sees {seen}")
    ours = (said["attend"] - truth) ** 2
    for name in set(said) - {"attend"}:
        theirs = (said[name] - truth) ** 2
        sides = by_group(theirs, users), by_group(ours, users)
        (gain,) = difference_intervals(*sides, [LEVEL])
        p = paired_randomisation(*sides)
        row = Row(
            f"ratings.gain.{name}", f"ratings, squared error less than {name}'s by", *gain
        ).wanted(">", 0)
        yield row._replace(note=f"p = {p:.4f}")
    for name in ("attend", "baseline"):
        error = (said[name] - truth)[new]
        yield Row(f"ratings.new_users.{name}", f"users never stored, RMSE: {name}", _rmse(error))


def ratios(found: Mapping[str, Row]) -> dict[str, float]:
    """RMSE of each peer over ours: above 1 is better than the peer."""
    ours = found["ratings.attend.rmse"].measured or np.nan
    names = [name for name in (*PEERS, "baseline") if f"ratings.{name}.rmse" in found]
    theirs = {name: found[f"ratings.{name}.rmse"].measured or np.nan for name in names}
    return {f"rmse_{name}_over_attend": round(each / ours, 4) for name, each in theirs.items()}


# -- one fold -------------------------------------------------------------------------------------


def _tuned(fold: Fold, tune: bool) -> dict[str, Peer]:
    """The settings of each peer that are best on a part of what a fold trains on."""
    known = fold.known
    held = np.random.default_rng(2).random(len(known.values)) < TUNING
    inner, chosen = Fold(known, held, fold.ids), dict[str, Peer]()
    for name, grid in PEERS.items():
        errors = [
            _rmse(_surprise(inner, peer).mean - inner.asked.values) if tune else 0.0
            for peer in (grid if tune else grid[:1])
        ]
        chosen[name] = grid[int(np.argmin(errors))]
        progress(f"-- {name}: {chosen[name]} of {len(errors)} settings")
    return chosen


def _fold(
    collection: Collection, fold: Fold, new: np.ndarray, peers: Mapping[str, Peer]
) -> dict[str, Said]:
    """Everybody's predictions of what is held out."""
    return {
        "attend": _attend(collection, fold, new),
        "baseline": _baseline(fold),
        **{name: _surprise(fold, peer) for name, peer in peers.items()},
    }


def _attend(collection: Collection, fold: Fold, new: np.ndarray) -> Said:
    """Learned from those who are stored; asked for each user, by name or with their history."""
    if collection.store.active("predict") is not None:
        collection.rollback("predict")
    known, asked = fold.known, fold.asked
    kept = ~np.isin(known.users, new)
    stored = zip(known.users[kept], known.items[kept], known.values[kept], strict=True)
    add_interactions(
        collection,
        [Interaction(str(user), fold.ids[item], float(value)) for user, item, value in stored],
        delete_stored=True,
    )
    began = time.perf_counter()
    report = train(collection, objective="ratings")
    seconds = time.perf_counter() - began
    if not report["promoted"]:
        progress(f"Not promoted: {report['reason']}")
    mean, std = np.empty(len(asked.values)), np.empty(len(asked.values))
    for user in np.unique(asked.users):
        places = np.flatnonzero(asked.users == user)
        who: dict[str, Any] = {"user": str(user)}
        if np.isin(user, new):
            own = known.users == user
            pairs = zip(known.items[own], known.values[own], strict=True)
            who = {"history": [{"id": fold.ids[item], "value": float(v)} for item, v in pairs]}
        for at in range(0, len(places), TARGETS):
            some = places[at : at + TARGETS]
            targets = [fold.ids[item] for item in asked.items[some]]
            found = collection.recommend(target=targets, **who).predictions
            mean[some] = [each["mean"] for each in found]
            std[some] = [each["std"] for each in found]
    return Said(mean, std, seconds)


def _baseline(fold: Fold) -> Said:
    """μ + b_i + b_u."""
    known, asked = fold.known, fold.asked
    users = int(fold.ratings.users.max()) + 1
    base = Baseline(Numbered(*known, user_count=users, item_count=len(fold.ids)))
    return Said(np.clip(base(asked.users, asked.items), LOWEST, HIGHEST), None, 0.0)


def _surprise(fold: Fold, peer: Peer) -> Said:
    """A method of Surprise as it comes, fitted to all users."""
    import surprise  # the peer, which only this needs

    known, asked = fold.known, fold.asked
    data = surprise.Dataset(surprise.Reader(rating_scale=(LOWEST, HIGHEST)))
    trainset = data.construct_trainset(
        [(int(u), int(i), float(v), None) for u, i, v in zip(*known, strict=True)]
    )
    options = {name: each for name, each in peer.items() if name != "name"}
    method = getattr(surprise, peer["name"])(**options)
    began = time.perf_counter()
    method.fit(trainset)
    seconds = time.perf_counter() - began
    found = [
        method.predict(int(u), int(i)).est for u, i in zip(asked.users, asked.items, strict=True)
    ]
    return Said(np.array(found), None, seconds)


def _new_users(ratings: Ratings, fold: int) -> np.ndarray:
    """Users who are never stored, others in each fold."""
    users = np.unique(ratings.users)
    count = max(1, round(NEW_USERS * len(users)))
    return np.random.default_rng(1).permutation(users)[fold * count : (fold + 1) * count]


def _books(data: Data, folder: Path) -> tuple[Collection, list[str], np.ndarray]:
    """Books as documents, their ids, and their embeddings in the same order."""
    with (data_set(folder, "goodbooks") / "books.jsonl").open(encoding="utf-8") as file:
        books = [json.loads(line) for line in file][:ITEMS]
    collection = data.create("books")
    collection.upsert(
        [
            {"id": each["id"], "text": f"{each['title']}. {each['authors']}. {' '.join(tags)}"}
            for each in books
            for tags in [each["tags"][:6]]
        ]
    )
    ids = [str(each["id"]) for each in books]
    rows_of = collection.store.rows_of(ids)
    rows = np.array([rows_of[id] for id in ids])
    keys = collection.store.own_keys(np.unique(rows))
    return collection, ids, keys.means()[np.searchsorted(keys.rows, rows)]


def _rmse(errors: np.ndarray) -> float:
    return float(np.sqrt((errors**2).mean()))


def main() -> None:
    made = parser(__doc__.splitlines()[0])
    made.add_argument("--folder", type=Path, default=DATA, help="folder of the data sets")
    given = made.parse_args()
    found = {}
    for row in rows(given.quick, given.folder):
        found[row.name] = row
        progress(row.line())
        ledger.append(row, "quick" if given.quick else "full")
    figures = {name: row.told() for name, row in found.items()}
    tell(ratios(found), {"rows": figures} if given.json else {}, given.json)


if __name__ == "__main__":
    main()
