"""Models that other tools export, against the tools themselves: scikit-learn by skl2onnx, LightGBM by onnxmltools.

    onnx_exports.py BINARY
"""

import sys
import tempfile

import lightgbm
import numpy as np
import onnxmltools
import skl2onnx
from onnx_edge import Edge
from onnxmltools.convert.common.data_types import FloatTensorType as ToolsFloat
from skl2onnx.common.data_types import FloatTensorType, StringTensorType
from sklearn.compose import ColumnTransformer
from sklearn.datasets import load_iris
from sklearn.ensemble import RandomForestRegressor
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

x, y = load_iris(return_X_y=True)
x = x.astype(np.float32)
names = np.array(["setosa", "versicolor", "virginica"])[y]
rows = [("x", FloatTensorType([None, 4]))]

by_number = make_pipeline(StandardScaler(), LogisticRegression()).fit(x, y)
by_name = LogisticRegression(max_iter=500).fit(x, names)
forest = RandomForestRegressor(8, random_state=7).fit(x, y)
colours = np.array([["red", "small"], ["green", "large"], ["red", "large"], ["blue", "small"]] * 5)
encoder = ColumnTransformer([("encode", OneHotEncoder(), [0, 1])])
encoded = make_pipeline(encoder, LogisticRegression()).fit(colours, [0, 1, 1, 0] * 5)
trees = lightgbm.LGBMClassifier(n_estimators=8, verbose=-1).fit(x, y)

models = {
    "by_number": skl2onnx.to_onnx(by_number, initial_types=rows),
    "plain": skl2onnx.to_onnx(by_number, initial_types=rows, options={"zipmap": False}),
    "by_name": skl2onnx.to_onnx(by_name, initial_types=rows),
    "forest": skl2onnx.to_onnx(forest, initial_types=rows),
    "encoded": skl2onnx.to_onnx(encoded, initial_types=[("colours", StringTensorType([None, 2]))]),
    "trees": onnxmltools.convert_lightgbm(trees, initial_types=[("x", ToolsFloat([None, 4]))], zipmap=True),
}
with tempfile.TemporaryDirectory() as directory:
    files = {}
    for name, model in models.items():
        files[name] = f"{directory}/{name}.onnx"
        with open(files[name], "wb") as file:
            file.write(model.SerializeToString())
    with Edge(sys.argv[1], directory, files) as edge:
        for name, tool, classes in [
            ("by_number", by_number, "012"), ("by_name", by_name, by_name.classes_), ("trees", trees, "012"),
        ]:  # fmt: skip
            for row, label, scores in zip(x[::29], tool.predict(x[::29]), tool.predict_proba(x[::29]), strict=True):
                # LightGBM's converter declares one label, so that this model has no batch axis.
                answer = edge.json(name, [row.tolist()] if name == "trees" else row.tolist())
                if name == "trees":
                    answer = {key: value[0] for key, value in answer.items()}
                [label_key] = [key for key in answer if "label" in key]
                [scores_key] = [key for key in answer if "prob" in key]
                assert answer[label_key] == label, (name, answer, label)
                assert list(answer[scores_key]) == list(classes), (name, answer)
                assert np.allclose(list(answer[scores_key].values()), scores, atol=1e-5), (name, answer, scores)
        answer = edge.infer("plain", {"x": x})
        assert np.array_equal(answer["label"], by_number.predict(x))
        assert np.allclose(answer["probabilities"], by_number.predict_proba(x), atol=1e-5)
        answer = edge.infer("forest", {"x": x})
        assert np.allclose(answer["variable"].ravel(), forest.predict(x), atol=1e-4)
        for row, label in zip(colours[:4], encoded.predict(colours[:4]), strict=True):
            answer = edge.json("encoded", {"colours": row.tolist()})
            assert answer["output_label"] == label, answer
        document = edge.connection
        document.request("GET", "/openapi.json")
        text = document.getresponse().read().decode()
        assert '"additionalProperties"' in text
print("scikit-learn and LightGBM agree")
