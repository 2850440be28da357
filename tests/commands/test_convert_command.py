"""``edge-train convert``: every verb once, what it prints, and errors of one line."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from support.child import ROOT, run_python, succeed
from support.states import save_arrays, trained, values
from support.zoo import GOLDEN, ZOO

from edge_train import cli
from edge_train.checkpoint.state import CheckpointState
from edge_train.convert.difference import compare

MLP = ZOO["mlp_MSELoss"]


def run(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    """Exit code, stdout, stderr; argparse leaves by SystemExit."""
    try:
        code = cli.main(["convert", *map(str, words)])
    except SystemExit as left:
        code = int(str(left.code))
    out, err = capsys.readouterr()
    return code, out, err


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return trained(MLP, tmp_path / "checkpoint")


Capsys = pytest.CaptureFixture[str]


def test_buffers(checkpoint: Path, tmp_path: Path, capsys: Capsys) -> None:
    model = ("--model", MLP.training_model)
    for words in (
        ("nominal", checkpoint, tmp_path / "nominal"),
        ("flat", checkpoint, tmp_path / "buffer", *model),
        ("fill", tmp_path / "nominal", tmp_path / "buffer", tmp_path / "full", *model),
    ):
        assert run(capsys, *words) == (0, "", "")
    for name, array in values(checkpoint).items():
        np.testing.assert_array_equal(values(tmp_path / "full")[name], array)
    code, out, err = run(capsys, "layout", tmp_path / "nominal", *model)
    assert (code, err) == (0, "")
    rows = [line.split() for line in out.splitlines()]
    assert rows[1] == ["0", "[5,", "4]", "w1"]
    assert rows[-1][0] == "43"
    words = ("--trainable-only", "--reset-optimizer")
    paths = checkpoint, tmp_path / "buffer", tmp_path / "reset"
    assert run(capsys, "fill", *paths, *model, *words) == (0, "", "")
    assert CheckpointState.load_checkpoint(tmp_path / "reset").groups["group0"].step == 0


@pytest.mark.parametrize("kind", ["safetensors", "npz"])
def test_formats(kind: str, checkpoint: Path, tmp_path: Path, capsys: Capsys) -> None:
    assert run(capsys, f"to-{kind}", checkpoint, tmp_path / "x") == (0, "", "")
    assert run(capsys, f"from-{kind}", tmp_path / "x", tmp_path / "back") == (0, "", "")
    assert (tmp_path / "back").read_bytes() == checkpoint.read_bytes()
    words = (f"from-{kind}", tmp_path / "x", tmp_path / "split", "--freeze", "w1", "b*")
    assert run(capsys, *words) == (0, "", "")
    state = CheckpointState.load_checkpoint(tmp_path / "split")
    assert [n for n, p in state.parameters if p.requires_grad] == ["w2"]


def test_models(checkpoint: Path, tmp_path: Path, capsys: Capsys) -> None:
    model = tmp_path / "m.onnx"
    assert run(capsys, "to-onnx", checkpoint, MLP.model, model) == (0, "", "")
    words = "from-onnx", model, tmp_path / "back", "--like", MLP.nominal_checkpoint
    assert run(capsys, *words) == (0, "", "")
    assert compare(tmp_path / "back", checkpoint).values == ()
    assert run(capsys, "from-onnx", model, tmp_path / "head", "--train", "*2") == (0, "", "")
    state = CheckpointState.load_checkpoint(tmp_path / "head")
    assert [n for n, p in state.parameters if p.requires_grad] == ["b2", "w2"]
    words = "to-onnx", checkpoint, MLP.eval_model, tmp_path / "cut.onnx", "--outputs", "h"
    assert run(capsys, *words, "--external") == (0, "", "")
    session = onnxruntime.InferenceSession(tmp_path / "cut.onnx")
    assert [value.name for value in session.get_outputs()] == ["h"]
    more = save_arrays(tmp_path / "more", **values(checkpoint), more=[1])
    code, out, err = run(capsys, "to-onnx", more, MLP.model, model, "--partial")
    assert (code, out, err) == (0, "no place in the model: more\n", "")


def test_adapters(tmp_path: Path, capsys: Capsys) -> None:
    path = save_arrays(tmp_path / "c", {"fc.w": [1]}, **{"fc.lora_A": [2], "fc.lora_B": [3]})
    code, out, err = run(capsys, "to-adapter", path, tmp_path / "a", "--adapter-version", 5)
    assert (code, out, err) == (0, "fc.lora_A\nfc.lora_B\n", "")
    told = onnxruntime.AdapterFormat.read_adapter(str(tmp_path / "a"))
    assert told.get_adapter_version() == 5
    assert {n: v.numpy().tolist() for n, v in told.get_parameters().items()} == {
        "fc.lora_A": [2],
        "fc.lora_B": [3],
    }
    code, out, err = run(capsys, "to-adapter", path, tmp_path / "a", "--names", "fc.w")
    assert (code, out) == (0, "fc.w\n")


def test_rewriting(checkpoint: Path, tmp_path: Path, capsys: Capsys) -> None:
    for words in (
        ("upgrade", GOLDEN / "legacy" / "checkpoint", tmp_path / "upgraded"),
        ("external", checkpoint, tmp_path / "external"),
        ("inline", tmp_path / "external", tmp_path / "inline"),
        ("strip", checkpoint, tmp_path / "stripped", "--properties"),
        ("rename", checkpoint, tmp_path / "renamed", "w*=v*", "b1=bias"),
    ):
        assert run(capsys, *words) == (0, "", "")
    assert (tmp_path / "external.data").exists()
    assert (tmp_path / "inline").read_bytes() == checkpoint.read_bytes()
    stripped = CheckpointState.load_checkpoint(tmp_path / "stripped")
    assert (len(stripped.groups), len(stripped.properties)) == (0, 0)
    assert sorted(values(tmp_path / "renamed")) == ["b2", "bias", "v1", "v2"]
    assert len(values(tmp_path / "upgraded")) > 0


def test_several_checkpoints(checkpoint: Path, tmp_path: Path, capsys: Capsys) -> None:
    a = save_arrays(tmp_path / "a", w=[1, 2], head=[1])
    b = save_arrays(tmp_path / "b", w=[3, 2], head=[1, 1], new=[5])
    code, out, err = run(capsys, "diff", a, b)
    assert (code, err) == (1, "")
    assert out.splitlines() == [
        "only in b: new",
        "'head' is float32 [1] in a, float32 [2] in b",
        "w: 1 of 2 differ, by 2 at most",
    ]
    assert run(capsys, "diff", checkpoint, checkpoint) == (0, "equal\n", "")
    code, out, err = run(capsys, "transfer", a, b, tmp_path / "t")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "copied: 1 of 3",
        "kept: 'head' is float32 [1] in the source, float32 [2] in the target",
        "kept: 'new' is not in the source",
    ]
    code, out, err = run(capsys, "transfer", b, a, tmp_path / "t")
    assert out.splitlines()[-1] == "not used: 'new' is not in the target"
    words = ("merge", a, b, "--prefer", "last", "--no-optimizer", "--out", tmp_path / "m")
    assert run(capsys, *words) == (0, "", "")
    assert values(tmp_path / "m")["head"].tolist() == [1, 1]
    words = ("average", a, tmp_path / "a", "--weights", 1, 3, "--out", tmp_path / "mean")
    assert run(capsys, *words, "--keep-statistics") == (0, "", "")
    assert values(tmp_path / "mean")["w"].tolist() == [1, 2]


def test_names_cannot_write_to_the_terminal(tmp_path: Path, capsys: Capsys) -> None:
    bad = "w\n\x1b[2Jw"
    a = save_arrays(tmp_path / "a", {f"c{bad}": [1, 2]}, **{bad: [0], f"m{bad}": [1, 2]})
    b = save_arrays(tmp_path / "b", **{bad: [1], f"m{bad}": [1], f"b{bad}": [1]})
    shown = r"w\n\x1b[2Jw"
    for words in (("diff", a, b), ("transfer", a, b, tmp_path / "c")):
        _, out, err = run(capsys, *words)
        assert (out.count(shown) >= 3, "\x1b" in out, err) == (True, False, "")
        assert len(out.splitlines()) == 4
    words = ("rename", a, tmp_path / "c", f"{bad}={'m' + bad}")
    code, out, err = run(capsys, *words)
    assert (code, out, err.count("\n"), "\x1b" in err) == (2, "", 1, False)
    code, out, err = run(capsys, "strip", tmp_path / bad, tmp_path / "c")
    assert (code, out, err.count("\n"), "\x1b" in err) == (2, "", 1, False)


def test_models_that_give_the_order_are_not_written_over(tmp_path: Path, capsys: Capsys) -> None:
    model, like = tmp_path / "training_model.onnx", tmp_path / "like"
    shutil.copy(MLP.training_model, model)
    shutil.copy(MLP.checkpoint, like)
    run(capsys, "to-npz", MLP.checkpoint, tmp_path / "c.npz")
    for words in (
        ("flat", MLP.checkpoint, model, "--model", model),
        ("from-npz", tmp_path / "c.npz", like, "--like", like),
        ("from-onnx", MLP.model, like, "--like", like),
        ("average", like, like, "--out", model, "--model", model),
    ):
        code, out, err = run(capsys, *words)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert "name another file" in err
    assert model.read_bytes() == MLP.training_model.read_bytes()
    assert like.read_bytes() == MLP.checkpoint.read_bytes()


def test_a_long_list_of_differences_is_cut(tmp_path: Path, capsys: Capsys) -> None:
    a = save_arrays(tmp_path / "a", **{f"w{i}": [0] for i in range(60)})
    b = save_arrays(tmp_path / "b", **{f"w{i}": [i] for i in range(60)})
    code, out, _ = run(capsys, "diff", a, b)
    lines = out.splitlines()
    assert (code, len(lines), lines[-1]) == (1, 41, "... and 19 more")
    assert lines[0] == "w59: 1 of 1 differ, by 59 at most"


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("to-npz", "no such file", "out"), "no such file"),
        (("to-npz", MLP.model, "out"), "no checkpoint"),
        (("to-safetensors", MLP.nominal_checkpoint, "out"), "fill it first"),
        (("from-safetensors", MLP.checkpoint, "out"), "safetensors file"),
        (("from-npz", MLP.checkpoint, "out"), "is no .npz file"),
        (("from-onnx", MLP.checkpoint, "out"), "is a training checkpoint"),
        (
            ("fill", MLP.checkpoint, MLP.model, "out", "--model", MLP.training_model),
            "no whole number",
        ),
        (("flat", MLP.checkpoint, "out", "--model", MLP.eval_model), "no training model"),
        (("rename", MLP.checkpoint, "out", "w9=v"), "did you mean"),
        (("to-adapter", MLP.checkpoint, "out"), "no parameter is named"),
        (("average", MLP.checkpoint, "--weights", "-1", "--out", "out"), "weights"),
        (("strip", MLP.checkpoint, "."), "folder"),
        (("inline", "no such file", "out"), "no such file"),
    ],
)
def test_a_users_mistake_is_one_line(
    words: tuple[object, ...],
    text: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capsys,
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *words)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("edge-train: ")
    assert text in err
    assert not list(tmp_path.iterdir())


def test_wrong_words(capsys: Capsys) -> None:
    for words, said in (
        ((), "VERB"),
        (("melt",), "melt"),
        (("rename", "a", "b", "c"), "expected OLD=NEW, got 'c'"),
        (("rename", "a", "b", "=c"), "expected OLD=NEW"),
        (("fill", "a", "b", "c"), "--model"),
        (("merge", "a"), "--out"),
        (("diff", "a", "b", "--tolerance", "x"), "invalid float"),
    ):
        code, out, err = run(capsys, *words)
        assert (code, out) == (2, "")
        assert said in err.splitlines()[-1]
    code, out, _ = run(capsys, "--help")
    assert code == 0
    assert "examples:" in out


@pytest.mark.slow
def test_no_verb_imports_onnxruntime(tmp_path: Path) -> None:
    """In a process of its own, the words of each converter's kind."""
    code = """
import sys
from edge_train import cli
checkpoint, model, out = sys.argv[1:]
for words in (["to-npz", checkpoint, out + "1"], ["from-npz", out + "1", out + "2"],
              ["to-safetensors", checkpoint, out + "1"], ["from-onnx", model, out + "3"],
              ["to-onnx", checkpoint, model, out + "4"], ["diff", checkpoint, out + "2"],
              ["average", checkpoint, checkpoint, "--out", out + "5"],
              ["transfer", checkpoint, checkpoint, out + "6"]):
    assert cli.main(["convert", *words]) == 0, words
for name in ("onnxruntime", "onnx", "torch", "numba"):
    assert name not in sys.modules, name
"""
    out = succeed(run_python(code, MLP.checkpoint, MLP.model, tmp_path / "out"))
    assert out.splitlines() == ["equal", "copied: 4 of 4"]


def test_the_tool_of_a_checkout(tmp_path: Path) -> None:
    command = [sys.executable, ROOT / "tools" / "convert.py", "diff", MLP.checkpoint, "no"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert done.stderr.startswith("edge-train: ")
