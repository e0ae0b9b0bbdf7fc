"""The demo's data: which functions become samples, and what of them is prompt and label."""

from __future__ import annotations

from pathlib import Path

import pytest

from firstbad.cli.demo.corpus import END, PAD, Sample, read_corpus

SOURCE = '''
"""A module."""
class Box:
    def put(self, thing):
        """Put — it."""
        return thing

    @property
    def size(self):
        return 1

    @size.setter
    def size(self, value):
        self.n = value

def stub():
    """Nothing but words."""

async def one(): return 1

def outer():
    def inner():
        pass
    return inner
'''


@pytest.fixture
def library(tmp_path: Path) -> Path:
    """A small library with all that is to be skipped beside what is not."""
    files = {
        "box.py": SOURCE.encode(),
        "json/decoder.py": b"def decode(x):\n    return x\n",
        "latin.py": b"# -*- coding: latin-1 -*-\ndef f():\n    return '\xe9'\n",
        "undecodable.py": b"def f():\n    return '\xff\xfe'\n",
        "python2.py": b"def f():\n    print 'x'\n",
        "nul.py": b"def f():\n    return '\x00'\n",
        "test/test_a.py": b"def f():\n    return 1\n",
        "json/tests/a.py": b"def f():\n    return 1\n",
        "site-packages/a.py": b"def f():\n    return 1\n",
        "lib2to3/a.py": b"def f():\n    return 1\n",
        "notes.txt": b"def f(): pass",
    }
    for name, content in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(content)
    return tmp_path


def test_functions_with_a_body_are_samples_under_unique_sorted_names(library: Path) -> None:
    """File and qualified name, with the line only where a file defines it twice; the folder is the shard."""
    samples = read_corpus(library)

    assert [(sample.id, sample.shard) for sample in samples] == [
        ("box.py:Box.put", "Lib"),
        ("box.py:Box.size@13", "Lib"),
        ("box.py:Box.size@9", "Lib"),
        ("box.py:one", "Lib"),
        ("box.py:outer", "Lib"),
        ("box.py:outer.inner", "Lib"),
        ("json/decoder.py:decode", "json"),
        ("latin.py:f", "Lib"),
    ]


def test_prompt_and_answer_are_the_source_cut_after_the_docstring(library: Path) -> None:
    """Nothing is lost between them, on one line or on several, and characters of several bytes do not shift it."""
    samples = {sample.id: sample for sample in read_corpus(library)}

    put = samples["box.py:Box.put"]
    assert put.prompt.decode() == 'def put(self, thing):\n        """Put — it."""'
    assert put.answer.decode() == "\n        return thing"
    one = samples["box.py:one"]
    assert (one.prompt, one.answer) == (b"async def one(): ", b"return 1")
    assert samples["latin.py:f"].answer.decode() == "return 'é'"


@pytest.mark.parametrize(
    ("prompt", "answer", "labels"),
    [
        (b"abc", b"de", 3),
        (b"abc", b"defghijk", 5),
        (b"abcdefg", b"hijk", 1),
        (b"abcdefgh", b"i", 0),
        (b"a" * 99, b"i", 0),
    ],
)
def test_labels_are_the_tokens_of_the_answer_that_fit(prompt: bytes, answer: bytes, labels: int) -> None:
    """Counting them agrees with the window itself, at and around the edge of a context of 8."""
    sample = Sample("a", "Lib", prompt, answer)
    window = sample.tokens(8)

    assert len(window) == 8
    assert sample.labels(8) == labels == sum(token != PAD for token in window[len(prompt) :])


def test_a_short_sample_ends_and_is_filled_up() -> None:
    """END is learned, PAD is not."""
    assert Sample("a", "Lib", b"\x01", b"\x02").tokens(5) == [1, 2, END, PAD, PAD]


def test_the_running_library_has_enough_of_them() -> None:
    """Thousands of functions, each name once, and some whose prompt fills the window."""
    samples = read_corpus()

    assert len(samples) > 5_000
    assert len({sample.id for sample in samples}) == len(samples)
    assert any(not sample.labels(256) for sample in samples)
