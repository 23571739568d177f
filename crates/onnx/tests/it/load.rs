//! Loading a model: valid files, and the errors of invalid files.

use std::error::Error as _;

use callboard_onnx::{BatchAxis, EngineChoice, LoadError, Model, OnnxConfig};

use crate::support::{F32, Fixed, Graph, Named, TempFile, U32, abs, add};

/// The whole chain in one line, as a command line prints it.
fn error_line(error: &LoadError) -> String {
    let mut line = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        line = format!("{line}: {cause}");
        source = cause.source();
    }
    assert!(!line.contains('\n'), "more than one line: {line}");
    line
}

fn refusal(result: Result<Model, LoadError>) -> String {
    error_line(&result.unwrap_err())
}

fn digits() -> String {
    format!("{}/../../examples/digits/digits.onnx", env!("CARGO_MANIFEST_DIR"))
}

#[test]
fn a_missing_file_is_one_line_with_path_and_reason() {
    let line = refusal(Model::load("no/such/model.onnx"));
    assert!(line.starts_with("cannot read model no/such/model.onnx: No such file"), "{line}");
}

#[test]
fn a_directory_is_not_a_model() {
    let line = refusal(Model::load(env!("CARGO_MANIFEST_DIR")));
    assert!(line.contains("cannot read model") && line.contains("directory"), "{line}");
}

#[test]
fn an_empty_or_foreign_file_is_reported_as_not_onnx() {
    for (name, content) in [("empty", &b""[..]), ("html", b"<!doctype html>"), ("zeros", &[0; 100])] {
        let file = TempFile::new(name, content);
        let line = refusal(Model::load(&file.0));
        assert!(line.contains(file.0.to_str().unwrap()) && line.contains("not an ONNX file"), "{line}");
    }
}

#[test]
fn a_file_truncated_at_any_byte_is_an_error() {
    let whole = std::fs::read(digits()).unwrap();
    for length in (0..whole.len()).step_by(997) {
        let file = TempFile::new("cut", &whole[..length]);
        refusal(Model::load(&file.0));
    }
}

#[test]
fn a_damaged_file_is_a_model_or_an_error() {
    let whole = add().to_onnx();
    for index in 0..whole.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut damaged = whole.clone();
            damaged[index] ^= flip;
            let file = TempFile::new("damaged", &damaged);
            if let Err(error) = Model::load(&file.0) {
                error_line(&error);
            }
        }
    }
}

#[test]
fn an_unknown_operator_is_named() {
    let graph = Graph::new().input("x", F32, &[Fixed(2)]).output("y", F32, &[Fixed(2)]).node("NoSuchOp", &["x"], "y");
    let line = refusal(graph.load("operator"));
    assert!(line.contains("NoSuchOp"), "{line}");
}

#[test]
fn an_unsupported_dtype_is_named() {
    let line = refusal(abs(U32, &[Named("batch"), Fixed(2)]).load("dtype"));
    assert!(line.ends_with("rten does not compute in u32, the type of `x`; ONNX Runtime does"), "{line}");
}

#[test]
fn batched_may_be_disabled_but_not_forced() {
    let file = TempFile::new("overruled", &add().to_onnx());
    let mut config = OnnxConfig::new(&file.0);
    config.batched = Some(false);
    assert_eq!(Model::from_config(&config).unwrap().signature().batch_axis(), BatchAxis::Absent);

    let file = TempFile::new("invented", &abs(F32, &[Fixed(2)]).to_onnx());
    let mut config = OnnxConfig::new(&file.0);
    config.batched = Some(true);
    let line = refusal(Model::from_config(&config));
    assert!(line.ends_with("x: f32 [2] → y: f32 [2] has no batch axis"), "{line}");
}

#[test]
fn an_unknown_key_is_refused() {
    let error = serde_json::from_str::<OnnxConfig>(r#"{"model": "m.onnx", "thread": 1}"#).unwrap_err();
    assert!(error.to_string().contains("unknown field `thread`"), "{error}");
}

#[test]
fn a_model_with_its_own_threads_has_the_same_signature() {
    let config: OnnxConfig = serde_json::from_value(serde_json::json!({ "model": digits(), "threads": 1 })).unwrap();
    let model = Model::from_config(&config).unwrap();
    assert_eq!(model.signature(), Model::load(digits()).unwrap().signature());
}

/// As the cache of Hugging Face has them: names that lead to files under other names, elsewhere.
#[cfg(unix)]
#[test]
fn weights_are_beside_the_name_of_the_model_and_not_beside_what_the_name_leads_to() {
    use std::fs;
    use std::os::unix::fs::symlink;

    let graph = |weights: &str| {
        Graph::new()
            .input("x", F32, &[Named("batch"), Fixed(2)])
            .output("y", F32, &[Named("batch"), Fixed(2)])
            .external_weight("w", &[2], weights)
            .node("Add", &["x", "w"], "y")
            .to_onnx()
    };
    let root = TempFile::new("cache", b"").0.with_extension("d");
    let (blobs, snapshot) = (root.join("blobs"), root.join("snapshots/1"));
    fs::create_dir_all(&blobs).unwrap();
    fs::create_dir_all(&snapshot).unwrap();
    fs::write(blobs.join("11"), graph("model.onnx_data")).unwrap();
    fs::write(blobs.join("22"), [1.0_f32, 2.0].map(f32::to_le_bytes).concat()).unwrap();
    symlink("../../blobs/11", snapshot.join("model.onnx")).unwrap();
    symlink("../../blobs/22", snapshot.join("model.onnx_data")).unwrap();
    let load = |path: &std::path::Path| {
        let mut config = OnnxConfig::new(path);
        config.engine = EngineChoice::Rten;
        Model::from_config(&config)
    };
    let model = load(&snapshot.join("model.onnx")).unwrap();
    assert!(model.bytes() > 8, "{}", model.bytes());
    // A name that leads elsewhere is not opened, and neither is what is no file.
    for (name, weights, reason) in [
        ("up.onnx", "../../blobs/22", "not beside the model"),
        ("absolute.onnx", "/dev/zero", "not beside the model"),
        ("directory.onnx", "model.data", "not a regular file"),
        ("missing.onnx", "none.data", "No such file"),
    ] {
        fs::create_dir_all(snapshot.join("model.data")).unwrap();
        fs::write(snapshot.join(name), graph(weights)).unwrap();
        let line = refusal(load(&snapshot.join(name)));
        assert!(line.contains(reason), "{line}");
    }
    fs::remove_dir_all(root).unwrap();
}
