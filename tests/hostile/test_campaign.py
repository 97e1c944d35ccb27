"""A small campaign in the suite: the tools work, and a handful of everything finds nothing (`make hostile`: all)."""

import io
import random
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import torch

from koopsim.errors import KoopsimError
from koopsim.files.tensors import read_tensors, write_tensors

sys.path.insert(0, str(Path(__file__).parent))

from mutations import KINDS, json_values, mutated, tensor_metadata, tensor_values


@pytest.mark.parametrize("kind", KINDS)
def test_a_seed_names_the_mutations(kind, tmp_path):
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    archive = io.BytesIO()
    np.savez(archive, x=np.zeros(3), y=np.ones(2))
    data = {
        "json": b'{"a": [1, {"b": 2}]}', "lines": b'{"a": 1}\n{"a": 2}\n', "csv": b"a,b\n1,2\n", "text": b"x = 1\n",
        "tensors": len(header).to_bytes(8, "little") + header + bytes(4), "npz": archive.getvalue(),
        "picture": b"\x89PNG" + bytes(50), "npy": b"\x93NUMPY" + bytes(100), "coded": b"KSP1" + bytes(60),
    }[kind]  # fmt: skip
    first, again = (mutated(kind, data, random.Random(3)) for _ in range(2))
    assert first == again
    assert first[0] != data
    assert len({mutated(kind, data, random.Random(seed))[0] for seed in range(40)}) > 20


def test_values_change_one_entry():
    changed = {json_values(b'{"a": 1, "b": 2}', random.Random(seed)) for seed in range(30)}
    assert len(changed) > 15


def test_a_header_without_metadata_is_changed_too():
    header = b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}'
    data = len(header).to_bytes(8, "little") + header + bytes(4)
    assert tensor_metadata(data, random.Random(0)) != data


def test_tensors_are_changed_under_a_digest_that_is_old_gone_or_right_again(tmp_path):
    """The checks behind the digest are tried too: NaN is named in most files, the digest in the others."""
    file, said = tmp_path / "w.safetensors", Counter()
    write_tensors(file, {"w": torch.ones(3)}, {"run": {"step": 1}})
    whole = file.read_bytes()
    for seed in range(60):
        file.write_bytes(tensor_values(whole, random.Random(seed)))
        with pytest.raises(KoopsimError) as error:
            read_tensors(file, "checkpoint")
        words = ("does not match", "has no digest", "holds NaN or infinite")
        said.update(word for word in words if word in str(error.value))
    assert sum(said.values()) == 60
    assert min(said.values()) >= 5
    assert said.most_common(1)[0][0] == "holds NaN or infinite"


@pytest.mark.slow
def test_a_small_campaign_finds_nothing():
    command = [sys.executable, str(Path(__file__).parent / "campaign.py")]
    small = ["--mutations", "60", "--kills", "4", "--extremes", "0", "--workers", "1", "--seed", "1"]
    done = subprocess.run([*command, *small], capture_output=True, text=True, check=False, timeout=900)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "60 mutations, 4 kills" in done.stderr
