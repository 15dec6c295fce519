"""Decides which failing cells are out of scope, because they need features that only TensorFlow has.

Every cell runs. A failing cell is out of scope if its error or its text refers to such a feature, or if it uses a name
that only a cell out of scope would have defined.
"""

from __future__ import annotations

import re
from typing import Final

# (reason, pattern in the text of a failing cell)
TOPICS: Final = (
    ("string tensors", r"tf\.strings\b|tf\.string\b|tf\.as_string|tf\.lookup"),
    ("string tensors", r"tf\.(constant|Variable)\(\s*\[*\s*(b|u)?[\"']"),
    ("string tensors", r"tf\.io\.(parse_|decode_|serialize_|read_file|FixedLen|VarLen|encode_)"),
    ("string tensors", r"tf\.train\.(Example|Features?|\w+List)\b|tf\.keras\.layers\.(StringLookup|TextVectorization)"),
    ("ragged tensors", r"tf\.ragged\b|tf\.Ragged|\.to_tensor\(|\.ragged_batch\("),
    ("sparse tensors", r"tf\.sparse\b|tf\.Sparse|tf\.IndexedSlicesSpec"),
    ("graph introspection", r"autograph\.to_code|FuncGraph|trace_export|trace_on|graph=True|wrap_function"),
    (
        "graph introspection",
        r"\.graph\b|as_graph_def|tf\.Graph\b|\.get_operations\(|\.structured_(outputs|input_signature)",
    ),
    ("graph introspection", r"pretty_printed\w*_signature|function_type|tf\.types\.experimental"),
    ("a gradient that TensorFlow lacks", r"tf\.image\.adjust_contrast[\s\S]*LookupError"),
    ("TPU", r"TPU|tf\.tpu\b"),
    ("parameter servers", r"ParameterServer|ClusterCoordinator|tf\.distribute\.Server|CentralStorage"),
    ("DTensor", r"dtensor"),
    ("extension types", r"ExtensionType|BatchableExtensionType|dispatch_for|tf\.experimental\.dispatch"),
    ("TensorFlow Lite", r"tf\.lite\b|TFLite"),
    ("TensorFlow 1", r"tf\.estimator|tf\.feature_column|tf\.compat\.v1|tf1\."),
    ("TensorFlow's private modules", r"tensorflow\.python|from tensorflow\.(tools|core)\b"),
    ("TensorFlow Hub", r"\bhub\.|tensorflow_hub"),
    ("other packages of TensorFlow", r"tensorflow_(text|addons|models|docs|probability|io|recommenders)"),
    ("other packages of TensorFlow", r"\btf_?models\b|\btfp\b\."),
)
_TOPICS: Final = tuple((reason, re.compile(pattern)) for reason, pattern in TOPICS)

# (reason, pattern in the type and message of the error)
_ERRORS: Final = (
    (
        "string tensors",
        r"with an unsupported type \(<class '(str|bytes|list|numpy\.ndarray)'>\) to a Tensor: .*strings",
    ),
    ("download", r"^(URLError|ConnectionError|NoNetworkError|HTTPError|MaxRetryError|gaierror)\b"),
    ("download", r"URL fetch failure|NoNetworkError|no network"),
    ("works here, an error on TensorFlow", r"^Exception: Expected <class '\w+'> to be raised but no error was raised"),
    # The notebook is older than Keras 3. Each of these was run on TensorFlow 2.21 with Keras 3.15 (the cells themselves
    # where possible) and fails there with the same error (21 November 2026).
    (
        "fails on TensorFlow, too (Keras 3)",
        r"filename must end in `\.weights\.h5`|Invalid filepath extension for saving",
    ),
    (
        "fails on TensorFlow, too (Keras 3)",
        r"File format not supported: filepath=|Only input tensors may be passed as pos",
    ),
    ("fails on TensorFlow, too (Keras 3)", r"'\w+' object has no attribute '(submodules|reset_states|save_spec)'"),
    ("fails on TensorFlow, too (Keras 3)", r"argument\(s\) are not supported: \['options'\]"),
    ("fails on TensorFlow, too (Keras 3)", r"^ValueError: `name` must be passed as a keyword argument"),
    ("fails on TensorFlow, too (Keras 3)", r"^ValueError: A KerasTensor cannot be used as input to a "),
    (
        "fails on TensorFlow, too (Keras 3)",
        r"^TypeError: Layer\.__init__\(\) takes 1 positional argument but 2 were given",
    ),
    (
        "fails on TensorFlow, too (Keras 3)",
        r"^ValueError: Received an invalid value for `units`|^ValueError: You tried to call `count_params` on layer",
    ),
    ("fails on TensorFlow, too (Keras 3)", r"^ImportError: `keras\.optimizers\.legacy` is not supported in Keras 3"),
    ("other packages", r"^ModuleNotFoundError: No module named '(?!mirrored['.]|keras['.])"),
    ("other packages", r"^ImportError: You must install pydot"),
)
_ERROR_TOPICS: Final = tuple((reason, re.compile(pattern, re.DOTALL)) for reason, pattern in _ERRORS)


def reason_out(source: str, error: str) -> str | None:
    """Returns why a failing cell is out of scope; None if it is in scope.

    Args:
        source: The text of the cell.
        error: ``"Type: message"`` of its error.
    """
    for reason, pattern in _ERROR_TOPICS:
        if pattern.search(error):
            return f"{reason} ({error.partition(chr(10))[0][:80]})" if reason == "other packages" else reason
    code = "\n".join(line for line in source.splitlines() if not line.lstrip().startswith("#"))
    return next((reason for reason, pattern in _TOPICS if pattern.search(code)), None)
