"""Small pipelines of scikit-learn, fitted to random data: one for each kind of estimator.

Sizes are small, since equality is the question and not quality; every tree still has some levels,
every machine some support vectors. `skl2onnx` writes them as ONNX models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from sklearn import (
    calibration,
    cluster,
    cross_decomposition,
    decomposition,
    discriminant_analysis,
    ensemble,
    feature_selection,
    gaussian_process,
    impute,
    linear_model,
    multiclass,
    multioutput,
    naive_bayes,
    neighbors,
    neural_network,
    preprocessing,
    svm,
    tree,
)
from sklearn.compose import ColumnTransformer
from sklearn.pipeline import make_pipeline, make_union

NUM_ROWS, NUM_FEATURES = 240, 8
_RNG_SEED = 7


@dataclass(frozen=True)
class Pipeline:
    """An estimator with the data that it is fitted to."""

    name: str
    make: Callable[[], Any]
    """The estimator, not fitted."""
    data: str = "classes"
    """See `dataset`."""
    is_double: bool = False
    """Whether the input of the ONNX model is float64."""
    options: tuple[tuple[str, Any], ...] = ()
    """Of skl2onnx."""


def dataset(kind: str) -> tuple[np.ndarray, np.ndarray | None]:
    """Return rows and targets.

    "binary", "classes" (three), "names" (three classes with names), "regression", "targets" (two
    numbers), "labels" (two labels), "missing" (NaN among the values), "counts" (no negative value),
    "categories" (whole numbers, two classes).
    """
    rng = np.random.default_rng(_RNG_SEED)
    rows = rng.standard_normal((NUM_ROWS, NUM_FEATURES)).astype(np.float32)
    if kind == "counts":
        rows = rng.integers(0, 9, rows.shape).astype(np.float32)
    if kind == "categories":
        rows = rng.integers(0, 4, rows.shape).astype(np.float32)
    signal = rows @ rng.standard_normal((NUM_FEATURES, 2)) + 0.3 * rows[:, :1] * rows[:, 1:3]
    if kind == "missing":
        rows[rng.random(rows.shape) < 0.1] = np.nan
    if kind == "regression":
        return rows, signal[:, 0]
    if kind == "targets":
        return rows, signal
    if kind == "labels":
        return rows, (signal > 0).astype(np.int64)
    if kind in ("binary", "missing", "categories"):
        return rows, (signal[:, 0] > np.median(signal[:, 0])).astype(np.int64)
    classes = np.digitize(signal[:, 0], np.quantile(signal[:, 0], [0.3, 0.7]))
    if kind == "names":
        return rows, np.array(["low", "middle", "high"])[classes]
    return rows, classes


def pipelines() -> Iterator[Pipeline]:
    """Yield all pipelines."""
    yield from _trees()
    yield from _linear()
    yield from _machines()
    yield from _transforms()
    yield from _compositions()
    yield from _others()


def _trees() -> Iterator[Pipeline]:
    seed = {"random_state": 0}
    few = {"n_estimators": 12, **seed}
    yield Pipeline("decision tree", lambda: tree.DecisionTreeClassifier(max_depth=6, **seed))
    yield Pipeline("decision tree, double", lambda: tree.DecisionTreeClassifier(**seed),
                   is_double=True)  # fmt: skip
    yield Pipeline("decision tree regressor", lambda: tree.DecisionTreeRegressor(**seed),
                   "regression")  # fmt: skip
    yield Pipeline("extra tree", lambda: tree.ExtraTreeClassifier(**seed), "binary")
    yield Pipeline("random forest", lambda: ensemble.RandomForestClassifier(100, max_depth=10,
                   **seed))  # fmt: skip
    yield Pipeline("random forest, names", lambda: ensemble.RandomForestClassifier(**few), "names")
    yield Pipeline("random forest, two targets", lambda: ensemble.RandomForestRegressor(**few),
                   "targets")  # fmt: skip
    yield Pipeline("random forest regressor, double",
                   lambda: ensemble.RandomForestRegressor(**few), "regression", True)  # fmt: skip
    yield Pipeline("extra trees", lambda: ensemble.ExtraTreesClassifier(**few), "binary")
    yield Pipeline("extra trees regressor", lambda: ensemble.ExtraTreesRegressor(**few),
                   "regression")  # fmt: skip
    yield Pipeline("gradient boosting, binary", lambda: ensemble.GradientBoostingClassifier(**few),
                   "binary")  # fmt: skip
    yield Pipeline("gradient boosting", lambda: ensemble.GradientBoostingClassifier(**few))
    yield Pipeline("gradient boosting regressor",
                   lambda: ensemble.GradientBoostingRegressor(**few), "regression")  # fmt: skip
    boosted = {"max_iter": 12, **seed}
    yield Pipeline("histogram boosting, missing values",
                   lambda: ensemble.HistGradientBoostingClassifier(**boosted),
                   "missing")  # fmt: skip
    yield Pipeline("histogram boosting",
                   lambda: ensemble.HistGradientBoostingClassifier(**boosted))  # fmt: skip
    yield Pipeline("histogram boosting regressor",
                   lambda: ensemble.HistGradientBoostingRegressor(**boosted),
                   "regression")  # fmt: skip
    yield Pipeline("AdaBoost", lambda: ensemble.AdaBoostClassifier(**few))
    yield Pipeline("AdaBoost regressor", lambda: ensemble.AdaBoostRegressor(**few), "regression")
    yield Pipeline("isolation forest", lambda: ensemble.IsolationForest(**few))
    yield Pipeline("bagged trees", lambda: ensemble.BaggingClassifier(**few), "binary")
    yield Pipeline("bagged trees regressor", lambda: ensemble.BaggingRegressor(**few), "regression")


def _linear() -> Iterator[Pipeline]:
    seed = {"random_state": 0}
    yield Pipeline("logistic regression, binary", linear_model.LogisticRegression, "binary")
    yield Pipeline("logistic regression", linear_model.LogisticRegression)
    yield Pipeline("logistic regression, names", linear_model.LogisticRegression, "names")
    yield Pipeline("linear regression", linear_model.LinearRegression, "regression")
    yield Pipeline("linear regression, double, two targets", linear_model.LinearRegression,
                   "targets", True)  # fmt: skip
    yield Pipeline("ridge", linear_model.Ridge, "regression")
    yield Pipeline("ridge classifier", linear_model.RidgeClassifier, "binary")
    yield Pipeline("lasso", lambda: linear_model.Lasso(0.1), "regression")
    yield Pipeline("elastic net", lambda: linear_model.ElasticNet(0.1), "regression")
    yield Pipeline("Bayesian ridge", linear_model.BayesianRidge, "regression")
    yield Pipeline("stochastic gradient descent", lambda: linear_model.SGDClassifier(**seed))
    yield Pipeline("perceptron", lambda: linear_model.Perceptron(**seed), "binary")
    yield Pipeline("Poisson regression", linear_model.PoissonRegressor, "categories")
    yield Pipeline("linear discriminants", discriminant_analysis.LinearDiscriminantAnalysis)
    yield Pipeline("quadratic discriminants",
                   discriminant_analysis.QuadraticDiscriminantAnalysis)  # fmt: skip


def _machines() -> Iterator[Pipeline]:
    seed = {"random_state": 0}
    for kernel in ("linear", "poly", "rbf", "sigmoid"):
        machine = lambda kernel=kernel: svm.SVC(kernel=kernel)  # noqa: E731
        regressor = lambda kernel=kernel: svm.SVR(kernel=kernel)  # noqa: E731
        yield Pipeline(f"support vectors, {kernel}", machine)
        yield Pipeline(f"support vectors, {kernel}, binary", machine, "binary")
        yield Pipeline(f"support vector regressor, {kernel}", regressor, "regression")
    yield Pipeline("nu support vectors", svm.NuSVC, "names")
    yield Pipeline("nu support vector regressor", svm.NuSVR, "regression")
    yield Pipeline("one-class support vectors", svm.OneClassSVM)
    yield Pipeline("linear support vectors", lambda: svm.LinearSVC(**seed))
    yield Pipeline("linear support vector regressor", lambda: svm.LinearSVR(**seed), "regression")


def _with_logistic(scaler: Any) -> Any:
    return make_pipeline(scaler, linear_model.LogisticRegression())


def _transforms() -> Iterator[Pipeline]:
    logistic = linear_model.LogisticRegression
    for name, scaler in (
        ("standard scaler", preprocessing.StandardScaler()),
        ("robust scaler", preprocessing.RobustScaler()),
        ("least and most scaler", preprocessing.MinMaxScaler()),
        ("largest absolute value scaler", preprocessing.MaxAbsScaler()),
        ("normalizer l1", preprocessing.Normalizer("l1")),
        ("normalizer l2", preprocessing.Normalizer("l2")),
        ("normalizer max", preprocessing.Normalizer("max")),
        ("binarizer", preprocessing.Binarizer(threshold=0.2)),
        ("polynomial features", preprocessing.PolynomialFeatures(2)),
        ("bins", preprocessing.KBinsDiscretizer(4, encode="onehot-dense")),
        ("power transform", preprocessing.PowerTransformer()),
        ("principal components", decomposition.PCA(3)),
        ("truncated SVD", decomposition.TruncatedSVD(3, random_state=0)),
        ("best features", feature_selection.SelectKBest(k=3)),
    ):
        yield Pipeline(f"{name}, logistic regression", partial(_with_logistic, scaler))
    yield Pipeline("one-hot encoder", lambda: make_pipeline(
        preprocessing.OneHotEncoder(handle_unknown="ignore"), logistic()),
        "categories")  # fmt: skip
    yield Pipeline("ordinal encoder", lambda: make_pipeline(
        preprocessing.OrdinalEncoder(), tree.DecisionTreeClassifier(random_state=0)),
        "categories")  # fmt: skip
    yield Pipeline("mean imputer", lambda: make_pipeline(
        impute.SimpleImputer(), preprocessing.StandardScaler(), logistic()), "missing")  # fmt: skip
    yield Pipeline("nearest neighbours imputer", lambda: make_pipeline(
        impute.KNNImputer(n_neighbors=3), logistic()), "missing")  # fmt: skip


def _compositions() -> Iterator[Pipeline]:
    seed = {"random_state": 0}
    logistic, forest = linear_model.LogisticRegression, ensemble.RandomForestClassifier
    members = [("l", logistic()), ("t", tree.DecisionTreeClassifier(max_depth=4, **seed))]
    numbers = [("l", linear_model.Ridge()), ("t", tree.DecisionTreeRegressor(max_depth=4, **seed))]
    columns = ColumnTransformer([
        ("scaled", preprocessing.StandardScaler(), [0, 1, 2]),
        ("category", preprocessing.OneHotEncoder(handle_unknown="ignore"), [3, 4]),
        ("as they are", "passthrough", [5]),
    ])  # fmt: skip
    yield Pipeline("columns, forest", lambda: make_pipeline(columns, forest(8, **seed)),
                   "categories")  # fmt: skip
    yield Pipeline("union of features", lambda: make_pipeline(
        make_union(decomposition.PCA(2), preprocessing.StandardScaler()), logistic()))  # fmt: skip
    yield Pipeline(
        "soft voting",
        lambda: ensemble.VotingClassifier(members, voting="soft", flatten_transform=False),
    )
    yield Pipeline(
        "hard voting", lambda: ensemble.VotingClassifier(members, flatten_transform=False)
    )
    yield Pipeline("voting regressor", lambda: ensemble.VotingRegressor(numbers), "regression")
    yield Pipeline("stacking", lambda: ensemble.StackingClassifier(members), "binary")
    yield Pipeline("stacking regressor", lambda: ensemble.StackingRegressor(numbers), "regression")
    yield Pipeline("calibrated, sigmoid", lambda: calibration.CalibratedClassifierCV(
        svm.LinearSVC(**seed), cv=2), "binary")  # fmt: skip
    yield Pipeline("calibrated, isotonic", lambda: calibration.CalibratedClassifierCV(
        tree.DecisionTreeClassifier(max_depth=3, **seed), method="isotonic", cv=2))  # fmt: skip
    yield Pipeline("one against rest", lambda: multiclass.OneVsRestClassifier(logistic()))
    yield Pipeline("one against one", lambda: multiclass.OneVsOneClassifier(logistic()))
    yield Pipeline("several labels", lambda: multioutput.MultiOutputClassifier(logistic()),
                   "labels")  # fmt: skip
    yield Pipeline("several targets", lambda: multioutput.MultiOutputRegressor(
        ensemble.GradientBoostingRegressor(n_estimators=5, **seed)), "targets")  # fmt: skip


def _others() -> Iterator[Pipeline]:
    seed = {"random_state": 0}
    net = {"hidden_layer_sizes": (16, 8), "max_iter": 60, **seed}
    yield Pipeline("multilayer perceptron", lambda: neural_network.MLPClassifier(**net))
    yield Pipeline("multilayer perceptron, names", lambda: neural_network.MLPClassifier(**net),
                   "names")  # fmt: skip
    yield Pipeline("multilayer perceptron regressor", lambda: neural_network.MLPRegressor(**net),
                   "regression")  # fmt: skip
    yield Pipeline("nearest neighbours", neighbors.KNeighborsClassifier)
    yield Pipeline("nearest neighbours regressor", neighbors.KNeighborsRegressor, "regression")
    yield Pipeline("Gaussian naive Bayes", naive_bayes.GaussianNB)
    yield Pipeline("Bernoulli naive Bayes", naive_bayes.BernoulliNB)
    yield Pipeline("multinomial naive Bayes", naive_bayes.MultinomialNB, "counts")
    yield Pipeline("Gaussian process", lambda: gaussian_process.GaussianProcessRegressor(alpha=0.1),
                   "regression", True)  # fmt: skip
    yield Pipeline("k-means", lambda: cluster.KMeans(3, n_init=1, **seed))
    yield Pipeline("partial least squares", lambda: cross_decomposition.PLSRegression(2), "targets")
    yield Pipeline("support vectors with probabilities",
                   lambda: svm.SVC(probability=True, **seed))  # fmt: skip
