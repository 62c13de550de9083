"""The gate on rebuilding: a second build of the recipe must answer as the engine that ships does, or one build says little of the next."""

from __future__ import annotations

from pipeline.records import Check, Rebuild, Verdict

NAME = "rebuild_variance"


def rebuild_check(rebuild: Rebuild | None, bound_db: float) -> Check:
    """PASS where no output of the second build is further off than `bound_db`, else FAIL; NOT_MEASURED where no row was run.

    There is no interval: on the rows that were run the difference is what it is.
    """
    if rebuild is None or not rebuild.rows:
        why = "it was not built a second time" if rebuild is None else "the target does not run here"
        return Check(NAME, Verdict.NOT_MEASURED, None, None, bound_db, "min", "dB", why, "run `dvc repro` where the target runs")
    worst = min((value for value in rebuild.sqnr_db_by_output.values() if value is not None), default=None)
    verdict = Verdict.PASS if worst is None or worst >= bound_db else Verdict.FAIL
    files = f"other bytes in {', '.join(rebuild.differing_files)}" if rebuild.differing_files else "equal bytes"
    answers = "equal outputs" if worst is None else f"{worst:.1f} dB at the worst output"
    evidence = f"built twice: {files}; {answers} on {rebuild.rows} rows"
    if rebuild.agreement is not None:
        evidence += f", the same largest value in {rebuild.agreement:.2%} of them"
    decide = "" if verdict is Verdict.PASS else "`qwarm build MODEL --target T --out DIR --twice`; a repeatable build (targets.tensorrt.repeatable)"
    return Check(NAME, verdict, worst, None, bound_db, "min", "dB", evidence, decide)
