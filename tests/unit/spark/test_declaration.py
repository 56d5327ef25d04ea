"""A checkpoint belongs to one pipeline."""

from dataclasses import replace
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from ottla.spark.pipelines.declaration import Checkpoint, CheckpointRefused, Declaration

ORDERS = Declaration(
    command="dedupe", name="orders", source="topic orders", sink="topic once", steps={"key": "key"}
)


def claimed(tmp_path: Path) -> Checkpoint:
    """A checkpoint that Spark has used."""
    checkpoint = Checkpoint.of(ORDERS, tmp_path)
    checkpoint.claim(ORDERS)
    checkpoint.directory.mkdir()
    return checkpoint


def test_the_same_pipeline_goes_on(tmp_path: Path) -> None:
    claimed(tmp_path).claim(ORDERS)


def test_another_source_is_refused_with_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(CheckpointRefused) as refusal:
        claimed(tmp_path).claim(replace(ORDERS, source="topic payments"))
    assert "source was topic orders and is topic payments" in str(refusal.value)
    assert "--name" in str(refusal.value)
    assert str(tmp_path / "dedupe-orders") in str(refusal.value)


def test_a_step_that_was_not_there_is_a_change(tmp_path: Path) -> None:
    with pytest.raises(CheckpointRefused, match="within was not given and is 5 ms"):
        claimed(tmp_path).check(replace(ORDERS, steps={"key": "key", "within": "5 ms"}))


def test_a_removed_checkpoint_is_free_again(tmp_path: Path) -> None:
    checkpoint = claimed(tmp_path)
    checkpoint.directory.rmdir()
    other = replace(ORDERS, source="topic payments")
    checkpoint.claim(other)
    checkpoint.directory.mkdir()
    checkpoint.check(other)


@pytest.mark.parametrize("text", [None, "", "[1]", "{}"])
def test_a_checkpoint_of_unknown_origin_is_refused(tmp_path: Path, text: str | None) -> None:
    checkpoint = Checkpoint.of(ORDERS, tmp_path)
    checkpoint.directory.mkdir()
    if text is not None:
        checkpoint.declared_file.write_text(text)
    with pytest.raises(CheckpointRefused, match="its declaration is missing"):
        checkpoint.check(ORDERS)


def test_labels_are_names_of_files_and_groups() -> None:
    assert replace(ORDERS, name="a,b/../c d").label == "dedupe-a-b-..-c-d"
    assert len(replace(ORDERS, name="x" * 500).label) == 120
