"""Wrong usage, the same in every command: exit 2, which option or argument, and a way out."""

from __future__ import annotations

import ast
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner

import pipeline.errors
from calibration.float_layers import SHOWN, resolve
from cli.app import app
from cli.rows import read_rows
from fleet.main import main as host
from fleet.options import FEWEST_REQUESTS
from pipeline.errors import ConfigError, DataError, QwarmError
from pipeline.tensors import TensorSpec
from warmup import latency

CLI = Path(__file__).resolve().parents[2] / "cli"
SPECS = (TensorSpec("x", "float32", ("batch", 2)),)


def refused(*arguments: object) -> QwarmError:
    error = CliRunner().invoke(app, [str(argument) for argument in arguments]).exception
    assert isinstance(error, QwarmError), error
    assert error.next
    return error


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ("build absent --target openvino-cpu --out o", "MODEL"),
        ("lint absent --scheme cpu", "MODEL"),
        ("compare absent there --data there", "A"),
        ("compare there absent --data there", "B"),
        ("compare there there --data absent", "--data"),
        ("quantize absent --calibration there --scheme cpu --out o", "MODEL"),
        ("quantize there --calibration absent --scheme cpu --out o", "--calibration"),
        ("quantize there --calibration there --search absent --scheme cpu --out o", "--search"),
        ("quantize there --calibration there --ranges absent --scheme cpu --out o", "--ranges"),
        ("coldstart there --plan absent", "--plan"),
        ("coldstart there --data absent", "--data"),
        ("coldstart there --key absent", "--key"),
        ("firewall there absent", ""),
        ("replay there absent", ""),
        ("replay there --fleet absent", "--fleet"),
        ("replay there --lstm absent", "--lstm"),
        ("lstm absent --out o", ""),
    ],
)
def test_a_file_that_is_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: str, named: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("there").touch()
    error = refused(*arguments.split())
    assert error.exit_code == 2
    assert error.where == f"{named} absent".strip()


def test_every_error_of_the_command_line_says_what_to_do_next() -> None:
    kinds = {name for name, kind in vars(pipeline.errors).items() if isinstance(kind, type) and issubclass(kind, QwarmError)}
    calls = [(path.name, node) for path in CLI.glob("*.py") for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Call)]
    raised = [(name, node) for name, node in calls if isinstance(node.func, ast.Name) and node.func.id in kinds]
    assert len(raised) > 40
    silent = {f"{name}:{node.lineno}" for name, node in raised if "next" not in {keyword.arg for keyword in node.keywords}}
    assert not {place for place in silent if not place.startswith(ELSEWHERE)}


ELSEWHERE = ("stage.py", "waive.py", "lint.py", "lint_run.py")


def test_a_row_that_does_not_fit_names_the_file_and_only_options_that_there_are(tmp_path: Path) -> None:
    values = np.zeros((3, 2), np.float32)
    values[1, 1] = np.nan
    path = tmp_path / "rows.npz"
    np.savez(path, x=values)
    for quarantine, offered in ((None, False), (False, True)):
        with pytest.raises(DataError, match="not finite") as caught:
            read_rows(path, SPECS, columns={}, preprocess=None, label=None, class_names=(), quarantine=quarantine)
        assert caught.value.where == f"{path}, row 1, input x"
        assert ("--quarantine" in caught.value.next) == offered
    np.savez(path, x=values[:, :1])
    with pytest.raises(DataError, match="another shape") as caught:
        read_rows(path, SPECS, columns={}, preprocess=None, label=None, class_names=())
    assert caught.value.where == f"{path}, row 0, input x"


def test_a_column_or_a_function_that_is_not_there_names_the_option(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text("a,b\n1.5,2\n")
    with pytest.raises(DataError, match="lacks a column") as caught:
        read_rows(path, SPECS, columns={}, preprocess=None, label=None, class_names=())
    assert "--column" in caught.value.next
    with pytest.raises(ConfigError, match="cannot be imported") as missing:
        read_rows(path, SPECS, columns={"x": "a"}, preprocess=f"{tmp_path}/absent.py:f", label=None, class_names=())
    assert missing.value.next == "correct --preprocess"


def test_layers_that_are_not_listed_are_counted() -> None:
    import onnx

    body = " ".join(f"[layer{place}] h{place + 1} = Relu(h{place}) [dense{place}] g{place} = MatMul(h{place}, w)" for place in range(SHOWN + 3))
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["" : 20]> g (float[2, 2] h0, float[2, 2] w) => (float[2, 2] g0) {{ {body} }}')
    with pytest.raises(ConfigError, match=" and 3 more") as caught:
        resolve(model, ["zzz"], "--float-layer")
    assert caught.value.exit_code == 2


def test_too_few_requests_are_wrong_usage_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert FEWEST_REQUESTS == latency.FEWEST_REQUESTS
    with pytest.raises(SystemExit) as caught:
        host(["warm", str(tmp_path / "absent"), "--allow-unsigned", "--requests", str(FEWEST_REQUESTS - 1)])
    assert caught.value.code == 2
    assert "--requests" in capsys.readouterr().err
