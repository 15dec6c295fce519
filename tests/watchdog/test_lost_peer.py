from __future__ import annotations

from mirrored.watchdog.collective_log import CollectiveLog
from mirrored.watchdog.fail_fast_exit import FOLLOWS, lost_worker_error


def test_the_worker_is_named_with_where_and_when_it_was_last_seen():
    roll = CollectiveLog()
    roll.arrive("call step", "train.py:7 in main")
    standing = roll.progress(beat=1, has_ended=False, name="host1, process 7")
    told = str(lost_worker_error(1, standing, "", 0.42))
    assert "worker 1 (host1, process 7) was lost without an exit report" in told
    assert "it was last seen 0.4 s ago, at operation 1: call step (time 1) at train.py:7 in main" in told
    assert "restart all workers: they resume from the newest checkpoint" in told


def test_last_words_take_the_place_of_guesses():
    told = lost_worker_error(2, None, "ended by ValueError: no data", 3.0)
    assert told.found == "worker 2 ended by ValueError: no data"
    assert FOLLOWS not in told.found
