#!/usr/bin/env python3
"""Trains the digits classifier and writes everything beside this script that the example serves and tests.

    python -m venv venv && venv/bin/pip install scikit-learn onnx onnxruntime pillow
    venv/bin/python examples/digits/train.py

* digits.onnx     the model: plain ai.onnx operators, a symbolic batch axis
* heldout.jsonl   every held-out image as PNG, its label, and what the model says about it
* seven.png, ...  a few held-out images, large enough to look at

Predictions are recorded by running the ONNX file that was written, on the bytes of the PNG that was written, through
the same steps that callboard.toml configures. They can be compared bit for bit on any engine: pixels are whole numbers
of sixteenths and weights are rounded to whole numbers of 1/64, so every product and every sum is exact in a float32,
in whichever order an engine adds them up. The script proves that before it writes anything.
"""

import base64
import io
import json
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper, numpy_helper
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

HERE = Path(__file__).resolve().parent
SEED = 7
HIDDEN = 64
OPSET = 17
IR_VERSION = 8
WEIGHT_STEP = 1 / 64  # Coarse enough that sums stay exact; the accuracy printed below is that of the rounded weights.
PIXEL_STEP = 1 / 16  # `scale` in callboard.toml.
HELDOUT_PIXELS = 32  # The size at which the digits were scanned before they were counted down to 8 x 8.
SAMPLE_PIXELS = 80
SAMPLES = {"zero": 0, "three": 3, "five": 5, "seven": 7, "eight": 8}


def to_png(levels: np.ndarray, side: int) -> bytes:
    """An 8 x 8 digit of 17 grey levels (0..16) as a grey PNG of side x side pixels, each level a square."""
    grey = np.minimum(levels.reshape(8, 8) * 16, 255).astype(np.uint8)
    square = side // 8
    out = io.BytesIO()
    Image.fromarray(np.kron(grey, np.ones((square, square), np.uint8)), mode="L").save(out, "PNG", optimize=True)
    return out.getvalue()


def from_png(png: bytes) -> np.ndarray:
    """What the `image` stage does with these bytes: grey, mean over areas down to 8 x 8, scale; [1, 8, 8]."""
    grey = np.asarray(Image.open(io.BytesIO(png)).convert("L"), np.float64)
    square = grey.shape[0] // 8
    small = grey.reshape(8, square, 8, square).mean(axis=(1, 3))
    return (small * PIXEL_STEP).astype(np.float32).reshape(1, 8, 8)


def on_grid(weights: np.ndarray) -> np.ndarray:
    return (np.round(weights / WEIGHT_STEP) * WEIGHT_STEP).astype(np.float32)


def train(images: np.ndarray, labels: np.ndarray) -> list[np.ndarray]:
    """A perceptron with one hidden layer: [W1, b1, W2, b2], each a multiple of WEIGHT_STEP."""
    # The weight decay keeps the weights small, and with them the sums that have to fit 24 bits.
    network = MLPClassifier((HIDDEN,), alpha=0.05, max_iter=1000, random_state=SEED)
    network.fit(images.reshape(len(images), 64), labels)
    (w1, w2), (b1, b2) = network.coefs_, network.intercepts_
    return [on_grid(w) for w in (w1, b1, w2, b2)]


def to_onnx(weights: list[np.ndarray]) -> onnx.ModelProto:
    """Flatten, Gemm, Relu, Gemm: [batch, 1, 8, 8] of 0..16 to [batch, 10] logits."""
    graph = helper.make_graph(
        [
            helper.make_node("Flatten", ["image"], ["pixels"], axis=1),
            helper.make_node("Gemm", ["pixels", "w1", "b1"], ["hidden"]),
            helper.make_node("Relu", ["hidden"], ["active"]),
            helper.make_node("Gemm", ["active", "w2", "b2"], ["logits"]),
        ],
        "digits",
        [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["batch", 1, 8, 8])],
        [helper.make_tensor_value_info("logits", TensorProto.FLOAT, ["batch", 10])],
        [numpy_helper.from_array(w, name) for w, name in zip(weights, ["w1", "b1", "w2", "b2"])],
    )
    model = helper.make_model(
        graph,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=IR_VERSION,
        producer_name="callboard examples/digits/train.py",
    )
    onnx.checker.check_model(model, full_check=True)
    return model


def prove_exact(weights: list[np.ndarray], images: np.ndarray) -> np.ndarray:
    """The logits in whole numbers; fails if a float32 could have rounded any partial sum on the way."""
    w1, b1, w2, b2 = (np.round(w / WEIGHT_STEP).astype(np.int64) for w in weights)
    x = np.round(images.reshape(len(images), 64) / PIXEL_STEP).astype(np.int64)
    per_unit = round(1 / PIXEL_STEP)
    hidden = np.maximum(x @ w1 + b1 * per_unit, 0)
    per_unit *= round(1 / WEIGHT_STEP)
    logits = hidden @ w2 + b2 * per_unit
    # The sum of all magnitudes bounds every partial sum in every order.
    largest = max((x @ abs(w1)).max() + abs(b1).max() * 16, (hidden @ abs(w2)).max() + abs(b2).max() * per_unit)
    assert largest < 2**24, f"a sum reaches {largest}, a float32 holds whole numbers below {2**24}"
    return (logits * WEIGHT_STEP * WEIGHT_STEP * PIXEL_STEP).astype(np.float32)


def main() -> None:
    digits = load_digits()
    images, heldout, labels, heldout_labels = train_test_split(
        digits.images, digits.target, test_size=0.2, random_state=SEED, stratify=digits.target
    )
    weights = train(np.minimum(images, 255 / 16), labels)
    path = HERE / "digits.onnx"
    onnx.save(to_onnx(weights), path)

    pngs = [to_png(image, HELDOUT_PIXELS) for image in heldout]
    inputs = np.stack([from_png(png) for png in pngs])
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (logits,) = session.run(["logits"], {"image": inputs})
    assert np.array_equal(logits, prove_exact(weights, inputs)), "onnxruntime and whole numbers differ"
    top = np.sort(logits, axis=1)
    assert (top[:, -1] > top[:, -2]).all(), "a tie: the largest logit would depend on the engine"
    predictions = logits.argmax(axis=1)

    with (HERE / "heldout.jsonl").open("w") as out:
        for png, label, prediction, row in zip(pngs, heldout_labels, predictions, logits):
            line = {
                "png": base64.b64encode(png).decode(),
                "label": int(label),
                "prediction": int(prediction),
                "logits": [float(logit) for logit in row],
            }
            out.write(json.dumps(line, separators=(",", ":")) + "\n")

    margin = top[:, -1] - top[:, -2]
    for name, digit in SAMPLES.items():
        # The clearest one of its kind that the model never saw.
        clearest = np.where((heldout_labels == digit) & (predictions == digit), margin, -1).argmax()
        (HERE / f"{name}.png").write_bytes(to_png(heldout[clearest], SAMPLE_PIXELS))

    correct = int((predictions == heldout_labels).sum())
    print(f"trained on {len(images)} images, seed {SEED}, hidden {HIDDEN}")
    print(f"held out: {correct} of {len(heldout)} right ({correct / len(heldout):.2%})")
    print(f"digits.onnx: {path.stat().st_size} bytes, opset {OPSET}, IR version {IR_VERSION}")


if __name__ == "__main__":
    main()
