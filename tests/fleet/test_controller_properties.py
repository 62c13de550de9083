"""What must hold whatever happens: the cap is kept, nothing in use or pinned is evicted, memory is promised once."""

from __future__ import annotations

from controlled import START, spec
from hypothesis import Phase as HPhase
from hypothesis import given, settings
from hypothesis import strategies as st

from fleet.controller import Controller
from fleet.models import Action, Kind, Phase


@settings(max_examples=100, deadline=None, phases=[HPhase.generate])
@given(st.data(), st.integers(2, 6), st.booleans())
def test_the_cap_holds_and_nothing_in_use_is_evicted(data: st.DataObject, count: int, foresight: bool) -> None:
    sizes = data.draw(st.lists(st.tuples(st.integers(1, 90), st.integers(0, 40)), min_size=count, max_size=count))
    pinned = data.draw(st.integers(0, 1))
    specs = [spec(f"m{i}", weights_mb=float(w), contexts_mb=float(c), pinned=i < pinned) for i, (w, c) in enumerate(sizes)]
    largest = max(item.size_mb for item in specs) + sum(item.size_mb for item in specs if item.pinned)
    cap = largest + data.draw(st.integers(0, 100))
    controller = Controller(specs, cap_mb=cap, foresight=foresight, price_s=data.draw(st.sampled_from([60.0, 6000.0])))
    now, running = START, []
    asked: dict[str, Action] = {}  # what each server was told last and has not done yet
    memory = dict.fromkeys(controller.models, 0.0)  # what servers hold, by what they were told

    def take(actions: list[Action]) -> None:
        for action in actions:
            model = controller.models[action.model]
            if action.kind is Kind.HURRY:
                assert action.model in asked  # a load, or an unload whose memory is waited for
                continue
            if action.kind is not Kind.LOAD and action.reason != "the load hangs":
                assert model.users == 0
                assert not model.spec.pinned
            asked[action.model] = action
            if action.kind is Kind.LOAD:
                memory[action.model] = model.spec.size_mb
            elif action.reason == "the load hangs":
                memory[action.model] = 0.0
                del asked[action.model]

    for _ in range(data.draw(st.integers(5, 60))):
        now += data.draw(st.sampled_from([0.0, 0.5, 20.0, 700.0, 90000.0]))
        step = data.draw(st.sampled_from(["request", "done", "server", "fail", "lose", "tick"]))
        if step == "request":
            name = data.draw(st.sampled_from(sorted(controller.models)))
            take(controller.request(name, now))
            running.append(name)
        elif step == "done" and running:
            take(controller.done(running.pop(data.draw(st.integers(0, len(running) - 1))), now))
        elif step in ("server", "fail") and asked:
            action = asked.pop(data.draw(st.sampled_from(sorted(asked))))
            if action.kind is not Kind.LOAD:
                memory[action.model] = controller.models[action.model].spec.weights_mb if action.kind is Kind.DROP_CONTEXTS else 0.0
                take(controller.unloaded(action.model, now))
            else:
                memory[action.model] *= step == "server"
                take(controller.failed(action.model, now, "no") if step == "fail" else controller.loaded(action.model, now))
        elif step == "lose":
            warm = [name for name, model in controller.models.items() if model.phase is Phase.WARM]
            if warm:
                name = data.draw(st.sampled_from(warm))
                memory[name] = 0.0
                asked.pop(name, None)
                take(controller.lost(name, now, "died"))
        else:
            take(controller.tick(now))
        assert controller.arbiter.used_mb <= cap + 1e-6
        assert sum(memory.values()) <= cap + 1e-6
        assert all(model.idle_s >= 0.0 for model in controller.models.values())
