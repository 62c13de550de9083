"""The typer application: every subcommand, its options and help. Imported only when a command needs it."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from cli import build as build_command
from cli import cache as cache_command
from cli import coldstart as coldstart_command
from cli import compare as compare_command
from cli import compatibility as compatibility_command
from cli import diff as diff_command
from cli import doctor as doctor_command
from cli import firewall as firewall_command
from cli import gate as gate_command
from cli import init as init_command
from cli import lint as lint_command
from cli import lstm as lstm_command
from cli import publish as publish_command
from cli import quantize as quantize_command
from cli import replay as replay_command
from cli import stage as stage_command
from cli import waive as waive_command
from cli.main import HOST_COMMANDS, run_host

app = typer.Typer(
    name="qwarm",
    help="Quantization-aware warm-up: a trained torch model to a bundle that answers its first request in INT8 at full speed.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.command(help="Say what this machine can build, run and measure, and what is missing for the rest.")
def doctor(json_output: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False) -> None:
    raise SystemExit(doctor_command.doctor(json_output))


@app.command(help="Write a starter for a model of your own: a git and DVC repository in DIR, ready for `dvc repro`.")
def init(
    folder: Annotated[str, typer.Argument(metavar="DIR", help="a new or an empty folder")],
    kind: Annotated[str, typer.Option(help=", ".join(init_command.kinds()))],
    json_output: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False,
) -> None:
    made = init_command.init(folder, kind)
    typer.echo(json.dumps(made) if json_output else init_command.describe(made))


@app.command(help="Run one stage of dvc.yaml in the current folder: NAME, and ITEM for a stage that runs per target or scheme.")
def stage(
    name: Annotated[str, typer.Argument(help=", ".join(stage_command.names()))],
    item: Annotated[str | None, typer.Argument(help="a target or a scheme")] = None,
) -> None:
    stage_command.stage(name, item)


app.add_typer(cache_command.cache, name="cache")
app.command(name="firewall")(firewall_command.firewall)
app.command(name="coldstart")(coldstart_command.coldstart)
app.command(name="gate")(gate_command.gate)
app.command(name="lint")(lint_command.lint)
app.command(name="build")(build_command.build)
app.command(name="compare")(compare_command.compare)
app.command(name="compatibility")(compatibility_command.compatibility)
app.command(name="quantize")(quantize_command.quantize)
app.command(name="diff")(diff_command.diff)
app.command(name="publish")(publish_command.publish)
app.command(name="waive")(waive_command.waive)
app.command(name="lstm")(lstm_command.lstm)
app.command(name="replay")(replay_command.replay)


def _mount(name: str, text: str) -> None:
    @app.command(name=name, help=text, add_help_option=False, context_settings={"ignore_unknown_options": True, "allow_extra_args": True})
    def host(context: typer.Context) -> None:
        raise SystemExit(run_host([name, *context.args]))


for _name, _text in HOST_COMMANDS.items():
    _mount(_name, _text)
