//! Models that rten would compute wrongly are refused as they are loaded, and no others.

use std::error::Error as _;

use callboard_onnx::{EngineChoice, Model, OnnxConfig};

use crate::support::{self, BOOL, F32, F64, Fixed, Graph, I32, I64, Named, TempFile};

/// Why rten does not load it; `None` if it does.
fn refusal(graph: &Graph, opset: i64) -> Option<String> {
    let file = TempFile::new("unsupported", &graph.to_opset(opset));
    let config = OnnxConfig { engine: EngineChoice::Rten, ..OnnxConfig::new(&file.0) };
    Model::from_config(&config).err().map(|error| error.source().unwrap().to_string())
}

/// `y` of `x`, four axes of floats.
fn image() -> Graph {
    let axes = [Named("batch"), Fixed(2), Fixed(4), Fixed(4)];
    Graph::new().input("x", F32, &axes).output("y", F32, &[Named("a"), Named("b"), Named("c"), Named("d")])
}

/// `y` of `x`, with these axes.
fn floats(axes: &[i64]) -> Graph {
    let axes: Vec<_> = axes.iter().map(|length| Fixed(*length)).collect();
    Graph::new().input("x", F32, &axes).output("y", F32, &axes)
}

fn pool(operator: &str, side: i64) -> Graph {
    image().node(operator, &["x"], "y").with("kernel_shape", &[side, side]).with("strides", &[1, 1])
}

/// Windows of odd length, but steps of 2: what both ends get depends on the length.
fn strided() -> Graph {
    image().node("MaxPool", &["x"], "y").with("kernel_shape", &[3, 3]).with("strides", &[2, 2])
}

fn resize(mode: &str) -> Graph {
    let image = image().weight("scales", &[4], &[1.0, 1.0, 2.0, 2.0]);
    image.node("Resize", &["x", "", "scales"], "y").with_text("mode", mode)
}

fn gru(inputs: &[&str]) -> Graph {
    let graph = Graph::new().input("x", F32, &[Named("time"), Named("batch"), Fixed(1)]).input(
        "lengths",
        I32,
        &[Named("batch")],
    );
    let graph = graph.output("y", F32, &[Named("time"), Fixed(1), Named("batch"), Fixed(1)]);
    let graph = graph.weight("w", &[1, 3, 1], &[1.0; 3]).weight("r", &[1, 3, 1], &[1.0; 3]);
    graph.node("GRU", inputs, "y").with_int("hidden_size", 1).with_int("linear_before_reset", 1)
}

fn cast(from: i32, to: i32) -> Graph {
    let graph = Graph::new().input("x", from, &[Named("batch")]).output("y", to, &[Named("batch")]);
    graph.node("Cast", &["x"], "y").with_int("to", to.into())
}

/// Floats `between` two nodes, whose type only the first one tells, and a BOOL.
fn undeclared_floats() -> Graph {
    let graph =
        Graph::new().input("x", I64, &[Fixed(3)]).input("like", BOOL, &[Fixed(3)]).output("y", BOOL, &[Fixed(3)]);
    graph.node("Cast", &["x"], "between").with_int("to", F32.into())
}

fn product(axes: &[i64]) -> Graph {
    floats(axes).weight("w", &[4], &[1.0; 4]).node("MatMul", &["x", "w"], "y")
}

#[test]
fn what_is_computed_wrongly_is_refused_with_operator_and_attribute() {
    let integers = || Graph::new().input("x", I64, &[Named("batch"), Fixed(3)]).output("y", I64, &[Named("batch")]);
    let cases = [
        (integers().node("ArgMax", &["x"], "y").with_int("axis", 1), "ArgMax of integers"),
        (integers().node("ArgMin", &["x"], "y").with_int("axis", 1), "ArgMin of integers"),
        (
            Graph::new()
                .input("x", F64, &[Fixed(3)])
                .output("y", I64, &[Fixed(3)])
                .node("BitCast", &["x"], "y")
                .with_int("to", I64.into()),
            "BitCast with a `to` of 64 bits",
        ),
        (cast(F32, BOOL), "Cast of floats with `to` = BOOL"),
        (undeclared_floats().node("Cast", &["between"], "y").with_int("to", BOOL.into()), "Cast of floats"),
        (undeclared_floats().node("CastLike", &["between", "like"], "y"), "CastLike of floats to BOOL"),
        (pool("MaxPool", 2).with_text("auto_pad", "SAME_LOWER"), "MaxPool with `auto_pad` = \"SAME_LOWER\""),
        (pool("AveragePool", 2).with_text("auto_pad", "SAME_LOWER"), "AveragePool with `auto_pad`"),
        (strided().with_text("auto_pad", "SAME_LOWER"), "MaxPool with `auto_pad`"),
        (
            image()
                .weight("k", &[2, 2, 2, 2], &[1.0; 16])
                .node("Conv", &["x", "k"], "y")
                .with("kernel_shape", &[2, 2])
                .with_text("auto_pad", "SAME_LOWER"),
            "Conv with `auto_pad`",
        ),
        (gru(&["x", "w", "r", "", "lengths"]), "GRU with the input `sequence_lens`"),
        (product(&[2, 3, 4]), "MatMul of a stack of matrices with a vector"),
        (resize("cubic"), "Resize with `mode` = \"cubic\""),
        (floats(&[3]).node("Sign", &["x"], "y"), "Sign of floats"),
    ];
    for (graph, expected) in cases {
        let reason = refusal(&graph, 17).unwrap_or_else(|| panic!("loads: {expected}"));
        assert!(reason.contains(&format!("the operator {expected}")), "{reason}");
        assert!(reason.contains("; engine \"onnxruntime\" runs every model"), "{reason}");
    }
}

