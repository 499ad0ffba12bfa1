"""A coordinator that is killed anywhere draws once, and loses nothing."""

from __future__ import annotations

import pytest
from tests.support.lifecycle import Killed, World

from penstock.wire.messages import StudyState
from penstock_server.store.store import Store


class CrashingStore(Store):
    """Killed at the n-th writing transaction, before it or just after its commit."""

    countdown = 10**9
    after = False

    def __init__(self, url):
        super().__init__(url)
        self._begin, self.database.begin = self.database.begin, self._crash

    def _crash(self):
        outer = self._begin()
        type(self).countdown -= 1
        dies = type(self).countdown == 0
        if dies and not self.after:
            raise Killed
        return self._dying(outer) if dies else outer

    def _dying(self, outer):
        class Dying:
            def __enter__(_):
                return outer.__enter__()

            def __exit__(_, *error):
                outer.__exit__(*error)
                raise Killed

        return Dying()


def check_one_draw_each(world, study):
    assert world.state(study) is StudyState.FINISHED
    assert world.states(study) == {"a": "delivered", "b": "delivered"}
    for name, gate in world.gates.items():
        ((data, manifest),) = [job["release"] for job in gate.jobs.values()]
        (part,) = [p for p in world.c.store.studies.parts(study) if p.site == name]
        assert gate.draws == 1
        assert part.manifest == manifest
        assert world.c.folder.table(study, name).read_bytes() == data
    assert set(world.finished) == {study}
    assert world.waiting() == []
    assert world.c.store.mailbox.inbox() == []


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_a_kill_at_any_transaction_loses_nothing_and_draws_once(tmp_path, monkeypatch, after):
    monkeypatch.setattr(CrashingStore, "after", after)
    killed = 0
    for point in range(1, 100):
        folder = tmp_path / str(point)
        folder.mkdir()
        world = World(folder)
        study = world.submit()
        world.c.store.close()
        world.open(CrashingStore)
        monkeypatch.setattr(CrashingStore, "countdown", point)
        try:
            world.run()
        except Killed:
            killed += 1
        else:
            world.c.store.close()
            break
        world.c.store.close()
        world.open()
        world.run()
        check_one_draw_each(world, study)
        world.c.store.close()
    # Two sites' submit, poll and collect, each received and handled, and what each said of itself;
    # the last answer, the lease of the results, and the end.
    assert killed == 17


@pytest.mark.parametrize("verb", ["submit", "poll", "collect"])
@pytest.mark.parametrize("effect", [False, True])
def test_a_kill_during_a_call_loses_nothing_and_draws_once(world, verb, effect):
    dead = []

    def dying(message, table):
        if message.verb == verb and not dead:
            dead.append(1)
            if effect:
                world.gates["a"](message, table)
            raise Killed
        return world.gates["a"](message, table)

    world.network.sites["a"] = dying
    study = world.submit()
    with pytest.raises(Killed):
        world.run()
    world.c.store.close()
    world.open()
    world.run()
    check_one_draw_each(world, study)


def test_a_kill_while_results_are_made_makes_them_again(world):
    def dying(study_id, moment):
        world.finished.append(study_id)
        if len(world.finished) == 1:
            raise Killed

    world.finish = dying
    study = world.submit()
    with pytest.raises(Killed):
        world.run()
    world.c.store.close()
    world.open()
    world.run()
    assert world.finished == [study, study]
    check_one_draw_each(world, study)
