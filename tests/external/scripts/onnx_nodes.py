"""The node tests of the `onnx` package through a served node, against bare ONNX Runtime.

    onnx_nodes.py BINARY [ENGINE] [STEP]

A test counts if bare ONNX Runtime loads and runs it: then a node gives the same numbers, within 1e-6
(`onnxruntime`) or 1e-3 (`rten`). STEP takes each n-th test only.
"""

import collections
import sys
import tempfile
import warnings

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from onnx_edge import NAMES, Edge, Refused

warnings.simplefilter("ignore")
from onnx.backend.test.case.node import collect_testcases  # noqa: E402

binary = sys.argv[1]
engine = sys.argv[2] if len(sys.argv) > 2 else "onnxruntime"
step = int(sys.argv[3]) if len(sys.argv) > 3 else 1
CHUNK = 60
onnxruntime.set_default_logger_severity(4)


def served(array):
    """Whether the protocol has a datatype for it."""
    return isinstance(array, np.ndarray) and (array.dtype in NAMES or array.dtype.kind in "OUST")


def is_small(one):
    """Whether it has floats of 8 bits or integers of 4: Python has some of them as bytes."""
    return one.type.tensor_type.elem_type >= onnx.TensorProto.FLOAT8E4M3FN


def bare(case):
    """The inputs, by name, and what bare ONNX Runtime makes of them; or why there is nothing to compare."""
    given = [numpy_helper.to_array(one) if isinstance(one, onnx.TensorProto) else one for one in case.data_sets[0][0]]
    if not all(isinstance(array, (np.ndarray, np.generic)) for array in given):
        return "a list or nothing as input, which the protocol has not"
    if not all(served(np.asarray(array)) for array in given):
        return "an input of a type that the protocol has not"
    inputs = dict(zip([one.name for one in case.model.graph.input], map(np.asarray, given), strict=False))
    try:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.intra_op_num_threads = 1  # as ours: the order of sums depends on it
        session = onnxruntime.InferenceSession(case.model.SerializeToString(), options, ["CPUExecutionProvider"])
        feeds = {key: array.astype(object) if array.dtype.kind in "OUST" else array for key, array in inputs.items()}
        run_inputs = {}
        for key, array in feeds.items():
            bf16 = array.dtype not in (object,) and NAMES.get(array.dtype) == "BF16"
            run_inputs[key] = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array, 16) if bf16 else array
        if any(isinstance(value, onnxruntime.OrtValue) for value in run_inputs.values()):
            return "bfloat16, which NumPy has not"  # no mixture is taken, and no array of it given
        outputs = session.run(None, run_inputs)
    except Exception as error:
        return f"bare ONNX Runtime: {type(error).__name__}"
    names = [one.name for one in session.get_outputs()]
    return inputs, dict(zip(names, outputs, strict=True))


def same(ours, theirs):
    if isinstance(theirs, list):
        return False
    theirs = np.asarray(theirs)
    if theirs.dtype.kind in "OUST":
        return ours.shape == theirs.shape and [str(a) for a in ours.ravel()] == [str(b) for b in theirs.ravel()]
    if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
        return False
    if ours.tobytes() == theirs.tobytes():
        return True
    # The order of sums may depend on where a tensor lies in memory.
    tolerance = 1e-3 if engine == "rten" else 1e-6
    wide = [array.astype(np.float64) for array in (ours, theirs)]
    return theirs.dtype.kind != "i" and np.allclose(*wide, tolerance, tolerance, equal_nan=True)


def check(edge, case, name, expected):
    inputs, outputs = expected
    answer = edge.infer(name, inputs)
    wrong = [key for key, value in outputs.items() if key not in answer or not same(answer[key], value)]
    if wrong:
        raise Refused(f"another answer in {', '.join(wrong)}")


RANDOM = {"RandomNormal", "RandomUniform", "Multinomial", "Bernoulli", "RandomNormalLike", "RandomUniformLike"}
cases = [case for case in collect_testcases(None) if case.data_sets][::step]
outcomes = collections.Counter()
failures = []
todo = []
for case in cases:
    names_chance = "bernoulli" in case.name or "training" in case.name
    if names_chance or any(node.op_type in RANDOM for node in case.model.graph.node):
        outcomes["random, not compared"] += 1
        continue
    expected = bare(case)
    if isinstance(expected, str):
        outcomes[expected] += 1
    elif any(isinstance(value, (list, dict)) for value in expected[1].values()):
        outcomes["a list as output, which the protocol has not"] += 1
    elif any(map(is_small, case.model.graph.output)) or not all(served(np.asarray(a)) for a in expected[1].values()):
        outcomes["an output of a type that the protocol has not"] += 1
    else:
        todo.append((case, expected))


def run(chunk, directory):
    models = {}
    for index, (case, _) in enumerate(chunk):
        models[f"m{index}"] = f"{directory}/m{index}.onnx"
        onnx.save(case.model, models[f"m{index}"])
    with Edge(binary, directory, models, f'engine = "{engine}"\nthreads = 1\nbatched = false') as edge:
        for index, (case, expected) in enumerate(chunk):
            try:
                check(edge, case, f"m{index}", expected)
                outcomes["agree"] += 1
            except Refused as error:
                outcomes["fail"] += 1
                failures.append(f"{case.name}: {str(error)[:300]}")


def run_halved(chunk):
    """A model that does not load fails a whole node: the culprit is found by halves."""
    with tempfile.TemporaryDirectory() as directory:
        try:
            return run(chunk, directory)
        except Refused as error:
            if len(chunk) == 1:
                outcomes["does not load"] += 1
                failures.append(f"{chunk[0][0].name}: {str(error)[-300:].strip()}")
                return None
    run_halved(chunk[: len(chunk) // 2])
    return run_halved(chunk[len(chunk) // 2 :])


for at in range(0, len(todo), CHUNK):
    run_halved(todo[at : at + CHUNK])
for failure in failures:
    print("FAIL", failure)
print(f"{engine}: {outcomes['agree']} of {len(todo)} agree; {dict(outcomes)}")
sys.exit(engine == "onnxruntime" and outcomes["agree"] != len(todo))
