//! callboard-onnx.
