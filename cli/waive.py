"""`qwarm waive`: sign an entry of `release.waivers`, for whoever may let a check ship that does not pass."""

from __future__ import annotations

import datetime
import json
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml

from pipeline.errors import ConfigError
from pipeline.nearest import nearest


def entry(release: str, target: str, check: str, why: str, by: str, expires: str, key: Path, granted: datetime.date) -> dict[str, Any]:
    """The signed entry; raises ConfigError for what params.yaml would not take, and for a key that cannot be used."""
    from pydantic import ValidationError

    from pipeline.release_config import WaiverConfig
    from release import waivers

    plain = {"target": target, "check": check, "why": why, "by": by, "granted": granted.isoformat(), "expires": expires}
    try:
        checked = WaiverConfig.model_validate({**plain, "signature": ""}).model_dump(mode="json", exclude={"signature"})
    except ValidationError as error:
        problem = error.errors()[0]
        where = ".".join(str(part) for part in problem["loc"]) or "--until"
        got = repr(problem["input"])[:120] if problem["loc"] else f"{plain['granted']} to {expires}"
        raise ConfigError("The waiver does not fit", where=where, expected=problem["msg"].removeprefix("Value error, "), got=got) from error
    return {**checked, "signature": waivers.sign(release, checked, key)}


def refuse_unknown(release: str, target: str, check: str) -> None:
    """Raise ConfigError for a name that no waiver can be for: of the project in the current folder, or, where there is none, of any."""
    import engines
    from pipeline.config import load_config
    from release.check_names import CHECKS, OWN_METRIC, check_names
    from stages import paths

    config = load_config(paths.PARAMS) if paths.PARAMS.exists() else None
    checks = check_names(config.gates) if config else tuple(CHECKS)
    known = {
        "NAME": (release, [config.release.name] if config else [release]),
        "--target": (target, [*config.targets] if config else [*engines.targets()]),
        "--check": (check, [*checks, *(OWN_METRIC[name] for name in checks if name in OWN_METRIC)]),
    }
    for option, (given, names) in known.items():
        if given not in names:
            of = f"the project here ({paths.PARAMS})" if config else "any project"
            raise ConfigError(f"A waiver of this would do nothing in {of}", where=option, expected=nearest(given, names), got=given)


def waive(
    release: Annotated[str, typer.Argument(metavar="NAME", help="release.name of params.yaml")],
    target: Annotated[str, typer.Option(help="the target that may ship")],
    check: Annotated[str, typer.Option(help="the check that need not pass, as the report names it")],
    why: Annotated[str, typer.Option(help="the reason, as the report will show it")],
    by: Annotated[str, typer.Option(help="who grants it")],
    until: Annotated[str, typer.Option(metavar="YYYY-MM-DD", help="the last day on which it holds")],
    key: Annotated[Path, typer.Option(help="the granter's private key (PEM, mode 0600)")],
    json_output: Annotated[bool, typer.Option("--json", help="one JSON object on standard output")] = False,
) -> None:
    """Print a signed waiver to add to `release.waivers.entries` in params.yaml; its public key stands in `release.waivers.key`."""
    from release.waivers import today

    refuse_unknown(release, target, check)
    made = entry(release, target, check, why, by, until, key, today())
    typer.echo(json.dumps(made) if json_output else yaml.safe_dump([made], sort_keys=False, allow_unicode=True, width=140).rstrip())
