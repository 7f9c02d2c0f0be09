"""The JSON Schemas are those of the structs, and as strict."""

import pytest

from heteroplace.files.schemas import FOLDER, schema_texts


@pytest.mark.parametrize("name", schema_texts())
def test_schemas_are_current(name):
    """`python -m heteroplace.files.schemas` writes them."""
    assert (FOLDER / name).read_text("utf-8") == schema_texts()[name]


def test_every_schema_has_a_struct():
    assert sorted(path.name for path in FOLDER.glob("*.json")) == sorted(schema_texts())
