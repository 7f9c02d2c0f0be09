"""Op type of ai.onnx.ml -> our converter, and why the others of this domain are refused."""

from __future__ import annotations

from collections.abc import Mapping

from heteroplace.relay.frontend.converters import (
    ml_encoders,
    ml_features,
    ml_linear,
    ml_svm,
    ml_trees,
)
from heteroplace.relay.frontend.converters.call import Converter

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
    "LabelEncoder": ("heteroplace", "map keys to values; not keys of an input of strings"),
    "SVMClassifier": ("heteroplace", "refused with probabilities (prob_a), which are iterated"),
    "ZipMap": ("rewritten", "its scores, a tensor with a column for each class"),
}
"""Op -> who converts it and a note, where the docstring of its converter does not say it all."""
