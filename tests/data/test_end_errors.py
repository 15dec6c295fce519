"""The dataset determines the class of the error at the end of the data, independent of other imports."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import mirrored as mr
{imports}
for made in (mr.data.Dataset.range(0), mr.OneDeviceStrategy("CPU:0").experimental_distribute_dataset([])):
    reading = iter(made)
    for take in (reading.get_next, reading.get_next_as_optional().get_value):
        try:
            take()
        except mr.errors.EndOfDataError as error:
            print(type(error).__module__, type(error).__name__)
"""


@pytest.mark.parametrize("imports", ["", "import mirrored.tf", "from mirrored.tf import data"])
@pytest.mark.first(1)
def test_importing_the_facade_changes_no_error(imports: str) -> None:
    program = PROGRAM.format(imports=imports)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=50, check=False)
    assert done.stdout.splitlines() == ["mirrored.errors EndOfDataError"] * 4, done.stderr
