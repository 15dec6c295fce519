"""Names by which the workers of a job match variables."""

import mirrored as mr
from mirrored.variables.storage import MADE_ALONE, distinct_names


def test_a_variable_made_by_each_worker_has_one_name_whatever_else_a_worker_passes():
    """It had the name of a variable of the strategy that only another worker passed."""
    own, first, second, own_too = (mr.Variable(0.0, name="w") for _ in range(4))
    first.number_of_name, second.number_of_name = 1, 2  # as if all workers had created them together
    both = [distinct_names([own, one], alone=MADE_ALONE) for one in (first, second)]
    assert both[0][id(own)] == both[1][id(own)] == "w (made by each worker)"
    assert [names[id(one)] for names, one in zip(both, (first, second), strict=True)] == [
        "w",
        "w (number 2 of this name)",
    ]
    assert distinct_names([own_too, own], alone=MADE_ALONE)[id(own_too)].endswith(" (number 2 of this name)")
    assert distinct_names([own]) == {id(own): "w"}
