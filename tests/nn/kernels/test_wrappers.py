"""What a kernel's wrapper sees to before it launches anything: where, how much, and that it is the caller's to give."""

import ctypes
import threading
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from koopsim.errors import KoopsimError
from koopsim.nn.padding import countable

pytest.importorskip("triton")


def test_an_operator_runs_on_the_device_of_its_first_tensor(monkeypatch):
    from koopsim.nn.kernels.operators import _where_it_lies

    inside = []

    @contextmanager
    def device_of(tensor):
        inside.append(tensor)
        yield
        inside.pop()

    monkeypatch.setattr(torch.cuda, "device_of", device_of)
    call = _where_it_lies(lambda *given: list(inside))
    there, here = SimpleNamespace(is_cuda=True), SimpleNamespace(is_cuda=False)
    assert call(there, 2) == [there]
    assert call([there, here], 2) == [there]
    assert call(here, 2) == []


def test_pictures_are_counted_in_32_bits():
    few, many = (torch.empty(n, 3, 224, 224, device="meta") for n in (668, 669))
    assert countable(few, 64)
    assert not countable(many, 64)
    assert not countable(torch.empty(2**31 // 64, 4, 4, 4, device="meta"), 4), "patches have nine times its depth"


def test_a_vgg_asks_whether_they_can_be_counted(monkeypatch):
    from koopsim.nn import fuse, vgg

    lift = vgg.VGG((3, 8, 8), 4, 5).train()
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda device: True)
    monkeypatch.setattr(torch, "get_autocast_dtype", lambda device: torch.bfloat16)
    monkeypatch.setattr(fuse, "usable", lambda *tensors: True)
    monkeypatch.setattr(vgg, "usable", lambda *tensors: True)
    like = torch.empty(2, 3, 8, 8)
    pictures = SimpleNamespace(is_cuda=True, shape=like.shape, dtype=like.dtype, requires_grad=False)
    for module in (vgg, fuse):
        monkeypatch.setattr(module, "vmapped", lambda x: False)
    fused = fuse.FusedVGG(lift.eval(), 8)
    lift.train()
    assert lift.fused(pictures)
    assert fused._has_kernels(pictures)
    pictures.shape = torch.Size((2**27, 3, 8, 8))
    assert not lift.fused(pictures)
    assert not fused._has_kernels(pictures)


def test_what_does_not_fit_is_refused():
    from koopsim.implicit.kernels import ledger
    from koopsim.nn.kernels import bias_relu, norm, pixels
    from koopsim.nn.kernels.cuda import Kernel, Launch

    with pytest.raises(KoopsimError, match=r"biases \(1, 2\)"):
        bias_relu._run(torch.randn(1, 4, 3), torch.randn(1, 2))
    with pytest.raises(KoopsimError, match=r"5 x 4 pixels .* even sides"):
        norm.mapped(torch.randn(1, 5, 4, 16), torch.randn(4, 16), True)
    with pytest.raises(KoopsimError, match="given 300 of them; expected multiples of 256"):
        pixels._run(torch.randn(1, 300, 16), [], torch.randn(1, 300, 3), False)
    z, wide = torch.randn(4, 3), torch.zeros(4, 2, dtype=torch.uint8)
    with pytest.raises(KoopsimError, match="solver_choose"):
        ledger._run_choose(z, z.clone(), wide[:, :1], wide[:, :1].contiguous().bool(), None, None)
    with pytest.raises(KoopsimError, match="kernel own was given a tensor on cpu; expected CUDA's"):
        Launch(Kernel(ctypes.c_void_p(), "own"), 1, 0, [z])


def test_who_is_left_out_is_read_without_gaps():
    from koopsim.implicit.kernels.attention import _bytes

    active = torch.tensor([[True, False], [False, True], [True, True]])[:, :1]
    found = _bytes(active, active)
    assert found.is_contiguous()
    assert found.flatten().tolist() == [1, 0, 1]


def test_answers_in_one_kernel_can_be_switched_off(monkeypatch):
    from koopsim.nn.kernels import answer

    asked = []
    monkeypatch.setattr(answer.tcn_cluster, "has_clusters", lambda device: asked.append(device) or True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    other = nn.Sequential(nn.Linear(2, 2), nn.Tanh())
    assert answer.answering(other, (2,), torch.device("cuda")) is None
    assert asked
    monkeypatch.setenv("KOOPSIM_CLUSTERS", "0")
    asked.clear()
    assert answer.answering(other, (2,), torch.device("cuda")) is None
    assert not asked


def test_threads_write_machine_code_to_files_of_their_own(monkeypatch, tmp_path):
    from koopsim.nn.kernels import cuda

    both, names, write = threading.Barrier(2, timeout=20), [], Path.write_bytes

    def half_at_a_time(file, code):
        names.append(file.name)
        both.wait()
        write(file, code[: len(code) // 2])
        both.wait()
        return write(file, code)

    monkeypatch.setattr(cuda, "data_folder", lambda: tmp_path)
    monkeypatch.setattr(cuda, "_compiled", lambda source, options: b"machine code")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(Path, "write_bytes", half_at_a_time)
    uncached = cuda._machine_code.__wrapped__
    threads = [threading.Thread(target=uncached, args=((), (), 0)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(names)) == 2
    assert [file.read_bytes() for file in (tmp_path / "kernels").iterdir()] == [b"machine code"]


def test_the_digest_knows_what_decides_and_what_is_in_folders(monkeypatch, tmp_path):
    from koopsim.nn.kernels import sources

    known = sources.digest()
    for name in ("nn/kernels/mma.cu", "implicit/kernels/cell.py", "nn/padding.py", "nn/transforms.py"):
        assert name in known
    for name in ("nn/kernels/deep/own.cuh", "nn/kernels/notes.txt", "implicit/kernels/a.hpp", *sources.BESIDE):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    monkeypatch.setattr(sources, "HOME", tmp_path)
    assert set(sources.digest()) == {"nn/kernels/deep/own.cuh", "implicit/kernels/a.hpp", *sources.BESIDE}
