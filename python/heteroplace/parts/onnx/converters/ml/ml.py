"""Op type of ai.onnx.ml -> our converter, and why the others of this domain are refused."""

from __future__ import annotations

from collections.abc import Mapping

from heteroplace.parts.onnx.converters.call import Converter
from heteroplace.parts.onnx.converters.ml import (
    ml_encoders,
    ml_features,
    ml_linear,
    ml_svm,
    ml_trees,
)

ML_DOMAIN = "ai.onnx.ml"

ML_CONVERTERS: Mapping[str, Converter] = {
    "ArrayFeatureExtractor": ml_features.array_feature_extractor,
    "Binarizer": ml_features.binarizer,
    "FeatureVectorizer": ml_features.feature_vectorizer,
    "Imputer": ml_features.imputer,
    "LabelEncoder": ml_encoders.label_encoder,
    "LinearClassifier": ml_linear.linear_classifier,
    "LinearRegressor": ml_linear.linear_regressor,
    "Normalizer": ml_features.normalizer,
    "OneHotEncoder": ml_encoders.one_hot_encoder,
    "SVMClassifier": ml_svm.svm_classifier,
    "SVMRegressor": ml_svm.svm_regressor,
    "Scaler": ml_features.scaler,
    "TreeEnsemble": ml_trees.tree_ensemble,
    "TreeEnsembleClassifier": ml_trees.tree_ensemble_classifier,
    "TreeEnsembleRegressor": ml_trees.tree_ensemble_regressor,
}

_MAPS = "it reads maps, and only tensors can be compiled"

ML_NOTES: Mapping[str, tuple[str, str]] = {
    "CastMap": ("refused", _MAPS),
    "CategoryMapper": ("rewritten", "a LabelEncoder of numbers; not of an input of strings"),
    "DictVectorizer": ("refused", _MAPS),
    "LabelEncoder": (
        "heteroplace",
        "map keys to values; refused: keys of an input of strings, and a key that is NaN",
    ),
    "LinearClassifier": (
        "heteroplace",
        "label and scores of linear models; refused: PROBIT of one score for two classes",
    ),
    "OneHotEncoder": (
        "heteroplace",
        "one element for each category; refused: an input of strings, and a repeated category",
    ),
    "SVMClassifier": (
        "heteroplace",
        "label by votes, and scores; refused: probabilities (prob_a), a model without support "
        "vectors, and a post_transform for two classes",
    ),
    "SVMRegressor": (
        "heteroplace",
        "regression, or the side of a one-class model; refused: any post_transform",
    ),
    "TreeEnsembleClassifier": (
        "heteroplace",
        "label and scores of a forest; refused: PROBIT of one score for two classes, weights for "
        "the second of two classes only, and more than 1000 levels",
    ),
    "ZipMap": ("rewritten", "its scores, a tensor with a column for each class"),
}
"""Op -> who converts it and a note, where the docstring of its converter does not say it all."""
