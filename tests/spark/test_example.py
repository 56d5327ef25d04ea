"""The example runs as its page says."""

import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "spark_word_count.py"
TIMEOUT_S = 500


@pytest.mark.jvm
@pytest.mark.nightly
def test_words_are_counted_without_a_jar(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "be 2\nis 1\nnot 1\nor 1\nquestion 1\nthat 1\nthe 1\nto 2\n"