#[test]
fn boxes_are_not_suppressed_by_another_measure() {
    let graph = Graph::new().input("boxes", F32, &[Fixed(1), Named("n"), Fixed(4)]).input(
        "scores",
        F32,
        &[Fixed(1), Fixed(1), Named("n")],
    );
    let graph = graph.output("y", I64, &[Named("chosen"), Fixed(3)]);
    let reason = refusal(&graph.node("NonMaxSuppression", &["boxes", "scores"], "y"), 17).unwrap();
    assert!(reason.contains("NonMaxSuppression"), "{reason}");
}

#[test]
fn the_same_operators_are_loaded_where_they_are_computed_rightly() {
    for graph in [
        cast(I64, BOOL),
        pool("MaxPool", 2).with_text("auto_pad", "SAME_UPPER"),
        pool("MaxPool", 3).with_text("auto_pad", "SAME_LOWER"),
        gru(&["x", "w", "r"]),
        product(&[3, 4]),
        resize("linear"),
        Graph::new().input("x", I32, &[Fixed(3)]).output("y", I32, &[Fixed(3)]).node("Sign", &["x"], "y"),
        floats(&[2, 3, 4]).node("Softmax", &["x"], "y"),
        Graph::new().input("x", F32, &[Fixed(3)]).output("y", I64, &[Fixed(1)]).node("ArgMax", &["x"], "y"),
    ] {
        assert_eq!(refusal(&graph, 17), None, "{graph:?}");
    }
}

/// Until opset 12, a softmax is one over all axes from `axis` on, and the default of `axis` is 1.
#[test]
fn an_old_softmax_is_loaded_only_if_it_is_one_over_one_axis() {
    let softmax = |operator: &str, axes: &[i64], axis: Option<i64>| {
        let graph = floats(axes).node(operator, &["x"], "y");
        axis.into_iter().fold(graph, |graph, axis| graph.with_int("axis", axis))
    };
    for (axes, axis, is_loaded) in [
        (&[2, 3][..], None, true),
        (&[2, 3, 4], None, false),
        (&[2, 3, 4], Some(1), false),
        (&[2, 3, 4], Some(2), true),
        (&[2, 3, 4], Some(-1), true),
        (&[2, 3, 1, 1], None, false),
        (&[2, 3, 1, 1], Some(1), true),
    ] {
        for operator in ["Softmax", "LogSoftmax"] {
            let reason = refusal(&softmax(operator, axes, axis), 11);
            assert_eq!(reason.is_none(), is_loaded, "{operator} {axes:?} {axis:?}: {reason:?}");
        }
    }
    // The axes of a value between two nodes are not declared.
    let between = |operator: &str| floats(&[2, 3, 4]).node(operator, &["x"], "m").node("Softmax", &["m"], "s");
    let whole = |graph: Graph| graph.node("Reshape", &["s", "shape"], "y").input("shape", I64, &[Fixed(3)]);
    assert_eq!(refusal(&whole(between("Flatten")), 11), None);
    let reason = refusal(&whole(between("Relu")), 11).unwrap();
    assert!(reason.contains("Softmax before opset 13"), "{reason}");
}

#[test]
fn the_body_of_a_branch_is_looked_at_as_well() {
    let branch = |operator: &str| Graph::new().output("z", F32, &[Fixed(3)]).node(operator, &["x"], "z");
    let graph = floats(&[3]).input("condition", BOOL, &[]).node("If", &["condition"], "y");
    let both =
        |operator| graph.clone().with_graph("then_branch", branch("Abs")).with_graph("else_branch", branch(operator));
    assert_eq!(refusal(&both("Neg"), 17), None);
    assert!(refusal(&both("Sign"), 17).unwrap().contains("Sign of floats"));
}

#[test]
fn operators_that_are_newer_than_the_engine_are_refused() {
    let reason = refusal(&support::add(), 99).unwrap();
    assert!(reason.contains("opset 99") && reason.contains("opset 28") && reason.contains("onnxruntime"), "{reason}");
}
