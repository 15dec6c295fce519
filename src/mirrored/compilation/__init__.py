"""Compiled functions (`function`): traced once per signature, with variables as donated operands.

One call of a compiled function:

- `decorator`: makes a compiled function.
- `function`: looks up the program by the arguments' `signature`, or makes one.
- `input_signature`: checks the arguments against it; `static_keys`: cache keys of static arguments.
- `program`: traces the function once; variables that it reads become operands, and those that it assigns results.
- `captured_objects`, `frozen_state`: refuse functions whose Python state tracing would freeze into constants or mutate.
- `program_checks`: refuses strategies and devices that one program cannot combine, and variables as sizes or axes.
- `scan`: the leaves of a program's result, and the `lax.scan` that runs several steps of a function in one program.
- `dispatch`: donates the variables' buffers, stores the results in one C call, bounds the steps in flight.
- `concrete`, `binding`: concrete functions, export, methods.
- `ragged`, `rewinding`: check the loss scale of a function whose uneven batches run eagerly, by a trace that is undone.
- `retraces`: log messages about functions that are traced often, or that run eagerly because of uneven batches.
"""

from mirrored.compilation.decorator import function as function
from mirrored.compilation.function import Function as Function
